//! Grounds calls: replaces the labels in references by function names.
//!
//! Labels can be chosen freely, so texts are compared with `$var_1.result$` replaced by
//! `$multiply.result$`. If a function is called twice, a reference to the wrong call is therefore
//! not detected here, but by the execution.

use indexmap::IndexMap;
use tooltune_json::python::{PyDict, PyValue, python_str};

/// A grounded call.
#[derive(Debug, Clone)]
pub struct GroundedCall {
    /// Name of the function.
    pub name: String,
    /// Arguments with grounded references, in their original order.
    pub arguments: PyDict,
}

/// Name of calls that represent the answer instead of a function.
const RESULT: &str = "var_result";

/// Grounds the references of a sequence; `None` if any item is not a call.
///
/// In a string that starts with `$var` and contains a point, the label before the point is replaced
/// by the name of the last function with that label. Strings in lists are also grounded, but
/// strings in objects or at deeper levels are not. If `arguments` is missing, `parameters` is used.
/// Calls named `var_result` are dropped.
///
/// # Source
///
/// NESTFUL's published scorer: one call that is not an object, has no name, or has no arguments
/// object invalidates the whole prediction.
pub fn ground_calls(calls: &[PyValue]) -> Option<Vec<GroundedCall>> {
    let producers = producers(calls)?;
    let mut grounded = Vec::new();
    for call in calls {
        let name = call_name(call)?;
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

fn call_name(call: &PyValue) -> Option<String> {
    match call.get("name")? {
        PyValue::List(_) | PyValue::Dict(_) => None,
        name => Some(python_str(name)),
    }
}

/// Labels without `$`, in order of first definition, each with the last function of that label.
fn producers(calls: &[PyValue]) -> Option<IndexMap<String, String>> {
    let mut producers = IndexMap::new();
    for call in calls {
        let name = call_name(call)?;
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

/// Replaces the labels in order. Each replacement starts from the result of the previous one,
/// because a function name may also start with `var`.
fn ground_text(mut text: String, producers: &IndexMap<String, String>) -> String {
    let mut next_producer = 0;
    while text.starts_with("$var") {
        let label = text
            .split_once('.')
            .map(|(prefix, _)| prefix.replace('$', ""));
        let known_label = label.and_then(|label| producers.get_full(&label));
        let Some((call_idx, label, name)) =
            known_label.filter(|(call_idx, ..)| *call_idx >= next_producer)
        else {
            break;
        };
        text = text.replace(label, name);
        next_producer = call_idx + 1;
    }
    text
}
