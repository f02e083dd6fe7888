//! What API-Bank publishes, as this program reads it: its APIs in Python, its dialogues in a file
//! each, and the calls of its right answers as a recording.
//!
//! # Source
//!
//! `api-bank` of AlibabaResearch/DAMO-ConvAI: `apis`, `lv3_apis`, `lv1-lv2-samples`, and the
//! `level-3.json` of its test data.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tooltune_agents::executors::{canonical_arguments, leading_literal};
use tooltune_rows::tools::{
    ApiBankSet, ApiDocument, Fields, JsonLines, ToolsError, apibank_documents, read_json, read_text,
};

use super::ImportError;

/// The attributes of a class that describe its API.
const ATTRIBUTES: [&str; 3] = ["description", "input_parameters", "output_parameters"];

/// The documents of a folder of Python files, `apis` or `lv3_apis`, in the order of their names;
/// they belong to `set`.
///
/// Classes without the three attributes describe no API and are passed over.
///
/// # Errors
///
/// - the folder cannot be listed, or has no Python file with an API
/// - a file cannot be read, or an attribute is no literal
pub fn import_apibank_sources(
    folder: &Path,
    set: ApiBankSet,
) -> Result<Vec<ApiDocument>, ImportError> {
    let mut values = Vec::new();
    for file in files_of(folder, ".py")? {
        let text = read_text(&file)?;
        values.extend(classes(&text, &file, set)?);
    }
    Ok(apibank_documents(folder, values, set)?)
}

/// The classes of a file that describe an API, each with its place.
fn classes(text: &str, file: &Path, set: ApiBankSet) -> Result<Vec<(String, Value)>, ImportError> {
    let mut found = Vec::new();
    let mut class: Option<(String, String, Map<String, Value>)> = None;
    let mut at = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let start = at;
        at += line.len();
        let place = || format!("{}:{}", file.display(), number + 1);
        if let Some(rest) = line.strip_prefix("class ") {
            found.extend(class.take().and_then(|class| described(class, set)));
            let end = rest.find(['(', ':']).unwrap_or(rest.len());
            class = Some((place(), rest[..end].trim().to_owned(), Map::new()));
        }
        let Some((_, _, attributes)) = &mut class else {
            continue;
        };
        for name in ATTRIBUTES {
            let Some(value) = assigned(line, name) else {
                continue;
            };
            let value = start + line.len() - value.len();
            let literal = literal(&text[value..]).ok_or_else(|| ImportError::Format {
                place: place(),
                reason: format!("{name} is no text or object of literals"),
                expected: "the APIs of API-Bank as it publishes them",
            })?;
            attributes.insert(name.to_owned(), literal);
        }
    }
    found.extend(class.and_then(|class| described(class, set)));
    Ok(found)
}

/// The literal that a text begins with; texts that follow each other are one, as in Python.
fn literal(text: &str) -> Option<Value> {
    let (mut value, mut rest) = leading_literal(text)?;
    while let Value::String(first) = &value {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '\\');
        if !rest.starts_with(['\'', '"']) || rest.starts_with("\"\"\"") {
            break;
        }
        let (next, behind) = leading_literal(rest)?;
        value = Value::String(format!("{first}{}", next.as_str()?));
        rest = behind;
    }
    Some(value)
}

/// What stands behind `name =` in the body of a class.
fn assigned<'t>(line: &'t str, name: &str) -> Option<&'t str> {
    let rest = line.strip_prefix("    ")?.strip_prefix(name)?.trim_start();
    rest.strip_prefix('=')
}

fn described(
    (place, name, mut attributes): (String, String, Map<String, Value>),
    set: ApiBankSet,
) -> Option<(String, Value)> {
    if attributes.len() < ATTRIBUTES.len() {
        return None;
    }
    attributes.insert("name".to_owned(), name.into());
    if let Some(set) = set_name(set) {
        attributes.insert("set".to_owned(), set.into());
    }
    Some((place, Value::Object(attributes)))
}

fn set_name(set: ApiBankSet) -> Option<&'static str> {
    match set {
        ApiBankSet::All => None,
        ApiBankSet::Levels1And2 => Some("lv1_lv2"),
        ApiBankSet::Level3 => Some("lv3"),
    }
}

/// The dialogues of a folder, one in each `.jsonl` file of it or of its folders, as rows `{"file",
/// "turns"}` in the order of their names.
///
/// # Errors
///
/// - a folder cannot be listed, or there is no such file
/// - a file cannot be read, or a line of it is no JSON object
pub fn import_apibank_dialogue_files(folder: &Path) -> Result<Vec<Value>, ImportError> {
    let mut rows = Vec::new();
    for file in files_of(folder, ".jsonl")? {
        let turns: Result<Vec<Value>, ToolsError> =
            JsonLines::open(&file)?.map(|line| Ok(line?.1)).collect();
        let name = file.strip_prefix(folder).unwrap_or(&file);
        let name = name.to_string_lossy().replace('\\', "/");
        rows.push(json!({"file": name, "turns": turns?}));
    }
    Ok(rows)
}

/// The files of a folder and its folders whose names end so, in the order of their paths.
fn files_of(folder: &Path, kind: &'static str) -> Result<Vec<PathBuf>, ImportError> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(path) = folders.pop() {
        let listed = |error| ImportError::Folder {
            path: path.clone(),
            error,
        };
        for entry in std::fs::read_dir(&path).map_err(listed)? {
            let entry = entry.map_err(listed)?;
            let is_folder = entry.file_type().map_err(listed)?.is_dir();
            if is_folder {
                folders.push(entry.path());
            } else if entry.file_name().to_string_lossy().ends_with(kind) {
                found.push(entry.path());
            }
        }
    }
    if found.is_empty() {
        return Err(ImportError::NoFiles {
            path: folder.to_owned(),
            kind,
        });
    }
    found.sort();
    Ok(found)
}

/// Calls of right answers, with what they returned.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApiBankCalls {
    /// Rows `{"set", "api_name", "input", "output", "exception"}`, each call once.
    pub rows: Vec<Value>,
    /// Calls that repeat an earlier one.
    pub n_repeated: usize,
    /// Of these, calls that returned something else; a replay gives what the first one returned.
    pub n_different: usize,
}

/// Makes a recording of the right answers in files: `level-3.json`, and dialogues as
/// [`import_apibank_dialogue_files`] makes them.
///
/// # Errors
///
/// - a file cannot be read or has no call
/// - a call lacks its API's name, its input or its result
pub fn import_apibank_calls(files: &[PathBuf]) -> Result<ApiBankCalls, ImportError> {
    let mut calls = ApiBankCalls::default();
    let mut seen: BTreeMap<(String, String), HashSet<String>> = BTreeMap::new();
    for file in files {
        let n_before = calls.rows.len() + calls.n_repeated;
        for (place, row) in gold_rows(file)? {
            let row = row.map_err(|error| error.at(place))?;
            let key = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            let input = row["input"].as_object().cloned().unwrap_or_default();
            let place = (
                key("set") + "/" + &key("api_name"),
                canonical_arguments(&input),
            );
            let result = json!([row["output"], row["exception"]]).to_string();
            match seen.get_mut(&place) {
                Some(results) => {
                    calls.n_repeated += 1;
                    calls.n_different += usize::from(results.insert(result));
                }
                None => {
                    seen.insert(place, HashSet::from([result]));
                    calls.rows.push(row);
                }
            }
        }
        if calls.rows.len() + calls.n_repeated == n_before {
            let what = "calls of API-Bank with their results";
            let place = file.display().to_string();
            return Err(ToolsError::Empty { what }.at(place).into());
        }
    }
    Ok(calls)
}

/// The recorded calls of a file, each with its place.
type PlacedCalls = Vec<(String, Result<Value, ToolsError>)>;

fn gold_rows(file: &Path) -> Result<PlacedCalls, ImportError> {
    if read_text(file)?.trim_start().starts_with('[') {
        return level_3_calls(file);
    }
    let mut calls = Vec::new();
    for line in JsonLines::open(file)? {
        let (place, row) = line?;
        let turns = row.get("turns").and_then(Value::as_array);
        let turns = turns.ok_or_else(|| ImportError::Format {
            place: place.clone(),
            reason: "the row has no turns".to_owned(),
            expected: "level-3.json, or dialogues that `data import apibank-dialogues` has written",
        })?;
        for (i, turn) in turns.iter().enumerate() {
            if turn.get("role").is_some_and(|role| role == "API") {
                let at = format!("turns[{i}]");
                let call = recorded(turn, &at, "param_dict", "result", "lv1_lv2");
                calls.push((place.clone(), call));
            }
        }
    }
    Ok(calls)
}

fn level_3_calls(file: &Path) -> Result<PlacedCalls, ImportError> {
    let place = file.display().to_string();
    let samples = match read_json(file)? {
        Value::Array(samples) => samples,
        _ => Vec::new(),
    };
    let mut calls = Vec::new();
    for (i, sample) in samples.iter().enumerate() {
        let apis = sample.get("apis").and_then(Value::as_array);
        for (j, call) in apis.into_iter().flatten().enumerate() {
            let at = format!("[{i}].apis[{j}]");
            let call = recorded(call, &at, "input", "output", "lv3");
            calls.push((place.clone(), call));
        }
    }
    Ok(calls)
}

/// A call with its result as a row of a recording.
fn recorded(
    call: &Value,
    place: &str,
    input: &str,
    result: &str,
    set: &str,
) -> Result<Value, ToolsError> {
    let fields = Fields::new(
        call,
        place,
        "a call needs its name, its input and its result",
    )?;
    let given = fields.object(input)?.ok_or_else(|| fields.missing(input))?;
    let found = fields.get(result).ok_or_else(|| fields.missing(result))?;
    let at = format!("{place}.{result}");
    let found = Fields::new(found, &at, "a result needs output and exception")?;
    Ok(json!({
        "set": set,
        "api_name": fields.text("api_name")?.trim(),
        "input": given,
        "output": found.raw("output"),
        "exception": found.optional_text("exception")?,
    }))
}
