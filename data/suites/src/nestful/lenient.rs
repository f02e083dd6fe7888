//! Finds calls in any surrounding text: prose, fences, tags, reasoning, a truncated list.

use tooltune_json::python::{PyValue, loads_prefix};

use super::parse::tagged_values;
use crate::without_reasoning;

/// Finds the calls in a completion; `None` if there are none.
///
/// The rules are applied in order, and the first rule that finds calls determines the result:
///
/// 1. Reasoning is removed: the text between `<think>` and `</think>`, or everything before a
///    `</think>` without an opening marker. Markers inside strings are part of the string.
/// 2. The objects in `<tool_call>` tags, and the items of lists in them.
/// 3. The first JSON value with calls: a list of objects with names, an object with such a list as
///    `tool_calls`, or an object with a name. Objects separated only by whitespace and commas form one
///    sequence, so a truncated list gives its complete calls.
/// 4. An empty list means that no call is needed: no calls and no error.
///
/// JSON is parsed as in Python; single quotes and trailing commas are not repaired.
pub fn lenient_calls(completion: &str) -> Option<Vec<PyValue>> {
    let text = without_reasoning(completion);
    let in_tags: Vec<PyValue> = tagged_values(text)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|value| calls_in(&value))
        .flatten()
        .collect();
    if in_tags.is_empty() {
        parse_in_text(text)
    } else {
        Some(in_tags)
    }
}

fn parse_in_text(text: &str) -> Option<Vec<PyValue>> {
    let mut has_empty_list = false;
    for (value, end) in json_values(text) {
        has_empty_list |= value.as_list().is_some_and(<[PyValue]>::is_empty);
        if let Some(mut calls) = calls_in(&value) {
            if value.as_list().is_none() {
                calls.extend(parse_following(text, end));
            }
            return Some(calls);
        }
    }
    has_empty_list.then(Vec::new)
}

/// The calls in a value; `None` if there are none.
fn calls_in(value: &PyValue) -> Option<Vec<PyValue>> {
    let is_call = |value: &PyValue| {
        value
            .get("name")
            .is_some_and(|name| name.as_text().is_some())
    };
    let all_calls = |items: &[PyValue]| {
        let is_sequence = !items.is_empty() && items.iter().all(is_call);
        is_sequence.then(|| items.to_vec())
    };
    match value {
        PyValue::List(items) => all_calls(items),
        PyValue::Dict(fields) => match fields.get("tool_calls") {
            Some(items) => all_calls(items.as_list()?),
            None => is_call(value).then(|| vec![value.clone()]),
        },
        _ => None,
    }
}

/// The calls that follow the first call.
fn parse_following(text: &str, mut start: usize) -> Vec<PyValue> {
    let mut calls = Vec::new();
    loop {
        let rest = text.get(start..).unwrap_or_default();
        let n_between = rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r', ',']).len();
        let next_value = if rest[n_between..].starts_with('{') {
            loads_prefix(text, start + n_between).ok()
        } else {
            None
        };
        match next_value
            .and_then(|(value, end)| calls_in(&value).map(|found_calls| (found_calls, end)))
        {
            Some((found_calls, end)) => {
                calls.extend(found_calls);
                start = end;
            }
            None => return calls,
        }
    }
}

/// The JSON lists and objects in a text, with their ends; outer values come before inner ones.
pub(super) fn json_values(text: &str) -> impl Iterator<Item = (PyValue, usize)> {
    // Without a limit, a text of opening brackets would take quadratic time.
    const MAX_TRIED: usize = 256;
    text.match_indices(['[', '{'])
        .take(MAX_TRIED)
        .filter_map(|(start, _)| loads_prefix(text, start).ok())
}
