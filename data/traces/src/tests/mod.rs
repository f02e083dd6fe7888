//! Imports of small files, with the expected rows written out.

mod duplicates;
mod hostile;
mod otlp;
mod redaction;
mod repairs;
mod requests;
mod sessions;

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::{ImportedTraces, TraceError, TraceOptions, TraceReport, import_traces};

/// Writes files, imports them, and returns the rows with the counts.
fn import_with(
    files: &[(&str, &[u8])],
    options: &TraceOptions,
) -> Result<(Vec<Value>, TraceReport), TraceError> {
    let folder = tempfile::tempdir().expect("a folder");
    let paths: Vec<PathBuf> = files
        .iter()
        .map(|(name, bytes)| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            path
        })
        .collect();
    let mut imported: ImportedTraces = import_traces(&paths, options)?;
    let mut bytes = Vec::new();
    imported.write_to(&mut bytes).expect("the rows");
    let text = String::from_utf8(bytes).expect("UTF-8");
    let rows = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    Ok((rows.collect(), imported.report))
}

/// Imports one file with the default options.
#[track_caller]
fn import(text: &str) -> (Vec<Value>, TraceReport) {
    import_with(&[("t.jsonl", text.as_bytes())], &TraceOptions::default()).expect("imported")
}

/// One JSON value per line.
fn lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}

/// A row without its metadata.
fn content(row: &Value) -> Value {
    let mut row = row.clone();
    row.as_object_mut().expect("an object").remove("metadata");
    row
}

/// A reason with its number and the first line.
fn count<'r>(counts: &'r crate::Counts, reason: &str) -> Option<(usize, &'r str)> {
    let found = counts.iter().find(|(name, _)| name.contains(reason));
    found.map(|(_, count)| (count.n, count.first.rsplit('/').next().unwrap_or_default()))
}

/// A tool `weather` with a required city, in OpenAI's format.
fn weather() -> Value {
    json!({"type": "function", "function": {"name": "weather", "description": "Now", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}})
}

/// A call of `weather` as it is in a row.
fn weather_call(n: usize, city: &str) -> Value {
    json!({"id": format!("call{n:05}"), "type": "function",
        "function": {"name": "weather", "arguments": {"city": city}}})
}

/// The result of a call as it is in a row.
fn weather_result(n: usize, content: &str) -> Value {
    json!({"role": "tool", "content": content, "tool_call_id": format!("call{n:05}"),
        "name": "weather"})
}
