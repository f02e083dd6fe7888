//! What was typed in `[retriever]`, with sentence-transformers' names.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::choices::{ComputeDtype, LrSchedulerType, RetrieverData};
use super::defaults;
use super::read::reads;

/// The retriever that ranks API documents, with sentence-transformers' names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawRetriever {
    /// A sentence-transformers folder, such as all-MiniLM-L6-v2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name_or_path: Option<PathBuf>,
    /// What it learns from: JSON Lines of pairs, or "trajectories", the rows of `data.train`. Without
    /// this key the retriever is used as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<RetrieverData>,
    /// Files of pairs whose queries it is evaluated on; in a run with trajectories those of
    /// `data.eval`, unless this is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval: Option<Vec<PathBuf>>,
    /// Further documents that evaluation searches among: texts, or API documents. In a run with
    /// trajectories those of `goat.documents`, unless this is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<PathBuf>,
    /// Passes over the pairs; may be a fraction. Excludes `max_steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::NUM_TRAIN_EPOCHS))]
    pub num_train_epochs: Option<f64>,
    /// Optimizer steps of the retriever. Excludes `num_train_epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_steps: Option<u64>,
    /// Steps of the retriever for each step of the language model; by default both finish
    /// together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_per_lm_step: Option<f64>,
    /// Pairs in a step; their documents are each other's negatives.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::RETRIEVER_BATCH_SIZE))]
    pub per_device_train_batch_size: Option<usize>,
    /// Texts whose activations are in memory at a time (GradCache); all of a step by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub mini_batch_size: Option<usize>,
    /// Peak learning rate, reached after warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::RETRIEVER_LEARNING_RATE))]
    pub learning_rate: Option<f64>,
    /// How the learning rate goes after warm-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::LR_SCHEDULER_TYPE))]
    pub lr_scheduler_type: Option<LrSchedulerType>,
    /// Share of the steps that the learning rate takes to rise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = defaults::WARMUP_RATIO))]
    pub warmup_ratio: Option<f64>,
    /// AdamW's decoupled weight decay, of matrices; biases and norms do not decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = defaults::WEIGHT_DECAY))]
    pub weight_decay: Option<f64>,
    /// Gradients are scaled down to this global norm; 0 turns clipping off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = defaults::MAX_GRAD_NORM))]
    pub max_grad_norm: Option<f64>,
    /// Similarities are multiplied by it: one over the temperature. 20 for cosines by default, and 1
    /// for dot products of vectors of any length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// Whether documents choose among queries, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::SYMMETRIC))]
    pub symmetric: Option<bool>,
    /// Wrong documents that rank highest for each query, found anew in every epoch and added to
    /// those of the batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::HARD_NEGATIVES))]
    pub hard_negatives: Option<usize>,
    /// Texts are cut at this many tokens, special ones and prompts included; by default as the
    /// folder's sentence_bert_config.json says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2))]
    pub max_seq_length: Option<usize>,
    /// Text that is put before each query; by default the prompt "query" of the folder's
    /// config_sentence_transformers.json.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_prompt: Option<String>,
    /// Text that is put before each document; by default the prompt "document" of that file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document_prompt: Option<String>,
    /// The type of the numbers that products read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::COMPUTE_DTYPE))]
    pub compute_dtype: Option<ComputeDtype>,
    /// Low-rank factors that learn in place of all parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<RawRetrieverLora>,
}
reads!(RawRetriever {
    model_name_or_path,
    train,
    eval,
    documents,
    num_train_epochs,
    max_steps,
    steps_per_lm_step,
    per_device_train_batch_size,
    mini_batch_size,
    learning_rate,
    lr_scheduler_type,
    warmup_ratio,
    weight_decay,
    max_grad_norm,
    scale,
    symmetric,
    hard_negatives,
    max_seq_length,
    query_prompt,
    document_prompt,
    compute_dtype,
    lora
});

/// Low-rank factors of the retriever, with PEFT's names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawRetrieverLora {
    /// Rank of the factors.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = defaults::LORA_R))]
    pub r: Option<usize>,
    /// The factors are scaled by `lora_alpha / r`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::LORA_ALPHA))]
    pub lora_alpha: Option<f64>,
    /// Names of linear layers: query, key, value, dense; all of them by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_modules: Option<Vec<String>>,
}
reads!(RawRetrieverLora {
    r,
    lora_alpha,
    target_modules
});
