//! The table `[retriever]`, with sentence-transformers' names.

use std::path::PathBuf;

use super::settings::settings;
use crate::enums::{ComputeDtype, LrSchedulerType, RetrieverData, RunLength};

settings! {
    /// The retriever that ranks API documents, with sentence-transformers' names.
    pub struct RetrieverConfig {
        /// Required. A sentence-transformers folder, such as all-MiniLM-L6-v2, or a name on the
        /// Hugging Face Hub, such as "sentence-transformers/all-MiniLM-L6-v2".
        #[schemars(extend("x-kind" = "path"))]
        pub model_name_or_path: PathBuf,
        /// Branch, tag or commit on the hub; "main" by default.
        pub revision: Option<String>,
        /// Training pairs: a list of files, or "trajectories" for the rows of `data.train`.
        #[schemars(extend("x-kind" = "path"))]
        pub train: Option<RetrieverData>,
        /// Files of evaluation pairs. By default the pairs come from `data.eval` if `train =
        /// "trajectories"`.
        #[schemars(extend("x-on-resume" = "safe", "x-kind" = "path"))]
        pub eval: Vec<PathBuf>,
        /// Additional documents to rank in evaluations: plain text or API documents. With
        /// trajectories, `goat.documents` is always included.
        #[schemars(extend("x-on-resume" = "safe", "x-kind" = "path"))]
        pub documents: Option<PathBuf>,
        /// Passes over the pairs; fractions are allowed, at most 100,000. Excludes `max_steps`.
        #[schemars(range(max = 1e5), extend("exclusiveMinimum" = 0))]
        pub num_train_epochs: Option<f64> = Some(3.0),
        /// Optimizer steps of the retriever. Excludes `num_train_epochs`.
        #[schemars(range(min = 1))]
        pub max_steps: Option<u64>,
        /// Retriever steps per step of the language model. By default both finish at the same time.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub steps_per_lm_step: Option<f64>,
        /// Pairs per step. Each query uses the documents of the other pairs as negatives.
        #[schemars(range(min = 1))]
        pub per_device_train_batch_size: usize = 64,
        /// Number of texts whose activations are in memory at a time (GradCache); by default all
        /// texts of a step. It changes memory and time, not the result. Several ranks need it, because
        /// they divide these mini-batches.
        #[schemars(range(min = 1))]
        pub mini_batch_size: Option<usize>,
        /// Peak learning rate, reached after warm-up.
        #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
        pub learning_rate: f64 = 2e-5,
        /// Learning-rate schedule after warm-up.
        pub lr_scheduler_type: LrSchedulerType = LrSchedulerType::Linear,
        /// Share of the steps used for warm-up.
        #[schemars(range(min = 0.0, max = 1.0))]
        pub warmup_ratio: f64 = 0.0,
        /// AdamW's decoupled weight decay of matrices; biases and norms do not decay.
        #[schemars(range(min = 0.0))]
        pub weight_decay: f64 = 0.0,
        /// Maximum global gradient norm; 0 disables clipping.
        #[schemars(range(min = 0.0))]
        pub max_grad_norm: f64 = 1.0,
        /// Factor on similarities, the inverse temperature. By default 20 for cosine similarity,
        /// and 1 for unnormalized dot products.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub scale: Option<f64>,
        /// Whether to add the document-to-query loss; the loss is then the mean of both directions.
        pub symmetric: bool = false,
        /// Number of hard negatives per query: the highest-ranked wrong documents, mined at the
        /// start of every epoch and added to the batch.
        pub hard_negatives: usize = 0,
        /// Maximum text length in tokens, including special tokens and prompts; by default the
        /// model's own limit.
        #[schemars(range(min = 2))]
        pub max_seq_length: Option<usize>,
        /// Text before each query; by default the prompt "query" in the model's
        /// config_sentence_transformers.json.
        #[schemars(extend("x-also" = [
            "prompts; documents have document_prompt", "query_instruction_for_retrieval"
        ]))]
        pub query_prompt: Option<String>,
        /// Text before each document; by default the prompt "document" in the same file.
        #[schemars(extend("x-also" = [
            "passage_instruction_for_retrieval", "passage_prompt", "corpus_prompt"
        ]))]
        pub document_prompt: Option<String>,
        /// Dtype of matrix-multiplication inputs; parameters are f32.
        pub compute_dtype: ComputeDtype = ComputeDtype::Auto,
        /// Trains LoRA factors instead of all parameters.
        pub lora: Option<RetrieverLora>,
    }
}

settings! {
    /// Low-rank factors of the retriever, with PEFT's names.
    pub struct RetrieverLora {
        /// Rank of the factors, at most 8192.
        #[schemars(range(min = 1))]
        pub r: usize = 8,
        /// The adapter output is scaled by `lora_alpha / r`.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub lora_alpha: f64 = 16.0,
        /// Linear layers to adapt: query, key, value and dense. All of them by default.
        pub target_modules: Vec<String> =
            ["query", "key", "value", "dense"].map(str::to_owned).to_vec(),
    }
}

impl RetrieverConfig {
    /// Keys that also apply if the retriever is not trained.
    pub(crate) const UNTRAINED_KEYS: [&str; 7] = [
        "model_name_or_path",
        "revision",
        "eval",
        "documents",
        "max_seq_length",
        "query_prompt",
        "document_prompt",
    ];

    /// Length of the training.
    pub fn length(&self) -> RunLength {
        RunLength::new(self.num_train_epochs, self.max_steps)
    }

    /// Optimizer steps of the retriever for `lm_steps` steps of the language model, at least one;
    /// `None` unless `steps_per_lm_step` is set.
    pub fn steps_with_lm(&self, lm_steps: u64) -> Option<u64> {
        let rate = self.steps_per_lm_step?;
        Some(((rate * lm_steps as f64).round() as u64).max(1))
    }
}
