//! The table `[lora]`, with PEFT's names and types.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use tooltune_checkpoints::adapter::{Patterns, TargetModules};

use super::settings::settings;

settings! {
    /// The low-rank adapters, with PEFT's names.
    pub struct LoraConfig {
        /// Rank of the adapters, at most 8192.
        #[schemars(range(min = 1))]
        pub r: usize = 8,
        /// The adapters are scaled by `lora_alpha / r`.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub lora_alpha: f64 = 16.0,
        /// Share of the adapter's inputs that is zeroed while training, from 0 to below 1.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1))]
        pub lora_dropout: f64 = 0.0,
        /// Which linear layers are adapted: a list of names, a regular expression over whole module
        /// paths, or "all-linear", which is all but the head.
        #[schemars(with = "NamesOrPattern")]
        pub target_modules: TargetModules = TargetModules::Pattern(ALL_LINEAR.to_owned()),
        /// Which of them are left out again: a list of names or a regular expression.
        #[schemars(with = "Option<NamesOrPattern>")]
        pub exclude_modules: Option<TargetModules>,
        /// Scale by `lora_alpha / sqrt(r)` instead.
        pub use_rslora: bool = false,
        /// Modules that are trained and saved as a whole beside the factors: "lm_head", "embed_tokens" or
        /// both, of a model that does not tie them. PEFT loads such an adapter; to other programs go merged
        /// models.
        pub modules_to_save: Vec<String>,
        /// DoRA: the weight of an adapted layer is learned as magnitudes, one for each output, and
        /// directions, which the factors change. PEFT loads such an adapter; to other programs go merged
        /// models. With `lora_dropout` its steps are several times slower and keep several times the
        /// memory.
        pub use_dora: bool = false,
        /// The adapter that the run continues from instead of a new one: a folder of PEFT's, or a run,
        /// of which its best checkpoint is taken. It must have the rank, the scaling and the modules
        /// of this table.
        #[schemars(extend("x-kind" = "path"))]
        pub init_from: Option<PathBuf>,
        /// How the factors begin, as PEFT's `init_lora_weights`: absent for B of zeros, "pissa" for the
        /// principal singular values of each weight, "pissa_niter_4" for those that a sketch finds
        /// after 4 iterations, faster. A checkpoint then has twice the rank, beside the base as it is.
        pub init_weights: Option<String>,
        /// Ranks of single modules, by pattern; the first that matches counts.
        #[schemars(with = "BTreeMap<String, usize>")]
        pub rank_pattern: Patterns<usize>,
        /// Alphas of single modules, by pattern; the first that matches counts.
        #[schemars(with = "BTreeMap<String, f64>")]
        pub alpha_pattern: Patterns<f64>,
    }
}

/// The word that means every linear layer except the head.
pub(crate) const ALL_LINEAR: &str = "all-linear";

/// Module names as PEFT takes them: a list of suffixes, or one pattern.
#[derive(JsonSchema)]
#[schemars(untagged, rename = "ModulePattern")]
#[expect(dead_code, reason = "the schema of a type that is defined elsewhere")]
enum NamesOrPattern {
    /// Names that a module's path equals or ends with after a dot.
    Names(Vec<String>),
    /// A regular expression that must match the whole path, or `all-linear`.
    Pattern(String),
}
