//! The table `[eval.sandbox]`.

use crate::tables::settings::settings;

settings! {
    /// What runs functions that models wrote, and those of benchmarks.
    pub struct SandboxConfig {
        /// Python that runs functions, as a path or a name in PATH.
        pub python: String = "python3".to_owned(),
        /// Whether functions also run if the machine cannot isolate them
        /// ([sandbox.md](sandbox.md)); only for disposable machines.
        pub allow_unisolated: bool = false,
    }
}
