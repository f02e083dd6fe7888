//! Imports API-Bank's published files: its APIs in Python, one file per dialogue, and a recording
//! of the reference calls.
//!
//! # Source
//!
//! `api-bank` of AlibabaResearch/DAMO-ConvAI: `apis`, `lv3_apis`, `lv1-lv2-samples`, and the
//! `level-3.json` of its test data.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tooltune_agents::executors::canonical_arguments;
use tooltune_apis::{
    ApiBankSet, ApiDocument, Fields, JsonLines, ToolsError, apibank_documents, read_json, read_text,
};
use tooltune_json::python::{PyValue, leading_literal};

use super::ImportError;

/// The class attributes that describe an API.
const ATTRIBUTES: [&str; 3] = ["description", "input_parameters", "output_parameters"];

/// Reads the API documents of `set` from a folder of Python files (`apis` or `lv3_apis`), sorted by
/// file name.
///
/// Classes without the three attributes are not APIs and are skipped.
///
/// # Errors
///
/// - the folder cannot be listed, or has no Python file with an API
/// - a file cannot be read, or an attribute is not a literal
pub fn import_apibank_sources(
    folder: &Path,
    set: ApiBankSet,
) -> Result<Vec<ApiDocument>, ImportError> {
    let mut values = Vec::new();
    for file in files_in(folder, ".py")? {
        let text = read_text(&file)?;
        values.extend(parse_classes(&text, &file, set)?);
    }
    Ok(apibank_documents(folder, values, set)?)
}

/// The API classes of a file, with their locations.
fn parse_classes(
    text: &str,
    file: &Path,
    set: ApiBankSet,
) -> Result<Vec<(String, Value)>, ImportError> {
    let mut documents = Vec::new();
    let mut class: Option<(String, String, Map<String, Value>)> = None;
    let mut offset = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let start = offset;
        offset += line.len();
        let location = || format!("{}:{}", file.display(), number + 1);
        if let Some(after_class) = line.strip_prefix("class ") {
            documents.extend(class.take().and_then(|class| to_document(class, set)));
            let end = after_class.find(['(', ':']).unwrap_or(after_class.len());
            class = Some((location(), after_class[..end].trim().to_owned(), Map::new()));
        }
        let Some((_, _, attributes)) = &mut class else {
            continue;
        };
        for name in ATTRIBUTES {
            let Some(value) = assigned_value(line, name) else {
                continue;
            };
            let value_offset = start + line.len() - value.len();
            let literal =
                joined_literal(&text[value_offset..]).ok_or_else(|| ImportError::Format {
                    place: location(),
                    reason: format!("{name} is not a string or object of literals"),
                    expected: "the published APIs of API-Bank",
                })?;
            attributes.insert(name.to_owned(), literal);
        }
    }
    documents.extend(class.and_then(|class| to_document(class, set)));
    Ok(documents)
}

/// The literal at the start of `text`; adjacent strings are concatenated, as in Python.
fn joined_literal(text: &str) -> Option<Value> {
    let (mut value, mut remaining) = leading_literal(text)?;
    while let PyValue::Text(first_text) = &value {
        remaining = remaining.trim_start_matches(|c: char| c.is_whitespace() || c == '\\');
        if !remaining.starts_with(['\'', '"']) || remaining.starts_with("\"\"\"") {
            break;
        }
        let (next_value, rest) = leading_literal(remaining)?;
        value = PyValue::Text(format!("{first_text}{}", next_value.as_text()?));
        remaining = rest;
    }
    value.to_json()
}

/// The text after `name =` in the body of a class.
fn assigned_value<'t>(line: &'t str, name: &str) -> Option<&'t str> {
    let rest = line.strip_prefix("    ")?.strip_prefix(name)?.trim_start();
    rest.strip_prefix('=')
}

fn to_document(
    (location, name, mut attributes): (String, String, Map<String, Value>),
    set: ApiBankSet,
) -> Option<(String, Value)> {
    if attributes.len() < ATTRIBUTES.len() {
        return None;
    }
    attributes.insert("name".to_owned(), name.into());
    if let Some(set) = set_name(set) {
        attributes.insert("set".to_owned(), set.into());
    }
    Some((location, Value::Object(attributes)))
}

fn set_name(set: ApiBankSet) -> Option<&'static str> {
    match set {
        ApiBankSet::All => None,
        ApiBankSet::Levels1And2 => Some("lv1_lv2"),
        ApiBankSet::Level3 => Some("lv3"),
    }
}

/// The dialogues of a folder and its subfolders, one per `.jsonl` file, as rows `{"file", "turns"}`
/// sorted by name.
///
/// # Errors
///
/// - a folder cannot be listed, or there is no such file
/// - a file cannot be read, or a line is not a JSON object
pub fn import_apibank_dialogue_files(folder: &Path) -> Result<Vec<Value>, ImportError> {
    let mut rows = Vec::new();
    for file in files_in(folder, ".jsonl")? {
        let turns: Result<Vec<Value>, ToolsError> =
            JsonLines::open(&file)?.map(|line| Ok(line?.1)).collect();
        let name = file.strip_prefix(folder).unwrap_or(&file);
        let name = name.to_string_lossy().replace('\\', "/");
        rows.push(json!({"file": name, "turns": turns?}));
    }
    Ok(rows)
}

/// The files with this extension in a folder and its subfolders, sorted by path.
fn files_in(folder: &Path, extension: &'static str) -> Result<Vec<PathBuf>, ImportError> {
    let mut paths = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(path) = folders.pop() {
        let folder_error = |error| ImportError::Folder {
            path: path.clone(),
            error,
        };
        for entry in std::fs::read_dir(&path).map_err(folder_error)? {
            let entry = entry.map_err(folder_error)?;
            let is_folder = entry.file_type().map_err(folder_error)?.is_dir();
            if is_folder {
                folders.push(entry.path());
            } else if entry.file_name().to_string_lossy().ends_with(extension) {
                paths.push(entry.path());
            }
        }
    }
    if paths.is_empty() {
        return Err(ImportError::NoFiles {
            path: folder.to_owned(),
            extension,
        });
    }
    paths.sort();
    Ok(paths)
}

/// Reference calls and their results.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApiBankCalls {
    /// Rows `{"set", "api_name", "input", "output", "exception"}`, without repeated calls.
    pub rows: Vec<Value>,
    /// Number of repeated calls.
    pub n_repeated: usize,
    /// Number of repeated calls with a different result; a replay returns the first result.
    pub n_different: usize,
}

/// Builds a recording from files of reference calls: `level-3.json`, or dialogues from
/// [`import_apibank_dialogue_files`].
///
/// # Errors
///
/// - a file cannot be read or has no call
/// - a call lacks its API name, input or result
pub fn import_apibank_calls(files: &[PathBuf]) -> Result<ApiBankCalls, ImportError> {
    let mut calls = ApiBankCalls::default();
    let mut seen_calls: BTreeMap<(String, String), HashSet<String>> = BTreeMap::new();
    for file in files {
        let n_before = calls.rows.len() + calls.n_repeated;
        for (location, row) in gold_rows(file)? {
            let row = row.map_err(|error| error.at(location))?;
            let key = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            let input = row["input"].as_object().cloned().unwrap_or_default();
            let call_key = (
                key("set") + "/" + &key("api_name"),
                canonical_arguments(&input),
            );
            let result = json!([row["output"], row["exception"]]).to_string();
            match seen_calls.get_mut(&call_key) {
                Some(results) => {
                    calls.n_repeated += 1;
                    calls.n_different += usize::from(results.insert(result));
                }
                None => {
                    seen_calls.insert(call_key, HashSet::from([result]));
                    calls.rows.push(row);
                }
            }
        }
        if calls.rows.len() + calls.n_repeated == n_before {
            let what = "calls of API-Bank with their results";
            let location = file.display().to_string();
            return Err(ToolsError::Empty { what }.at(location).into());
        }
    }
    Ok(calls)
}

/// The recorded calls of a file, with their locations.
type LocatedCalls = Vec<(String, Result<Value, ToolsError>)>;

fn gold_rows(file: &Path) -> Result<LocatedCalls, ImportError> {
    if read_text(file)?.trim_start().starts_with('[') {
        return level_3_calls(file);
    }
    let mut calls = Vec::new();
    for line in JsonLines::open(file)? {
        let (location, row) = line?;
        let turns = row.get("turns").and_then(Value::as_array);
        let turns = turns.ok_or_else(|| ImportError::Format {
            place: location.clone(),
            reason: "the row has no turns".to_owned(),
            expected: "level-3.json, or dialogues written by `data import apibank-dialogues`",
        })?;
        for (i, turn) in turns.iter().enumerate() {
            if turn.get("role").is_some_and(|role| role == "API") {
                let turn_location = format!("turns[{i}]");
                let call = recording_row(turn, &turn_location, "param_dict", "result", "lv1_lv2");
                calls.push((location.clone(), call));
            }
        }
    }
    Ok(calls)
}

fn level_3_calls(file: &Path) -> Result<LocatedCalls, ImportError> {
    let location = file.display().to_string();
    let samples = match read_json(file)? {
        Value::Array(samples) => samples,
        _ => Vec::new(),
    };
    let mut calls = Vec::new();
    for (i, sample) in samples.iter().enumerate() {
        let apis = sample.get("apis").and_then(Value::as_array);
        for (j, call) in apis.into_iter().flatten().enumerate() {
            let call_location = format!("[{i}].apis[{j}]");
            let call = recording_row(call, &call_location, "input", "output", "lv3");
            calls.push((location.clone(), call));
        }
    }
    Ok(calls)
}

/// Converts a call with its result to a row of a recording.
fn recording_row(
    call: &Value,
    location: &str,
    input: &str,
    result: &str,
    set: &str,
) -> Result<Value, ToolsError> {
    let fields = Fields::new(
        call,
        location,
        "a call needs its name, its input and its result",
    )?;
    let arguments = fields.object(input)?.ok_or_else(|| fields.missing(input))?;
    let result_value = fields.get(result).ok_or_else(|| fields.missing(result))?;
    let result_location = format!("{location}.{result}");
    let result_value = Fields::new(
        result_value,
        &result_location,
        "a result needs output and exception",
    )?;
    Ok(json!({
        "set": set,
        "api_name": fields.text("api_name")?.trim(),
        "input": arguments,
        "output": result_value.raw("output"),
        "exception": result_value.optional_text("exception")?,
    }))
}
