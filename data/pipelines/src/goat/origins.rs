//! Finds which arguments come from earlier outputs, and which output values an answer states.
//!
//! An argument is derived from an earlier output that contains its value, unless the query states
//! the value. An argument without an edge may equal an output value by chance, such as a limit of
//! 5. For such arguments, only strings and numbers of at least two characters are derived.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use tooltune_apis::{Derived, TrajectoryCall};
use tooltune_synth::graph::NamedEdge;
use tooltune_synth::slot::contains_token;

/// Minimum length of a value that is unlikely to occur by chance.
const MIN_DISTINCTIVE_CHARS: usize = 2;

/// A step of the path to a value.
#[derive(Debug, Clone, PartialEq)]
enum Step<'v> {
    Key(&'v str),
    Item { idx: usize, n_items: usize },
}

/// The origins of a call's arguments in the outputs of earlier calls. An argument with an edge is
/// searched for in the output of the edge's source first, then in all outputs from the last to the
/// first.
pub(super) fn find_origins(
    name: &str,
    arguments: &Map<String, Value>,
    earlier_calls: &[TrajectoryCall],
    edges: &[NamedEdge],
) -> BTreeMap<String, Derived> {
    let origin = |(parameter, value): (&String, &Value)| {
        let edge = edges
            .iter()
            .find(|edge| edge.target == name && edge.parameter == *parameter);
        if !may_be_derived(value, edge.is_some()) {
            return None;
        }
        let source_idx = edge.and_then(|edge| {
            earlier_calls
                .iter()
                .position(|call| call.name == edge.source)
        });
        let call_idxs = (0..earlier_calls.len()).rev();
        let mut calls = source_idx.into_iter().chain(call_idxs);
        let derived =
            calls.find_map(|call| find_value(call, &earlier_calls[call].output, value))?;
        Some((parameter.clone(), derived))
    };
    arguments.iter().filter_map(origin).collect()
}

fn may_be_derived(value: &Value, has_edge: bool) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(_) => has_edge,
        Value::String(text) if text.trim().is_empty() => false,
        Value::String(_) | Value::Number(_) => has_edge || is_distinctive(value),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

fn is_distinctive(value: &Value) -> bool {
    sentence_text(value).is_some_and(|text| text.chars().count() >= MIN_DISTINCTIVE_CHARS)
}

/// A scalar as it is written in sentences.
pub(super) fn sentence_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The position of a value in the output of a call; the first one if there are several.
fn find_value(call: usize, output: &Value, value: &Value) -> Option<Derived> {
    // A string output has no paths.
    if let Value::String(text) = output {
        let path = String::new();
        let pick = String::new();
        return contains_token(text, &sentence_text(value)?).then_some(Derived {
            call,
            path,
            pick,
        });
    }
    let mut steps = Vec::new();
    find_path(output, value, &mut steps).then(|| {
        let (path, pick) = path_and_pick(&steps);
        Derived { call, path, pick }
    })
}

/// Whether `value` occurs in `container`; its path is then in `steps`.
fn find_path<'v>(container: &'v Value, value: &Value, steps: &mut Vec<Step<'v>>) -> bool {
    if !steps.is_empty() && is_same(container, value) {
        return true;
    }
    let mut enter = |step: Step<'v>, inner: &'v Value| {
        steps.push(step);
        let is_found = find_path(inner, value, steps);
        if !is_found {
            steps.pop();
        }
        is_found
    };
    match container {
        Value::Object(fields) => fields
            .iter()
            .any(|(key, inner)| enter(Step::Key(key), inner)),
        Value::Array(items) => items.iter().enumerate().any(|(idx, inner)| {
            let n_items = items.len();
            enter(Step::Item { idx, n_items }, inner)
        }),
        _ => false,
    }
}

/// Compares numbers by value, and a quoted number as that number, because APIs accept both.
fn is_same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::String(text), Value::Number(number))
        | (Value::Number(number), Value::String(text)) => text.trim() == number.to_string(),
        _ => left == right,
    }
}

/// The path to a value, and which value it means if there are several: `results[].id` with `first`
/// or `last`, otherwise `results[2].id`.
fn path_and_pick(steps: &[Step<'_>]) -> (String, String) {
    let items: Vec<(usize, usize)> = steps
        .iter()
        .filter_map(|step| match step {
            Step::Item { idx, n_items } => Some((*idx, *n_items)),
            Step::Key(_) => None,
        })
        .collect();
    let is_last = |(idx, n_items): &(usize, usize)| idx + 1 == *n_items;
    let pick = if items.is_empty() {
        ""
    } else if items.iter().all(|(idx, _)| *idx == 0) {
        "first"
    } else if items.iter().all(is_last) {
        "last"
    } else {
        ""
    };
    let mut path = String::new();
    for step in steps {
        match step {
            Step::Key(key) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
            }
            Step::Item { .. } if !pick.is_empty() => path.push_str("[]"),
            Step::Item { idx, .. } => path.push_str(&format!("[{idx}]")),
        }
    }
    (path, pick.to_owned())
}

/// Removes origins of arguments stated in the query, because they come from the query.
pub(super) fn remove_stated(calls: &mut [TrajectoryCall], query: &str) {
    for call in calls {
        let arguments = &call.arguments;
        call.derived.retain(|parameter, _| {
            let value = arguments.get(parameter).and_then(sentence_text);
            !value.is_some_and(|text| contains_token(query, &text))
        });
    }
}

/// The values of the final outputs that the answer states and neither the query nor an argument
/// contains. A correct answer must contain them. Outputs used by a later call are intermediate.
pub(super) fn new_facts(calls: &[TrajectoryCall], query: &str, response: &str) -> Vec<String> {
    let used: BTreeSet<usize> = calls
        .iter()
        .flat_map(|call| call.derived.values().map(|derived| derived.call))
        .collect();
    let mut facts: Vec<String> = Vec::new();
    let last = calls.iter().enumerate().filter(|(n, _)| !used.contains(n));
    for (_, call) in last {
        let argument_texts: Vec<String> =
            call.arguments.values().filter_map(sentence_text).collect();
        let mut state = |value: &Value| {
            let Some(text) = sentence_text(value).filter(|_| is_distinctive(value)) else {
                return;
            };
            let is_new = !facts.contains(&text) && !argument_texts.contains(&text);
            if is_new && contains_token(response, &text) && !contains_token(query, &text) {
                facts.push(text);
            }
        };
        scalars(&call.output, &mut state);
    }
    facts
}

fn scalars(value: &Value, state: &mut dyn FnMut(&Value)) {
    match value {
        Value::Object(fields) => fields.values().for_each(|inner| scalars(inner, state)),
        Value::Array(items) => items.iter().for_each(|inner| scalars(inner, state)),
        scalar => state(scalar),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(name: &str, arguments: Value, output: Value) -> TrajectoryCall {
        let row = json!({"sub_query": "", "name": name, "arguments": arguments, "output": output});
        TrajectoryCall::try_from(row).expect("a call")
    }

    fn edge(source: &str, target: &str, parameter: &str) -> NamedEdge {
        NamedEdge {
            source: source.to_owned(),
            target: target.to_owned(),
            parameter: parameter.to_owned(),
            field: None,
            score: None,
            reason: None,
        }
    }

    #[test]
    fn an_argument_is_derived_from_the_output_that_contains_its_value() {
        let films = json!({"results": [{"id": 5, "cast": ["Ann", "Bo"]}, {"id": 7, "cast": []},
            {"id": 9.0, "cast": ["Cy"]}], "page": 1});
        let earlier_calls = [
            call("Find", json!({"q": "Titanic"}), films),
            call("Text", json!({}), json!("The port is Aldmouth, berth 12.")),
        ];
        let edges = [edge("Find", "Cast", "id"), edge("Text", "Cast", "port")];
        let origins = |arguments: Value| {
            let arguments = arguments.as_object().expect("arguments");
            let derived = find_origins("Cast", arguments, &earlier_calls, &edges);
            let spelled = derived.into_iter().map(|(name, derived)| {
                let Derived { call, path, pick } = derived;
                (name, format!("{call} {path} {pick}"))
            });
            spelled.collect::<Vec<_>>()
        };
        for (arguments, expected) in [
            (json!({"id": 5}), Some("0 results[].id first")),
            (json!({"id": "7"}), Some("0 results[1].id ")),
            (json!({"id": 9}), Some("0 results[].id last")),
            (json!({"id": 6}), None),
            (json!({"port": "Aldmouth"}), Some("1  ")),
            (json!({"port": "Ald"}), None),
            (json!({"actor": "Bo"}), Some("0 results[0].cast[1] ")),
            (
                json!({"all": ["Ann", "Bo"]}),
                Some("0 results[].cast first"),
            ),
            (json!({"page": 1}), None),
            (json!({"none": []}), None),
        ] {
            let expected: Vec<String> = expected.map(str::to_owned).into_iter().collect();
            let origins: Vec<String> = origins(arguments.clone())
                .into_iter()
                .map(|(_, origin)| origin)
                .collect();
            assert_eq!(origins, expected, "{arguments}");
        }
    }

    #[test]
    fn stated_arguments_are_not_derived_and_facts_are_new_values_of_the_last_outputs() {
        let mut calls = vec![
            call(
                "Find",
                json!({"q": "Gull"}),
                json!({"id": 12, "port": "Aldmouth"}),
            ),
            call(
                "Tide",
                json!({"port": "Aldmouth", "id": 12}),
                json!({"port": "Aldmouth", "low": "06:40", "metres": 3.5, "list": [1, "spring"]}),
            ),
        ];
        let earlier_calls = calls[..1].to_vec();
        let edges = [edge("Find", "Tide", "id")];
        calls[1].derived =
            find_origins("Tide", &calls[1].arguments.clone(), &earlier_calls, &edges);
        assert_eq!(calls[1].derived.len(), 2);
        remove_stated(&mut calls, "The low tide of the Gull in Aldmouth?");
        let derived_names: Vec<&str> = calls[1].derived.keys().map(String::as_str).collect();
        assert_eq!(derived_names, ["id"]);
        let response = "At Aldmouth low tide is at 06:40 with 3.5 metres, number 1.";
        assert_eq!(new_facts(&calls, "When is it?", response), ["06:40", "3.5"]);
        assert!(new_facts(&calls, "Is it 06:40 or 3.5?", response).is_empty());
    }
}
