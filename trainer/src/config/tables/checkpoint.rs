//! The table `[checkpoint]`.

use super::settings::settings;

settings! {
    /// When the run is saved.
    pub struct CheckpointConfig {
        /// Optimizer steps between two checkpoints; those of the evaluations if absent and the run
        /// evaluates.
        #[schemars(range(min = 1))]
        pub save_steps: u64 = 100,
        /// Checkpoints that are kept at most, as in transformers: the best one and the newest
        /// others; with a limit of 1 both the best and the newest.
        #[schemars(range(min = 1))]
        pub save_total_limit: usize = 3,
    }
}
