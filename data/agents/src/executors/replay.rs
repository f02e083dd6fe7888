//! Returns recorded results, such as the results of API-Bank's 430 calls.
//!
//! Arguments are first cast to the declared types as in API-Bank, and then looked up by their
//! canonical form. The error of an unrecorded call lists the names of APIs and parameters, but
//! never recorded values, because these are the benchmark's answers.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value, json};
use tooltune_apis::{
    ApiBankSet, ApiCatalogue, ApiDocument, ApiParameter, Fields, JsonLines, ToolsError,
};

use super::arguments::canonical_with_nulls;
use super::known::KnownApis;
use super::{CallResult, Executor};

/// Returns the results of recorded calls.
#[derive(Debug, Clone)]
pub struct ReplayExecutor {
    apis: KnownApis,
    /// Results by name and canonical arguments.
    recorded: HashMap<String, HashMap<String, CallResult>>,
}

impl ReplayExecutor {
    /// Reads a recording: JSON Lines of `{"set", "api_name", "input", "output", "exception"}`. Only
    /// rows of `set` are used.
    ///
    /// If two recorded calls are equivalent, the first one is used, as in the original run.
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
            let (location, row) = line?;
            executor
                .record(&row, set)
                .map_err(|error| error.at(location))?;
        }
        if executor.recorded.is_empty() {
            let kind = "recorded calls of the set";
            return Err(ToolsError::Empty { what: kind }.at(path.display().to_string()));
        }
        Ok(executor)
    }

    fn record(&mut self, row: &Value, set: ApiBankSet) -> Result<(), ToolsError> {
        let row = RecordedCall::read(row)?;
        if !set.includes(&row.set) {
            return Ok(());
        }
        let (name, key) = row.resolve_parameters(&self.apis)?;
        let calls = self.recorded.entry(name).or_default();
        calls.entry(key).or_insert(row.result);
        Ok(())
    }

    /// Number of distinct recorded calls.
    pub fn n_calls(&self) -> usize {
        self.recorded.values().map(HashMap::len).sum()
    }

    fn answer(&self, name: &str, arguments: &Map<String, Value>) -> Result<CallResult, String> {
        let unknown = || self.apis.unknown_message(name);
        let (document, arguments) = self.apis.resolve(name, arguments).ok_or_else(unknown)?;
        let recorded = self.recorded.get(&document.call_name());
        let result = recorded.and_then(|calls| calls.get(&call_key(document, &arguments)));
        result
            .cloned()
            .ok_or_else(|| unrecorded_message(document, &arguments))
    }
}

impl Executor for ReplayExecutor {
    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        self.answer(name, arguments)
            .unwrap_or_else(CallResult::failure)
    }
}

/// Key of a call; equivalent calls of an API have the same key. Arguments are cast to the declared
/// types.
pub(super) fn call_key(document: &ApiDocument, arguments: &Map<String, Value>) -> String {
    let cast = arguments.iter().map(|(name, value)| {
        let parameter = document.parameter(name);
        let cast = parameter.and_then(|parameter| cast(parameter, value));
        (name.clone(), cast.unwrap_or_else(|| value.clone()))
    });
    let takes_null = |name: &str| {
        let parameter = document.parameter(name);
        parameter.is_some_and(ApiParameter::accepts_null)
    };
    canonical_with_nulls(&cast.collect(), &takes_null)
}

/// Casts a string to the declared type as Python does; `None` if it cannot be parsed.
///
/// A list is kept as a string, as in API-Bank.
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

/// The error of an unrecorded call, with the reason if the document shows it.
pub fn unrecorded_message(document: &ApiDocument, arguments: &Map<String, Value>) -> String {
    let call = document.call_name();
    let parameter_list = describe_parameters(document);
    for (name, value) in arguments {
        let Some(parameter) = document.parameter(name) else {
            return format!("{call} has no parameter {name:?}; {parameter_list}");
        };
        if cast(parameter, value).is_none() {
            return format!("argument {name:?} must be {}, got {value}", parameter.kind);
        }
    }
    match missing_argument(document, arguments) {
        Some(name) => format!("{call} needs {name:?}; {parameter_list}"),
        None => format!("{call} gives nothing for these arguments; {parameter_list}"),
    }
}

/// The first required parameter without an argument. A null is an argument if the parameter allows
/// null.
pub fn missing_argument<'a>(
    document: &'a ApiDocument,
    arguments: &Map<String, Value>,
) -> Option<&'a str> {
    let has_argument = |parameter: &&ApiParameter| {
        let value = arguments.get(&parameter.name);
        value.is_some_and(|value| !value.is_null() || parameter.accepts_null())
    };
    let mut parameters = document.required_parameters.iter();
    let missing = parameters.find(|parameter| !has_argument(parameter));
    missing.map(|parameter| parameter.name.as_str())
}

/// Describes the parameters, such as `it takes user_name (str), time (str)`.
pub fn describe_parameters(document: &ApiDocument) -> String {
    let describe = |parameter: &ApiParameter| match parameter.kind.as_str() {
        "" => parameter.name.clone(),
        kind => format!("{} ({kind})", parameter.name),
    };
    let descriptions: Vec<String> = document.parameters().map(describe).collect();
    if descriptions.is_empty() {
        return "it takes no arguments".to_owned();
    }
    format!("it takes {}", descriptions.join(", "))
}

/// A row of a recording.
pub(super) struct RecordedCall {
    set: String,
    name: String,
    arguments: Map<String, Value>,
    result: CallResult,
}

impl RecordedCall {
    /// The call name of the row's API, and the key of its arguments.
    pub(super) fn resolve_parameters(
        &self,
        apis: &KnownApis,
    ) -> Result<(String, String), ToolsError> {
        // Names that occur in both sets have the set as a prefix in the documents of all levels.
        let qualified_name = format!("{}/{}", self.set, self.name);
        let names = [&self.name, &qualified_name];
        let mut documents = names
            .into_iter()
            .filter_map(|name| apis.resolve(name, &self.arguments));
        let unknown = || apis.catalogue().unknown_api("api_name", &self.name);
        let (document, arguments) = documents.next().ok_or_else(unknown)?;
        Ok((document.call_name(), call_key(document, &arguments)))
    }

    /// A row in the format of [`RecordedCall::read`].
    pub(super) fn recording_line(
        name: &str,
        input: &Map<String, Value>,
        result: &CallResult,
    ) -> Value {
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
            result: CallResult::new(
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
    fn a_recorded_call_is_found_by_the_meaning_of_its_arguments() {
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
        assert_eq!(failed.shown_value(), json!({"error": "it is raining"}));
    }

    #[test]
    fn a_number_matches_a_recorded_string_of_it() {
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
            let result = executor.call("Room", &arguments);
            assert_eq!(result, CallResult::success(json!(1)), "{arguments:?}");
        }
    }

    #[test]
    fn null_is_a_distinct_argument_only_if_the_parameter_accepts_it() {
        let document = json!({"api_name": "Note", "required_parameters": [
            {"name": "text", "type": "string", "in": "body", "schema": {"type": ["string", "null"]}}],
            "optional_parameters": [{"name": "page", "type": "integer", "in": "query",
                "schema": {"type": ["integer", "null"]}}]});
        let document = ApiDocument::try_from(document).expect("a document");
        let key = |arguments: Value| call_key(&document, arguments.as_object().expect("an object"));
        let null = json!({"text": null});
        assert_ne!(key(null.clone()), key(json!({})));
        assert_eq!(key(null.clone()), key(json!({"text": null, "page": null})));
        let missing = |arguments: &Value| {
            missing_argument(&document, arguments.as_object().expect("an object"))
        };
        assert_eq!(missing(&null), None);
        assert_eq!(missing(&json!({"page": 1})), Some("text"));
    }

    #[test]
    fn a_name_in_both_sets_is_replayed_from_its_own_set() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("replay.jsonl");
        let row = |set: &str, output: i64| json!({"set": set, "api_name": "Add", "input": {}, "output": output, "exception": null});
        fs::write(&path, format!("{}\n{}\n", row("lv1_lv2", 1), row("lv3", 3))).expect("written");
        let documents = ["lv1_lv2", "lv3"].map(|set| ApiDocument::new(set, "Add"));
        let catalogue = ApiCatalogue::new(documents.to_vec()).expect("two names");
        let mut executor = ReplayExecutor::read(&path, ApiBankSet::All, catalogue).expect("reads");
        for (name, output) in [("lv1_lv2/Add", 1), ("lv3/Add", 3)] {
            let result = executor.call(name, &Map::new());
            assert_eq!(result, CallResult::success(json!(output)), "{name}");
        }
    }

    #[test]
    fn an_unrecorded_call_fails_with_parameter_names_but_no_recorded_values() {
        let valid_arguments = json!({"latitude": 1, "days": 2, "names": []});
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
                valid_arguments,
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
    fn an_invalid_recording_is_refused() {
        let message = read(RECORDING, ApiBankSet::All)
            .expect_err("Other")
            .to_string();
        assert!(
            message.contains("replay.jsonl:4: api_name: no API is called \"Other\""),
            "{message}"
        );
        let message = read("\n", ApiBankSet::All).expect_err("empty").to_string();
        assert!(
            message.contains("has no recorded calls of the set"),
            "{message}"
        );
        let failed_call = "{\"api_name\": \"Fail\", \"input\": [], \"output\": 1}";
        let message = read(failed_call, ApiBankSet::All)
            .expect_err("a list")
            .to_string();
        assert!(
            message.contains("replay.jsonl:1: input is a list"),
            "{message}"
        );
    }
}
