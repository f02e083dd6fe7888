//! PEFT's rules: module paths and patterns to adapted projections with their rank and scaling.
//!
//! A pattern that matches nothing is an error: the run would otherwise train less than it says.

use regex::Regex;
use thiserror::Error;

use super::adapters::AdapterSlot;
use crate::models::ModelConfig;
use crate::models::decoder::PROJECTIONS;
use crate::models::load::projection_features;

/// Which modules to adapt, as PEFT's `target_modules`.
#[derive(Debug, Clone, PartialEq)]
pub enum TargetModules {
    /// Every linear layer but the output head.
    AllLinear,
    /// Each entry is a full path or a suffix of whole path components.
    List(Vec<String>),
    /// A regular expression that must match the full path.
    Regex(String),
}

/// The adapter's hyper-parameters, named as in PEFT's `LoraConfig`.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraSpec {
    /// Rank.
    pub r: usize,
    /// Numerator of the scaling.
    pub lora_alpha: f64,
    /// Probability of dropping an element of the adapter's input.
    pub lora_dropout: f64,
    /// What is adapted.
    pub target_modules: TargetModules,
    /// Entries as of a list in `target_modules`; they win.
    pub exclude_modules: Vec<String>,
    /// Scale by `alpha / √r` in place of `alpha / r`.
    pub use_rslora: bool,
    /// Rank of modules whose path ends in a match of the key; the first match counts.
    pub rank_pattern: Vec<(String, usize)>,
    /// Alpha of such modules.
    pub alpha_pattern: Vec<(String, f64)>,
}

/// Why a `[lora]` table fits no model.
#[derive(Debug, Error)]
pub enum LoraError {
    /// An entry or pattern that adapts nothing.
    #[error(
        "lora.{key} = {pattern:?} matches no linear layer of this model; \
         its layers are model.layers.N.{{{}}}", PROJECTIONS.join(", ")
    )]
    NoMatch {
        /// Key within `[lora]`.
        key: &'static str,
        /// The entry.
        pattern: String,
    },
    /// The head or the embedding is named.
    #[error(
        "lora.target_modules names {0:?}: adapters on the embedding or the head are refused, \
         because servers load them differently or not at all; name the block's projections"
    )]
    HeadOrEmbedding(String),
    /// A pattern that is no regular expression.
    #[error("lora.{key} = {pattern:?} is no regular expression: {cause}")]
    Pattern {
        /// Key within `[lora]`.
        key: &'static str,
        /// The pattern.
        pattern: String,
        /// The parser's words.
        cause: String,
    },
    /// A rank of zero.
    #[error("lora rank of {module} is 0; it must be at least 1")]
    Rank {
        /// Path of the module.
        module: String,
    },
}

impl LoraSpec {
    /// The adapted projections in the order of the flat buffer: by layer, then as in a block.
    ///
    /// # Errors
    ///
    /// An entry, an exclusion or a pattern that matches nothing, a pattern that does not parse, a
    /// rank of zero, the head or the embedding as a target.
    ///
    /// # Source
    ///
    /// `check_target_module_exists` and `get_pattern_key` of `peft/tuners/tuners_utils.py` and
    /// `peft/utils/other.py`, peft 0.21.
    pub fn slots(&self, config: &ModelConfig) -> Result<Vec<AdapterSlot>, LoraError> {
        let modules = module_paths(config);
        let target = self.target_matcher(&modules)?;
        self.check_exclusions(&modules)?;
        let ranks = compile("rank_pattern", &self.rank_pattern, &modules)?;
        let alphas = compile("alpha_pattern", &self.alpha_pattern, &modules)?;
        let mut slots = Vec::new();
        let mut offset = 0;
        for (layer, index, module) in modules {
            if !target.matches(&module) || listed(&self.exclude_modules, &module) {
                continue;
            }
            let rank = first_match(&ranks, &module).unwrap_or(self.r);
            let alpha = first_match(&alphas, &module).unwrap_or(self.lora_alpha);
            if rank == 0 {
                return Err(LoraError::Rank { module });
            }
            let divisor = if self.use_rslora {
                (rank as f64).sqrt()
            } else {
                rank as f64
            };
            let (in_features, out_features) = projection_features(config, index);
            let slot = AdapterSlot {
                layer,
                projection: index,
                module,
                rank,
                in_features,
                out_features,
                scaling: alpha / divisor,
                offset,
            };
            offset += slot.len();
            slots.push(slot);
        }
        if slots.is_empty() {
            let pattern = format!("{:?}", self.target_modules);
            return Err(LoraError::NoMatch {
                key: "target_modules",
                pattern,
            });
        }
        Ok(slots)
    }

    fn target_matcher(&self, modules: &[(usize, usize, String)]) -> Result<Matcher, LoraError> {
        let matcher = match &self.target_modules {
            TargetModules::AllLinear => Matcher::All,
            TargetModules::Regex(pattern) => Matcher::Full(regex(
                "target_modules",
                pattern,
                &format!("^(?:{pattern})$"),
            )?),
            TargetModules::List(entries) => {
                for entry in entries {
                    if ["lm_head", "embed_tokens", "model.embed_tokens"].contains(&entry.as_str()) {
                        return Err(LoraError::HeadOrEmbedding(entry.clone()));
                    }
                    let single = Matcher::List(vec![entry.clone()]);
                    if !modules.iter().any(|(_, _, module)| single.matches(module)) {
                        let pattern = entry.clone();
                        return Err(LoraError::NoMatch {
                            key: "target_modules",
                            pattern,
                        });
                    }
                }
                Matcher::List(entries.clone())
            }
        };
        Ok(matcher)
    }

    fn check_exclusions(&self, modules: &[(usize, usize, String)]) -> Result<(), LoraError> {
        let useless = self.exclude_modules.iter().find(|entry| {
            !modules
                .iter()
                .any(|(_, _, module)| listed(std::slice::from_ref(*entry), module))
        });
        match useless {
            Some(entry) => Err(LoraError::NoMatch {
                key: "exclude_modules",
                pattern: entry.clone(),
            }),
            None => Ok(()),
        }
    }
}

enum Matcher {
    All,
    List(Vec<String>),
    Full(Regex),
}

impl Matcher {
    fn matches(&self, module: &str) -> bool {
        match self {
            Self::All => true,
            Self::List(entries) => listed(entries, module),
            Self::Full(pattern) => pattern.is_match(module),
        }
    }
}

/// Whether an entry is the path or a suffix of it that begins at a component.
fn listed(entries: &[String], module: &str) -> bool {
    entries.iter().any(|entry| {
        module == entry
            || module
                .strip_suffix(entry)
                .is_some_and(|head| head.ends_with('.'))
    })
}

fn module_paths(config: &ModelConfig) -> Vec<(usize, usize, String)> {
    (0..config.num_hidden_layers)
        .flat_map(|layer| {
            PROJECTIONS
                .iter()
                .enumerate()
                .map(move |(index, path)| (layer, index, format!("model.layers.{layer}.{path}")))
        })
        .collect()
}

fn regex(key: &'static str, pattern: &str, anchored: &str) -> Result<Regex, LoraError> {
    Regex::new(anchored).map_err(|error| LoraError::Pattern {
        key,
        pattern: pattern.to_string(),
        cause: error.to_string(),
    })
}

fn compile<T: Copy>(
    key: &'static str,
    patterns: &[(String, T)],
    modules: &[(usize, usize, String)],
) -> Result<Vec<(Regex, T)>, LoraError> {
    let mut compiled = Vec::with_capacity(patterns.len());
    for (pattern, value) in patterns {
        let suffix = regex(key, pattern, &format!(r"^(?:.*\.)?(?:{pattern})$"))?;
        if !modules.iter().any(|(_, _, module)| suffix.is_match(module)) {
            return Err(LoraError::NoMatch {
                key,
                pattern: pattern.clone(),
            });
        }
        compiled.push((suffix, *value));
    }
    Ok(compiled)
}

fn first_match<T: Copy>(patterns: &[(Regex, T)], module: &str) -> Option<T> {
    patterns
        .iter()
        .find(|(pattern, _)| pattern.is_match(module))
        .map(|(_, value)| *value)
}
