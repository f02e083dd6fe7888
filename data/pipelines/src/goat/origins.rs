//! Which arguments came from earlier outputs, and which values of outputs an answer states.
//!
//! An argument whose value stands in an earlier output is derived from there, and one that the query
//! states is of the query. The decision to question: an argument that no edge leads to may have a
//! value of an output by chance, such as a limit of 5; of such arguments only texts and numbers of
//! two characters or more count.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use tooltune_rows::tools::{Derived, TrajectoryCall};
use tooltune_synth::graph::NamedEdge;
use tooltune_synth::slot::contains_token;

/// Characters of a value that is not met by chance.
const TELLING_CHARS: usize = 2;

/// A step on the way to a value.
#[derive(Debug, Clone, PartialEq)]
enum Step<'v> {
    Key(&'v str),
    Item { idx: usize, n_items: usize },
}

/// Where the arguments of a call to `name` come from in the outputs of the calls before it: of an
/// argument that an edge leads to, first in the output that the edge comes from, else in the last
/// one that has it.
pub(super) fn derived(
    name: &str,
    arguments: &Map<String, Value>,
    before: &[TrajectoryCall],
    edges: &[NamedEdge],
) -> BTreeMap<String, Derived> {
    let origin = |(parameter, value): (&String, &Value)| {
        let edge = edges
            .iter()
            .find(|edge| edge.target == name && edge.parameter == *parameter);
        if !may_be_derived(value, edge.is_some()) {
            return None;
        }
        let of_edge = edge.and_then(|edge| before.iter().position(|call| call.name == edge.source));
        let others = (0..before.len()).rev();
        let mut calls = of_edge.into_iter().chain(others);
        let derived = calls.find_map(|call| place_of(call, &before[call].output, value))?;
        Some((parameter.clone(), derived))
    };
    arguments.iter().filter_map(origin).collect()
}

fn may_be_derived(value: &Value, has_edge: bool) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(_) => has_edge,
        Value::String(text) if text.trim().is_empty() => false,
        Value::String(_) | Value::Number(_) => has_edge || is_telling(value),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

fn is_telling(value: &Value) -> bool {
    said(value).is_some_and(|text| text.chars().count() >= TELLING_CHARS)
}

/// A scalar as sentences write it.
pub(super) fn said(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The place of a value in the output of a call: of several, the first.
fn place_of(call: usize, output: &Value, value: &Value) -> Option<Derived> {
    // An output that is a text has no places within.
    if let Value::String(text) = output {
        let path = String::new();
        let pick = String::new();
        return contains_token(text, &said(value)?).then_some(Derived { call, path, pick });
    }
    let mut steps = Vec::new();
    find(output, value, &mut steps).then(|| {
        let (path, pick) = spelled(&steps);
        Derived { call, path, pick }
    })
}

/// Whether `value` stands in `within`; `steps` then lead there.
fn find<'v>(within: &'v Value, value: &Value, steps: &mut Vec<Step<'v>>) -> bool {
    if !steps.is_empty() && is_same(within, value) {
        return true;
    }
    let mut enter = |step: Step<'v>, inner: &'v Value| {
        steps.push(step);
        let is_found = find(inner, value, steps);
        if !is_found {
            steps.pop();
        }
        is_found
    };
    match within {
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

/// Numbers by what they are, and a number in quotes as that number: APIs take both.
fn is_same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::String(text), Value::Number(number))
        | (Value::Number(number), Value::String(text)) => text.trim() == number.to_string(),
        _ => left == right,
    }
}

/// The path, and which of several values it is: `results[].id` and `first` or `last`, else
/// `results[2].id`.
fn spelled(steps: &[Step<'_>]) -> (String, String) {
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

/// Takes from each call what the query states: that is of the query.
pub(super) fn without_stated(calls: &mut [TrajectoryCall], query: &str) {
    for call in calls {
        let arguments = &call.arguments;
        call.derived.retain(|parameter, _| {
            let value = arguments.get(parameter).and_then(said);
            !value.is_some_and(|text| contains_token(query, &text))
        });
    }
}

/// The values of the last outputs that the answer states and that neither the query nor an argument
/// says: what a right answer must hold. Outputs that a later call uses are on the way.
pub(super) fn facts(calls: &[TrajectoryCall], query: &str, response: &str) -> Vec<String> {
    let used: BTreeSet<usize> = calls
        .iter()
        .flat_map(|call| call.derived.values().map(|derived| derived.call))
        .collect();
    let mut facts: Vec<String> = Vec::new();
    let last = calls.iter().enumerate().filter(|(n, _)| !used.contains(n));
    for (_, call) in last {
        let given: Vec<String> = call.arguments.values().filter_map(said).collect();
        let mut state = |value: &Value| {
            let Some(text) = said(value).filter(|_| is_telling(value)) else {
                return;
            };
            let is_new = !facts.contains(&text) && !given.contains(&text);
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
    fn an_argument_is_derived_from_where_its_value_stands() {
        let films = json!({"results": [{"id": 5, "cast": ["Ann", "Bo"]}, {"id": 7, "cast": []},
            {"id": 9.0, "cast": ["Cy"]}], "page": 1});
        let before = [
            call("Find", json!({"q": "Titanic"}), films),
            call("Text", json!({}), json!("The port is Aldmouth, berth 12.")),
        ];
        let edges = [edge("Find", "Cast", "id"), edge("Text", "Cast", "port")];
        let found = |arguments: Value| {
            let arguments = arguments.as_object().expect("arguments");
            let derived = derived("Cast", arguments, &before, &edges);
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
            let found: Vec<String> = found(arguments.clone())
                .into_iter()
                .map(|(_, at)| at)
                .collect();
            assert_eq!(found, expected, "{arguments}");
        }
    }

    #[test]
    fn what_the_query_states_is_of_the_query_and_facts_are_new_values_of_the_last_outputs() {
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
        let before = calls[..1].to_vec();
        let edges = [edge("Find", "Tide", "id")];
        calls[1].derived = derived("Tide", &calls[1].arguments.clone(), &before, &edges);
        assert_eq!(calls[1].derived.len(), 2);
        without_stated(&mut calls, "The low tide of the Gull in Aldmouth?");
        let left: Vec<&str> = calls[1].derived.keys().map(String::as_str).collect();
        assert_eq!(left, ["id"]);
        let response = "At Aldmouth low tide is at 06:40 with 3.5 metres, number 1.";
        assert_eq!(facts(&calls, "When is it?", response), ["06:40", "3.5"]);
        assert!(facts(&calls, "Is it 06:40 or 3.5?", response).is_empty());
    }
}
