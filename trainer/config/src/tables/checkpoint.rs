//! The table `[checkpoint]`.

use super::settings::settings;

settings! {
    /// When checkpoints are saved.
    pub struct CheckpointConfig {
        /// Number of optimizer steps between two checkpoints; by default `eval.eval_steps` if the
        /// run evaluates.
        #[schemars(range(min = 1))]
        pub save_steps: u64 = 100,
        /// Maximum number of checkpoints to keep, as in transformers: the best one, and the newest
        /// of the rest. With a limit of 1, both the best and the newest are kept.
        #[schemars(range(min = 1))]
        pub save_total_limit: usize = 3,
    }
}
