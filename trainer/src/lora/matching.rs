//! Finds the adapted projections with their rank and scaling, by PEFT's rules for module paths.
//!
//! A pattern without a match is an error, because otherwise the run would train less than its
//! config requests.

use thiserror::Error;
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::adapter::{self, PeftConfig, PeftRules};

use super::adapters::{AdapterSlot, WholeWeight};
use crate::config::LoraConfig;
use crate::models::DecoderConfig;
use crate::models::load::projection_features;

/// Reason why a `[lora]` table does not fit a model.
#[derive(Debug, Error)]
pub enum LoraError {
    /// An entry or pattern matches nothing.
    #[error(
        "lora.{key} = {pattern:?} matches no linear layer of this model; \
         its layers are model.layers.N.{{{layers}}}"
    )]
    NoMatch {
        /// Key within `[lora]`.
        key: &'static str,
        /// The entry or pattern.
        pattern: String,
        /// The linear layers of a block.
        layers: String,
    },
    /// The head or the embedding is a target.
    #[error(
        "lora.target_modules names {0:?}: adapters on the embedding or the head are not supported, \
         because servers load them differently or not at all; name projections of the blocks"
    )]
    HeadOrEmbedding(String),
    /// The settings select no layer.
    #[error(
        "the settings in [lora] select no linear layer of this model; list some in \
         lora.target_modules, or exclude fewer"
    )]
    NoTarget,
    /// An invalid regular expression or layer list.
    #[error("lora: {0}")]
    Rules(#[from] CheckpointError),
    /// A module in `modules_to_save` cannot be fully trained.
    #[error(
        "modules_to_save names {0:?}, but supports only \"lm_head\" and \"embed_tokens\"; adapt other \
         modules with target_modules"
    )]
    NoWholeWeight(String),
    /// The head and the embedding are one weight.
    #[error(
        "modules_to_save names {0:?}, but this model ties its head to its embedding \
         (tie_word_embeddings): training it would untie them; remove it, or use a model with a \
         separate head"
    )]
    TiedWeight(String),
    /// The PiSSA rank is larger than the number of singular values.
    #[error(
        "the weight of {module} has shape {shape:?}, with fewer singular values than the rank {rank}; \
         lower lora.r, or remove lora.init_weights"
    )]
    FewSingularValues {
        /// Path of the module.
        module: String,
        /// Shape of its weight.
        shape: [usize; 2],
        /// Requested rank.
        rank: usize,
    },
    /// DoRA cannot train a row of zeros.
    #[error(
        "row {row} of the weight of {module} is zero and has no direction, so DoRA cannot train it; \
         exclude {module} with lora.exclude_modules, or set lora.use_dora = false"
    )]
    NoDirection {
        /// Path of the module.
        module: String,
        /// Index of the row.
        row: usize,
    },
    /// A weight for PiSSA is NaN or infinite.
    #[error(
        "the weight of {0} has a value that is not finite and therefore no singular values; download \
         the model again"
    )]
    NoSingularValues(String),
    /// The rank is out of range.
    #[error("lora rank of {module} is {rank}; it must be 1 to {MAX_RANK}")]
    Rank {
        /// Path of the module.
        module: String,
        /// Requested rank.
        rank: usize,
    },
}

/// Maximum rank: with a higher rank, an adapter has more parameters than any model.
const MAX_RANK: usize = 1 << 16;

/// The projections and weights of a model that `[lora]` trains.
pub trait LoraLayout {
    /// Adapted projections in the order of the flat buffer: by layer, then in block order.
    ///
    /// # Errors
    ///
    /// As for [`adapter_slots`].
    fn slots(&self, config: &DecoderConfig) -> Result<Vec<AdapterSlot>, LoraError>;

    /// Checks that each weight has enough singular values for PiSSA.
    ///
    /// # Errors
    ///
    /// As for [`slots`](Self::slots), or the PiSSA rank exceeds the rows or columns of a weight.
    fn check_principal_ranks(&self, config: &DecoderConfig) -> Result<(), LoraError>;

    /// Fully trained weights, after the slots in the flat buffer.
    ///
    /// # Errors
    ///
    /// As for [`slots`](Self::slots) and [`whole_weights`].
    fn whole_weights(&self, config: &DecoderConfig) -> Result<Vec<WholeWeight>, LoraError>;

    /// Number of trained values with these settings.
    ///
    /// # Errors
    ///
    /// As for [`slots`](Self::slots).
    fn n_parameters(&self, config: &DecoderConfig) -> Result<usize, LoraError>;

    /// Number of values in fully trained weights.
    ///
    /// # Errors
    ///
    /// As for [`whole_weights`](Self::whole_weights).
    fn n_whole(&self, config: &DecoderConfig) -> Result<usize, LoraError>;
}

impl LoraLayout for LoraConfig {
    fn slots(&self, config: &DecoderConfig) -> Result<Vec<AdapterSlot>, LoraError> {
        adapter_slots(&self.to_peft(""), config)
    }

    fn check_principal_ranks(&self, config: &DecoderConfig) -> Result<(), LoraError> {
        if self.principal_init().is_none() {
            return Ok(());
        }
        let slots = self.slots(config)?;
        let few = |slot: &&AdapterSlot| slot.rank > slot.in_features.min(slot.out_features);
        match slots.iter().find(few) {
            None => Ok(()),
            Some(slot) => Err(LoraError::FewSingularValues {
                module: slot.module.clone(),
                shape: [slot.out_features, slot.in_features],
                rank: slot.rank,
            }),
        }
    }

    fn whole_weights(&self, config: &DecoderConfig) -> Result<Vec<WholeWeight>, LoraError> {
        whole_weights(&self.to_peft(""), config, &self.slots(config)?)
    }

    fn n_parameters(&self, config: &DecoderConfig) -> Result<usize, LoraError> {
        let slots = self.slots(config)?;
        let factors: usize = slots.iter().map(AdapterSlot::n_values).sum();
        Ok(factors + self.n_whole(config)?)
    }

    fn n_whole(&self, config: &DecoderConfig) -> Result<usize, LoraError> {
        let whole_weights = self.whole_weights(config)?;
        Ok(whole_weights.iter().map(WholeWeight::n_values).sum())
    }
}

/// Projections adapted by these settings, in the order of the flat buffer: by layer, then in block
/// order.
///
/// # Errors
///
/// An entry, exclusion or pattern has no match, a pattern does not parse, a rank is zero or above
/// 65536, or the head or embedding is a target.
///
/// # Source
///
/// Matching follows PEFT ([`PeftRules`]). The check that every entry has a match is our own.
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
        let stack = stack.expect("every projection is in a stack");
        let slot = AdapterSlot {
            layer,
            projection: index,
            stack,
            first_projection: stacks[stack].start,
            rank,
            in_features,
            out_features,
            scaling: rules.scaling(&module, rank),
            offset: 0,
            magnitudes: None,
            module,
        };
        slots.push(slot);
    }
    if slots.is_empty() {
        return Err(LoraError::NoTarget);
    }
    lay_out(&mut slots, adapter.use_dora);
    Ok(slots)
}

/// Weights that these settings train fully. They follow the slots in the flat buffer.
///
/// # Errors
///
/// A module is neither head nor embedding, or the model ties the two.
///
/// # Source
///
/// `ModulesToSaveWrapper`, peft 0.21. It would copy a tied weight, and so untie head and embedding.
pub fn whole_weights(
    adapter: &PeftConfig,
    config: &DecoderConfig,
    slots: &[AdapterSlot],
) -> Result<Vec<WholeWeight>, LoraError> {
    let modules = adapter.modules_to_save.iter().flatten();
    let mut names = Vec::new();
    for module in modules {
        let unknown = || LoraError::NoWholeWeight(module.clone());
        names.push(adapter::saved_weight(module).ok_or_else(unknown)?);
        if config.tie_word_embeddings {
            return Err(LoraError::TiedWeight(module.clone()));
        }
    }
    names.sort_unstable();
    names.dedup();
    let mut offset = slots.iter().map(AdapterSlot::n_values).sum();
    let weights = names.into_iter().map(|name| {
        let weight = WholeWeight {
            name,
            shape: [config.vocab_size, config.hidden_size],
            offset,
        };
        offset += weight.n_values();
        weight
    });
    Ok(weights.collect())
}

/// Assigns each slot its offset in the flat buffer.
fn lay_out(slots: &mut [AdapterSlot], use_dora: bool) {
    let mut offset = 0;
    for stack in slots.chunk_by_mut(|a, b| a.location() == b.location()) {
        for slot in stack.iter_mut() {
            slot.offset = offset;
            offset += slot.len();
        }
        for slot in stack.iter_mut().filter(|_| use_dora) {
            slot.magnitudes = Some(offset);
            offset += slot.out_features;
        }
    }
}

/// Module names outside the blocks.
const HEAD_AND_EMBEDDING: [&str; 3] = ["lm_head", "embed_tokens", "model.embed_tokens"];

/// Paths of all linear layers except the head, by layer, then in block order.
pub fn linear_layers(config: &DecoderConfig) -> Vec<String> {
    let modules = module_paths(config).into_iter();
    modules.map(|(_, _, path)| path).collect()
}

/// Linear layers of all block types, without duplicates.
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
        // A list entry matches whole path components: layer 1 does not match layer 10.
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
    fn patterns_without_a_match_are_errors() {
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
    fn a_rank_beyond_the_limit_is_refused() {
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
