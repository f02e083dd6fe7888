//! Calls as JSON: alone, in what surrounds it, or after a mark.

use serde_json::Value;
use tooltune_rows::json;

use super::{CallDialect, malformed};
use crate::calls::answer::{CallsAnswer, WrittenCall};
use crate::calls::tools::ToolSet;

pub(super) const TOOL_CALLS: &str = "[TOOL_CALLS]";

/// Brackets at which a value is looked for. A text of nothing but brackets would otherwise take a
/// time that grows with its square.
const MAX_TRIED: usize = 256;

/// Reads a text without any mark: the first value that holds calls, and those that follow it. What
/// stands within another value is none.
pub(super) fn bare(text: &str, tools: &ToolSet) -> CallsAnswer {
    let is_tool = |name: &str| tools.named(name).is_some();
    let mut at = 0;
    for _ in 0..MAX_TRIED {
        let Some(start) = text[at..].find(['[', '{']).map(|start| at + start) else {
            break;
        };
        match value_at(text, start) {
            None => at = start + 1,
            Some((value, end)) if !holds_calls(&value, is_tool) => at = end,
            Some((value, end)) => {
                let mut answer = CallsAnswer::in_dialect(CallDialect::Json);
                if text[..start].trim_end().ends_with('[') {
                    answer.refuse("the list of calls is no JSON: it breaks off".to_owned());
                }
                add_all(&value, &mut answer);
                add_following(text, end, &mut answer);
                return answer;
            }
        }
    }
    begun_call(text, tools)
}

/// Reads what stands after a mark, of which nothing is text.
pub(super) fn json_after(text: &str, dialect: CallDialect) -> CallsAnswer {
    let mut answer = CallsAnswer::in_dialect(dialect);
    match value_at(text, 0) {
        Some((value, end)) => {
            add_all(&value, &mut answer);
            add_following(text, end, &mut answer);
            answer
        }
        None => malformed(Some(dialect), no_json(text)),
    }
}

/// Reads `[TOOL_CALLS] [{...}]`, and `[TOOL_CALLS]name[ARGS]{...}` once for each call.
pub(super) fn mistral(text: &str) -> CallsAnswer {
    let mut answer = CallsAnswer::in_dialect(CallDialect::Mistral);
    for part in text.split(TOOL_CALLS).skip(1).map(str::trim) {
        if part.starts_with('[') {
            match value_at(part, 0) {
                Some((value, _)) => add_all(&value, &mut answer),
                None => answer.refuse(no_json(part)),
            }
            continue;
        }
        let Some(brace) = part.find('{') else {
            answer.refuse("a call has no arguments".to_owned());
            continue;
        };
        let name = part[..brace].split("[CALL_ID]").next().unwrap_or_default();
        let name = name.replace("[ARGS]", "").trim().to_owned();
        match value_at(part, brace) {
            Some((Value::Object(arguments), _)) => {
                answer.calls.push(WrittenCall { name, arguments })
            }
            _ => answer.refuse(no_json(&part[brace..])),
        }
    }
    answer
}

/// The calls of a value that is one, a list of them, or an object with such a list.
pub(super) fn add_all(value: &Value, answer: &mut CallsAnswer) {
    let calls = match value.get("tool_calls").unwrap_or(value) {
        Value::Array(calls) => calls.as_slice(),
        _ => std::slice::from_ref(value),
    };
    for call in calls {
        answer.add(WrittenCall::of_value(call));
    }
}

/// Why a text is no JSON.
pub(super) fn no_json(text: &str) -> String {
    match json::parse(text) {
        Ok(_) => "a call stands within other JSON".to_owned(),
        Err(error) => format!("a call is no JSON: {error}"),
    }
}

/// The JSON value that begins at byte `start`, and where it ends.
fn value_at(text: &str, start: usize) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
    values.next()?.ok()?;
    let end = start + values.byte_offset();
    // Read again by the rules that all JSON is read by.
    Some((json::parse(&text[start..end]).ok()?, end))
}

fn holds_calls(value: &Value, is_tool: impl Fn(&str) -> bool + Copy) -> bool {
    match value {
        Value::Array(items) => {
            !items.is_empty()
                && items
                    .iter()
                    .all(|item| WrittenCall::is_meant_by(item, is_tool))
        }
        Value::Object(fields) => match fields.get("tool_calls") {
            Some(Value::Array(items)) => !items.is_empty(),
            _ => WrittenCall::is_meant_by(value, is_tool),
        },
        _ => false,
    }
}

/// Adds the calls after a first one, with nothing but blanks, commas and semicolons between them.
fn add_following(text: &str, mut at: usize, answer: &mut CallsAnswer) {
    loop {
        let rest = &text[at..];
        let next = rest.trim_start_matches([' ', '\t', '\n', '\r', ',', ';']);
        if !next.starts_with('{') {
            return;
        }
        let start = at + (rest.len() - next.len());
        match value_at(text, start) {
            Some((value, end)) => {
                answer.add(WrittenCall::of_value(&value));
                at = end;
            }
            None => {
                answer.refuse(no_json(next));
                return;
            }
        }
    }
}

/// A text in which no call was found: malformed where one was begun, else a text.
fn begun_call(text: &str, tools: &ToolSet) -> CallsAnswer {
    let has = |key: &str| text.contains(&format!("\"{key}\""));
    let has_arguments = has("arguments") || has("parameters");
    let named = || tools.names().any(has);
    let is_begun = text.contains('{') && has("name") && (has_arguments || named());
    if !is_begun {
        return CallsAnswer::default();
    }
    let start = text.find(['{', '[']).unwrap_or(0);
    malformed(Some(CallDialect::Json), no_json(&text[start..]))
}
