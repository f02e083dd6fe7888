//! Parses calls between tags: JSON, `<function=name>`, or `<arg_key>`.
//!
//! Arguments written as text have no escapes and may contain the tags themselves. An argument ends
//! at the first closing tag after which the call continues as templates write it.

use serde_json::{Map, Value};
use tooltune_json as json;
use tooltune_json::python::python_literal;

use super::CallDialect;
use super::json_text::{add_all, json_error, parse_json_at};
use super::scan::Cursor;
use crate::calls::answer::{CallsAnswer, WrittenCall};
use crate::calls::tools::{Schema, ToolSet};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const END_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";
const KEY: &str = "<arg_key>";
const END_KEY: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const END_VALUE: &str = "</arg_value>";

/// Parses the content of `<tool_call>` tags. The last closing tag may be missing, because a server
/// may stop at the tag, but the content must be complete.
pub(super) fn parse_tool_call_tags(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> Option<usize> {
    let cursor = cursor.skip_whitespace();
    let rest = cursor.rest();
    let block_end = rest.find(CLOSE).unwrap_or(rest.len());
    let block = &rest[..block_end];
    if rest.starts_with(['{', '[']) {
        answer.record_dialect(CallDialect::Hermes);
        return Some(parse_tagged_json(cursor, answer));
    }
    let key = block.find(KEY);
    let function = block
        .find(FUNCTION)
        .filter(|position| key.is_none_or(|key| *position < key));
    if let Some(start) = function {
        answer.record_dialect(CallDialect::Function);
        let end = parse_functions(cursor.skip(start + FUNCTION.len()), true, answer);
        return Some(skip_close(cursor.text, end));
    }
    if key.is_some() || cursor.tools.find_tool(block.trim()).is_some() {
        answer.record_dialect(CallDialect::Glm);
        return Some(skip_close(cursor.text, parse_glm_call(cursor, answer)));
    }
    answer.record_dialect(CallDialect::Hermes);
    answer.add_malformed(if block.trim().is_empty() {
        "a call is empty".to_owned()
    } else {
        json_error(block.trim())
    });
    // The text may only mention the tag; continue after it.
    Some(cursor.begin)
}

/// Parses `<function=name>...</function>` without surrounding tags.
pub(super) fn parse_function_tags(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> Option<usize> {
    answer.record_dialect(CallDialect::Function);
    Some(parse_functions(cursor, false, answer))
}

/// The byte after the closing tag at this position, or this position if there is none.
fn skip_close(text: &str, position: usize) -> usize {
    let rest = text[position..].trim_start();
    match rest.strip_prefix(CLOSE) {
        Some(after) => text.len() - after.len(),
        None => position,
    }
}

fn parse_tagged_json(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> usize {
    let (value, end) = match parse_json_at(cursor.text, cursor.begin) {
        Ok(parsed) => parsed,
        Err(json_error) => {
            answer.add_malformed(json_error.reason());
            return find_past_close(cursor.text, json_error.at);
        }
    };
    let rest = cursor.text[end..].trim_start();
    if rest.is_empty() || rest.starts_with(CLOSE) || rest.starts_with(OPEN) {
        add_all(&value, answer);
        return skip_close(cursor.text, end);
    }
    let block_end = cursor.text[end..].find(CLOSE).map(|parsed| end + parsed);
    let block_end = block_end.unwrap_or(cursor.text.len());
    answer.add_malformed(json_error(cursor.text[cursor.begin..block_end].trim()));
    skip_close(cursor.text, block_end)
}

/// The byte after the next closing tag, or the end.
fn find_past_close(text: &str, position: usize) -> usize {
    let close_offset = text[position..].find(CLOSE);
    close_offset.map_or(text.len(), |close_offset| {
        position + close_offset + CLOSE.len()
    })
}

/// Parses consecutive functions from the name of the first, and returns their end.
fn parse_functions(mut cursor: Cursor<'_>, is_in_tags: bool, answer: &mut CallsAnswer) -> usize {
    loop {
        let end = match parse_function(cursor, is_in_tags) {
            Ok((call, end)) => {
                answer.calls.push(call);
                end
            }
            Err(CallError { reason, end }) => {
                answer.add_malformed(reason);
                end
            }
        };
        let next_function = Cursor {
            begin: end,
            ..cursor
        }
        .skip_whitespace()
        .strip_mark(FUNCTION);
        match next_function {
            Some(next_function) if !answer.has_too_many_calls() => cursor = next_function,
            _ => return end,
        }
    }
}

/// A call that cannot be parsed, and where the text continues.
struct CallError {
    reason: String,
    end: usize,
}

/// Parses `name>...</function>`.
fn parse_function(cursor: Cursor<'_>, is_in_tags: bool) -> Result<(WrittenCall, usize), CallError> {
    let rest = cursor.rest();
    let call_error = |reason: String, n_bytes: usize| CallError {
        reason,
        end: cursor.begin + n_bytes,
    };
    let Some(name_end) = rest.find('>') else {
        return Err(call_error(
            "the name of a call is not terminated".to_owned(),
            0,
        ));
    };
    let name = rest[..name_end].trim().to_owned();
    let mut argument_cursor = cursor.skip(name_end + 1).skip_whitespace();
    if argument_cursor.rest().starts_with('{') {
        return parse_json_function(name, argument_cursor);
    }
    let mut arguments = Map::new();
    loop {
        let rest = argument_cursor.rest();
        let parameter = rest.find(PARAMETER).unwrap_or(usize::MAX);
        let end = rest.find(END_FUNCTION).unwrap_or(usize::MAX);
        if end < parameter {
            let call = WrittenCall { name, arguments };
            return Ok((call, argument_cursor.begin + end + END_FUNCTION.len()));
        }
        if parameter == usize::MAX {
            let reason = format!("the call to {name} is not terminated");
            return Err(call_error(reason, 0));
        }
        let start = parameter + PARAMETER.len();
        let Some(key_end) = rest[start..].find('>') else {
            let reason = format!("the name of an argument of {name} is not terminated");
            return Err(call_error(reason, 0));
        };
        let key = rest[start..start + key_end].trim();
        let value = argument_cursor.skip(start + key_end + 1);
        let Some(n_bytes) = value_end(value.rest(), is_in_tags) else {
            let reason = format!("the argument {key} of the call to {name} is not terminated");
            let end = value
                .rest()
                .find(END_FUNCTION)
                .map(|n| value.begin + n + END_FUNCTION.len());
            return Err(CallError {
                reason,
                end: end.unwrap_or(value.begin),
            });
        };
        let text = &value.rest()[..n_bytes];
        // Templates that break the line after the opening tag also break it before the closing tag.
        let text = text
            .strip_prefix('\n')
            .map_or(text, |text| text.strip_suffix('\n').unwrap_or(text));
        add_argument(&name, key, text, cursor.tools, &mut arguments);
        argument_cursor = value.skip(n_bytes + END_PARAMETER.len());
    }
}

fn parse_json_function(
    name: String,
    cursor: Cursor<'_>,
) -> Result<(WrittenCall, usize), CallError> {
    let (value, end) =
        parse_json_at(cursor.text, cursor.begin).map_err(|json_error| CallError {
            reason: if json_error.at == cursor.text.len() {
                format!("the call to {name} is not terminated")
            } else {
                format!(
                    "the arguments of the call to {name}: {}",
                    json_error.reason()
                )
            },
            end: json_error.at,
        })?;
    let Some(closed) = Cursor {
        begin: end,
        ..cursor
    }
    .skip_whitespace()
    .strip_mark(END_FUNCTION) else {
        let reason = format!("the call to {name} is not terminated after its arguments");
        return Err(CallError { reason, end });
    };
    match value {
        Value::Object(arguments) => Ok((WrittenCall { name, arguments }, closed.begin)),
        _ => Err(CallError {
            reason: format!("the arguments of the call to {name} are not a JSON object"),
            end: closed.begin,
        }),
    }
}

/// Length in bytes of a parameter value. The value ends at the first closing tag after which the
/// call continues or ends. `None` if the function ends before that tag.
fn value_end(text: &str, is_in_tags: bool) -> Option<usize> {
    let continues = |after: &str| {
        let after = after.trim_start();
        let Some(rest) = after.strip_prefix(END_FUNCTION) else {
            return after.starts_with(PARAMETER);
        };
        let rest = rest.trim_start();
        let markers = [CLOSE, OPEN, FUNCTION];
        !is_in_tags || rest.is_empty() || markers.iter().any(|marker| rest.starts_with(marker))
    };
    let mut ends = text.match_indices(END_PARAMETER);
    let closing_tag = ends.find(|(position, marker)| continues(&text[position + marker.len()..]));
    let end = closing_tag
        .map(|(position, _)| position)
        .or_else(|| text.find(END_PARAMETER))?;
    // If the value contains the end of a function as templates write it, the closing tag of the
    // value is missing.
    let ends_before = text[..end]
        .match_indices(END_FUNCTION)
        .any(|(position, marker)| {
            text[position + marker.len()..end]
                .trim_start()
                .starts_with(CLOSE)
        });
    (!ends_before).then_some(end)
}

/// Parses a name, and the keys and values after it, and returns their end.
fn parse_glm_call(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> usize {
    let rest = cursor.rest();
    let end = rest.find(CLOSE).unwrap_or(rest.len());
    let head = rest.find(KEY).unwrap_or(end).min(end);
    let name = rest[..head].trim().to_owned();
    let mut argument_cursor = cursor.skip(head);
    let mut arguments = Map::new();
    while let Some(key) = argument_cursor.skip_whitespace().strip_mark(KEY) {
        let argument = key.rest().find(END_KEY).and_then(|key_end| {
            let value = key
                .skip(key_end + END_KEY.len())
                .skip_whitespace()
                .strip_mark(VALUE)?;
            let n_bytes = arg_value_end(value.rest())?;
            Some((&key.rest()[..key_end], value, n_bytes))
        });
        let Some((key, value, n_bytes)) = argument else {
            answer.add_malformed(format!(
                "an argument of the call to {name} is not terminated"
            ));
            return key.begin;
        };
        let text = &value.rest()[..n_bytes];
        add_argument(&name, key.trim(), text, cursor.tools, &mut arguments);
        argument_cursor = value.skip(n_bytes + END_VALUE.len());
    }
    answer.calls.push(WrittenCall { name, arguments });
    argument_cursor.begin
}

fn arg_value_end(text: &str) -> Option<usize> {
    let continues = |after: &str| {
        let after = after.trim_start();
        after.is_empty() || after.starts_with(KEY) || after.starts_with(CLOSE)
    };
    let mut ends = text.match_indices(END_VALUE);
    let closing_tag = ends.find(|(position, marker)| continues(&text[position + marker.len()..]));
    closing_tag
        .map(|(position, _)| position)
        .or_else(|| text.find(END_VALUE))
}

/// Adds an argument written as text, converted to the type that its tool declares.
fn add_argument(
    tool: &str,
    key: &str,
    text: &str,
    tools: &ToolSet,
    arguments: &mut Map<String, Value>,
) {
    let parameters = tools
        .find_tool(tool)
        .and_then(|tool| tool.parameters.as_ref());
    let schema = parameters.and_then(|parameters| Schema::from_root(parameters).property(key));
    arguments.insert(key.to_owned(), to_value(schema, text));
}

/// Converts text to a value. If the schema allows strings, the value is a string. Otherwise the
/// text is parsed as JSON, or as a Python literal, because templates print non-strings this way. If
/// neither parses, the value is a string.
fn to_value(schema: Option<Schema<'_>>, text: &str) -> Value {
    let allows = |type_name: &str| schema.is_some_and(|schema| schema.has_type(type_name));
    let is_named = schema.is_some_and(|schema| schema.has_choice(text));
    match text.trim() {
        "null" | "None" if allows("null") => Value::Null,
        "True" | "true" if allows("boolean") => Value::Bool(true),
        "False" | "false" if allows("boolean") => Value::Bool(false),
        _ if allows("string") || is_named => Value::from(text),
        trimmed => json::parse(trimmed)
            .ok()
            .or_else(|| python_literal(trimmed)?.to_json())
            .unwrap_or_else(|| Value::from(text)),
    }
}
