//! Predicts steps, tokens, memory by part and disk space of a run, and with a probe its duration.
//!
//! Everything except the weights is read and checked with the code of training, so a run whose plan
//! is printed will also start. [`outline`] needs only the config and the model's shape. The
//! predicted memory is the peak resident set of the process on the CPU.

mod advice;
pub mod disk;
mod measured;
mod memory;
mod offline;
mod pace;
mod probe;
mod ranks;
mod retriever;
mod step;
mod workload;

use serde::Serialize;

pub use advice::{Cause, advice};
pub use memory::{GENERATION, MemoryPlan, Part, Phase, size};
pub use offline::{Outline, RetrieverOutline, base_weights, outline};
pub use pace::{Pace, PaceInput, PaceSource};
pub use probe::{Probe, probe};
pub use ranks::{Connection, RanksPlan, RanksSetup, StepTime};
pub use retriever::{RetrieverPlan, TextShape, plan_retriever};
pub use workload::{BatchShape, EvaluationWork, TrainingWork};

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use tooltune_checkpoints::weights::Weights;
use tooltune_kernels::ComputeDtype;

use crate::config::{Config, EvalStrategy};
use crate::device::loss_rows;
use crate::encoder::{EncoderFiles, EncoderOptions};
use crate::error::Error;
use crate::eval::in_loop::ranks_untrained;
use crate::lora::LoraLayout as _;
use crate::models::load::Quantization;
use crate::models::minilm::MiniLmConfig;
use crate::recipes::preparation::Preparation;
use crate::settings;
use memory::{MemoryInput, SAVING, memory_plan};
use retriever::RetrieverNeeds;
use workload::{evaluation_work, training_work};

/// Bytes of a checkpoint's text files: state, configs, template and manifest.
const CHECKPOINT_TEXT_BYTES: u64 = 16 << 10;

/// Memory and disk space that a run needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Needs {
    /// Number of values in the base model; 0 for a retriever without a language model.
    pub n_weights: usize,
    /// Number of trained values: of the adapter, or of a retriever without a language model.
    pub n_trained: usize,
    /// How frozen projections are stored.
    pub quantization: Quantization,
    /// Bytes that the GPUs of a node gather for a micro-batch; 0 if each has all weights.
    pub gathered_bytes: f64,
    /// Predicted memory.
    pub memory: MemoryPlan,
    /// Predicted peak of a step without evaluations and saves, to compare with a probe.
    pub step_bytes: u64,
    /// Bytes of one checkpoint.
    pub checkpoint_bytes: u64,
    /// Maximum bytes of all checkpoints together.
    pub disk_bytes: u64,
}

/// Predicted work and needs of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Memory and disk.
    pub needs: Needs,
    /// Optimizer steps.
    pub steps: u64,
    /// Tokens and micro-batches of training.
    pub training: TrainingWork,
    /// The dtype of matrix-multiplication inputs.
    pub compute_dtype: ComputeDtype,
    /// Number of blocks in the model.
    pub n_blocks: usize,
    /// Number of blocks that keep their activations in the largest micro-batch; the others are
    /// recomputed.
    pub kept_blocks: usize,
    /// Work of the evaluations; `None` if the run does not evaluate.
    pub evaluation: Option<EvaluationWork>,
    /// The retriever trained in the same run.
    pub retriever: Option<RetrieverPlan>,
}

/// Predicted duration of a run in hours, extrapolated from a probe.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Hours {
    /// Training steps, without evaluations.
    pub training: f64,
}

impl Plan {
    /// Hours of training, extrapolated from `probe`.
    ///
    /// The longest micro-batch is the slowest per token, so the actual time is rarely longer.
    pub fn hours(&self, probe: &Probe) -> Hours {
        Hours {
            training: self.training.n_tokens as f64 / probe.tokens_per_second / 3600.0,
        }
    }
}

impl Needs {
    /// Needs of a run with a language model, including a retriever trained with it.
    fn for_language_model(input: &MemoryInput) -> Self {
        let retriever_bytes = input.retriever.map_or(0, RetrieverNeeds::checkpoint_bytes);
        // A principal init (PiSSA) saves factors of twice the rank.
        let initial = match input.config.lora.principal_init() {
            Some(_) => 4 * input.n_adapter as u64,
            None => 0,
        };
        let checkpoint_bytes = checkpoint_bytes(input.n_adapter) + initial + retriever_bytes;
        Self {
            n_weights: input.model.n_parameters(),
            n_trained: input.n_adapter,
            quantization: input.quantization,
            gathered_bytes: input.kept_blocks.gathered_bytes(),
            memory: memory_plan(input),
            step_bytes: step_bytes(input),
            checkpoint_bytes,
            disk_bytes: n_checkpoints(input.config) * checkpoint_bytes,
        }
    }
}

/// Predicts the needs of a prepared run. `n_node_ranks` GPUs may divide the frozen weights.
///
/// # Errors
///
/// The template refuses an evaluation row, an encoder cannot be read, or the adapter settings match
/// no module.
pub fn plan(
    config: &Config,
    preparation: &Preparation,
    device: &Device,
    n_node_ranks: usize,
) -> Result<Plan, Error> {
    let model = &preparation.training.base.config;
    let n_adapter = preparation.training.lora.n_parameters(model)?;
    let n_whole = preparation.training.lora.n_whole(model)?;
    let training = training_work(preparation);
    let evaluation = evaluation_work(config, preparation)?;
    let compute_dtype = settings::compute_dtype(config.language_model()?.compute_dtype, device)?;
    let encoders = evaluation_encoders(config).map(encoder_shape);
    let encoders = encoders.collect::<Result<Vec<_>, _>>()?;
    let retriever = match (config.trained_retriever(), &preparation.retriever) {
        (Some(training), Some(preparation)) => {
            let dtype = settings::compute_dtype(training.compute_dtype, device)?;
            Some(plan_retriever(training, preparation, dtype))
        }
        _ => None,
    };
    let kept_blocks =
        preparation
            .training
            .kept_blocks(config, compute_dtype, device, n_node_ranks)?;
    let largest = training.largest.iter().map(|shape| shape.n_tokens).max();
    let n_kept = kept_blocks.count(largest.unwrap_or(1));
    let needs = Needs::for_language_model(&MemoryInput {
        config,
        model,
        n_adapter,
        n_whole,
        compute_dtype,
        quantization: preparation.training.base.quantization,
        vocabulary: preparation.training.base.tokenizer.vocab_size(),
        n_example_tokens: preparation.report.n_tokens,
        kept_blocks,
        loss_rows: loss_rows(device),
        batches: &training.largest,
        evaluation: evaluation.as_ref(),
        encoders: &encoders,
        retriever: retriever.as_ref().map(|retriever| &retriever.needs),
    });
    Ok(Plan {
        needs,
        steps: preparation.training.total_steps,
        training,
        compute_dtype,
        n_blocks: model.num_hidden_layers,
        kept_blocks: n_kept,
        evaluation,
        retriever,
    })
}

/// Peak memory of training steps only.
fn step_bytes(input: &MemoryInput) -> u64 {
    let alone = memory_plan(&MemoryInput {
        encoders: &[],
        evaluation: None,
        retriever: None,
        ..*input
    });
    let phases = alone.phases.iter().filter(|phase| phase.name != SAVING);
    phases.map(|phase| phase.bytes).max().unwrap_or(0)
}

/// Bytes of a checkpoint with `n_adapter` trained values: the adapter and two moments, in f32.
pub(crate) fn checkpoint_bytes(n_adapter: usize) -> u64 {
    3 * 4 * n_adapter as u64 + CHECKPOINT_TEXT_BYTES
}

/// Largest number of checkpoints on disk at once: the checkpoints that `RunDir::rotate` keeps (at
/// least the newest and the best), plus the one being written.
pub(crate) fn n_checkpoints(config: &Config) -> u64 {
    let least = match config.eval.eval_strategy {
        EvalStrategy::No => 1,
        EvalStrategy::Steps => 2,
    };
    config.checkpoint.save_total_limit.max(least) as u64 + 1
}

/// Folders of the encoders that the evaluations of a run load.
fn evaluation_encoders(config: &Config) -> impl Iterator<Item = &Path> {
    let evaluates = config.eval.eval_strategy != EvalStrategy::No;
    let mut suites = config.eval.suites.iter();
    let compares = evaluates && suites.any(|suite| suite.needs().encoder);
    let ranks = evaluates && ranks_untrained(config);
    let retriever = config.retriever.as_ref().map(|r| &r.model_name_or_path);
    let encoder = config.eval.encoder.as_ref().filter(|_| compares);
    let encoders = encoder.into_iter().chain(retriever.filter(|_| ranks));
    encoders.map(PathBuf::as_path)
}

/// Shape of an encoder, after checking that all its files exist.
pub(crate) fn encoder_shape(dir: &Path) -> Result<MiniLmConfig, Error> {
    Weights::open(dir)?;
    Ok(EncoderFiles::open(dir, &EncoderOptions::default())?.config)
}
