//! Finds the cause if the very first loss or logits are NaN or infinite.

use tooltune_checkpoints::weights::Weights;

use crate::error::Error;

/// Maximum number of tensors in the message; a damaged file may contain thousands.
const MAX_LISTED: usize = 5;

/// Checks whether `what` is not finite because base weights are not finite. Call it before the
/// first update, when the trained weights cannot be the cause.
///
/// # Errors
///
/// Base weights are not finite (the error names the tensors and files), or a file cannot be read.
pub(crate) fn blame_weights(weights: &Weights, what: &str) -> Result<(), Error> {
    let tensors_found = weights.not_finite()?;
    if tensors_found.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = tensors_found
        .iter()
        .take(MAX_LISTED)
        .map(ToString::to_string)
        .collect();
    let mut tensors = names.join(", ");
    if tensors_found.len() > MAX_LISTED {
        tensors.push_str(&format!(
            " and {} more tensors",
            tensors_found.len() - MAX_LISTED
        ));
    }
    Err(Error::NonFiniteWeights {
        what: what.to_owned(),
        tensors,
    })
}

/// Returns an error at the end of a run if none of its `steps` steps updated the model.
///
/// # Errors
///
/// There was no update.
pub(crate) fn refuse_without_updates(
    steps: u64,
    updates: u64,
    learning_rate_key: &'static str,
) -> Result<(), Error> {
    match (steps, updates) {
        (1.., 0) => Err(Error::NeverFinite {
            steps,
            learning_rate_key,
        }),
        _ => Ok(()),
    }
}
