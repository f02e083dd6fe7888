//! The table `[train]`, with transformers' names.

use std::path::PathBuf;

use super::settings::settings;
use crate::enums::{
    CheckpointingMode, GradientCheckpointing, LrSchedulerType, Optim, RunLength, Warmup,
};

settings! {
    /// Optimizer, schedule and length of the run, with transformers' names.
    #[schemars(extend("x-shared" = true))]
    pub struct TrainConfig {
        /// Required. The run directory: a new or empty folder, or an existing run to resume. It can
        /// already contain evaluations (`eval/`).
        #[schemars(extend("x-on-resume" = "safe", "x-kind" = "output"))]
        #[schemars(extend("x-also" = ["output"]))]
        pub output_dir: PathBuf,
        /// Passes over the training rows; fractions are allowed, at most 100,000. Excludes
        /// `max_steps`.
        #[schemars(range(max = 1e5), extend("exclusiveMinimum" = 0, "x-on-resume" = "longer"))]
        #[schemars(extend("x-elsewhere" = {"Axolotl": "num_epochs"}))]
        #[schemars(extend("x-also" = ["epochs"]))]
        pub num_train_epochs: Option<f64> = Some(3.0),
        /// Optimizer steps. Excludes `num_train_epochs`.
        #[schemars(range(min = 1), extend("x-on-resume" = "longer"))]
        #[schemars(extend("x-also" = ["iters", "steps"]))]
        pub max_steps: Option<u64>,
        /// Sequences per micro-batch.
        #[schemars(range(min = 1))]
        #[schemars(extend("x-elsewhere" = {"Axolotl": "micro_batch_size"}))]
        #[schemars(extend("x-also" = ["train_batch_size", "batch_size", "per_device_batch_size"]))]
        pub per_device_train_batch_size: usize = 8,
        /// Micro-batches per optimizer step.
        #[schemars(range(min = 1))]
        #[schemars(extend("x-also" = ["grad_accumulation_steps"]))]
        pub gradient_accumulation_steps: usize = 1,
        /// Peak learning rate, reached after warm-up. Typical for LoRA: 1e-4 to 1e-3.
        #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
        #[schemars(extend("x-also" = ["lr"]))]
        pub learning_rate: f64 = 2e-4,
        /// Learning-rate schedule after warm-up.
        #[schemars(extend("x-elsewhere" = {"Axolotl": "lr_scheduler"}))]
        pub lr_scheduler_type: LrSchedulerType = LrSchedulerType::Linear,
        /// Share of the steps used for warm-up. Excludes `warmup_steps`.
        #[schemars(range(min = 0.0, max = 1.0))]
        #[schemars(extend("x-also" = ["warmup; or warmup_steps"]))]
        pub warmup_ratio: Option<f64> = Some(0.0),
        /// Number of warm-up steps. Excludes `warmup_ratio`.
        pub warmup_steps: Option<u64>,
        /// LoRA+: learning rate of the B factors and of DoRA's magnitudes, relative to A. The
        /// authors use 16, with a smaller `learning_rate` than for plain LoRA.
        #[schemars(range(max = 1e4), extend("exclusiveMinimum" = 0))]
        #[schemars(extend("x-elsewhere" = {"ms-swift": "lorap_lr_ratio"}))]
        pub loraplus_lr_ratio: Option<f64>,
        /// AdamW's decoupled weight decay.
        #[schemars(range(min = 0.0))]
        pub weight_decay: f64 = 0.0,
        /// AdamW's decay of the first moment.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1))]
        pub adam_beta1: f64 = 0.9,
        /// AdamW's decay of the second moment.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1))]
        pub adam_beta2: f64 = 0.999,
        /// AdamW's epsilon.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub adam_epsilon: f64 = 1e-8,
        /// Optimizer: "adamw_torch". "paged_adamw_32bit" is accepted as a synonym: the optimizer
        /// state of an adapter is too small to need paging.
        #[schemars(extend("x-also" = ["optimizer"]))]
        pub optim: Optim = Optim::AdamwTorch,
        /// Maximum global gradient norm; 0 disables clipping.
        #[schemars(range(min = 0.0))]
        #[schemars(extend("x-also" = ["gradient_clipping", "grad_clip", "gradient_clip_val"]))]
        pub max_grad_norm: f64 = 1.0,
        /// Seed of the initial factors, dropout and row order.
        pub seed: u64 = 42,
        /// Whether to batch rows of similar length together.
        pub group_by_length: bool = false,
        /// Blocks that keep their activations for the backward pass: "full" (none), "none" (all), a
        /// number of blocks, or "auto". "auto" keeps as many blocks as fit. On a GPU, weights and
        /// activations may fill 90 % of the free memory; on a CPU, activations may fill half of the
        /// free memory, but at most twice the size of the weights. "offload" is "full", and a GPU
        /// keeps the inputs of the blocks in pinned host memory.
        #[schemars(extend("x-on-resume" = "safe", "x-bool" = ["none", "full"]))]
        #[schemars(extend("x-elsewhere" = {"LLaMA-Factory": "gradient_checkpointing"}))]
        pub gradient_checkpointing: GradientCheckpointing =
            GradientCheckpointing::Mode(CheckpointingMode::Auto),
        /// Share of the distillation loss, which keeps the model close to the base model; the rest
        /// of the loss is cross-entropy.
        #[schemars(range(min = 0.0, max = 1.0))]
        pub self_distillation_alpha: f64 = 0.0,
        /// Temperature of both distributions in the distillation loss.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub self_distillation_temperature: f64 = 1.0,
        /// NEFTune: uniform noise on the embeddings during training, from `-a/sqrt(n·d)` to
        /// `a/sqrt(n·d)`, where `a` is this value, `n` the number of tokens in the row and `d` the
        /// embedding size. 5 is common.
        #[schemars(range(max = 1e4), extend("exclusiveMinimum" = 0))]
        pub neftune_noise_alpha: Option<f64>,
        /// The run ends after this many consecutive steps with a non-finite loss or gradient.
        #[schemars(range(min = 1), extend("x-on-resume" = "safe"))]
        pub max_nonfinite: usize = 3,
        /// Optimizer steps per line in `metrics.jsonl`.
        #[schemars(range(min = 1), extend("x-on-resume" = "safe"))]
        pub logging_steps: u64 = 10,
    }
}

impl TrainConfig {
    /// Length of the run.
    pub fn length(&self) -> RunLength {
        RunLength::new(self.num_train_epochs, self.max_steps)
    }

    /// Length of warm-up.
    pub fn warmup(&self) -> Warmup {
        match self.warmup_steps {
            Some(steps) => Warmup::Steps(steps),
            None => Warmup::Ratio(self.warmup_ratio.unwrap_or(0.0)),
        }
    }
}
