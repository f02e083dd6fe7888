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
        /// Adapters are scaled by `lora_alpha / r`.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub lora_alpha: f64 = 16.0,
        /// Share of the adapter inputs that training sets to zero.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1))]
        pub lora_dropout: f64 = 0.0,
        /// Linear layers to adapt: a list of names, a regular expression over full module paths, or
        /// "all-linear" for all except the head.
        #[schemars(with = "NamesOrPattern")]
        pub target_modules: TargetModules = TargetModules::Pattern(ALL_LINEAR.to_owned()),
        /// Layers to exclude from these: a list of names or a regular expression.
        #[schemars(with = "Option<NamesOrPattern>")]
        pub exclude_modules: Option<TargetModules>,
        /// Scale by `lora_alpha / sqrt(r)` instead.
        pub use_rslora: bool = false,
        /// Modules that are trained and saved as a whole: "lm_head", "embed_tokens" or both, if the
        /// model does not tie them. PEFT loads such an adapter; for other programs, export a merged
        /// model.
        pub modules_to_save: Vec<String>,
        /// DoRA: trains a magnitude per output in addition to the direction that the factors
        /// change. PEFT loads such an adapter; for other programs, export a merged model. With
        /// `lora_dropout`, steps are several times slower and need several times the memory.
        pub use_dora: bool = false,
        /// Adapter to continue from: a PEFT folder, or a run, whose best checkpoint is used. Rank,
        /// scaling and modules must match this table.
        #[schemars(extend("x-kind" = "path"))]
        pub init_from: Option<PathBuf>,
        /// Initial factors, as PEFT's `init_lora_weights`: by default B is zero; "pissa" uses the
        /// principal singular values of each weight, and "pissa_niter_4" a faster approximation
        /// with 4 iterations. Checkpoints then have twice the rank, on the original base.
        pub init_weights: Option<String>,
        /// Ranks of single modules by pattern; the first match is used.
        #[schemars(with = "BTreeMap<String, usize>")]
        pub rank_pattern: Patterns<usize>,
        /// Alphas of single modules by pattern; the first match is used.
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
