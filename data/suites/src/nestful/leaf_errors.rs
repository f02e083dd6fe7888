//! Classifies the errors of a sequence's arguments leaf by leaf.

use serde_json::{Map, Value};
use tooltune_json::python::PyValue;

use super::ground::{GroundedCall, ground_calls};
use super::parse::Parser;
use super::row::NestfulRow;
use crate::leaf_errors::{ComparedCall, LeafErrors};

/// The errors of the arguments of a completion. Calls are paired by their names, and references to
/// results are compared by the names of the functions, as in partial sequence accuracy.
pub fn completion_leaf_errors(
    row: &NestfulRow,
    completion: &str,
    parser: Parser,
    finish_reason: &str,
) -> LeafErrors {
    let parsed = parser.parse(completion);
    let predicted = compared_calls(&parsed.calls);
    let is_malformed = parsed.is_error || predicted.is_none();
    LeafErrors::compare_sequences(
        &compared_calls(&row.output).unwrap_or_default(),
        &predicted.unwrap_or_default(),
        is_malformed,
        &[finish_reason],
    )
}

fn compared_calls(calls: &[PyValue]) -> Option<Vec<ComparedCall>> {
    let arguments = |call: &GroundedCall| -> Option<Map<String, Value>> {
        let fields = call.arguments.iter();
        fields
            .map(|(key, value)| Some((key.clone(), value.to_json()?)))
            .collect()
    };
    let compared = |call: GroundedCall| ComparedCall {
        arguments: arguments(&call).map(Value::Object),
        name: call.name,
    };
    Some(ground_calls(calls)?.into_iter().map(compared).collect())
}
