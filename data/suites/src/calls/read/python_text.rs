//! Parses calls in Python notation: `name(key=value)`, in a list or between markers.

use tooltune_json as json;
use tooltune_json::python::{PyValue, dumps};

use super::CallDialect;
use super::scan::Cursor;
use crate::calls::answer::{CallsAnswer, WrittenCall};
use crate::calls::tools::ToolSet;
use crate::python_calls::{CallNames, PythonCalls, python_calls_at};

const UNREADABLE: &str = "expected Python calls with keyword arguments and literal values";

/// The list of calls at this position, and its end.
pub(super) fn parse_list_at(cursor: Cursor<'_>) -> Option<(Vec<PyValue>, usize)> {
    if !begins_list(cursor.rest()) {
        return None;
    }
    let parsed = parse_calls_at(cursor)?;
    Some((parsed.calls, cursor.begin + parsed.n_bytes))
}

/// Parses an answer that starts as a list of Python calls; `None` for other answers.
pub(super) fn parse_python_list(text: &str, tools: &ToolSet) -> Option<CallsAnswer> {
    if !begins_list(text) {
        return None;
    }
    let mut answer = CallsAnswer::in_dialect(CallDialect::Python);
    let cursor = Cursor {
        text,
        begin: 0,
        tools,
    };
    match parse_list_at(cursor) {
        Some((calls, end)) if text[end..].trim().is_empty() => add(&calls, &mut answer),
        _ => answer.add_malformed(UNREADABLE.to_owned()),
    }
    Some(answer)
}

/// Parses the list after `<|tool_call_start|>` or `<|python_start|>`.
pub(super) fn parse_marked_list(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> Option<usize> {
    Some(add_lines(cursor, CallDialect::Python, "", answer))
}

/// Parses the calls between `<function_calls>` tags.
pub(super) fn parse_function_calls(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> Option<usize> {
    Some(add_lines(
        cursor,
        CallDialect::Olmo,
        "</function_calls>",
        answer,
    ))
}

/// Parses the calls in a `tool_code` fence.
pub(super) fn parse_code_fence(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> Option<usize> {
    Some(add_lines(cursor, CallDialect::Code, "```", answer))
}

/// Parses the calls between `<code>` tags. Other code is text, as in HTML.
pub(super) fn parse_code_tags(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> Option<usize> {
    let is_tool = |call: &PyValue| {
        let name = call.get("name").and_then(PyValue::as_text);
        name.is_some_and(|name| cursor.tools.find_tool(name).is_some())
    };
    let parsed = parse_calls_at(cursor)?;
    let is_call = !parsed.calls.is_empty() && parsed.calls.iter().all(is_tool);
    is_call.then(|| add_lines(cursor, CallDialect::Code, "</code>", answer))
}

/// Adds the calls up to a closing marker, and returns their end. If the marker is empty, the calls
/// end at the first text that is not a call.
pub(super) fn add_lines(
    cursor: Cursor<'_>,
    dialect: CallDialect,
    close: &str,
    answer: &mut CallsAnswer,
) -> usize {
    answer.record_dialect(dialect);
    let parsed = parse_calls_at(cursor);
    let parsed = parsed
        .filter(|parsed| !parsed.calls.is_empty())
        .filter(|parsed| {
            let rest = cursor.skip(parsed.n_bytes).skip_whitespace();
            rest.rest().is_empty() || rest.rest().starts_with(close)
        });
    match parsed {
        Some(parsed) => {
            add(&parsed.calls, answer);
            let end = cursor.skip(parsed.n_bytes).skip_whitespace();
            end.strip_mark(close)
                .map_or(cursor.text.len(), |end| end.begin)
        }
        None => {
            answer.add_malformed(UNREADABLE.to_owned());
            cursor.begin
        }
    }
}

fn parse_calls_at(cursor: Cursor<'_>) -> Option<PythonCalls> {
    let names: Vec<&str> = cursor.tools.names().collect();
    python_calls_at(cursor.rest(), CallNames::Known(&names))
}

/// Whether a text starts as a list of Python calls.
fn begins_list(text: &str) -> bool {
    let Some(after_bracket) = text.strip_prefix('[') else {
        return false;
    };
    let after_bracket = after_bracket.trim_start();
    let name = after_bracket.split('(').next().unwrap_or_default();
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
    name.len() < after_bracket.len()
        && name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && name.chars().all(is_name)
}

fn add(calls: &[PyValue], answer: &mut CallsAnswer) {
    for call in calls {
        let value = json::parse(&dumps(call));
        let value = value.map_err(|error| format!("a call is not JSON: {error}"));
        answer.add(value.and_then(|value| WrittenCall::from_value(&value)));
    }
}
