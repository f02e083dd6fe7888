//! Parses calls with a name and JSON between model-specific markers: DeepSeek, Kimi, gpt-oss, and
//! the Llama 3 tag.

use super::CallDialect;
use super::json_text::{add_arguments, parse_marked_json};
use super::python_text::add_lines;
use super::scan::Cursor;
use crate::calls::answer::CallsAnswer;

/// Parses `name<｜tool▁sep｜>{...}`, or `function<｜tool▁sep｜>name` followed by fenced JSON, up to
/// `<｜tool▁call▁end｜>`.
pub(super) fn parse_deepseek(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> Option<usize> {
    const SEPARATOR: &str = "<｜tool▁sep｜>";
    const FENCE: &str = "```json";
    let rest = cursor.rest();
    let Some(head) = rest.find(SEPARATOR) else {
        answer.record_dialect(CallDialect::Deepseek);
        answer.add_malformed("the name of a call is not terminated".to_owned());
        return Some(cursor.begin);
    };
    answer.record_dialect(CallDialect::Deepseek);
    let body = cursor.skip(head + SEPARATOR.len());
    if body.skip_whitespace().rest().starts_with('{') {
        let name = rest[..head].trim().to_owned();
        return Some(add_arguments(name, body, answer));
    }
    let line = body.rest().find('\n').unwrap_or(body.rest().len());
    let name = body.rest()[..line].trim().to_owned();
    let json = body.skip(line).skip_whitespace();
    let json = json.strip_mark(FENCE).unwrap_or(json);
    Some(add_arguments(name, json, answer))
}

/// Parses `functions.name:0<|tool_call_argument_begin|>{...}`, up to `<|tool_call_end|>`.
pub(super) fn parse_kimi(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> Option<usize> {
    const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
    answer.record_dialect(CallDialect::Kimi);
    let rest = cursor.rest();
    let Some(head) = rest.find(ARGUMENTS) else {
        answer.add_malformed("the name of a call is not terminated".to_owned());
        return Some(cursor.begin);
    };
    let id = rest[..head].trim();
    let name = id.strip_prefix("functions.").unwrap_or(id);
    let name = match name.rsplit_once(':') {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    };
    Some(add_arguments(
        name.to_owned(),
        cursor.skip(head + ARGUMENTS.len()),
        answer,
    ))
}

/// Parses a name and a JSON message. Returns `None` if no message header follows, for example
/// because the text only mentions the marker.
pub(super) fn parse_harmony(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> Option<usize> {
    const MESSAGE: &str = "<|message|>";
    let rest = cursor.rest();
    let head = rest.find(MESSAGE)?;
    if rest[..head].contains('\n') {
        return None;
    }
    let name_end = rest[..head].find([' ', '<']).unwrap_or(head);
    answer.record_dialect(CallDialect::Harmony);
    let name = rest[..name_end].to_owned();
    Some(add_arguments(
        name,
        cursor.skip(head + MESSAGE.len()),
        answer,
    ))
}

/// Parses JSON, or a call of a built-in tool such as `search.call(query="tides")`.
pub(super) fn parse_python_tag(cursor: Cursor<'_>, answer: &mut CallsAnswer) -> Option<usize> {
    let cursor = cursor.skip_whitespace();
    if cursor.rest().starts_with(['{', '[']) {
        return parse_marked_json(cursor, CallDialect::Json, answer);
    }
    let n_before = answer.calls.len();
    let end = add_lines(cursor, CallDialect::Python, "", answer);
    for call in &mut answer.calls[n_before..] {
        if cursor.tools.find_tool(&call.name).is_none()
            && let Some(name) = call.name.strip_suffix(".call")
        {
            call.name = name.to_owned();
        }
    }
    Some(end)
}
