//! Checks a row before it is released.
//!
//! The gold value must be valid under the schema, and the text must state every leaf of it. Leaves
//! are taken from the gold value instead of the facts that it was built from, so that errors in
//! either are found.

use serde_json::Value;
use thiserror::Error;

use super::draft::Draft;
use super::render::{Fact, contains_token};

/// An error in a row.
#[derive(Debug, Error)]
pub(super) enum RowProblem {
    #[error("invalid JSON Schema: {0}")]
    Schema(String),
    #[error("the gold violates the schema: {0}")]
    Invalid(String),
    #[error("the text does not state {0}")]
    Unstated(String),
    #[error("the gold has the booleans {in_gold:?}, but the text states {in_text:?}")]
    Booleans {
        in_gold: Vec<bool>,
        in_text: Vec<bool>,
    },
}

/// Checks a row.
///
/// # Errors
///
/// - the schema does not compile, or the gold value is not valid under it
/// - a string or number of the gold value is not in the text verbatim
/// - a boolean of the gold value differs from the stated one
/// - a fact, including the clause of a boolean, is not stated, or its opposite is also stated
pub(super) fn check(draft: &Draft) -> Result<(), RowProblem> {
    let row = &draft.row;
    let validator = jsonschema::validator_for(&row.json_schema)
        .map_err(|error| RowProblem::Schema(error.to_string()))?;
    validator
        .validate(&row.gold)
        .map_err(|error| RowProblem::Invalid(error.to_string()))?;
    let mut in_gold = Vec::new();
    for leaf in leaves(&row.gold) {
        let stated = match leaf {
            Value::String(text) => contains_token(&row.input_text, text),
            Value::Number(number) => contains_token(&row.input_text, &number.to_string()),
            Value::Bool(value) => {
                in_gold.push(*value);
                true
            }
            _ => false,
        };
        if !stated {
            return Err(RowProblem::Unstated(leaf.to_string()));
        }
    }
    // A family has one flag, so the order of the stated flags does not matter.
    let text_flags = draft.facts.iter().filter_map(|fact| match fact {
        Fact::Flag { value, .. } => Some(*value),
        _ => None,
    });
    let text_flags: Vec<bool> = text_flags.collect();
    if text_flags != in_gold {
        return Err(RowProblem::Booleans {
            in_gold,
            in_text: text_flags,
        });
    }
    let unstated = |fact: &&Fact| !fact.is_stated_in(&row.input_text);
    match draft.facts.iter().find(unstated) {
        Some(fact) => Err(RowProblem::Unstated(format!("{fact:?}"))),
        None => Ok(()),
    }
}

/// The scalars and empty containers of `value`, depth first.
pub(super) fn leaves(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) if !items.is_empty() => items.iter().flat_map(leaves).collect(),
        Value::Object(map) if !map.is_empty() => map.values().flat_map(leaves).collect(),
        leaf => vec![leaf],
    }
}
