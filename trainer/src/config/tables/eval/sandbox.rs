//! The table `[eval.sandbox]`.

use crate::config::tables::settings::settings;

settings! {
    /// What runs functions that models wrote, and those of benchmarks.
    pub struct SandboxConfig {
        /// The Python that runs functions, a path or a name in PATH.
        pub python: String = "python3".to_owned(),
        /// Whether they run even where the machine cannot isolate them ([sandbox.md](sandbox.md)):
        /// only on a machine that is thrown away.
        pub allow_unisolated: bool = false,
    }
}
