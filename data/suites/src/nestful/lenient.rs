//! Calls in whatever surrounds them: prose, fences, tags, thoughts, a list that breaks off.

use tooltune_rows::python::{PyValue, loads_prefix};

use super::parse::tagged;
use crate::python_calls::without_thoughts;

/// Finds the calls of a completion; none if it holds none.
///
/// In this order, the first rule that finds calls deciding:
///
/// 1. Thoughts are dropped: all up to the last `</think>`, and an opened `<think>` with all after it.
/// 2. The objects in `<tool_call>` tags, and the items of lists in them.
/// 3. The first JSON value that holds calls: a list of objects with names, an object with such a
///    list as `tool_calls`, or an object with a name. Objects that follow one another, with nothing
///    but blanks and commas between them, are one sequence, so that a list that breaks off gives
///    its whole calls.
/// 4. An empty list says that no call is needed: no calls, and no error.
///
/// JSON is read as Python reads it; single quotes and trailing commas are not fixed.
pub fn lenient_calls(completion: &str) -> Option<Vec<PyValue>> {
    let text = without_thoughts(completion);
    let in_tags: Vec<PyValue> = tagged(text)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|value| calls_of(&value))
        .flatten()
        .collect();
    if in_tags.is_empty() {
        in_text(text)
    } else {
        Some(in_tags)
    }
}

fn in_text(text: &str) -> Option<Vec<PyValue>> {
    let mut has_empty_list = false;
    for (value, end) in json_values(text) {
        has_empty_list |= value.as_list().is_some_and(<[PyValue]>::is_empty);
        if let Some(mut calls) = calls_of(&value) {
            if value.as_list().is_none() {
                calls.extend(following(text, end));
            }
            return Some(calls);
        }
    }
    has_empty_list.then(Vec::new)
}

/// The calls that a value holds; none if it holds none.
fn calls_of(value: &PyValue) -> Option<Vec<PyValue>> {
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

/// The calls after a first one.
fn following(text: &str, mut at: usize) -> Vec<PyValue> {
    let mut calls = Vec::new();
    loop {
        let rest = text.get(at..).unwrap_or_default();
        let n_between = rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r', ',']).len();
        let next = if rest[n_between..].starts_with('{') {
            loads_prefix(text, at + n_between).ok()
        } else {
            None
        };
        match next.and_then(|(value, end)| calls_of(&value).map(|one| (one, end))) {
            Some((one, end)) => {
                calls.extend(one);
                at = end;
            }
            None => return calls,
        }
    }
}

/// The JSON lists and objects of a text and where each ends, outer ones before those inside them.
pub(super) fn json_values(text: &str) -> impl Iterator<Item = (PyValue, usize)> {
    // A text of nothing but brackets would otherwise take a time that grows with its square.
    const MAX_TRIED: usize = 256;
    text.match_indices(['[', '{'])
        .take(MAX_TRIED)
        .filter_map(|(start, _)| loads_prefix(text, start).ok())
}
