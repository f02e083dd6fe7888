//! Writes GGUF metadata about the blocks with sliding-window attention and without RoPE.
//!
//! llama.cpp supports windows in two of these architectures and hard-codes which SmolLM3 blocks
//! skip RoPE. Everything else is refused. A window at least as long as the context is ignored.

use serde_json::Value;

use super::gguf_fields::Config;
use crate::error::CheckpointError;
use crate::families::{DEFAULT_WINDOW, LayerRules};
use crate::weights::gguf_write::GgufHeader;

/// llama.cpp skips RoPE in each nth block of SmolLM3.
const NO_ROPE_EVERY: usize = 4;
/// Default interval of Gemma 3's blocks without a window.
const GEMMA_FULL_EVERY: usize = 6;

const WINDOW: &str = "sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

/// Writes the window, and refuses layouts that llama.cpp does not support.
pub(super) fn write_layers(
    config: &Config<'_>,
    header: &mut GgufHeader,
) -> Result<(), CheckpointError> {
    let rules = config.family.config.layers;
    let n_layers = config.size("num_hidden_layers")? as usize;
    if let LayerRules::NoRopeEvery(interval) = rules {
        check_no_rope(config, interval, n_layers)?;
    }
    let Some(window) = window(config)? else {
        return Ok(());
    };
    let has_window_per_block = has_window_per_block(config, n_layers);
    let LayerRules::WindowExceptEvery(_) = rules else {
        return match has_window_per_block.contains(&true) {
            true => Err(config.unsupported(format!("a GGUF file with {WINDOW} = {window}"))),
            false => Ok(()),
        };
    };
    if !has_window_per_block.contains(&true) {
        return Ok(());
    }
    header.u32(&config.key("attention.sliding_window"), window);
    let matches_interval = |interval: usize| {
        (1..=n_layers).all(|i| has_window_per_block[i - 1] != i.is_multiple_of(interval))
    };
    let key = config.key(PATTERN);
    if config.family.gguf.architecture != "gemma3" {
        header.bools(&key, &has_window_per_block);
    } else if !matches_interval(GEMMA_FULL_EVERY) {
        match (2..=n_layers + 1).find(|&interval| matches_interval(interval)) {
            Some(interval) => header.u32(&key, interval as u32),
            None => header.bools(&key, &has_window_per_block),
        }
    }
    Ok(())
}

/// The window, if the context can exceed it.
fn window(config: &Config<'_>) -> Result<Option<u32>, CheckpointError> {
    let is_used = config.fields["use_sliding_window"] == true;
    let or_default = config.fields.get(WINDOW).is_none();
    let has_default = match config.family.config.layers {
        LayerRules::Full | LayerRules::LinearExceptEvery(_) => return Ok(None),
        LayerRules::UnlessNull | LayerRules::WindowExceptEvery(_) => true,
        LayerRules::IfGiven => false,
        LayerRules::FromLayer if is_used => true,
        LayerRules::NoRopeEvery(_) if is_used => false,
        LayerRules::FromLayer | LayerRules::NoRopeEvery(_) => return Ok(None),
    };
    let window = match &config.fields[WINDOW] {
        Value::Null if or_default && has_default => DEFAULT_WINDOW as u32,
        Value::Null => return Ok(None),
        _ => config.size(WINDOW)?,
    };
    let context = config.size("max_position_embeddings")?;
    Ok(Some(window).filter(|window| *window < context))
}

/// Whether each block has the window.
fn has_window_per_block(config: &Config<'_>, n_layers: usize) -> Vec<bool> {
    let rules = config.family.config.layers;
    let types = config.fields["layer_types"].as_array();
    if let Some(types) = types.filter(|types| rules.uses_layer_types() && types.len() == n_layers) {
        return types
            .iter()
            .map(|kind| kind == "sliding_attention")
            .collect();
    }
    let count = |field: &str, absent: usize| {
        let value = config.fields[field].as_u64();
        value.map_or(absent, |n| usize::try_from(n).unwrap_or(usize::MAX))
    };
    match rules {
        LayerRules::FromLayer => {
            let first = count("max_window_layers", 28);
            (0..n_layers).map(|layer| layer >= first).collect()
        }
        LayerRules::WindowExceptEvery(interval) => {
            let interval = count("sliding_window_pattern", interval);
            (1..=n_layers)
                .map(|i| !i.is_multiple_of(interval))
                .collect()
        }
        _ => vec![true; n_layers],
    }
}

/// Refuses a config whose no-RoPE blocks differ from llama.cpp's.
fn check_no_rope(
    config: &Config<'_>,
    default_interval: usize,
    n_layers: usize,
) -> Result<(), CheckpointError> {
    let interval = "no_rope_layer_interval";
    let list = "no_rope_layers";
    if let Some(rotations) = config.fields[list].as_array() {
        let mut rotations = rotations.iter().take(n_layers).enumerate();
        let is_known =
            |(i, rotates): (usize, &Value)| (rotates != 0) != (i + 1).is_multiple_of(NO_ROPE_EVERY);
        return match rotations.all(is_known) {
            true => Ok(()),
            false => Err(config.unsupported_field(list)),
        };
    }
    let no_rope_every = config.fields[interval]
        .as_u64()
        .unwrap_or(default_interval as u64);
    match no_rope_every == NO_ROPE_EVERY as u64 {
        true => Ok(()),
        false => Err(config.unsupported_field(interval)),
    }
}
