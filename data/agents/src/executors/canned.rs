//! Returns one fixed response per endpoint of a specification, or per API that is not an endpoint,
//! regardless of the arguments.
//!
//! This runs RestBench without a network: TMDB's specification has an example response for each
//! operation. A call succeeds if it names an endpoint and has the required arguments. Argument
//! values are not checked.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value};
use tooltune_apis::{ApiCatalogue, Fields, JsonLines, ToolsError};

use super::known::KnownApis;
use super::replay::{describe_parameters, missing_argument};
use super::{CallResult, Executor};

/// Returns the example response of each endpoint.
#[derive(Debug, Clone)]
pub struct CannedExecutor {
    apis: KnownApis,
    responses: HashMap<String, Value>,
}

impl CannedExecutor {
    /// Reads the responses: JSON Lines of `{"api", "response"}`, where `api` is an endpoint in
    /// `catalogue` or the name of an API that is not an endpoint.
    ///
    /// # Errors
    ///
    /// - the file cannot be read or is empty
    /// - a line is not such a row, or names an endpoint that is not in `catalogue` or already has a
    ///   response
    pub fn read(path: &Path, catalogue: ApiCatalogue) -> Result<Self, ToolsError> {
        let mut executor = Self {
            apis: KnownApis::new(catalogue),
            responses: HashMap::new(),
        };
        for line in JsonLines::open(path)? {
            let (location, row) = line?;
            executor.add(&row).map_err(|error| error.at(location))?;
        }
        if executor.responses.is_empty() {
            let kind = "responses";
            return Err(ToolsError::Empty { what: kind }.at(path.display().to_string()));
        }
        Ok(executor)
    }

    fn add(&mut self, row: &Value) -> Result<(), ToolsError> {
        let fields = Fields::new(row, "", "a canned answer needs api and response")?;
        let api_name = fields.text("api")?;
        let response = fields
            .raw("response")
            .ok_or_else(|| fields.missing("response"))?;
        let Some((document, _)) = self.apis.resolve(api_name, &Map::new()) else {
            return Err(self.apis.catalogue().unknown_api("api", api_name));
        };
        let name = document.call_name();
        if self.responses.contains_key(&name) {
            return Err(ToolsError::DuplicateAnswer { name });
        }
        self.responses.insert(name, response.clone());
        Ok(())
    }

    fn answer(&self, api_name: &str, arguments: &Map<String, Value>) -> Result<Value, String> {
        let unknown = || self.apis.unknown_message(api_name);
        let (document, arguments) = self.apis.resolve(api_name, arguments).ok_or_else(unknown)?;
        let name = document.call_name();
        if let Some(parameter) = missing_argument(document, &arguments) {
            return Err(format!(
                "{name} needs {parameter:?}; {}",
                describe_parameters(document)
            ));
        }
        let response = self.responses.get(&name);
        response
            .cloned()
            .ok_or_else(|| format!("{name} has no recorded response"))
    }
}

impl Executor for CannedExecutor {
    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        match self.answer(name, arguments) {
            Ok(response) => CallResult::success(response),
            Err(message) => CallResult::failure(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use tooltune_apis::ApiDocument;

    use super::*;

    fn catalogue() -> ApiCatalogue {
        let api = |name: &str, parameters: Value| {
            let value = json!({"api_name": name, "required_parameters": parameters});
            ApiDocument::try_from(value).expect("a document")
        };
        let id = json!([{"name": "id", "type": "integer"}]);
        ApiCatalogue::new(vec![
            api("GET /film/{id}", id),
            api("GET /film/popular", json!([])),
            api("GET /search", json!([{"name": "query", "type": "string"}])),
            api("GET /silent", json!([])),
        ])
        .expect("four names")
    }

    fn read(text: &str) -> Result<CannedExecutor, ToolsError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("answers.jsonl");
        fs::write(&path, text).expect("written");
        CannedExecutor::read(&path, catalogue())
    }

    fn call(name: &str, arguments: Value) -> CallResult {
        let text = r#"{"api": "GET /film/{film_id}", "response": {"title": "A"}}
{"api": "GET /film/popular", "response": [1]}
{"api": "GET /search", "response": null}
"#;
        let mut executor = read(text).expect("reads");
        executor.call(name, arguments.as_object().expect("an object"))
    }

    #[test]
    fn a_canned_endpoint_is_found_in_any_spelling() {
        let film = CallResult::success(json!({"title": "A"}));
        assert_eq!(call("GET /film/{id}", json!({"id": 597})), film);
        assert_eq!(call("GET /film/597", json!({})), film);
        assert_eq!(call("get https://host/3/film/597?x=1", json!({})), film);
        assert_eq!(call("GET /film/popular", json!({})).output, json!([1]));
        assert_eq!(
            call("GET /search?query=a", json!({})),
            CallResult::success(Value::Null)
        );
    }

    #[test]
    fn an_incomplete_call_fails_with_the_reason() {
        for (name, arguments, expected) in [
            (
                "GET /film/{id}",
                json!({}),
                "GET /film/{id} needs \"id\"; it takes id (integer)",
            ),
            (
                "GET /search",
                json!({"query": null}),
                "GET /search needs \"query\"",
            ),
            (
                "GET /films",
                json!({}),
                "unknown API \"GET /films\", did you mean \"GET /film/{id}\"?",
            ),
            (
                "GET /silent",
                json!({}),
                "GET /silent has no recorded response",
            ),
        ] {
            let message = call(name, arguments).exception.expect(expected);
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn invalid_canned_answers_are_refused() {
        for (text, expected) in [
            ("", "answers.jsonl: the file has no responses"),
            (
                "{\"api\": \"GET /x\", \"response\": 1}",
                "answers.jsonl:1: api: no API is called",
            ),
            (
                "{\"api\": \"GET /search\"}",
                "field \"response\" is missing",
            ),
            (
                "{\"api\": \"GET /film/1\", \"response\": 1}\n{\"api\": \"GET /film/{x}\", \"response\": 1}",
                "answers.jsonl:2: \"GET /film/{id}\" already has an answer",
            ),
        ] {
            let message = read(text).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
