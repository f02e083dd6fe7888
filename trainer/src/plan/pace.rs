//! Estimates the speed of a run from a probe, from the run's recorded steps, or from a short matmul
//! benchmark.

use std::path::PathBuf;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use serde::Serialize;
use serde_json::Value;
use tooltune_disk::regular_file;
use tooltune_kernels::lora_linear::{LinearExtras, StackedLinear, lora_linear};
use tooltune_kernels::{ComputeDtype, FrozenWeight, is_cpu};

use super::{Plan, Probe, RanksPlan};
use crate::config::Config;
use crate::config::budgets::RUN_FILE_BYTES;
use crate::models::DecoderConfig;

/// Number of latest recorded steps from which the rate is computed.
const RECORDED_STEPS: usize = 50;

/// Rows of the benchmarked matmul: enough to use every thread.
const ROWS: usize = 512;

/// Maximum output features of the benchmarked matmul, so that creating the weight is faster than
/// the matmul.
const MAX_OUTPUTS: usize = 4096;

/// Duration of the benchmark.
const BENCHMARK_SECONDS: f64 = 0.2;

/// Whole steps reach about this share of the benchmark's rate, because of attention, norms, the
/// optimizer and small matmuls. Two probes of SmolLM2-135M on two busy cores measured .48 and .63
/// (2026-11-27), so this is a rough estimate.
const STEP_EFFICIENCY: f64 = 0.5;

/// Source of a rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PaceSource {
    /// One whole step on the longest micro-batch.
    Probe,
    /// The last steps of the run in its folder, read from its `timing.jsonl`.
    Recorded(PathBuf),
    /// A matmul benchmark with the model's shape; the value is in operations per second.
    #[serde(rename = "products")]
    Benchmark(f64),
}

/// Inputs of the estimate.
#[derive(Debug, Clone, Copy)]
pub struct PaceInput<'a> {
    /// The config of the run.
    pub config: &'a Config,
    /// Plan of the run.
    pub plan: &'a Plan,
    /// Shape of the model.
    pub model: &'a DecoderConfig,
    /// Measurement of one step, if there is one.
    pub probe: Option<&'a Probe>,
    /// Device of the run.
    pub device: &'a Device,
}

/// Estimated speed and its source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pace {
    /// Tokens per second in training.
    pub tokens_per_second: f64,
    /// Source of the estimate.
    pub source: PaceSource,
}

impl Pace {
    /// Uses the best available source: a probe, then the run's own steps, then a matmul benchmark
    /// on the CPU. `None` on a GPU without a measurement.
    pub fn estimate(input: &PaceInput<'_>) -> Option<Self> {
        let PaceInput {
            config,
            plan,
            model,
            probe,
            device,
        } = *input;
        if let Some(probe) = probe {
            return Some(Self {
                tokens_per_second: probe.tokens_per_second,
                source: PaceSource::Probe,
            });
        }
        recorded_pace(config).or_else(|| {
            let per_second =
                is_cpu(device).then(|| matmul_rate(model, plan.compute_dtype, device))?;
            let all = operations(plan, model);
            Some(Self {
                tokens_per_second: plan.training.n_tokens as f64 * STEP_EFFICIENCY * per_second
                    / all,
                source: PaceSource::Benchmark(per_second),
            })
        })
    }

    /// Seconds of training on `n_tokens` tokens.
    pub fn seconds(&self, n_tokens: u64) -> f64 {
        n_tokens as f64 / self.tokens_per_second.max(1e-9)
    }

    /// Seconds of all training steps. Ranks divide the time of one process; a recorded rate already
    /// includes them.
    pub fn training_seconds(&self, plan: &Plan, ranks: Option<&RanksPlan>) -> f64 {
        let seconds = self.seconds(plan.training.n_tokens);
        match (ranks, &self.source) {
            (Some(ranks), PaceSource::Probe | PaceSource::Benchmark(_)) => {
                ranks.training_seconds(seconds, plan.steps)
            }
            (None, _) | (_, PaceSource::Recorded(_)) => seconds,
        }
    }

    /// Describes the source of the rate.
    pub fn describe_source(&self) -> String {
        match &self.source {
            PaceSource::Probe => "one training step (--probe)".to_owned(),
            PaceSource::Recorded(path) => format!(
                "the run's last steps, {:.0} tokens/s: {}",
                self.tokens_per_second,
                path.display()
            ),
            PaceSource::Benchmark(per_second) => format!(
                "a short matmul benchmark, {:.0} GFLOP/s; --probe measures one step",
                per_second / 1e9
            ),
        }
    }
}

/// Rate of the last recorded steps of the run in the output folder.
fn recorded_pace(config: &Config) -> Option<Pace> {
    let path = config.train.output_dir.join("timing.jsonl");
    let text = regular_file::read(&path, RUN_FILE_BYTES).ok()?;
    let text = String::from_utf8(text).ok()?;
    let (mut tokens, mut seconds) = (0.0, 0.0);
    for line in text.lines().rev().take(RECORDED_STEPS) {
        let line: Value = serde_json::from_str(line).ok()?;
        tokens += line["tokens"].as_f64()?;
        seconds += line["seconds"].as_f64()?;
        seconds += line["retriever_seconds"].as_f64().unwrap_or(0.0);
    }
    (tokens > 0.0 && seconds > 0.0).then(|| Pace {
        tokens_per_second: tokens / seconds,
        source: PaceSource::Recorded(path),
    })
}

/// Operations of all steps.
fn operations(plan: &Plan, model: &DecoderConfig) -> f64 {
    let training = &plan.training;
    training_operations(
        model,
        plan.needs.n_trained,
        plan.kept_blocks,
        [training.n_tokens as f64, training.n_trained_tokens as f64],
    )
}

/// Operations of training on `n_tokens` tokens, of which `n_supervised` are supervised: the blocks
/// (forward, input gradients, and recomputation of those that are not kept), the head for supervised
/// tokens, and the adapters with their gradients. Attention is not included.
pub(super) fn training_operations(
    model: &DecoderConfig,
    n_adapter: usize,
    n_kept_blocks: usize,
    [n_tokens, n_supervised]: [f64; 2],
) -> f64 {
    let head = (model.vocab_size * model.hidden_size) as f64;
    let embedding = if model.tie_word_embeddings { 0.0 } else { head };
    let blocks = model.n_parameters() as f64 - head - embedding;
    let kept_share = n_kept_blocks as f64 / model.num_hidden_layers.max(1) as f64;
    let passes = 4.0 + 2.0 * (1.0 - kept_share);
    (passes * blocks + 6.0 * n_adapter as f64) * n_tokens + 4.0 * head * n_supervised
}

/// Measures the operations per second of a matmul with the model's shape.
fn matmul_rate(model: &DecoderConfig, compute_dtype: ComputeDtype, device: &Device) -> f64 {
    let (inputs, outputs) = (
        model.hidden_size,
        model.intermediate_size.clamp(1, MAX_OUTPUTS),
    );
    let values = vec![0.01; inputs * outputs];
    let linear = StackedLinear {
        weight: FrozenWeight::new(values, [outputs, inputs], compute_dtype, device),
        bias: None,
        out_features: [outputs].into(),
        adapter: None,
    };
    let x = Tensor::<2>::ones([ROWS, inputs], device).cast(compute_dtype.dtype());
    let matmul = || lora_linear(x.clone(), &linear, LinearExtras::default());
    // Warm-up: the first matmul also allocates memory.
    matmul();
    let (started, mut n) = (Instant::now(), 0.0);
    while started.elapsed().as_secs_f64() < BENCHMARK_SECONDS {
        matmul();
        n += 1.0;
    }
    n * 2.0 * (ROWS * inputs * outputs) as f64 / started.elapsed().as_secs_f64()
}
