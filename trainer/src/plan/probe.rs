//! Measures one real training step on the longest micro-batch of a run.
//!
//! The step is complete, including the optimizer update. Its adapters are discarded.

use std::time::Instant;

use burn::tensor::Device;
use serde::Serialize;

use crate::config::Config;
use crate::device::loss_rows;
use crate::error::Error;
use crate::lora::LoraLayout as _;
use crate::optim::{BackwardOptions, Optimizer, backward};
use crate::process::{peak_rss_bytes, rss_bytes};
use crate::recipes::learner::micro_batch;
use crate::recipes::preparation::Preparation;
use crate::recipes::starting;
use crate::settings;
use tooltune_kernels::{DropoutKey, DropoutRate};

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
    let compute_dtype = settings::compute_dtype(config.language_model()?.compute_dtype, device)?;
    let slots = preparation
        .training
        .lora
        .slots(&preparation.training.base.config)?;
    let kept_blocks = preparation
        .training
        .kept_blocks(config, compute_dtype, device)?;
    let mut adapters = starting::begin(config, &preparation.training, slots, device)?;
    let base = &preparation.training.base;
    let mut decoder = base.residual_decoder(&adapters, compute_dtype, device)?;
    if preparation.training.starting_adapter.is_none() {
        adapters.init_dora_magnitudes(&mut decoder)?;
    }
    let max_grad_norm = config.train.max_grad_norm;
    let mut optimizer = Optimizer::new(
        settings::adamw(&config.train),
        max_grad_norm,
        &adapters.flat,
    );
    adapters.attach(&mut decoder);
    let batch = micro_batch(&preparation.training.examples, longest_batch)?;
    let rss_before_step_bytes = rss_bytes();

    let started = Instant::now();
    let sum_loss_weights = batch.sum_loss_weights();
    let options = BackwardOptions {
        gradient_scale: 1.0 / sum_loss_weights,
        dropout: DropoutRate::new(config.lora.lora_dropout)
            .map(|rate| DropoutKey::new(rate, config.train.seed, 1, 0)),
        noise: settings::embedding_noise(&config.train, 1, 0),
        n_kept_blocks: kept_blocks.count(batch.n_tokens()),
        offloads_inputs: kept_blocks.offloads_inputs(),
        chunk_rows: loss_rows(device),
        distillation: settings::distillation(&config.train),
    };
    let part = backward::backward(&decoder, &adapters.slots, &batch, options)?;
    let loss = part.loss_sum / sum_loss_weights;
    // Reading the norm waits for the device, so the measured time is complete.
    optimizer.step(
        &mut adapters.flat,
        part.gradient,
        loss,
        config.train.learning_rate,
    );
    let seconds = started.elapsed().as_secs_f64();
    Ok(Probe {
        n_tokens: batch.n_tokens(),
        n_trained_tokens: batch.n_trained_tokens(),
        seconds,
        tokens_per_second: batch.n_tokens() as f64 / seconds.max(1e-9),
        loss,
        rss_before_weights_bytes,
        rss_before_step_bytes,
        peak_rss_bytes: peak_rss_bytes(),
    })
}
