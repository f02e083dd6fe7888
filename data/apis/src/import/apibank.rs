//! Imports API-Bank's API descriptions: JSON Lines of `{"set", "name", "description",
//! "input_parameters", "output_parameters"}`, or a JSON array of them without `set`, as in the
//! benchmark's `tool_catalog.json`.
//!
//! API-Bank does not mark optional parameters, so all are required. `ToolSearcher` is imported like
//! any other API; metrics ignore its calls.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::document::{ApiDocument, ApiParameter};
use crate::error::ToolsError;
use crate::fields::{Fields, wrong_type};
use crate::source::{JsonLines, read_json, read_text};

const LAYOUT: &str = "an API-Bank document needs name, description and input_parameters";

/// Selects API-Bank's APIs. Four names occur in both sets with different meanings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ApiBankSet {
    /// Both sets; the four ambiguous names become `lv1_lv2/NAME` and `lv3/NAME`.
    #[serde(rename = "all")]
    All,
    /// APIs of levels 1 and 2.
    #[serde(rename = "lv1_lv2")]
    Levels1And2,
    /// APIs of level 3.
    #[serde(rename = "lv3")]
    Level3,
}

impl ApiBankSet {
    /// Whether a row with `name` in its `set` field belongs to this set.
    pub fn includes(self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Levels1And2 => name == "lv1_lv2",
            Self::Level3 => name == "lv3",
        }
    }
}

/// Reads the documents of one set, in order, from JSON Lines or a JSON array.
///
/// The category is the name of the set. The tool is empty, because calls contain only the API name.
/// With [`ApiBankSet::All`], a name that occurs in both sets gets its set as the tool. Types keep
/// API-Bank's spelling (`str`, `list(str)`). `output_description` lists the outputs as `name:
/// description; ...`.
///
/// # Errors
///
/// - the file cannot be read or has no document of the set; documents without a `set` field require
///   [`ApiBankSet::All`]
/// - a line is not such a document; the error gives file, line and field
pub fn import_apibank(path: &Path, set: ApiBankSet) -> Result<Vec<ApiDocument>, ToolsError> {
    apibank_documents(path, read_values(path)?, set)
}

/// Like [`import_apibank`], for parsed descriptions with their locations; `path` is the source
/// file.
///
/// # Errors
///
/// As [`import_apibank`].
pub fn apibank_documents(
    path: &Path,
    values: Vec<(String, Value)>,
    set: ApiBankSet,
) -> Result<Vec<ApiDocument>, ToolsError> {
    let mut documents = Vec::new();
    for (location, value) in values {
        documents.push(document(&value).map_err(|error| error.at(location))?);
    }
    let has_sets = documents.iter().any(|one| !one.category_name.is_empty());
    documents.retain(|document| set.includes(&document.category_name));
    if documents.is_empty() {
        let what = if has_sets {
            "API documents of the set"
        } else {
            "API documents with a field \"set\"; import them all with the layout apibank"
        };
        return Err(ToolsError::Empty { what }.at(path.display().to_string()));
    }
    distinguish_sets(&mut documents);
    Ok(documents)
}

/// The lines of a file, or the elements of its array, each with its location.
fn read_values(path: &Path) -> Result<Vec<(String, Value)>, ToolsError> {
    let text = read_text(path)?;
    if !text.trim_start().starts_with('[') {
        return JsonLines::open(path)?.collect();
    }
    let file = path.display().to_string();
    match read_json(path)? {
        Value::Array(items) => Ok(items
            .into_iter()
            .enumerate()
            .map(|(i, item)| (format!("{file}, [{i}]"), item))
            .collect()),
        other => Err(wrong_type("the file", &other, "a list").at(file)),
    }
}

/// If a document's name occurs in both sets, the set becomes the document's tool.
fn distinguish_sets(documents: &mut [ApiDocument]) {
    let mut sets: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for document in documents.iter() {
        let sets = sets.entry(document.api_name.clone()).or_default();
        sets.insert(document.category_name.clone());
    }
    for document in documents {
        if sets[&document.api_name].len() > 1 {
            document.tool_name.clone_from(&document.category_name);
        }
    }
}

fn document(value: &Value) -> Result<ApiDocument, ToolsError> {
    let fields = Fields::new(value, "", LAYOUT)?;
    let inputs = fields
        .object("input_parameters")?
        .ok_or_else(|| fields.missing("input_parameters"))?;
    let empty = Map::new();
    let outputs = fields.object("output_parameters")?.unwrap_or(&empty);
    let outputs: Vec<String> = parameters(outputs, "output_parameters")?
        .into_iter()
        .map(|output| format!("{}: {}", output.name, output.description))
        .collect();
    Ok(ApiDocument {
        category_name: fields.optional_text("set")?.unwrap_or("").to_owned(),
        api_description: fields.text("description")?.to_owned(),
        required_parameters: parameters(inputs, "input_parameters")?,
        output_description: outputs.join("; "),
        ..ApiDocument::new("", fields.text("name")?.trim())
    })
}

fn parameters(map: &Map<String, Value>, path: &str) -> Result<Vec<ApiParameter>, ToolsError> {
    let parameter = |(name, value): (&String, &Value)| {
        let path = format!("{path}.{name}");
        let fields = Fields::new(value, &path, LAYOUT)?;
        Ok(ApiParameter {
            kind: kind(&fields)?,
            description: fields
                .optional_text("description")?
                .unwrap_or("")
                .to_owned(),
            ..ApiParameter::new(name.clone())
        })
    };
    map.iter().map(parameter).collect()
}

fn kind(fields: &Fields<'_>) -> Result<String, ToolsError> {
    match fields.get("type") {
        None => Ok(String::new()),
        Some(Value::String(kind)) => Ok(kind.clone()),
        Some(other) => Err(wrong_type(&fields.path("type"), other, "a string")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LINES: &str = r#"{"set": "lv3", "name": "QueryMeeting", "description": "Meetings of a user.", "input_parameters": {"user_name": {"type": "str", "description": "Name."}}, "output_parameters": {"meetings": {"type": "list", "description": "List of meetings."}}}
{"set": "lv1_lv2", "name": "QueryMeeting", "description": "Other.", "input_parameters": {}}
"#;
    const PLAIN: &str = r#"{"set": "lv3", "name": "Translate", "description": "Words.", "input_parameters": {}}
"#;

    #[test]
    fn an_api_bank_set_is_read_separately_and_its_parameters_are_required() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("docs.jsonl");
        fs::write(&path, LINES).expect("written");
        let documents = import_apibank(&path, ApiBankSet::Level3).expect("imports");
        assert_eq!(documents.len(), 1);
        assert_eq!(documents[0].call_name(), "QueryMeeting");
        assert_eq!(documents[0].required_parameters[0].kind, "str");
        assert_eq!(
            documents[0].output_description,
            "meetings: List of meetings."
        );
        fs::write(&path, [LINES, PLAIN].concat()).expect("written");
        let all = import_apibank(&path, ApiBankSet::All).expect("imports");
        let names: Vec<String> = all.iter().map(ApiDocument::call_name).collect();
        assert_eq!(
            names,
            ["lv3/QueryMeeting", "lv1_lv2/QueryMeeting", "Translate"]
        );
        assert_eq!(all[1].parameters().count(), 0);
        fs::write(&path, LINES.replace("lv3", "lv9")).expect("written");
        let error = import_apibank(&path, ApiBankSet::Level3).expect_err("none");
        assert!(
            error.to_string().contains("no API documents of the set"),
            "{error}"
        );
    }

    #[test]
    fn an_array_without_sets_is_read_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tool_catalog.json");
        let array = r#"[
  {"name": "Translate", "description": "Words.", "input_parameters": {
    "src": {"type": "str", "description": "The text."}},
   "output_parameters": {"text": {"type": "str", "description": "The words."}}},
  {"name": "GetToday", "description": "The date.", "input_parameters": {},
   "output_parameters": {}}
]
"#;
        fs::write(&path, array).expect("written");
        let documents = import_apibank(&path, ApiBankSet::All).expect("imports");
        let names: Vec<String> = documents.iter().map(ApiDocument::call_name).collect();
        assert_eq!(names, ["Translate", "GetToday"]);
        assert_eq!(documents[0].required_parameters[0].name, "src");
        assert_eq!(documents[0].output_description, "text: The words.");
        let message = |set| import_apibank(&path, set).expect_err("refused").to_string();
        let no_sets = message(ApiBankSet::Level3);
        assert!(no_sets.contains("with the layout apibank"), "{no_sets}");
        fs::write(&path, array.replace("\"src\": {", "\"src\": 1, \"x\": {")).expect("written");
        let fault = message(ApiBankSet::All);
        assert!(
            fault.ends_with(
                "tool_catalog.json, [0]: input_parameters.src is a number, but must be an object"
            ),
            "{fault}"
        );
    }

    #[test]
    fn an_error_has_file_line_and_field() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("docs.jsonl");
        let invalid = LINES.replace(
            "\"input_parameters\": {}",
            "\"input_parameters\": {\"a\": 1}",
        );
        fs::write(&path, invalid).expect("written");
        let message = import_apibank(&path, ApiBankSet::All)
            .expect_err("broken")
            .to_string();
        assert!(
            message
                .ends_with("docs.jsonl:2: input_parameters.a is a number, but must be an object"),
            "{message}"
        );
    }
}
