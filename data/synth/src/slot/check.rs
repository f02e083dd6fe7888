//! A row in, and why it must not be handed out, if anything is wrong with it.
//!
//! Two questions: is the gold valid under the schema, and can every leaf of it be read in the
//! text. Leaves are taken from the gold, not from the facts that made it, so that a slip in
//! either is found.

use serde_json::Value;
use thiserror::Error;

use super::draft::Draft;
use super::render::{Fact, contains_token};

/// A row that cannot teach anything right.
#[derive(Debug, Error)]
pub(super) enum RowProblem {
    #[error("the schema is no JSON Schema: {0}")]
    Schema(String),
    #[error("the gold violates the schema: {0}")]
    Invalid(String),
    #[error("the text does not state {0}")]
    Unstated(String),
    #[error("the gold has the booleans {in_gold:?}, the text states {told:?}")]
    Booleans { in_gold: Vec<bool>, told: Vec<bool> },
}

/// Checks one row.
///
/// # Errors
///
/// - the schema does not compile, or the gold is not valid under it
/// - a string or number of the gold does not stand in the text as it is
/// - a boolean of the gold is not the one that was told
/// - a fact, the clause of a boolean among them, is not stated, or its opposite is stated too
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
    // A family has one flag, so the order in which flags are told cannot matter.
    let told = draft.asked.iter().filter_map(|fact| match fact {
        Fact::Flag { value, .. } => Some(*value),
        _ => None,
    });
    let told: Vec<bool> = told.collect();
    if told != in_gold {
        return Err(RowProblem::Booleans { in_gold, told });
    }
    let unstated = |fact: &&Fact| !fact.is_stated_in(&row.input_text);
    match draft.asked.iter().find(unstated) {
        Some(fact) => Err(RowProblem::Unstated(format!("{fact:?}"))),
        None => Ok(()),
    }
}

/// The scalars of `value`, and its empty containers, depth first.
pub(super) fn leaves(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) if !items.is_empty() => items.iter().flat_map(leaves).collect(),
        Value::Object(map) if !map.is_empty() => map.values().flat_map(leaves).collect(),
        leaf => vec![leaf],
    }
}
