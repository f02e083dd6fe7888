//! Predicts what a run will need: steps, tokens, memory by part, disk; with a probe, hours.
//!
//! Everything but the weights is read and checked first, by the same code that training begins
//! with, so a plan that is printed is a run that starts; [`outline`] makes do with config and shape.
//! The prediction is of the process's peak resident set on the CPU.

mod advice;
mod measured;
mod memory;
mod offline;
mod pace;
mod probe;
mod retriever;
mod step;
mod workload;

use serde::Serialize;

pub use advice::{Cause, advice};
pub use memory::{GENERATION, MemoryPlan, Part, Phase, size};
pub use offline::{Outline, RetrieverOutline, base_weights, outline};
pub use pace::{Pace, PaceInput, PaceSource};
pub use probe::{Probe, probe};
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
use crate::models::minilm::MiniLmConfig;
use crate::recipes::preparation::Preparation;
use crate::settings;
use memory::{MemoryInput, SAVING, memory_plan};
use retriever::RetrieverNeeds;
use workload::{evaluation_work, training_work};

/// Bytes of a checkpoint's text files: states, configs, template, manifest.
const CHECKPOINT_TEXT_BYTES: u64 = 16 << 10;

/// What a run needs, however much of it is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Needs {
    /// Values of the base model; none for a retriever alone.
    pub n_weights: usize,
    /// Trainable values: the adapter's, or those of a retriever alone.
    pub n_trained: usize,
    /// Predicted memory.
    pub memory: MemoryPlan,
    /// Predicted peak of a step alone, without evaluations and saves: what a probe measures.
    pub step_bytes: u64,
    /// Bytes of one checkpoint.
    pub checkpoint_bytes: u64,
    /// Bytes that the run's checkpoints take at most.
    pub disk_bytes: u64,
}

/// What a run will read, learn and need.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Memory and disk.
    pub needs: Needs,
    /// Optimizer steps.
    pub steps: u64,
    /// What training reads.
    pub training: TrainingWork,
    /// The dtype of matrix products.
    pub compute_dtype: ComputeDtype,
    /// Blocks of the model.
    pub n_blocks: usize,
    /// Those that keep their activations in the largest micro-batch; the others are run again.
    pub kept_blocks: usize,
    /// What evaluations do; `None` if the run does not evaluate.
    pub evaluation: Option<EvaluationWork>,
    /// The retriever that learns beside the model.
    pub retriever: Option<RetrieverPlan>,
}

/// Hours of a run at the pace of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Hours {
    /// Training steps, without evaluations.
    pub training: f64,
}

impl Plan {
    /// Hours of training at the pace of `probe`.
    ///
    /// The longest micro-batch is the slowest for each token, so this is seldom exceeded.
    pub fn hours(&self, probe: &Probe) -> Hours {
        Hours {
            training: self.training.n_tokens as f64 / probe.tokens_per_second / 3600.0,
        }
    }
}

impl Needs {
    /// Of a run of a language model, with the retriever that learns beside it.
    fn of_model(input: &MemoryInput) -> Self {
        let of_retriever = input.retriever.map_or(0, RetrieverNeeds::checkpoint_bytes);
        // Factors of twice the rank, beside the moments.
        let initial = match input.config.lora.principal_init() {
            Some(_) => 4 * input.n_adapter as u64,
            None => 0,
        };
        let checkpoint_bytes = checkpoint_bytes(input.n_adapter) + initial + of_retriever;
        Self {
            n_weights: input.model.n_parameters(),
            n_trained: input.n_adapter,
            memory: memory_plan(input),
            step_bytes: step_bytes(input),
            checkpoint_bytes,
            disk_bytes: n_checkpoints(input.config) * checkpoint_bytes,
        }
    }
}

/// Predicts a prepared run.
///
/// # Errors
///
/// An evaluation row that the template refuses, an encoder that cannot be read, or adapters that
/// match nothing.
pub fn plan(config: &Config, preparation: &Preparation, device: &Device) -> Result<Plan, Error> {
    let model = &preparation.base.config;
    let n_adapter = preparation.lora.n_parameters(model)?;
    let n_whole = preparation.lora.n_whole(model)?;
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
    let kept_blocks = preparation.kept_blocks(config, compute_dtype, device)?;
    let largest = training.largest.iter().map(|shape| shape.n_tokens).max();
    let n_kept = kept_blocks.count(largest.unwrap_or(1));
    let needs = Needs::of_model(&MemoryInput {
        config,
        model,
        n_adapter,
        n_whole,
        compute_dtype,
        vocabulary: preparation.base.tokenizer.vocab_size(),
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
        steps: preparation.total_steps,
        training,
        compute_dtype,
        n_blocks: model.num_hidden_layers,
        kept_blocks: n_kept,
        evaluation,
        retriever,
    })
}

/// The peak where a step is all that is done.
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

/// Bytes of a checkpoint of `n_adapter` trainable values: the adapter and two moments, in f32.
pub(crate) fn checkpoint_bytes(n_adapter: usize) -> u64 {
    3 * 4 * n_adapter as u64 + CHECKPOINT_TEXT_BYTES
}

/// Checkpoints that lie on disk at once: what `RunDir::rotate` keeps, which is never less than the
/// newest and the best, and the one being written.
pub(crate) fn n_checkpoints(config: &Config) -> u64 {
    let least = match config.eval.eval_strategy {
        EvalStrategy::No => 1,
        EvalStrategy::Steps => 2,
    };
    config.checkpoint.save_total_limit.max(least) as u64 + 1
}

/// The folders of the encoders that the evaluations of a run open.
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

/// The shape of an encoder whose files are all there.
pub(crate) fn encoder_shape(dir: &Path) -> Result<MiniLmConfig, Error> {
    Weights::open(dir)?;
    Ok(EncoderFiles::open(dir, &EncoderOptions::default())?.config)
}
