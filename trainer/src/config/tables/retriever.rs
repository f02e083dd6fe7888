//! The table `[retriever]`, with sentence-transformers' names.

use std::path::PathBuf;

use super::settings::settings;
use crate::config::enums::{ComputeDtype, LrSchedulerType, RetrieverData, RunLength};

settings! {
    /// The retriever that ranks API documents, with sentence-transformers' names.
    pub struct RetrieverConfig {
        /// Required. A sentence-transformers folder, such as all-MiniLM-L6-v2, or a name on the
        /// Hugging Face hub, such as "sentence-transformers/all-MiniLM-L6-v2".
        #[schemars(extend("x-kind" = "path"))]
        pub model_name_or_path: PathBuf,
        /// For a name on the hub: the branch, tag or commit; "main" by default.
        pub revision: Option<String>,
        /// What it learns from: a list of files of pairs, or "trajectories", the rows of
        /// `data.train`.
        #[schemars(extend("x-kind" = "path"))]
        pub train: Option<RetrieverData>,
        /// Files of pairs whose queries it is evaluated on; in a run with trajectories those of
        /// `data.eval`, unless this is set.
        #[schemars(extend("x-on-resume" = "safe", "x-kind" = "path"))]
        pub eval: Vec<PathBuf>,
        /// Further documents that evaluation searches among: texts, or API documents; trajectories
        /// bring those of `goat.documents`.
        #[schemars(extend("x-on-resume" = "safe", "x-kind" = "path"))]
        pub documents: Option<PathBuf>,
        /// Passes over the pairs; may be a fraction, and at most 100,000. Excludes `max_steps`.
        #[schemars(range(max = 1e5), extend("exclusiveMinimum" = 0))]
        pub num_train_epochs: Option<f64> = Some(3.0),
        /// Optimizer steps of the retriever. Excludes `num_train_epochs`.
        #[schemars(range(min = 1))]
        pub max_steps: Option<u64>,
        /// Steps of the retriever for each step of the language model; by default both finish
        /// together.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub steps_per_lm_step: Option<f64>,
        /// Pairs in a step; their documents are each other's negatives.
        #[schemars(range(min = 1))]
        pub per_device_train_batch_size: usize = 64,
        /// Texts whose activations are in memory at a time (GradCache); all of a step by default.
        /// It changes memory and time, not the result.
        #[schemars(range(min = 1))]
        pub mini_batch_size: Option<usize>,
        /// Peak learning rate, reached after warm-up.
        #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
        pub learning_rate: f64 = 2e-5,
        /// How the learning rate goes after warm-up.
        pub lr_scheduler_type: LrSchedulerType = LrSchedulerType::Linear,
        /// Share of the steps that the learning rate takes to rise.
        #[schemars(range(min = 0.0, max = 1.0))]
        pub warmup_ratio: f64 = 0.0,
        /// AdamW's decoupled weight decay, of matrices; biases and norms do not decay.
        #[schemars(range(min = 0.0))]
        pub weight_decay: f64 = 0.0,
        /// Gradients are scaled down to this global norm; 0 turns clipping off.
        #[schemars(range(min = 0.0))]
        pub max_grad_norm: f64 = 1.0,
        /// Similarities are multiplied by it: one over the temperature. By default 20 for cosines,
        /// and 1 for dot products of vectors of any length.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub scale: Option<f64>,
        /// Whether documents choose among queries, too; the loss is the mean of both directions.
        pub symmetric: bool = false,
        /// Wrong documents that rank highest for each query, found anew at the beginning of every
        /// epoch and added to those of the batch.
        pub hard_negatives: usize = 0,
        /// Texts are cut at this many tokens, special ones and prompts included; by default as the
        /// folder says.
        #[schemars(range(min = 2))]
        pub max_seq_length: Option<usize>,
        /// Text that is put before each query; by default the prompt "query" of the folder's
        /// config_sentence_transformers.json.
        pub query_prompt: Option<String>,
        /// Text that is put before each document; by default the prompt "document" of that file.
        pub document_prompt: Option<String>,
        /// Precision of what matrix products read; parameters are f32.
        pub compute_dtype: ComputeDtype = ComputeDtype::Auto,
        /// Low-rank factors that learn in place of all parameters.
        pub lora: Option<RetrieverLora>,
    }
}

settings! {
    /// Low-rank factors of the retriever, with PEFT's names.
    pub struct RetrieverLora {
        /// Rank of the factors, at most 8192.
        #[schemars(range(min = 1))]
        pub r: usize = 8,
        /// The factors are scaled by `lora_alpha / r`.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub lora_alpha: f64 = 16.0,
        /// Names of linear layers: query, key, value, dense; all of them by default.
        pub target_modules: Vec<String> =
            ["query", "key", "value", "dense"].map(str::to_owned).to_vec(),
    }
}

impl RetrieverConfig {
    /// Keys that mean something only where the retriever is used without being trained, too.
    pub(crate) const OF_EVERY_RETRIEVER: [&str; 7] = [
        "model_name_or_path",
        "revision",
        "eval",
        "documents",
        "max_seq_length",
        "query_prompt",
        "document_prompt",
    ];

    /// How long it learns.
    pub fn length(&self) -> RunLength {
        RunLength::new(self.num_train_epochs, self.max_steps)
    }

    /// Optimizer steps beside `lm_steps` of the language model, at least one; `None` where the
    /// training has a length of its own.
    pub fn steps_beside(&self, lm_steps: u64) -> Option<u64> {
        let rate = self.steps_per_lm_step?;
        Some(((rate * lm_steps as f64).round() as u64).max(1))
    }
}
