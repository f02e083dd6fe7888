//! Measures one real training step on the longest micro-batch of a run.
//!
//! The step is complete, including the optimizer update. Its adapters are discarded.

use std::time::Instant;

use burn::tensor::Device;
use serde::Serialize;
use tooltune_rows::batches::StepBatch;

use crate::config::Config;
use crate::error::Error;
use crate::process::{peak_rss_bytes, rss_bytes};
use crate::recipes::data_plane::DataPlane;
use crate::recipes::learner::{Contribution, Learner, StepInput, micro_batch};
use crate::recipes::preparation::Preparation;

/// Measurements of one step on the longest micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Probe {
    /// Tokens of the micro-batch.
    pub n_tokens: usize,
    /// Supervised tokens.
    pub n_trained_tokens: usize,
    /// Wall-clock seconds of forward, backward and update.
    pub seconds: f64,
    /// Tokens per second.
    pub tokens_per_second: f64,
    /// Mean loss of the micro-batch, in nats.
    pub loss: f64,
    /// Resident set before the weights were loaded; absent if the system does not report it.
    pub rss_before_weights_bytes: Option<u64>,
    /// Resident set with weights and optimizer, before the step.
    pub rss_before_step_bytes: Option<u64>,
    /// Peak resident set up to the end of the step.
    pub peak_rss_bytes: Option<u64>,
}

/// Runs and measures one training step.
///
/// # Errors
///
/// The weights cannot be read, or the micro-batch has no supervised tokens.
pub fn probe(
    config: &Config,
    preparation: &Preparation,
    longest_batch: &[usize],
    device: &Device,
) -> Result<Probe, Error> {
    let rss_before_weights_bytes = rss_bytes();
    let training = &preparation.training;
    let (mut learner, _) = Learner::open(config, training, None, device, DataPlane::default())?;
    let batch = micro_batch(&training.examples, longest_batch)?;
    let rss_before_step_bytes = rss_bytes();

    let started = Instant::now();
    let input = StepInput::new(StepBatch {
        micro_batches: vec![batch],
    });
    let contribution = learner.contribute(&input, 1, (&[0], 1), &mut |_| true)?;
    let Contribution { losses, gradient } = contribution.expect("the watch stops nothing");
    let loss = losses[&0] / input.batch.sum_loss_weights();
    let gradient = gradient.finish::<Error>(&learner.adapters.flat, None)?;
    // Reading the norm waits for the device, so the measured time is complete.
    learner.update(gradient, loss, config.train.learning_rate);
    let seconds = started.elapsed().as_secs_f64();
    Ok(Probe {
        n_tokens: input.batch.n_tokens(),
        n_trained_tokens: input.n_trained_tokens(),
        seconds,
        tokens_per_second: input.batch.n_tokens() as f64 / seconds.max(1e-9),
        loss,
        rss_before_weights_bytes,
        rss_before_step_bytes,
        peak_rss_bytes: peak_rss_bytes(),
    })
}
