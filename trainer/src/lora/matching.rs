//! Matches module paths by PEFT's rules: adapted projections with their rank and scaling.
//!
//! A pattern that matches nothing is an error: the run would otherwise train less than it says.

use thiserror::Error;
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::adapter::{self, PeftConfig, PeftRules};

use super::adapters::AdapterSlot;
use crate::config::LoraConfig;
use crate::models::DecoderConfig;
use crate::models::load::projection_features;

/// Why a `[lora]` table fits no model.
#[derive(Debug, Error)]
pub enum LoraError {
    /// An entry or pattern that adapts nothing.
    #[error(
        "lora.{key} = {pattern:?} matches no linear layer of this model; \
         its layers are model.layers.N.{{{layers}}}"
    )]
    NoMatch {
        /// Key within `[lora]`.
        key: &'static str,
        /// The entry.
        pattern: String,
        /// The linear layers of a block.
        layers: String,
    },
    /// The head or the embedding is named.
    #[error(
        "lora.target_modules names {0:?}: adapters on the embedding or the head are refused, \
         because servers load them differently or not at all; name the block's projections"
    )]
    HeadOrEmbedding(String),
    /// Settings that select nothing.
    #[error(
        "the settings of the adapter select no linear layer of this model; name some in \
         lora.target_modules, and exclude fewer"
    )]
    NoTarget,
    /// A pattern that is no regular expression, or layers that are none.
    #[error("lora: {0}")]
    Rules(#[from] CheckpointError),
    /// A rank that no adapter has.
    #[error("lora rank of {module} is {rank}; it must be 1 to {MAX_RANK}")]
    Rank {
        /// Path of the module.
        module: String,
        /// What was asked for.
        rank: usize,
    },
}

/// Ranks beyond this have more parameters than any model they could adapt.
const MAX_RANK: usize = 1 << 16;

impl LoraConfig {
    /// The adapted projections in the order of the flat buffer: by layer, then as in a block.
    ///
    /// # Errors
    ///
    /// As [`adapter_slots`].
    pub fn slots(&self, config: &DecoderConfig) -> Result<Vec<AdapterSlot>, LoraError> {
        adapter_slots(&self.to_peft(""), config)
    }

    /// How many values the adapters of these settings have.
    ///
    /// # Errors
    ///
    /// As [`slots`](Self::slots).
    pub fn n_parameters(&self, config: &DecoderConfig) -> Result<usize, LoraError> {
        let slots = self.slots(config)?;
        Ok(slots.iter().map(|slot| slot.len()).sum())
    }
}

/// The projections that an adapter of these settings has, in the order of the flat buffer: by
/// layer, then as in a block.
///
/// # Errors
///
/// An entry, an exclusion or a pattern that matches nothing, a pattern that does not parse, a rank
/// of zero or above 65536, the head or the embedding as a target.
///
/// # Source
///
/// [`PeftRules`] matches; that every part must match something is our own rule.
pub fn adapter_slots(
    adapter: &PeftConfig,
    config: &DecoderConfig,
) -> Result<Vec<AdapterSlot>, LoraError> {
    if let Some(adapter::TargetModules::Names(names)) = &adapter.target_modules {
        let refused = |name: &&String| HEAD_AND_EMBEDDING.contains(&name.as_str());
        if let Some(name) = names.iter().find(refused) {
            return Err(LoraError::HeadOrEmbedding(name.clone()));
        }
    }
    let rules = PeftRules::new(adapter)?;
    let modules = module_paths(config);
    if let Some((key, pattern)) = rules.unmatched(&linear_layers(config)) {
        return Err(LoraError::NoMatch {
            key,
            pattern,
            layers: paths(config).join(", "),
        });
    }
    let mut slots = Vec::new();
    let mut offset = 0;
    for (layer, index, module) in modules {
        if !rules.targets(&module) {
            continue;
        }
        let rank = rules.rank(&module);
        if !(1..=MAX_RANK).contains(&rank) {
            return Err(LoraError::Rank { module, rank });
        }
        let (in_features, out_features) = projection_features(config, layer, index);
        let stacks = &config.projections(layer).stacks;
        let stack = stacks.iter().position(|stack| stack.contains(&index));
        let slot = AdapterSlot {
            layer,
            projection: index,
            stack: stack.expect("every projection is in a stack"),
            rank,
            in_features,
            out_features,
            scaling: rules.scaling(&module, rank),
            offset,
            module,
        };
        offset += slot.len();
        slots.push(slot);
    }
    if slots.is_empty() {
        return Err(LoraError::NoTarget);
    }
    Ok(slots)
}

/// Names of the modules that are no part of a block.
const HEAD_AND_EMBEDDING: [&str; 3] = ["lm_head", "embed_tokens", "model.embed_tokens"];

/// Paths of all linear layers but the head, by layer, then as in a block.
pub fn linear_layers(config: &DecoderConfig) -> Vec<String> {
    let modules = module_paths(config).into_iter();
    modules.map(|(_, _, path)| path).collect()
}

/// The linear layers that any block has, each once.
fn paths(config: &DecoderConfig) -> Vec<&'static str> {
    let mut paths = Vec::new();
    let all = (0..config.num_hidden_layers).flat_map(|layer| config.projections(layer).paths);
    for path in all {
        if !paths.contains(path) {
            paths.push(*path);
        }
    }
    paths
}

fn module_paths(config: &DecoderConfig) -> Vec<(usize, usize, String)> {
    (0..config.num_hidden_layers)
        .flat_map(|layer| {
            let paths = config.projections(layer).paths.iter();
            paths
                .enumerate()
                .map(move |(index, path)| (layer, index, format!("model.layers.{layer}.{path}")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tooltune_checkpoints::adapter::{Patterns, TargetModules};

    use super::*;

    fn config() -> DecoderConfig {
        let json = json!({
            "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "vocab_size": 10,
            "num_hidden_layers": 11, "num_attention_heads": 2, "num_key_value_heads": 1,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 64
        });
        DecoderConfig::from_json(&json).unwrap()
    }

    fn spec(target_modules: TargetModules) -> LoraConfig {
        LoraConfig {
            r: 4,
            lora_alpha: 8.0,
            target_modules,
            ..LoraConfig::default()
        }
    }

    fn all_linear() -> TargetModules {
        pattern("all-linear")
    }

    fn pattern(text: &str) -> TargetModules {
        TargetModules::Pattern(text.to_string())
    }

    fn list(entries: &[&str]) -> TargetModules {
        TargetModules::Names(entries.iter().map(|entry| entry.to_string()).collect())
    }

    fn n_slots(spec: &LoraConfig) -> usize {
        spec.slots(&config()).unwrap().len()
    }

    #[test]
    fn targets_match_as_in_peft() {
        assert_eq!(n_slots(&spec(all_linear())), 77);
        assert_eq!(n_slots(&spec(list(&["q_proj", "v_proj"]))), 22);
        assert_eq!(n_slots(&spec(list(&["model.layers.1.mlp.up_proj"]))), 1);
        // A list entry ends at a component: layer 1 is not layer 10.
        assert_eq!(n_slots(&spec(list(&["layers.1.mlp.up_proj"]))), 1);
        let regex = pattern(r".*\.1\.self_attn\..*");
        assert_eq!(n_slots(&spec(regex)), 4);
        let mut excluding = spec(all_linear());
        excluding.exclude_modules = Some(list(&["down_proj"]));
        assert_eq!(n_slots(&excluding), 66);
        excluding.exclude_modules = Some(pattern(r".*mlp.*"));
        assert_eq!(n_slots(&excluding), 44);
    }

    #[test]
    fn what_matches_nothing_is_an_error_that_names_it() {
        let mut excluding = spec(all_linear());
        excluding.exclude_modules = Some(list(&["out_proj"]));
        let mut patterned = spec(all_linear());
        patterned.rank_pattern = Patterns(vec![("qq_proj".to_string(), 2)]);
        // A regular expression must match the whole path.
        let partial = spec(pattern("q_proj"));
        for (spec, name) in [
            (spec(list(&["q_proj", "query"])), "query"),
            (spec(list(&["lm_head"])), "lm_head"),
            (spec(pattern("[")), "["),
            (partial, "q_proj"),
            (excluding, "out_proj"),
            (patterned, "qq_proj"),
        ] {
            let error = spec.slots(&config()).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
    }

    #[test]
    fn an_adapter_has_factors_in_the_layers_that_it_names() {
        let mut adapter = spec(list(&["q_proj", "v_proj"])).to_peft("");
        adapter.layers_to_transform = Some(json!([0, 10]));
        let slots = adapter_slots(&adapter, &config()).unwrap();
        let layers: Vec<usize> = slots.iter().map(|slot| slot.layer).collect();
        assert_eq!(layers, [0, 0, 10, 10]);
        adapter.layers_to_transform = Some(json!([11]));
        let error = adapter_slots(&adapter, &config()).unwrap_err();
        assert!(matches!(error, LoraError::NoTarget), "{error}");
    }

    #[test]
    fn a_rank_that_no_memory_holds_is_refused() {
        for r in [0, MAX_RANK + 1, usize::MAX] {
            let spec = LoraConfig {
                r,
                ..spec(all_linear())
            };
            let error = spec.slots(&config()).unwrap_err().to_string();
            assert!(error.contains(&r.to_string()), "{error}");
        }
    }

    #[test]
    fn the_scaling_is_alpha_by_rank_or_by_its_root() {
        let mut spec = spec(all_linear());
        assert_eq!(spec.slots(&config()).unwrap()[0].scaling, 2.0);
        spec.use_rslora = true;
        assert_eq!(spec.slots(&config()).unwrap()[0].scaling, 4.0);
    }
}
