//! Classifies the errors of an outcome's arguments leaf by leaf.

use serde_json::{Map, Value};
use tooltune_agents::{AttemptedCall, Outcome};
use tooltune_apis::GoldCall;

use super::api_bank::SEARCHER;
use super::endpoints::collapse_blanks;
use super::invocations::normalized_arguments;
use crate::leaf_errors::{ComparedCall, LeafErrors};

/// The errors of an outcome's arguments, compared by meaning as in invocation accuracy. Calls are
/// paired by their names. Gold calls without known arguments and `ToolSearcher` are left out.
pub fn outcome_leaf_errors(outcome: &Outcome, gold: &[GoldCall]) -> LeafErrors {
    let compared = |name: &str, arguments: Option<&Map<String, Value>>| ComparedCall {
        name: collapse_blanks(name),
        arguments: arguments.map(|fields| Value::Object(normalized_arguments(fields))),
    };
    let predicted = |call: &AttemptedCall| {
        let name = call.name.as_deref()?;
        Some(compared(name, call.arguments.as_ref()))
    };
    let is_task = |call: &ComparedCall| !call.name.is_empty() && call.name != SEARCHER;
    let predicted = outcome.calls.iter().filter_map(predicted);
    let mut predicted: Vec<ComparedCall> = predicted.filter(is_task).collect();
    let mut reference = Vec::with_capacity(gold.len());
    for call in gold {
        let wanted = compared(&call.name, call.arguments.as_ref());
        if wanted.arguments.is_some() {
            reference.push(wanted);
        } else if let Some(made) = predicted.iter().position(|call| call.name == wanted.name) {
            predicted.remove(made);
        }
    }
    reference.retain(is_task);
    let ends = outcome.texts.iter();
    let finish_reasons: Vec<&str> = ends.map(|end| end.finish_reason.as_str()).collect();
    let is_malformed = !outcome.failures.is_empty();
    LeafErrors::compare_sequences(&reference, &predicted, is_malformed, &finish_reasons)
}
