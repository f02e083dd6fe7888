//! The table `[eval.sandbox]`.

use crate::tables::settings::settings;

settings! {
    /// The sandbox for model-written and benchmark functions.
    pub struct SandboxConfig {
        /// The Python interpreter: a path or a name in PATH.
        pub python: String = "python3".to_owned(),
        /// Whether to run functions even if the machine cannot isolate them
        /// ([sandbox.md](sandbox.md)). Only for disposable machines.
        pub allow_unisolated: bool = false,
    }
}
