//! References of benchmarks: a query and the calls that lead to its answer.
//!
//! Reference files contain errors, which are corrected only if the meaning is certain: white space
//! around names and queries is removed, and endpoints with wrong placeholder names get the name in
//! the specification. An API without a document is kept, because a metric must score it as missed;
//! [`GoldPath::unknown_calls`] lists such calls.

use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use super::catalogue::ApiCatalogue;
use super::endpoint::EndpointTemplates;
use super::error::ToolsError;
use super::fields::{Fields, wrong_type};
use super::source::read_json;
use super::views::collapse_white_space;

/// A query with its reference calls.
#[derive(Debug, Clone, PartialEq)]
pub struct GoldPath {
    /// File name and index of the row, such as `tmdb[12]`, or the source's own id.
    pub id: String,
    /// The query of the user.
    pub query: String,
    /// Reference calls in order; never empty.
    pub calls: Vec<GoldCall>,
    /// Reference final answer; empty if the source has none.
    pub response: String,
}

/// One reference call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GoldCall {
    /// Call name of the API.
    pub name: String,
    /// Arguments, if the source has them.
    pub arguments: Option<Map<String, Value>>,
    /// Output of the API; null if the source has none.
    pub output: Value,
    /// Error of the call, if any.
    pub exception: Option<String>,
    /// Whether a call is correct only with these arguments, regardless of its result.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub check_input: bool,
}

impl GoldPath {
    /// Names of the calls that are not in `catalogue`, in order.
    pub fn unknown_calls(&self, catalogue: &ApiCatalogue) -> Vec<&str> {
        let names = self.calls.iter().map(|call| call.name.as_str());
        names.filter(|name| catalogue.get(name).is_none()).collect()
    }
}

impl GoldCall {
    fn from_name(name: String) -> Self {
        Self {
            name,
            arguments: None,
            output: Value::Null,
            exception: None,
            check_input: false,
        }
    }
}

/// Reads RestBench's queries: a JSON array of `{"query", "solution": [endpoint, ...]}`.
///
/// Endpoints get their names from `catalogue`; an endpoint that matches none keeps its own name
/// without extra white space.
///
/// # Errors
///
/// - the file cannot be read, is not such an array, or is empty
/// - a query is empty or has no calls
pub fn import_restbench(
    path: &Path,
    catalogue: &ApiCatalogue,
) -> Result<Vec<GoldPath>, ToolsError> {
    let names: Vec<String> = catalogue
        .iter()
        .map(|document| document.call_name())
        .collect();
    let templates = EndpointTemplates::new(names.iter().map(String::as_str));
    let call = |name: String| {
        let template = templates.resolve(&name).map(|found| found.name);
        GoldCall::from_name(template.unwrap_or_else(|| collapse_white_space(&name)))
    };
    each_row(path, |row, id| {
        let fields = Fields::new(row, id, "a RestBench query needs query and solution")?;
        let calls = fields.texts("solution")?.into_iter().map(call).collect();
        gold_path(&fields, "query", calls)
    })
}

/// Reads API-Bank's samples of level 3: a JSON array of `{"requirement", "response", "apis":
/// [{"api_name", "input", "output": {"output", "exception"}, "check_input"?}]}`.
///
/// Calls of `ToolSearcher` are kept; metrics ignore them. Arguments come from `input`, where some
/// numbers are strings.
///
/// # Errors
///
/// - the file cannot be read, is not such an array, or is empty
/// - a requirement is empty or has no calls
pub fn import_apibank_level3(path: &Path) -> Result<Vec<GoldPath>, ToolsError> {
    each_row(path, |row, id| {
        let fields = Fields::new(row, id, "a sample needs requirement, response and apis")?;
        let call = |(i, call)| apibank_call(call, &format!("{}[{i}]", fields.path("apis")));
        let calls = fields.list("apis")?.iter().enumerate().map(call);
        let mut path = gold_path(&fields, "requirement", calls.collect::<Result<_, _>>()?)?;
        path.response = fields.text("response")?.trim().to_owned();
        Ok(path)
    })
}

fn apibank_call(value: &Value, path: &str) -> Result<GoldCall, ToolsError> {
    let fields = Fields::new(value, path, "a call needs api_name, input and output")?;
    let arguments = fields
        .object("input")?
        .ok_or_else(|| fields.missing("input"))?;
    let Some(answer) = fields.get("output") else {
        return Err(fields.missing("output"));
    };
    let path = fields.path("output");
    let answer = Fields::new(answer, &path, "an answer needs output and exception")?;
    Ok(GoldCall {
        name: fields.text("api_name")?.trim().to_owned(),
        arguments: Some(arguments.clone()),
        output: answer.raw("output").cloned().unwrap_or(Value::Null),
        exception: answer.optional_text("exception")?.map(str::to_owned),
        check_input: fields.flag("check_input")?,
    })
}

/// Reads a JSON array; returns each element with its id.
fn each_row(
    path: &Path,
    mut read_item: impl FnMut(&Value, &str) -> Result<GoldPath, ToolsError>,
) -> Result<Vec<GoldPath>, ToolsError> {
    let file = path.display().to_string();
    let value = read_json(path)?;
    let Value::Array(rows) = &value else {
        return Err(wrong_type("the file", &value, "a list").at(file));
    };
    if rows.is_empty() {
        return Err(ToolsError::Empty { what: "queries" }.at(file));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.split('.').next().unwrap_or("");
    let row = |(i, row)| read_item(row, &format!("{stem}[{i}]")).map_err(|error| error.at(&file));
    rows.iter().enumerate().map(row).collect()
}

fn gold_path(
    fields: &Fields<'_>,
    query: &str,
    calls: Vec<GoldCall>,
) -> Result<GoldPath, ToolsError> {
    let text = fields.text(query)?.trim();
    let empty = |name: &str, needed| ToolsError::EmptyField {
        field: fields.path(name),
        needed,
    };
    if text.is_empty() {
        return Err(empty(query, "write the user's query"));
    }
    if calls.is_empty() {
        return Err(empty(
            "calls",
            "add the reference calls, which scoring needs",
        ));
    }
    Ok(GoldPath {
        id: fields.object_path().to_owned(),
        query: text.to_owned(),
        calls,
        response: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;
    use crate::ApiDocument;

    fn write(value: &Value) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("films.json");
        fs::write(&path, value.to_string()).expect("written");
        (folder, path)
    }

    fn catalogue() -> ApiCatalogue {
        let names = ["GET /search/film", "GET /person/{person_id}/films"];
        ApiCatalogue::new(names.map(|name| ApiDocument::new("", name)).to_vec()).expect("two names")
    }

    fn names(path: &GoldPath) -> Vec<&str> {
        path.calls.iter().map(|call| call.name.as_str()).collect()
    }

    #[test]
    fn endpoints_get_the_names_of_the_specification() {
        let (_folder, path) = write(&json!([
            {"query": " who? ", "solution": ["GET /search/film ", " GET /person/{film_id}/films"]},
            {"query": "which?", "solution": ["GET  /track/{id}"]},
        ]));
        let paths = import_restbench(&path, &catalogue()).expect("imports");
        assert_eq!(
            (paths[0].id.as_str(), paths[0].query.as_str()),
            ("films[0]", "who?")
        );
        assert_eq!(
            names(&paths[0]),
            ["GET /search/film", "GET /person/{person_id}/films"]
        );
        assert!(paths[0].unknown_calls(&catalogue()).is_empty());
        assert_eq!(paths[1].unknown_calls(&catalogue()), ["GET /track/{id}"]);
    }

    #[test]
    fn samples_of_api_bank_keep_arguments_and_answers() {
        let answer =
            json!({"api_name": "A", "input": {"x": 1}, "output": {"y": 2}, "exception": null});
        let (_folder, path) = write(&json!([{
            "requirement": " Do it.", "response": "Done.",
            "apis": [{"api_name": "A", "input": {"x": "1"}, "output": answer}],
        }]));
        let paths = import_apibank_level3(&path).expect("imports");
        assert_eq!(
            (paths[0].query.as_str(), paths[0].response.as_str()),
            ("Do it.", "Done.")
        );
        let call = &paths[0].calls[0];
        assert_eq!(call.arguments.as_ref().expect("arguments")["x"], "1");
        assert_eq!((&call.output, &call.exception), (&json!({"y": 2}), &None));
    }

    #[test]
    fn a_reference_that_cannot_be_scored_is_an_error_with_its_location() {
        for (value, expected) in [
            (json!([]), "films.json: the file has no queries"),
            (json!({}), "the file is an object, but must be a list"),
            (
                json!([{"query": "q", "solution": []}]),
                "films[0].calls is empty",
            ),
            (
                json!([{"query": " ", "solution": ["x"]}]),
                "films[0].query is empty",
            ),
            (
                json!([{"query": "q", "solution": ["x", 1]}]),
                "films[0].solution[1] is a number",
            ),
            (
                json!([{"solution": ["x"]}]),
                "field \"films[0].query\" is missing",
            ),
        ] {
            let (_folder, path) = write(&value);
            let message = import_restbench(&path, &catalogue())
                .expect_err(expected)
                .to_string();
            assert!(message.contains(expected), "{message}");
        }
        let (_folder, path) =
            write(&json!([{"requirement": "q", "response": "r", "apis": [{"api_name": "A"}]}]));
        let message = import_apibank_level3(&path)
            .expect_err("no input")
            .to_string();
        assert!(
            message.contains("\"films[0].apis[0].input\" is missing"),
            "{message}"
        );
    }
}
