//! Calls answered from a recording, such as API-Bank's 430 calls.
//!
//! A model's arguments are first cast to the declared types as API-Bank casts them, then looked
//! up by what they mean. The decision to question: the error of a call that was not recorded
//! names APIs and parameters, never recorded values, for these are the benchmark's answers.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value, json};
use tooltune_rows::tools::{
    ApiBankSet, ApiCatalogue, ApiDocument, ApiParameter, Fields, JsonLines, ToolsError,
};

use super::arguments::canonical;
use super::known::KnownApis;
use super::{CallResult, Executor};

/// Answers calls that were recorded.
#[derive(Debug, Clone)]
pub struct ReplayExecutor {
    apis: KnownApis,
    /// Results by name and canonical arguments.
    recorded: HashMap<String, HashMap<String, CallResult>>,
}

impl ReplayExecutor {
    /// Reads a recording: JSON Lines of `{"set", "api_name", "input", "output", "exception"}`,
    /// of which the rows of `set` count.
    ///
    /// Of two recorded calls with the same meaning the first counts, as the first call of a run.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or has no call of the set
    /// - a line is not such a row, or names an API that is not in `catalogue`
    pub fn read(path: &Path, set: ApiBankSet, catalogue: ApiCatalogue) -> Result<Self, ToolsError> {
        let mut executor = Self {
            apis: KnownApis::new(catalogue),
            recorded: HashMap::new(),
        };
        for line in JsonLines::open(path)? {
            let (place, row) = line?;
            executor
                .record(&row, set)
                .map_err(|error| error.at(place))?;
        }
        if executor.recorded.is_empty() {
            let what = "recorded calls of the set";
            return Err(ToolsError::Empty { what }.at(path.display().to_string()));
        }
        Ok(executor)
    }

    fn record(&mut self, row: &Value, set: ApiBankSet) -> Result<(), ToolsError> {
        let row = RecordedCall::read(row)?;
        if !set.holds(&row.set) {
            return Ok(());
        }
        let (name, key) = row.place(&self.apis)?;
        let calls = self.recorded.entry(name).or_default();
        calls.entry(key).or_insert(row.result);
        Ok(())
    }

    /// How many different calls are recorded.
    pub fn n_calls(&self) -> usize {
        self.recorded.values().map(HashMap::len).sum()
    }

    fn answer(&self, name: &str, arguments: &Map<String, Value>) -> Result<CallResult, String> {
        let unknown = || self.apis.unknown(name);
        let (document, arguments) = self.apis.called(name, arguments).ok_or_else(unknown)?;
        let recorded = self.recorded.get(&document.call_name());
        let found = recorded.and_then(|calls| calls.get(&call_key(document, &arguments)));
        found
            .cloned()
            .ok_or_else(|| unrecorded(document, &arguments))
    }
}

impl Executor for ReplayExecutor {
    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        self.answer(name, arguments)
            .unwrap_or_else(CallResult::failure)
    }
}

/// What is the same for calls of one API that mean the same: arguments as the types that the
/// document declares.
pub(super) fn call_key(document: &ApiDocument, arguments: &Map<String, Value>) -> String {
    let cast = arguments.iter().map(|(name, value)| {
        let parameter = document.parameter(name);
        let cast = parameter.and_then(|parameter| cast(parameter, value));
        (name.clone(), cast.unwrap_or_else(|| value.clone()))
    });
    canonical(&cast.collect())
}

/// A text as the declared type, as Python reads it; nothing where it cannot be read so.
///
/// Lists stay texts, as in API-Bank.
fn cast(parameter: &ApiParameter, value: &Value) -> Option<Value> {
    let Value::String(text) = value else {
        return Some(value.clone());
    };
    let text = text.trim();
    match parameter.schema_type() {
        "integer" => text.parse::<i64>().ok().map(Value::from),
        "number" => {
            let number = text.parse::<f64>().ok();
            number.filter(|number| number.is_finite()).map(Value::from)
        }
        "boolean" => match text {
            "true" | "True" => Some(Value::Bool(true)),
            "false" | "False" => Some(Value::Bool(false)),
            _ => None,
        },
        _ => Some(value.clone()),
    }
}

/// What is wrong with a call that was not recorded, as far as the document tells.
pub fn unrecorded(document: &ApiDocument, arguments: &Map<String, Value>) -> String {
    let call = document.call_name();
    let takes = parameters_taken(document);
    for (name, value) in arguments {
        let Some(parameter) = document.parameter(name) else {
            return format!("{call} has no parameter {name:?}; {takes}");
        };
        if cast(parameter, value).is_none() {
            return format!("argument {name:?} must be {}, got {value}", parameter.kind);
        }
    }
    match missing_argument(document, arguments) {
        Some(name) => format!("{call} needs {name:?}; {takes}"),
        None => format!("{call} gives nothing for these arguments; {takes}"),
    }
}

/// The first required parameter that has no argument.
pub fn missing_argument<'a>(
    document: &'a ApiDocument,
    arguments: &Map<String, Value>,
) -> Option<&'a str> {
    let is_given = |name: &str| arguments.get(name).is_some_and(|value| !value.is_null());
    let names = document
        .required_parameters
        .iter()
        .map(|parameter| parameter.name.as_str());
    names.into_iter().find(|name| !is_given(name))
}

/// `it takes user_name (str), time (str)`.
pub fn parameters_taken(document: &ApiDocument) -> String {
    let one = |parameter: &ApiParameter| match parameter.kind.as_str() {
        "" => parameter.name.clone(),
        kind => format!("{} ({kind})", parameter.name),
    };
    let all: Vec<String> = document.parameters().map(one).collect();
    if all.is_empty() {
        return "it takes no arguments".to_owned();
    }
    format!("it takes {}", all.join(", "))
}

/// One row of a recording.
pub(super) struct RecordedCall {
    set: String,
    name: String,
    arguments: Map<String, Value>,
    result: CallResult,
}

impl RecordedCall {
    /// The call name of the row's API, and the key of its arguments.
    pub(super) fn place(&self, apis: &KnownApis) -> Result<(String, String), ToolsError> {
        // Documents of all levels name the set where a name stands in both.
        let of_set = format!("{}/{}", self.set, self.name);
        let names = [&self.name, &of_set];
        let mut found = names
            .into_iter()
            .filter_map(|name| apis.called(name, &self.arguments));
        let unknown = || apis.catalogue().unknown_api("api_name", &self.name);
        let (document, arguments) = found.next().ok_or_else(unknown)?;
        Ok((document.call_name(), call_key(document, &arguments)))
    }

    /// A row as [`RecordedCall::read`] reads it.
    pub(super) fn line(name: &str, input: &Map<String, Value>, result: &CallResult) -> Value {
        json!({
            "api_name": name,
            "input": input,
            "output": result.output,
            "exception": result.exception,
        })
    }

    pub(super) fn read(row: &Value) -> Result<Self, ToolsError> {
        let fields = Fields::new(row, "", "a recorded call needs api_name, input and output")?;
        let input = fields.object("input")?;
        let output = fields
            .raw("output")
            .ok_or_else(|| fields.missing("output"))?;
        Ok(Self {
            set: fields.optional_text("set")?.unwrap_or("").to_owned(),
            name: fields.text("api_name")?.trim().to_owned(),
            arguments: input.ok_or_else(|| fields.missing("input"))?.clone(),
            result: CallResult::of(
                output.clone(),
                fields.optional_text("exception")?.map(str::to_owned),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const RECORDING: &str = r#"{"set": "lv3", "api_name": "Weather", "input": {"latitude": 51.5, "days": 2, "names": "['a', 'b']"}, "output": {"t": 5}, "exception": null}
{"set": "lv3", "api_name": "Weather", "input": {"latitude": "51.50", "days": 2, "names": ["a", "b"]}, "output": {"t": 6}, "exception": null}
{"set": "lv3", "api_name": "Fail", "input": {"on": true}, "output": null, "exception": "it is raining"}
{"set": "lv1_lv2", "api_name": "Other", "input": {}, "output": 1, "exception": null}
"#;

    fn catalogue() -> ApiCatalogue {
        let api = |name: &str, parameters: Value| json!({"api_name": name, "required_parameters": parameters});
        let documents = [
            api(
                "Weather",
                json!([
                    {"name": "latitude", "type": "float"}, {"name": "days", "type": "int"},
                    {"name": "names", "type": "list(str)"},
                ]),
            ),
            api("Fail", json!([{"name": "on", "type": "bool"}])),
        ];
        let documents = documents.map(|value| ApiDocument::try_from(value).expect("a document"));
        ApiCatalogue::new(documents.to_vec()).expect("two names")
    }

    fn read(text: &str, set: ApiBankSet) -> Result<ReplayExecutor, ToolsError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("replay.jsonl");
        fs::write(&path, text).expect("written");
        ReplayExecutor::read(&path, set, catalogue())
    }

    fn call(name: &str, arguments: Value) -> CallResult {
        let mut executor = read(RECORDING, ApiBankSet::Level3).expect("reads");
        executor.call(name, arguments.as_object().expect("an object"))
    }

    #[test]
    fn a_recorded_call_is_known_by_what_its_arguments_mean() {
        assert_eq!(
            read(RECORDING, ApiBankSet::Level3)
                .expect("reads")
                .n_calls(),
            2
        );
        for arguments in [
            json!({"latitude": 51.5, "days": 2, "names": ["a", "b"]}),
            json!({"names": "[\"a\", \"b\"]", "days": " 2 ", "latitude": "51.500"}),
        ] {
            assert_eq!(
                call("Weather", arguments),
                CallResult::success(json!({"t": 5}))
            );
        }
        let failed = call(" Fail ", json!({"on": "True"}));
        assert_eq!(failed.shown(), json!({"error": "it is raining"}));
    }

    #[test]
    fn a_number_is_answered_where_a_text_of_it_was_recorded() {
        let parameters = json!([{"name": "room", "type": "STRING"}]);
        let document = json!({"api_name": "Room", "required_parameters": parameters});
        let document = ApiDocument::try_from(document).expect("a document");
        let catalogue = ApiCatalogue::new(vec![document]).expect("one name");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("replay.jsonl");
        let row = json!({"set": "lv3", "api_name": "Room", "input": {"room": "12"}, "output": 1});
        fs::write(&path, row.to_string()).expect("written");
        let mut executor =
            ReplayExecutor::read(&path, ApiBankSet::Level3, catalogue).expect("reads");
        for room in [json!("12"), json!(12)] {
            let arguments = Map::from_iter([("room".to_owned(), room)]);
            let answered = executor.call("Room", &arguments);
            assert_eq!(answered, CallResult::success(json!(1)), "{arguments:?}");
        }
    }

    #[test]
    fn a_name_of_both_sets_is_answered_by_the_recording_of_its_set() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("replay.jsonl");
        let row = |set: &str, output: i64| json!({"set": set, "api_name": "Add", "input": {}, "output": output, "exception": null});
        fs::write(&path, format!("{}\n{}\n", row("lv1_lv2", 1), row("lv3", 3))).expect("written");
        let documents = ["lv1_lv2", "lv3"].map(|set| ApiDocument::new(set, "Add"));
        let catalogue = ApiCatalogue::new(documents.to_vec()).expect("two names");
        let mut executor = ReplayExecutor::read(&path, ApiBankSet::All, catalogue).expect("reads");
        for (name, output) in [("lv1_lv2/Add", 1), ("lv3/Add", 3)] {
            let answered = executor.call(name, &Map::new());
            assert_eq!(answered, CallResult::success(json!(output)), "{name}");
        }
    }

    #[test]
    fn the_error_of_an_unknown_call_names_parameters_but_no_recorded_value() {
        let sound = json!({"latitude": 1, "days": 2, "names": []});
        let cases = [
            (
                "Wether",
                json!({}),
                "unknown API \"Wether\", did you mean \"Weather\"?",
            ),
            (
                "Weather",
                json!({"city": "x"}),
                "Weather has no parameter \"city\"",
            ),
            ("Weather", json!({"days": 2}), "Weather needs \"latitude\""),
            (
                "Weather",
                json!({"days": "2.5"}),
                "argument \"days\" must be int, got \"2.5\"",
            ),
            (
                "Weather",
                sound,
                "Weather gives nothing for these arguments; it takes latitude (float)",
            ),
        ];
        for (name, arguments, expected) in cases {
            let message = call(name, arguments).exception.expect(expected);
            assert!(message.contains(expected), "{message}");
            assert!(!message.contains("51.5"), "{message}");
        }
    }

    #[test]
    fn a_recording_that_does_not_fit_is_refused() {
        let message = read(RECORDING, ApiBankSet::All)
            .expect_err("Other")
            .to_string();
        assert!(
            message.contains("replay.jsonl:4: api_name: no API is called \"Other\""),
            "{message}"
        );
        let message = read("\n", ApiBankSet::All).expect_err("empty").to_string();
        assert!(
            message.contains("holds no recorded calls of the set"),
            "{message}"
        );
        let broken = "{\"api_name\": \"Fail\", \"input\": [], \"output\": 1}";
        let message = read(broken, ApiBankSet::All)
            .expect_err("a list")
            .to_string();
        assert!(
            message.contains("replay.jsonl:1: input is a list"),
            "{message}"
        );
    }
}
