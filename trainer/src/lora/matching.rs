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
    /// What is left out again, matched as `target_modules`; it wins.
    pub exclude_modules: Option<TargetModules>,
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
        let target = matcher("target_modules", &self.target_modules, &modules)?;
        let excluded = match &self.exclude_modules {
            Some(excluded) => Some(matcher("exclude_modules", excluded, &modules)?),
            None => None,
        };
        let ranks = compile("rank_pattern", &self.rank_pattern, &modules)?;
        let alphas = compile("alpha_pattern", &self.alpha_pattern, &modules)?;
        let mut slots = Vec::new();
        let mut offset = 0;
        for (layer, index, module) in modules {
            if !target.matches(&module) || excluded.as_ref().is_some_and(|e| e.matches(&module)) {
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
}

/// Compiles a choice of modules and checks that each part of it matches some.
fn matcher(
    key: &'static str,
    choice: &TargetModules,
    modules: &[(usize, usize, String)],
) -> Result<Matcher, LoraError> {
    let no_match = |pattern: &str| LoraError::NoMatch {
        key,
        pattern: pattern.to_string(),
    };
    match choice {
        TargetModules::AllLinear => Ok(Matcher::All),
        TargetModules::Regex(pattern) => {
            let full = Matcher::Full(regex(key, pattern, &format!("^(?:{pattern})$"))?);
            match modules.iter().any(|(_, _, module)| full.matches(module)) {
                true => Ok(full),
                false => Err(no_match(pattern)),
            }
        }
        TargetModules::List(entries) => {
            for entry in entries {
                let single = Matcher::List(vec![entry.clone()]);
                if HEAD_AND_EMBEDDING.contains(&entry.as_str()) {
                    return Err(LoraError::HeadOrEmbedding(entry.clone()));
                }
                if !modules.iter().any(|(_, _, module)| single.matches(module)) {
                    return Err(no_match(entry));
                }
            }
            Ok(Matcher::List(entries.clone()))
        }
    }
}

/// Names of the modules that are no part of a block.
const HEAD_AND_EMBEDDING: [&str; 3] = ["lm_head", "embed_tokens", "model.embed_tokens"];

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> ModelConfig {
        let json = json!({
            "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "vocab_size": 10,
            "num_hidden_layers": 11, "num_attention_heads": 2, "num_key_value_heads": 1,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 64
        });
        ModelConfig::from_json(&json).unwrap()
    }

    fn spec(target_modules: TargetModules) -> LoraSpec {
        LoraSpec {
            r: 4,
            lora_alpha: 8.0,
            lora_dropout: 0.0,
            target_modules,
            exclude_modules: None,
            use_rslora: false,
            rank_pattern: vec![],
            alpha_pattern: vec![],
        }
    }

    fn list(entries: &[&str]) -> TargetModules {
        TargetModules::List(entries.iter().map(|entry| entry.to_string()).collect())
    }

    fn n_slots(spec: &LoraSpec) -> usize {
        spec.slots(&config()).unwrap().len()
    }

    #[test]
    fn targets_match_as_in_peft() {
        assert_eq!(n_slots(&spec(TargetModules::AllLinear)), 77);
        assert_eq!(n_slots(&spec(list(&["q_proj", "v_proj"]))), 22);
        assert_eq!(n_slots(&spec(list(&["model.layers.1.mlp.up_proj"]))), 1);
        // A list entry ends at a component: layer 1 is not layer 10.
        assert_eq!(n_slots(&spec(list(&["layers.1.mlp.up_proj"]))), 1);
        let regex = TargetModules::Regex(r".*\.1\.self_attn\..*".to_string());
        assert_eq!(n_slots(&spec(regex)), 4);
        let mut excluding = spec(TargetModules::AllLinear);
        excluding.exclude_modules = Some(list(&["down_proj"]));
        assert_eq!(n_slots(&excluding), 66);
        excluding.exclude_modules = Some(TargetModules::Regex(r".*mlp.*".to_string()));
        assert_eq!(n_slots(&excluding), 44);
    }

    #[test]
    fn what_matches_nothing_is_an_error_that_names_it() {
        let mut excluding = spec(TargetModules::AllLinear);
        excluding.exclude_modules = Some(list(&["out_proj"]));
        let mut patterned = spec(TargetModules::AllLinear);
        patterned.rank_pattern = vec![("qq_proj".to_string(), 2)];
        // A regular expression must match the whole path.
        let partial = spec(TargetModules::Regex("q_proj".to_string()));
        for (spec, name) in [
            (spec(list(&["q_proj", "query"])), "query"),
            (spec(list(&["lm_head"])), "lm_head"),
            (spec(TargetModules::Regex("[".to_string())), "["),
            (partial, "q_proj"),
            (excluding, "out_proj"),
            (patterned, "qq_proj"),
        ] {
            let error = spec.slots(&config()).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
    }

    #[test]
    fn the_scaling_is_alpha_by_rank_or_by_its_root() {
        let mut spec = spec(TargetModules::AllLinear);
        assert_eq!(spec.slots(&config()).unwrap()[0].scaling, 2.0);
        spec.use_rslora = true;
        assert_eq!(spec.slots(&config()).unwrap()[0].scaling, 4.0);
    }
}
