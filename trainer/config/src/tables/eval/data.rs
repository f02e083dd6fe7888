//! The table of a suite that needs only its files.

use std::path::PathBuf;

use super::SuiteTable;
use crate::suite::Suite;
use crate::tables::settings::settings;

settings! {
    /// A suite with rows of its own.
    pub struct DataTable {
        /// Files with the rows of the suite; required if `suites` contains the suite.
        #[schemars(extend("x-kind" = "path"))]
        pub data: Vec<PathBuf>,
        /// Maximum tokens of an answer; by default `eval.max_new_tokens`.
        #[schemars(range(min = 1))]
        pub max_new_tokens: Option<usize>,
    }
}

impl SuiteTable for DataTable {
    fn data(&self) -> &[PathBuf] {
        &self.data
    }

    fn data_help(&self, suite: Suite) -> String {
        format!("set the suite's rows: [eval.{suite}] data = [\"FILE\"]")
    }

    fn longest_answer(&self) -> Option<usize> {
        self.max_new_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_files_and_an_optional_limit() {
        let table: DataTable = toml::from_str("data = [\"rows.jsonl\"]").expect("a table");
        assert_eq!(table.data(), [PathBuf::from("rows.jsonl")]);
        assert_eq!(table.longest_answer(), None);
        let table: DataTable = toml::from_str("max_new_tokens = 9").expect("a table");
        assert_eq!((table.data().len(), table.longest_answer()), (0, Some(9)));
        let help = table.data_help(Suite::first());
        assert!(help.contains("[eval.slot] data = "), "{help}");
        let error = toml::from_str::<DataTable>("dta = []").expect_err("a misspelled key");
        assert!(error.to_string().contains("unknown field `dta`"), "{error}");
        let schema = serde_json::to_value(schemars::schema_for!(DataTable)).expect("JSON");
        assert_eq!(schema["properties"]["max_new_tokens"]["minimum"], 1);
    }
}
