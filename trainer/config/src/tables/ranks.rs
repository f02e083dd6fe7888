//! The table `[ranks]`.

use super::settings::settings;

settings! {
    /// When a run with several processes gives up on one of them.
    #[schemars(extend("x-shared" = true))]
    pub struct RanksConfig {
        /// Seconds without any message from a process, after which the run ends with an error that
        /// names it. Processes send a message every two seconds, whatever they compute.
        #[schemars(range(min = 6))]
        pub silence_seconds: u64 = 20,
        /// Seconds without progress of a process for which the others wait, after which the run
        /// ends with an error that names it.
        #[schemars(range(min = 10))]
        pub step_seconds: u64 = 600,
    }
}
