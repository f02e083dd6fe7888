//! Grounds calls: references name functions instead of labels.
//!
//! Labels are free to choose, so texts are compared with `$var_1.result$` replaced by
//! `$multiply.result$`. A reference to the wrong one of two calls of a function is therefore
//! invisible here; the execution finds it.

use indexmap::IndexMap;
use tooltune_rows::python::{PyDict, PyValue, python_str};

/// A call as texts are made of it.
#[derive(Debug, Clone)]
pub struct GroundedCall {
    /// The function's name.
    pub name: String,
    /// Its arguments, references grounded, in the order that they were written in.
    pub arguments: PyDict,
}

/// Names of calls that stand for the answer and are no functions.
const RESULT: &str = "var_result";

/// Grounds the references of a sequence; none if any of the calls is no call.
///
/// In a text that begins with `$var` and has a point, the label before the point becomes the name
/// of the function that the label was last given to. Texts in a list are grounded too, those in
/// objects or deeper are not. `parameters` stand in for missing `arguments`; calls named
/// `var_result` are dropped.
///
/// # Source
///
/// NESTFUL's published scorer: one call that is no object, has no name, or arguments that are no
/// object, leaves the whole prediction without calls.
pub fn ground(calls: &[PyValue]) -> Option<Vec<GroundedCall>> {
    let producers = producers(calls)?;
    let mut grounded = Vec::new();
    for call in calls {
        let name = name(call)?;
        if name == RESULT {
            continue;
        }
        let arguments = match call.get("arguments").or_else(|| call.get("parameters")) {
            None => PyDict::new(),
            Some(arguments) => arguments.as_dict()?.clone(),
        };
        let arguments = arguments
            .into_iter()
            .map(|(key, value)| (key, ground_value(value, &producers)))
            .collect();
        grounded.push(GroundedCall { name, arguments });
    }
    Some(grounded)
}

fn name(call: &PyValue) -> Option<String> {
    match call.get("name")? {
        PyValue::List(_) | PyValue::Dict(_) => None,
        name => Some(python_str(name)),
    }
}

/// Labels without `$`, in the order of their first definition, with the function of the last one.
fn producers(calls: &[PyValue]) -> Option<IndexMap<String, String>> {
    let mut producers = IndexMap::new();
    for call in calls {
        let name = name(call)?;
        if name == RESULT || name == "varResult" {
            continue;
        }
        if let Some(label) = call.get("label") {
            producers.insert(label.as_text()?.replace('$', ""), name);
        }
    }
    Some(producers)
}

fn ground_value(value: PyValue, producers: &IndexMap<String, String>) -> PyValue {
    match value {
        PyValue::Text(text) => PyValue::Text(ground_text(text, producers)),
        PyValue::List(items) => {
            let ground_item = |item| match item {
                PyValue::Text(text) => PyValue::Text(ground_text(text, producers)),
                other => other,
            };
            PyValue::List(items.into_iter().map(ground_item).collect())
        }
        other => other,
    }
}

/// Labels are tried in their order and each on what the one before left, since a function's name
/// may begin with `var`, too.
fn ground_text(mut text: String, producers: &IndexMap<String, String>) -> String {
    let mut next = 0;
    while text.starts_with("$var") {
        let label = text
            .split_once('.')
            .map(|(before, _)| before.replace('$', ""));
        let known = label.and_then(|label| producers.get_full(&label));
        let Some((at, label, name)) = known.filter(|(at, ..)| *at >= next) else {
            break;
        };
        text = text.replace(label, name);
        next = at + 1;
    }
    text
}
