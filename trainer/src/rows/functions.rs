//! Compares the functions of evaluation rows with those of training rows.

use std::collections::BTreeSet;

use burn::tensor::Device;
use serde::Serialize;
use serde_json::Value;
use tooltune_apis::TrajectoryReader;
use tooltune_json::faults::Faults;
use tooltune_rows::text::Row;

use super::{ReadingReport, RowFiles, with_rows};
use crate::config::{Config, DataFormat};
use crate::error::Error;

/// A function: its name and the names of its parameters.
type Function = (String, BTreeSet<String>);

/// How many functions of the evaluation rows occur in training rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SharedFunctions {
    /// Number of different functions of the evaluation rows.
    pub n_evaluated: usize,
    /// The number of these that a training row has with the same name and parameters.
    pub n_trained: usize,
    /// The number of these whose name occurs in training rows only with other parameters.
    pub n_same_name: usize,
}

impl SharedFunctions {
    /// Reads the functions of the training rows and compares them with those of `eval_rows`, which
    /// the caller has read: the tools of each row, or the APIs that a trajectory calls.
    /// `None` if there are no evaluation rows, or if they have no functions.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or rows are invalid.
    pub fn read(
        config: &Config,
        eval_rows: &[Row],
        device: &Device,
    ) -> Result<Option<Self>, Error> {
        let (evaluation, training) = (RowFiles::evaluation(config), RowFiles::training(config));
        if evaluation.is_empty() {
            return Ok(None);
        }
        if config.data.format == DataFormat::Goat {
            return Ok(Self::compare(&called(&evaluation)?, &called(&training)?));
        }
        let mut evaluated = BTreeSet::new();
        for row in eval_rows {
            add_functions(row.conversation.tools.as_deref(), &mut evaluated);
        }
        if evaluated.is_empty() {
            return Ok(None);
        }
        let report = &mut ReadingReport::default();
        let trained = with_rows(config, &training, device, report, |rows| {
            let (mut trained, mut faults) = (BTreeSet::new(), Faults::default());
            for row in rows {
                if let Some(row) = faults.take(row) {
                    add_functions(row.conversation.tools.as_deref(), &mut trained);
                }
            }
            faults.into_result()?;
            Ok(trained)
        })?;
        Ok(Self::compare(&evaluated, &trained))
    }

    fn compare(evaluated: &BTreeSet<Function>, trained: &BTreeSet<Function>) -> Option<Self> {
        let names: BTreeSet<&str> = trained.iter().map(|(name, _)| name.as_str()).collect();
        let has_other_parameters =
            |function: &&Function| !trained.contains(*function) && names.contains(&*function.0);
        (!evaluated.is_empty()).then(|| Self {
            n_evaluated: evaluated.len(),
            n_trained: evaluated.intersection(trained).count(),
            n_same_name: evaluated.iter().filter(has_other_parameters).count(),
        })
    }

    /// One line for the terminal.
    pub fn line(&self) -> String {
        let Self {
            n_evaluated,
            n_trained,
            n_same_name,
        } = self;
        let percent = 100.0 * *n_trained as f64 / *n_evaluated as f64;
        let same_name = match n_same_name {
            0 => String::new(),
            n => format!("; {n} more only share a name"),
        };
        format!(
            "functions: {n_trained} of the {n_evaluated} in evaluation rows ({percent:.1} %) also \
             occur in training rows, with the same parameters{same_name}"
        )
    }
}

/// The APIs that trajectories call. All rows share their documents, so a name determines the
/// parameters.
fn called(files: &RowFiles) -> Result<BTreeSet<Function>, Error> {
    let mut functions = BTreeSet::new();
    for records in files.open()? {
        // Invalid rows are reported when all rows are read.
        for row in TrajectoryReader::new(records).filter_map(Result::ok) {
            let calls = row.calls.into_iter();
            functions.extend(calls.map(|call| (call.name, BTreeSet::new())));
        }
    }
    Ok(functions)
}

fn add_functions(tools: Option<&[Value]>, functions: &mut BTreeSet<Function>) {
    for tool in tools.unwrap_or_default() {
        let function = tool.get("function").unwrap_or(tool);
        let Some(name) = function.get("name").and_then(Value::as_str) else {
            continue;
        };
        let parameters = function.get("parameters");
        let properties = parameters.and_then(|parameters| parameters.get("properties"));
        let fields = properties.or(parameters).and_then(Value::as_object);
        let names = fields.into_iter().flat_map(|fields| fields.keys().cloned());
        functions.insert((name.to_owned(), names.collect()));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn functions(tools: &Value) -> BTreeSet<Function> {
        let mut functions = BTreeSet::new();
        add_functions(tools.as_array().map(Vec::as_slice), &mut functions);
        functions
    }

    #[test]
    fn functions_are_equal_by_name_and_parameters() {
        let tool = |name: &str, parameters: &[&str]| {
            let fields = parameters
                .iter()
                .map(|key| ((*key).to_owned(), json!({"type": "string"})));
            let properties: serde_json::Map<String, Value> = fields.collect();
            json!({"type": "function", "function": {"name": name,
                   "parameters": {"type": "object", "properties": properties}}})
        };
        let trained = json!([tool("tide", &["port", "day"]), tool("berth", &["ship"])]);
        let evaluated = json!([
            tool("tide", &["day", "port"]),
            tool("tide", &["port", "day"]),
            tool("berth", &["ship", "nights"]),
            tool("pilot", &[]),
            {"name": "bare", "parameters": {"x": {"type": "int"}}},
        ]);
        let shared = SharedFunctions::compare(&functions(&evaluated), &functions(&trained));
        let shared = shared.expect("functions");
        assert_eq!(
            shared.line(),
            "functions: 1 of the 4 in evaluation rows (25.0 %) also occur in training rows, with \
             the same parameters; 1 more only share a name"
        );
        assert_eq!(
            SharedFunctions::compare(&functions(&json!([])), &functions(&trained)),
            None
        );
    }
}
