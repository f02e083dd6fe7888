//! How fast a run will be: measured by a probe, recorded by the run itself, or estimated from a moment of
//! the products that most of its time goes into.

use std::path::PathBuf;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use serde::Serialize;
use serde_json::Value;
use tooltune_kernels::lora_linear::{LinearExtras, StackedLinear, lora_linear};
use tooltune_kernels::{ComputeDtype, FrozenWeight, is_cpu};
use tooltune_rows::regular_file;

use super::{Plan, Probe};
use crate::budgets::RUN_FILE_BYTES;
use crate::config::Config;
use crate::models::DecoderConfig;

/// Steps of an earlier process that its rate is taken from: the last ones.
const RECORDED_STEPS: usize = 50;

/// Rows of the product that is timed: as many as fill every thread.
const ROWS: usize = 512;

/// Most output features of it, so that making the weight takes less than the product.
const MOST_OUTPUTS: usize = 4096;

/// How long the product is timed for.
const SECONDS: f64 = 0.2;

/// Share of that rate that whole steps reach: attention, norms, the optimizer and small products take
/// their time, too. Two probes of SmolLM2-135M on two busy cores gave .48 and .63 (2026-11-27); it is no
/// more than a rough figure.
const SHARE: f64 = 0.5;

/// What a rate was taken from.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PaceSource {
    /// One whole step on the longest micro-batch.
    Probe,
    /// The last steps of the run in its folder, by its `timing.jsonl`.
    Recorded(PathBuf),
    /// Products of the model's shape: so many operations a second.
    Products(f64),
}

/// What the pace of a run follows from.
#[derive(Debug, Clone, Copy)]
pub struct PaceInput<'a> {
    /// The config of the run.
    pub config: &'a Config,
    /// What it reads and learns.
    pub plan: &'a Plan,
    /// The shape of the model.
    pub model: &'a DecoderConfig,
    /// A step that was run, if one was.
    pub probe: Option<&'a Probe>,
    /// Where it computes.
    pub device: &'a Device,
}

/// Tokens a second, and how they are known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pace {
    /// Tokens of a second of training.
    pub tokens_per_second: f64,
    /// How they are known.
    pub source: PaceSource,
}

impl Pace {
    /// The best that is known: of a probe, of the run itself, else of products on the CPU; `None` on a
    /// GPU that nothing has run on.
    pub fn of(input: &PaceInput<'_>) -> Option<Self> {
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
        recorded(config).or_else(|| {
            let per_second =
                is_cpu(device).then(|| products_per_second(model, plan.compute_dtype, device))?;
            let all = operations(plan, model);
            Some(Self {
                tokens_per_second: plan.training.n_tokens as f64 * SHARE * per_second / all,
                source: PaceSource::Products(per_second),
            })
        })
    }

    /// Seconds of training on so many tokens.
    pub fn seconds(&self, n_tokens: u64) -> f64 {
        n_tokens as f64 / self.tokens_per_second.max(1e-9)
    }

    /// In words, where the rate comes from.
    pub fn known_by(&self) -> String {
        match &self.source {
            PaceSource::Probe => "one step that the probe ran".to_owned(),
            PaceSource::Recorded(path) => format!(
                "its last steps, {:.0} tokens/s: {}",
                self.tokens_per_second,
                path.display()
            ),
            PaceSource::Products(per_second) => format!(
                "a moment of products, {:.0} GFLOP/s: rough; --probe measures",
                per_second / 1e9
            ),
        }
    }
}

/// The rate of the last steps that the run in the folder has taken.
fn recorded(config: &Config) -> Option<Pace> {
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

/// Operations of all steps: the blocks forward, backward to their inputs, and once more where they are
/// run again; the head for what is learned; the adapters with their gradients.
fn operations(plan: &Plan, model: &DecoderConfig) -> f64 {
    let head = (model.vocab_size * model.hidden_size) as f64;
    let embedding = if model.tie_word_embeddings { 0.0 } else { head };
    let blocks = model.n_parameters() as f64 - head - embedding;
    let kept = plan.kept_blocks as f64 / plan.n_blocks.max(1) as f64;
    let passes = 4.0 + 2.0 * (1.0 - kept);
    let of_token = passes * blocks + 6.0 * plan.needs.n_trained as f64;
    let training = &plan.training;
    of_token * training.n_tokens as f64 + 4.0 * head * training.n_trained_tokens as f64
}

/// Operations a second of a product of the model's shape.
fn products_per_second(model: &DecoderConfig, compute_dtype: ComputeDtype, device: &Device) -> f64 {
    let (inputs, outputs) = (
        model.hidden_size,
        model.intermediate_size.clamp(1, MOST_OUTPUTS),
    );
    let values = vec![0.01; inputs * outputs];
    let linear = StackedLinear {
        weight: FrozenWeight::new(values, [outputs, inputs], compute_dtype, device),
        bias: None,
        out_features: [outputs].into(),
        adapter: None,
    };
    let x = Tensor::<2>::ones([ROWS, inputs], device).cast(compute_dtype.dtype());
    let product = || lora_linear(x.clone(), &linear, LinearExtras::default());
    // The first one takes memory, too.
    product();
    let (started, mut n) = (Instant::now(), 0.0);
    while started.elapsed().as_secs_f64() < SECONDS {
        product();
        n += 1.0;
    }
    n * 2.0 * (ROWS * inputs * outputs) as f64 / started.elapsed().as_secs_f64()
}
