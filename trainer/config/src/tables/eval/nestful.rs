//! The table `[eval.nestful]`.

use std::path::PathBuf;

use tooltune_suites::nestful::{NestfulReport, ReactReport, built_in_families};

use super::SuiteTable;
use crate::did_you_mean;
use crate::rules::Rules;
use crate::suite::Suite;
use crate::tables::settings::settings;

settings! {
    /// The suite nestful: questions that need a sequence of calls, in which calls use earlier
    /// results.
    pub struct NestfulConfig {
        /// Files in the benchmark's format; required if `suites` contains "nestful".
        #[schemars(extend("x-kind" = "path"))]
        pub data: Vec<PathBuf>,
        /// Model family whose prompt and parser are used: json_list, granite31, llama, hammer,
        /// hermes, xlam or toolace, or a name in the file `prompts`.
        #[schemars(extend("description" = nestful_family("the file `prompts`")))]
        pub family: String = NESTFUL_FAMILY.to_owned(),
        /// Number of examples in the prompt; 0, 1 and 3 in the paper. If the file `prompts` has no
        /// `icl_examples`, the prompt has no examples, and a warning is printed.
        pub n_examples: usize = 3,
        /// Whether to encode the tools as JSON twice (a JSON string that contains JSON), as in the
        /// published scripts.
        pub tools_twice: bool = false,
        /// File of prompts instead of the built-in ones: `{"prompts": {family: template},
        /// "icl_examples": [{"input", "output", "tools"}]}`, or only templates.
        #[schemars(extend("x-kind" = "path"))]
        pub prompts: Option<PathBuf>,
        /// Whether the model writes one call at a time and sees each result (ReAct), instead of
        /// writing all calls at once.
        pub react: bool = false,
        /// Maximum number of completions in the ReAct loop; 10 in the paper.
        #[schemars(range(min = 1))]
        pub max_steps: usize = 10,
        /// The benchmark's folder `data_v2/executable_functions`, which is run in the sandbox.
        /// Without it, only arithmetic rows have win rates.
        #[schemars(extend("x-kind" = "path"))]
        pub exec_dir: Option<PathBuf>,
    }
}

/// Default family of prompt and parser.
const NESTFUL_FAMILY: &str = "json_list";

/// Description of the setting `family`; `prompts` names the file that may define more families.
fn nestful_family(prompts: &str) -> String {
    let known: Vec<&str> = built_in_families().collect();
    format!(
        "Model family whose prompt and parser are used, {NESTFUL_FAMILY} by default: {}, or a name in {prompts}.",
        known.join(", ")
    )
}

impl SuiteTable for NestfulConfig {
    fn data(&self) -> &[PathBuf] {
        &self.data
    }

    fn data_help(&self, _: Suite) -> String {
        "set the benchmark's rows: [eval.nestful] data = [\"nestful_data.jsonl\"]".to_owned()
    }

    /// A ReAct loop has metrics of wins and steps, but not of matches with the reference calls.
    fn metrics(&self) -> Option<&'static [&'static str]> {
        Some(if self.react {
            &ReactReport::NAMES
        } else {
            &NestfulReport::NAMES
        })
    }

    fn check(&self, table: &str, rules: &mut Rules<'_>) {
        let family = self.family.as_str();
        let known: Vec<&str> = built_in_families().collect();
        if self.prompts.is_some() || known.contains(&family) {
            return;
        }
        let help = match did_you_mean::nearest(family, &known) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!(
                "it can be {}, or a name in a file of prompts: {table}.prompts",
                did_you_mean::list(&known)
            ),
        };
        let path = format!("{table}.family");
        rules.report(&path, format!("`{path}` cannot be {family:?}"), help);
    }
}
