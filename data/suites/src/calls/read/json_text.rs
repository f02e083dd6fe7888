//! Parses calls written as JSON: bare, inside other text, or after a marker.

use serde_json::Value;
use tooltune_json as json;

use super::scan::{Cursor, MAX_TRIED};
use super::{CallDialect, malformed};
use crate::calls::answer::{CallsAnswer, WrittenCall};
use crate::calls::tools::ToolSet;

/// A text that is valid JSON only up to some byte.
#[derive(Debug)]
pub(super) struct JsonError<'t> {
    /// The text from the start of the value.
    rest: &'t str,
    /// The byte at which the text stops being JSON. A marker before this byte is part of a string.
    pub(super) at: usize,
}

impl JsonError<'_> {
    /// The error message.
    pub(super) fn reason(&self) -> String {
        json_error(self.rest)
    }
}

/// Parses the JSON value that starts at a byte, and returns it with its end.
pub(super) fn parse_json_at(text: &str, start: usize) -> Result<(Value, usize), JsonError<'_>> {
    let rest = &text[start..];
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
    match values.next() {
        Some(Ok(_)) => {
            let end = start + values.byte_offset();
            // Parse again, with the strict rules that apply to all JSON.
            let value = json::parse(&text[start..end]);
            value.map(|value| (value, end)).map_err(|_| JsonError {
                rest: &text[start..end],
                at: end,
            })
        }
        Some(Err(error)) if !error.is_eof() => Err(JsonError {
            rest,
            at: start + byte_position(rest, error.line(), error.column()),
        }),
        _ => Err(JsonError {
            rest,
            at: text.len(),
        }),
    }
}

/// The byte at a line and column, both from 1.
fn byte_position(text: &str, line: usize, column: usize) -> usize {
    let lines = text.split_inclusive('\n').take(line.saturating_sub(1));
    let line_start: usize = lines.map(str::len).sum();
    let byte = (line_start + column.saturating_sub(1)).min(text.len());
    (0..=byte)
        .rev()
        .find(|position| text.is_char_boundary(*position))
        .unwrap_or(0)
}

/// Parses a text without markers: the first value that contains calls, and the calls that follow
/// it. Values nested in other values are not parsed as calls.
pub(super) fn parse_bare(text: &str, tools: &ToolSet) -> CallsAnswer {
    let is_tool = |name: &str| tools.find_tool(name).is_some();
    let mut position = 0;
    for _ in 0..MAX_TRIED {
        let Some(start) = text[position..]
            .find(['[', '{'])
            .map(|start| position + start)
        else {
            break;
        };
        match parse_json_at(text, start) {
            Err(_) => position = start + 1,
            Ok((value, end)) if !contains_calls(&value, is_tool) => position = end,
            Ok((value, end)) => {
                let mut answer = CallsAnswer::in_dialect(CallDialect::Json);
                if text[..start].trim_end().ends_with('[') {
                    answer
                        .add_malformed("the list of calls is not JSON: unexpected end".to_owned());
                }
                add_all(&value, &mut answer);
                add_following(text, end, &mut answer);
                return answer;
            }
        }
    }
    unparsed_text(text, tools)
}

/// Parses JSON after a marker that must be followed by JSON.
pub(super) fn parse_marked_json(
    cursor: Cursor<'_>,
    dialect: CallDialect,
    answer: &mut CallsAnswer,
) -> Option<usize> {
    answer.record_dialect(dialect);
    let cursor = cursor.skip_whitespace();
    match parse_json_at(cursor.text, cursor.begin) {
        Ok((value, end)) => {
            add_all(&value, answer);
            Some(add_following(cursor.text, end, answer))
        }
        Err(json_error) => {
            answer.add_malformed(json_error.reason());
            Some(json_error.at)
        }
    }
}

/// Parses `[{...}]`, or `name[ARGS]{...}`, after `[TOOL_CALLS]`.
pub(super) fn parse_mistral(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> Option<usize> {
    const ARGUMENTS: &str = "[ARGS]";
    if cursor.rest().trim_start().starts_with('[') {
        return parse_marked_json(cursor, CallDialect::Mistral, answer);
    }
    answer.record_dialect(CallDialect::Mistral);
    let rest = cursor.rest();
    let rest_end = rest.find("[TOOL_CALLS]").unwrap_or(rest.len());
    let is_call_head = |end: &usize| !rest[..*end].trim().contains(['"', '<', '\n']);
    let marked = rest[..rest_end].find(ARGUMENTS).filter(is_call_head);
    let head = marked.or_else(|| rest[..rest_end].find('{').filter(is_call_head));
    let Some(head) = head else {
        answer.add_malformed("a call has no arguments".to_owned());
        return Some(cursor.begin);
    };
    let name = rest[..head].split("[CALL_ID]").next().unwrap_or_default();
    let name = name.trim().to_owned();
    let start = cursor.skip(head + marked.map_or(0, |_| ARGUMENTS.len()));
    Some(add_arguments(name, start, answer))
}

/// Parses the arguments of a call as JSON, adds the call, and returns its end.
pub(super) fn add_arguments(name: String, cursor: Cursor<'_>, answer: &mut CallsAnswer) -> usize {
    let cursor = cursor.skip_whitespace();
    match parse_json_at(cursor.text, cursor.begin) {
        Ok((Value::Object(arguments), end)) => {
            answer.calls.push(WrittenCall { name, arguments });
            end
        }
        Ok((_, end)) => {
            answer.add_malformed(format!(
                "the arguments of the call to {name} are not a JSON object"
            ));
            end
        }
        Err(json_error) => {
            answer.add_malformed(json_error.reason());
            json_error.at
        }
    }
}

/// Adds the calls of a value, which is a call, a list of calls, or an object with such a list.
pub(super) fn add_all(value: &Value, answer: &mut CallsAnswer) {
    let calls = match value.get("tool_calls").unwrap_or(value) {
        Value::Array(calls) => calls.as_slice(),
        _ => std::slice::from_ref(value),
    };
    for call in calls {
        answer.add(WrittenCall::from_value(call));
    }
}

/// Why a text is not JSON.
pub(super) fn json_error(text: &str) -> String {
    match json::parse(text) {
        Ok(_) => "a call is nested in other JSON".to_owned(),
        Err(error) => format!("a call is not JSON: {error}"),
    }
}

fn contains_calls(value: &Value, is_tool: impl Fn(&str) -> bool + Copy) -> bool {
    match value {
        Value::Array(items) => {
            !items.is_empty()
                && items
                    .iter()
                    .all(|item| WrittenCall::is_attempted_call(item, is_tool))
        }
        Value::Object(fields) => match fields.get("tool_calls") {
            Some(Value::Array(items)) => !items.is_empty(),
            _ => WrittenCall::is_attempted_call(value, is_tool),
        },
        _ => false,
    }
}

/// Adds the calls that follow the first call, separated only by whitespace, commas and semicolons.
/// Returns their end.
fn add_following(text: &str, mut at: usize, answer: &mut CallsAnswer) -> usize {
    loop {
        let rest = &text[at..];
        let next_value = rest.trim_start_matches([' ', '\t', '\n', '\r', ',', ';']);
        if !next_value.starts_with('{') || answer.has_too_many_calls() {
            return at;
        }
        match parse_json_at(text, text.len() - next_value.len()) {
            Ok((value, end)) => {
                answer.add(WrittenCall::from_value(&value));
                at = end;
            }
            Err(json_error) => {
                answer.add_malformed(json_error.reason());
                return json_error.at;
            }
        }
    }
}

/// Handles a text without complete calls. The text is malformed if it starts a call; otherwise it
/// is plain text.
fn unparsed_text(text: &str, tools: &ToolSet) -> CallsAnswer {
    let has = |key: &str| text.contains(&format!("\"{key}\""));
    let has_arguments = has("arguments") || has("parameters");
    let mentions_tool = || tools.names().any(has);
    let starts_call = text.contains('{') && has("name") && (has_arguments || mentions_tool());
    if !starts_call {
        return CallsAnswer::default();
    }
    let start = text.find(['{', '[']).unwrap_or(0);
    malformed(Some(CallDialect::Json), json_error(&text[start..]))
}
