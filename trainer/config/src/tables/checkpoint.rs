//! The table `[checkpoint]`.

use super::settings::settings;

settings! {
    /// When the run is saved.
    pub struct CheckpointConfig {
        /// Optimizer steps between two checkpoints; by default `eval.eval_steps` if the run
        /// evaluates.
        #[schemars(range(min = 1))]
        pub save_steps: u64 = 100,
        /// Maximum checkpoints to keep, as in transformers: the best and the newest others; with a
        /// limit of 1 both the best and the newest.
        #[schemars(range(min = 1))]
        pub save_total_limit: usize = 3,
    }
}
