//! Predicts the maximum needs of a run from its config and the model's shape, without reading rows
//! or weights.
//!
//! The rows are unknown: each micro-batch is assumed to have the maximum length, and the number of
//! steps per epoch is not predicted.

use std::path::Path;

use burn::tensor::Device;
use serde::Serialize;
use tooltune_checkpoints::sentence_transformers::SentenceTransformer;
use tooltune_disk::regular_file;
use tooltune_kernels::ComputeDtype;

use super::memory::{MemoryInput, base_weight_bytes};
use super::pace::training_operations;
use super::retriever::{RetrieverNeeds, TextShape};
use super::workload::{BatchShape, EvaluationWork, encodes};
use super::{Needs, evaluation_encoders};
use crate::base_model::BaseModel;
use crate::config::{self, Config, EvalStrategy, RunLength, Suite};
use crate::device;
use crate::encoder::{MAX_SEQ_LENGTH, json};
use crate::error::Error;
use crate::eval::in_loop::needs_loss;
use crate::lora::LoraLayout as _;
use crate::models::DecoderConfig;
use crate::models::minilm::MiniLmConfig;
use crate::recipes::kept_blocks::{DoraActivations, KeptBlocks, RunShape};
use crate::settings;

/// Maximum number of rows generated together; more would exceed the memory of any machine.
const MAX_ROWS: usize = 1 << 16;

/// Shape of all-MiniLM-L6-v2.
const MINILM: MiniLmConfig = MiniLmConfig {
    hidden_size: 384,
    num_hidden_layers: 6,
    num_attention_heads: 12,
    intermediate_size: 1536,
    vocab_size: 30_522,
    max_position_embeddings: 512,
    type_vocab_size: 2,
    layer_norm_eps: 1e-12,
};

/// Needs of a run that follow from its config and the model's shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline {
    /// Memory with the largest micro-batch, and disk.
    pub needs: Needs,
    /// Compute dtype of the language model.
    pub compute_dtype: ComputeDtype,
    /// Optimizer steps; `None` if they depend on the rows.
    pub steps: Option<u64>,
    /// The largest possible micro-batch.
    pub largest: BatchShape,
    /// Operations of a step of such micro-batches, without attention.
    pub step_operations: f64,
    /// The retriever trained in the same run.
    pub retriever: Option<RetrieverOutline>,
}

/// Needs of a retriever that follow from its config and shape.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RetrieverOutline {
    /// Number of parameters, all trained.
    pub n_parameters: usize,
    /// Optimizer steps; `None` if they depend on the pairs.
    pub steps: Option<u64>,
    /// Texts that are differentiated at once, each of the maximum length.
    pub texts: TextShape,
    /// Whether the shape of all-MiniLM-L6-v2 is assumed, because the retriever's folder is missing.
    pub is_assumed: bool,
    #[serde(skip)]
    needs: RetrieverNeeds,
}

/// Predicts the needs of a run. `is_quantised` means that bitsandbytes quantised the model's folder.
/// `n_node_ranks` GPUs may divide the frozen weights.
///
/// # Errors
///
/// The adapter settings match no module, or the retriever's `config.json` is damaged.
pub fn outline(
    config: &Config,
    model: &DecoderConfig,
    is_quantised: bool,
    n_node_ranks: usize,
) -> Result<Outline, Error> {
    let n_adapter = config.lora.n_parameters(model)?;
    let batch_size = config.train.per_device_train_batch_size;
    let n_tokens = batch_size.saturating_mul(config.data.max_length);
    let largest = BatchShape {
        n_tokens,
        n_trained_tokens: n_tokens,
    };
    let configured = config.language_model()?.compute_dtype;
    let cpu = device::open(config::Device::Cpu)?;
    let compute_dtype = compute_dtype(config.device, configured, &cpu)?;
    let quantization = settings::quantization(config, is_quantised);
    let steps = known_steps(config.train.length());
    let retriever = retriever(config, steps, &cpu)?;
    let evaluation = evaluation(config);
    let encoders = evaluation_encoders(config).map(|dir| Ok(encoder_shape(dir)?.0));
    let encoders = encoders.collect::<Result<Vec<_>, Error>>()?;
    let shape = RunShape {
        setting: config.train.gradient_checkpointing,
        model,
        n_adapter,
        compute_dtype,
        quantization,
        frozen_weights: settings::frozen_weights(config),
        n_node_ranks,
        dora_activations: DoraActivations::from_lora(&config.lora),
    };
    let kept_blocks = kept_blocks(config.device, shape, &cpu);
    let n_parts = config.train.gradient_accumulation_steps as f64;
    let n_step_tokens = n_parts * n_tokens as f64;
    let step_operations = training_operations(
        model,
        n_adapter,
        kept_blocks.count(n_tokens),
        [n_step_tokens; 2],
    );
    let needs = Needs::for_language_model(&MemoryInput {
        config,
        model,
        n_adapter,
        n_whole: config.lora.n_whole(model)?,
        compute_dtype,
        quantization,
        vocabulary: model.vocab_size,
        n_example_tokens: 0,
        kept_blocks,
        loss_rows: match config.device {
            config::Device::Cpu => device::loss_rows(&cpu),
            config::Device::Cuda(_) => device::LOSS_ROWS_ON_GPU,
        },
        batches: &[largest],
        evaluation: evaluation.as_ref(),
        encoders: &encoders,
        retriever: retriever.as_ref().map(|retriever| &retriever.needs),
    });
    Ok(Outline {
        needs,
        compute_dtype,
        steps,
        largest,
        step_operations,
        retriever,
    })
}

/// Predicted bytes of the base weights on the config's device, which this machine may not have.
pub fn base_weights(config: &Config, base: &BaseModel) -> Option<u64> {
    let configured = config.language_model().ok()?.compute_dtype;
    let cpu = device::open(config::Device::Cpu).ok()?;
    let compute_dtype = compute_dtype(config.device, configured, &cpu).ok()?;
    let stored = (compute_dtype, base.quantization);
    Some(base_weight_bytes(&base.config, stored, false) as u64)
}

fn known_steps(length: RunLength) -> Option<u64> {
    match length {
        RunLength::Steps(steps) => Some(steps),
        RunLength::Epochs(_) => None,
    }
}

/// Compute dtype on the config's device, which this machine may not have.
fn compute_dtype(
    device: config::Device,
    configured: config::ComputeDtype,
    cpu: &Device,
) -> Result<ComputeDtype, Error> {
    match (device, configured) {
        (config::Device::Cuda(_), config::ComputeDtype::Auto) => Ok(ComputeDtype::Bf16),
        _ => settings::compute_dtype(configured, cpu),
    }
}

/// The rule for kept blocks. The free memory of an absent GPU is unknown, so `auto` is assumed to
/// keep no blocks.
fn kept_blocks(device: config::Device, shape: RunShape, cpu: &Device) -> KeptBlocks {
    match device {
        config::Device::Cpu => KeptBlocks::new(shape, cpu),
        config::Device::Cuda(_) => KeptBlocks::on_gpu(0.0, shape),
    }
}

/// Assumes rows and prompts of `data.max_length` tokens, and full generation batches.
fn evaluation(config: &Config) -> Option<EvaluationWork> {
    if config.eval.eval_strategy == EvalStrategy::No {
        return None;
    }
    let generates = |suite: &Suite| suite.needs().generator;
    let max_rows = config.eval.max_samples.unwrap_or(MAX_ROWS).min(MAX_ROWS);
    let n_rows = if config.eval.suites.iter().any(generates) {
        config.eval.batch_size.min(max_rows)
    } else {
        0
    };
    let longest = config.data.max_length;
    Some(EvaluationWork {
        n_loss_rows: usize::from(needs_loss(config) || config.data.has_eval_rows()),
        longest_loss_row: BatchShape {
            n_tokens: longest,
            n_trained_tokens: longest,
        },
        max_new_tokens: config.eval.longest_answer(),
        batches: match n_rows {
            0 => Vec::new(),
            _ => vec![vec![longest; n_rows]],
        },
        encodes: encodes(config),
        ..EvaluationWork::default()
    })
}

/// Shape of the encoder in a folder, or of all-MiniLM-L6-v2 and `true` if the folder is missing.
fn encoder_shape(dir: &Path) -> Result<(MiniLmConfig, bool), Error> {
    let file = dir.join("config.json");
    if !regular_file::is_there(&file).map_err(Error::io(&file, "read"))? {
        return Ok((MINILM, true));
    }
    let shape = MiniLmConfig::from_json(&json(&file)?)
        .map_err(|problem| Error::Usage(format!("{}: {problem}", dir.display())))?;
    Ok((shape, false))
}

fn retriever(
    config: &Config,
    lm_steps: Option<u64>,
    cpu: &Device,
) -> Result<Option<RetrieverOutline>, Error> {
    let Some(retriever) = config.trained_retriever() else {
        return Ok(None);
    };
    let (shape, is_assumed) = encoder_shape(&retriever.model_name_or_path)?;
    // Each pair has a query, a document and the mined documents.
    let texts_per_pair = retriever.hard_negatives.saturating_add(2);
    let n_all = texts_per_pair.saturating_mul(retriever.per_device_train_batch_size);
    let n_texts = n_all.min(retriever.mini_batch_size.unwrap_or(usize::MAX));
    let dir = &retriever.model_name_or_path;
    let length = match (retriever.max_seq_length, is_assumed) {
        (Some(configured), _) => configured,
        (None, true) => MAX_SEQ_LENGTH,
        (None, false) => {
            let rules = SentenceTransformer::read(dir, shape.hidden_size)?;
            rules.length(shape.max_position_embeddings)
        }
    };
    let texts = TextShape {
        n_texts,
        n_tokens: n_texts.saturating_mul(length.min(shape.max_position_embeddings)),
    };
    let needs = RetrieverNeeds {
        config: shape,
        compute_dtype: compute_dtype(config.device, retriever.compute_dtype, cpu)?,
        texts,
        in_parts: n_texts < n_all,
        n_set_tokens: 0,
        decays: retriever.weight_decay > 0.0,
    };
    let steps = match retriever.steps_per_lm_step {
        Some(_) => lm_steps.and_then(|steps| retriever.steps_with_lm(steps)),
        None => known_steps(retriever.length()),
    };
    Ok(Some(RetrieverOutline {
        n_parameters: needs.n_parameters(),
        steps,
        texts,
        is_assumed,
        needs,
    }))
}
