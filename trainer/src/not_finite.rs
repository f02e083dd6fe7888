//! Finds the cause of losses and logits that are NaN or infinite from the first one on.

use tooltune_checkpoints::weights::Weights;

use crate::error::Error;

/// Maximum number of tensors to name; a damaged file may contain thousands.
const N_NAMED: usize = 5;

/// Checks whether base weights that are not finite explain why `what` is not finite. Call it before
/// the first update, when the trained weights cannot be the cause.
///
/// # Errors
///
/// Names the tensors that are not finite and their files; or a file cannot be read.
pub(crate) fn blame_weights(weights: &Weights, what: &str) -> Result<(), Error> {
    let tensors_found = weights.not_finite()?;
    if tensors_found.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = tensors_found
        .iter()
        .take(N_NAMED)
        .map(ToString::to_string)
        .collect();
    let mut tensors = names.join(", ");
    if tensors_found.len() > N_NAMED {
        tensors.push_str(&format!(
            " and {} more tensors",
            tensors_found.len() - N_NAMED
        ));
    }
    Err(Error::NonFiniteWeights {
        what: what.to_owned(),
        tensors,
    })
}

/// Fails at the end of a run if none of its `steps` was followed by an update.
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
