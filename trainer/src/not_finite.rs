//! Finds what is to blame for losses and logits that are NaN or infinite from the first one on.

use tooltune_checkpoints::weights::Weights;

use crate::error::Error;

/// Tensors that are named; a file of zeros and ones may hold thousands.
const N_NAMED: usize = 5;

/// Blames the weights of the base, where some of them are not finite; `what` says what is not finite
/// because of them. For a step before the first update: nothing that was learned can be at fault.
///
/// # Errors
///
/// The tensors that are not finite, with their files, or a file that cannot be read.
pub(crate) fn blame_weights(weights: &Weights, what: &str) -> Result<(), Error> {
    let found = weights.not_finite()?;
    if found.is_empty() {
        return Ok(());
    }
    let named: Vec<String> = found
        .iter()
        .take(N_NAMED)
        .map(ToString::to_string)
        .collect();
    let mut tensors = named.join(", ");
    if found.len() > N_NAMED {
        tensors.push_str(&format!(" and {} more tensors", found.len() - N_NAMED));
    }
    Err(Error::NonFiniteWeights {
        what: what.to_owned(),
        tensors,
    })
}

/// Refuses a run at its end if none of its `steps` was followed by an update.
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
