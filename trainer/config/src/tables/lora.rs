//! The table `[lora]`, with PEFT's names and types.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use tooltune_checkpoints::adapter::{Patterns, TargetModules};

use super::settings::settings;

settings! {
    /// The low-rank adapters, with PEFT's names.
    #[schemars(extend("x-shared" = true))]
    pub struct LoraConfig {
        /// Rank of the LoRA factors, at most 8192.
        #[schemars(range(min = 1))]
        #[schemars(extend("x-elsewhere" = {
            "Axolotl": "lora_r", "LLaMA-Factory": "lora_rank", "ms-swift": "lora_rank",
            "TRL": "lora_r"
        }))]
        #[schemars(extend("x-also" = ["rank"]))]
        pub r: usize = 8,
        /// The adapter output is scaled by `lora_alpha / r`.
        #[schemars(extend("exclusiveMinimum" = 0))]
        #[schemars(extend("x-also" = ["alpha", "scale; the scale is lora_alpha / r"]))]
        pub lora_alpha: f64 = 16.0,
        /// Dropout probability of the adapter input.
        #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1))]
        #[schemars(extend("x-also" = ["dropout"]))]
        pub lora_dropout: f64 = 0.0,
        /// Linear layers to adapt: a list of names, a regular expression over full module paths, or
        /// "all-linear" for all except the head.
        #[schemars(with = "NamesOrPattern")]
        #[schemars(extend("x-also" = [
            "lora_target", "lora_target_modules", "lora_modules",
            "lora_target_linear; write target_modules = \"all-linear\""
        ]))]
        pub target_modules: TargetModules = TargetModules::Pattern(ALL_LINEAR.to_owned()),
        /// Layers to exclude from `target_modules`: a list of names or a regular expression.
        #[schemars(with = "Option<NamesOrPattern>")]
        pub exclude_modules: Option<TargetModules>,
        /// Whether to scale by `lora_alpha / sqrt(r)` instead (rsLoRA).
        #[schemars(extend("x-elsewhere" = {"Axolotl": "peft_use_rslora"}))]
        #[schemars(extend("x-also" = ["rslora"]))]
        pub use_rslora: bool = false,
        /// Modules to train and save in full: "lm_head", "embed_tokens" or both, if the model does
        /// not tie them. PEFT can load such an adapter; for other programs, export a merged model.
        #[schemars(extend("x-elsewhere" = {
            "Axolotl": "lora_modules_to_save", "LLaMA-Factory": "additional_target",
            "TRL": "lora_modules_to_save"
        }))]
        #[schemars(extend("x-example" = ["lm_head"]))]
        pub modules_to_save: Vec<String>,
        /// DoRA: trains a magnitude per output, in addition to the factors. PEFT can load such an
        /// adapter; for other programs, export a merged model. With `lora_dropout`, steps are
        /// several times slower and need several times the memory.
        #[schemars(extend("x-elsewhere" = {"Axolotl": "peft_use_dora"}))]
        #[schemars(extend("x-also" = ["dora"]))]
        pub use_dora: bool = false,
        /// Adapter to continue from: a PEFT folder, or a run (its best checkpoint is used). Rank,
        /// scaling and modules must match this table.
        #[schemars(extend("x-kind" = "path"))]
        pub init_from: Option<PathBuf>,
        /// Initial factors, as in PEFT's `init_lora_weights`: by default B is zero; "pissa" uses
        /// the principal singular values of each weight, and "pissa_niter_4" approximates them
        /// faster, with 4 iterations. With PiSSA, checkpoints have twice the rank and apply to the
        /// original base model.
        #[schemars(extend("x-also" = ["init_lora_weights"]))]
        #[schemars(extend("x-example" = "pissa"))]
        pub init_weights: Option<String>,
        /// Per-module ranks, by name pattern; the first match is used.
        #[schemars(with = "BTreeMap<String, usize>")]
        #[schemars(extend("x-elsewhere" = {"Axolotl": "lora_rank_pattern"}))]
        pub rank_pattern: Patterns<usize>,
        /// Per-module alphas, by name pattern; the first match is used.
        #[schemars(with = "BTreeMap<String, f64>")]
        #[schemars(extend("x-elsewhere" = {"Axolotl": "lora_alpha_pattern"}))]
        pub alpha_pattern: Patterns<f64>,
    }
}

/// The word that means every linear layer except the head.
pub(crate) const ALL_LINEAR: &str = "all-linear";

/// Module names as in PEFT: a list of suffixes, or one pattern.
#[derive(JsonSchema)]
#[schemars(untagged, rename = "ModulePattern")]
#[expect(dead_code, reason = "the schema of a type that is defined elsewhere")]
enum NamesOrPattern {
    /// Names that equal a module's path, or its end after a dot.
    Names(Vec<String>),
    /// A regular expression that must match the whole path, or `all-linear`.
    Pattern(String),
}
