//! The table `[train]`, with transformers' names.

use std::path::PathBuf;

use super::settings::settings;
use crate::config::enums::{
    CheckpointingMode, GradientCheckpointing, LrSchedulerType, Optim, RunLength, Warmup,
};

settings! {
    /// Optimizer, schedule and length of the run, with transformers' names.
    pub struct TrainConfig {
        /// Required. The run directory: one that is not there, is empty or holds a run; it may hold
        /// evaluations (`eval/`) before.
        #[schemars(extend("x-on-resume" = "safe", "x-kind" = "output"))]
        pub output_dir: PathBuf,
        /// Passes over the training rows; may be a fraction, and at most 100,000. Excludes
        /// `max_steps`.
        #[schemars(range(max = 1e5), extend("exclusiveMinimum" = 0, "x-on-resume" = "longer"))]
        pub num_train_epochs: Option<f64> = Some(3.0),
        /// Optimizer steps. Excludes `num_train_epochs`.
        #[schemars(range(min = 1), extend("x-on-resume" = "longer"))]
        pub max_steps: Option<u64>,
        /// Sequences in a micro-batch.
        #[schemars(range(min = 1))]
        pub per_device_train_batch_size: usize = 8,
        /// Micro-batches in an optimizer step.
        #[schemars(range(min = 1))]
        pub gradient_accumulation_steps: usize = 1,
        /// Peak learning rate, reached after warm-up. Typical for LoRA: 1e-4 to 1e-3.
        #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
        pub learning_rate: f64 = 2e-4,
        /// How the learning rate goes after warm-up.
        pub lr_scheduler_type: LrSchedulerType = LrSchedulerType::Linear,
        /// Share of the steps that the learning rate takes to rise. Excludes `warmup_steps`.
        #[schemars(range(min = 0.0, max = 1.0))]
        pub warmup_ratio: Option<f64> = Some(0.0),
        /// Steps that the learning rate takes to rise. Excludes `warmup_ratio`.
        pub warmup_steps: Option<u64>,
        /// LoRA+: the learning rate of the adapters' B factors, and of DoRA's magnitudes, is this times
        /// that of A; 16 is the authors' choice, with a smaller `learning_rate` than without.
        #[schemars(range(max = 1e4), extend("exclusiveMinimum" = 0))]
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
        /// The optimizer: "adamw_torch"; "paged_adamw_32bit" is read as the same, because the state
        /// of an adapter is too small to need paging.
        pub optim: Optim = Optim::AdamwTorch,
        /// Gradients are scaled down to this global norm; 0 turns clipping off.
        #[schemars(range(min = 0.0))]
        pub max_grad_norm: f64 = 1.0,
        /// Seed of the adapter's initial values, of dropout and of the order of the rows.
        pub seed: u64 = 42,
        /// Batch rows of similar length together.
        pub group_by_length: bool = false,
        /// How many blocks keep their activations for the backward pass: "auto", "full" (none keep
        /// them), "none" (all keep them), or a number of blocks; "auto" keeps, on a CPU, as many as
        /// fit in half of the memory that is free when the run begins, and at most twice what the
        /// weights take; on a GPU as many as fit in nine tenths of its free memory beside the
        /// weights and a step that keeps none.
        #[schemars(extend("x-on-resume" = "safe", "x-bool" = ["none", "full"]))]
        pub gradient_checkpointing: GradientCheckpointing =
            GradientCheckpointing::Mode(CheckpointingMode::Auto),
        /// Share of the loss that pulls the model towards what it was without its adapter, from 0
        /// to 1; the rest is cross-entropy.
        #[schemars(range(min = 0.0, max = 1.0))]
        pub self_distillation_alpha: f64 = 0.0,
        /// Logits are divided by it where the two distributions are compared.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub self_distillation_temperature: f64 = 1.0,
        /// NEFTune: noise on the embeddings of a row while it is learned, uniform from
        /// `-a/sqrt(n·d)` to `a/sqrt(n·d)` where `a` is this, `n` the tokens of the row and `d` the
        /// size of an embedding; 5 is usual. Never in evaluations.
        #[schemars(range(max = 1e4), extend("exclusiveMinimum" = 0))]
        pub neftune_noise_alpha: Option<f64>,
        /// Steps in a row with a non-finite loss or gradient after which the run stops.
        #[schemars(range(min = 1), extend("x-on-resume" = "safe"))]
        pub max_nonfinite: usize = 3,
        /// Optimizer steps between two lines of metrics.
        #[schemars(range(min = 1), extend("x-on-resume" = "safe"))]
        pub logging_steps: u64 = 10,
    }
}

impl TrainConfig {
    /// How long the run lasts.
    pub fn length(&self) -> RunLength {
        RunLength::new(self.num_train_epochs, self.max_steps)
    }

    /// How long the learning rate rises.
    pub fn warmup(&self) -> Warmup {
        match self.warmup_steps {
            Some(steps) => Warmup::Steps(steps),
            None => Warmup::Ratio(self.warmup_ratio.unwrap_or(0.0)),
        }
    }
}
