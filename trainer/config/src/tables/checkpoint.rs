//! The table `[checkpoint]`.

use super::settings::settings;

settings! {
    /// When checkpoints are saved.
    #[schemars(extend("x-shared" = true))]
    pub struct CheckpointConfig {
        /// Number of optimizer steps between two checkpoints; by default `eval.eval_steps` if the
        /// run evaluates.
        #[schemars(range(min = 1))]
        #[schemars(extend("x-also" = ["saves_per_epoch; in optimizer steps"]))]
        pub save_steps: u64 = 100,
        /// Maximum number of checkpoints to keep, as in transformers: the best one, and the newest
        /// of the rest. With a limit of 1, both the best and the newest are kept.
        #[schemars(range(min = 1))]
        #[schemars(extend("x-also" = ["keep_last"]))]
        pub save_total_limit: usize = 3,
    }
}
