//! Which blocks attend within a window and which turn queries and keys, as a GGUF file says it.
//!
//! llama.cpp knows windows of two of these architectures, and by heart which blocks of SmolLM3 do not
//! turn; anything else is refused. A window that no text can be longer than is none.

use serde_json::Value;

use super::gguf_config::Config;
use crate::error::CheckpointError;
use crate::families::{DEFAULT_WINDOW, LayerRules};
use crate::weights::gguf_write::GgufHeader;

/// Which blocks of SmolLM3 llama.cpp does not turn.
const UNTURNED_EACH: usize = 4;
/// Which blocks of Gemma 3 have no window where a file says nothing of it.
const GEMMA_FULL_EACH: usize = 6;

const WINDOW: &str = "sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

/// Writes the window, and refuses what llama.cpp does not compute.
pub(super) fn write_layers(
    config: &Config<'_>,
    header: &mut GgufHeader,
) -> Result<(), CheckpointError> {
    let rules = config.family.config.layers;
    let n_layers = config.size("num_hidden_layers")? as usize;
    if let LayerRules::UnturnedEach(each) = rules {
        check_turned(config, each, n_layers)?;
    }
    let Some(window) = window(config)? else {
        return Ok(());
    };
    let slides = slides(config, n_layers);
    let LayerRules::AllButEach(_) = rules else {
        return match slides.contains(&true) {
            true => Err(config.refused(format!("a GGUF file with {WINDOW} = {window}"))),
            false => Ok(()),
        };
    };
    if !slides.contains(&true) {
        return Ok(());
    }
    header.u32(&config.key("attention.sliding_window"), window);
    let is_each = |each: usize| (1..=n_layers).all(|i| slides[i - 1] != i.is_multiple_of(each));
    let key = config.key(PATTERN);
    if config.family.gguf.architecture != "gemma3" {
        header.bools(&key, &slides);
    } else if !is_each(GEMMA_FULL_EACH) {
        match (2..=n_layers + 1).find(|&each| is_each(each)) {
            Some(each) => header.u32(&key, each as u32),
            None => header.bools(&key, &slides),
        }
    }
    Ok(())
}

/// The window, if a text can be longer.
fn window(config: &Config<'_>) -> Result<Option<u32>, CheckpointError> {
    let is_used = config.fields["use_sliding_window"] == true;
    let or_default = config.fields.get(WINDOW).is_none();
    let has_default = match config.family.config.layers {
        LayerRules::Full | LayerRules::LinearButEach(_) => return Ok(None),
        LayerRules::UnlessNull | LayerRules::AllButEach(_) => true,
        LayerRules::IfGiven => false,
        LayerRules::FromLayer if is_used => true,
        LayerRules::UnturnedEach(_) if is_used => false,
        LayerRules::FromLayer | LayerRules::UnturnedEach(_) => return Ok(None),
    };
    let window = match &config.fields[WINDOW] {
        Value::Null if or_default && has_default => DEFAULT_WINDOW as u32,
        Value::Null => return Ok(None),
        _ => config.size(WINDOW)?,
    };
    let context = config.size("max_position_embeddings")?;
    Ok(Some(window).filter(|window| *window < context))
}

/// Of each block, whether it has the window.
fn slides(config: &Config<'_>, n_layers: usize) -> Vec<bool> {
    let rules = config.family.config.layers;
    let types = config.fields["layer_types"].as_array();
    if let Some(types) = types.filter(|types| rules.read_types() && types.len() == n_layers) {
        return types
            .iter()
            .map(|kind| kind == "sliding_attention")
            .collect();
    }
    let count = |field: &str, absent: usize| {
        let said = config.fields[field].as_u64();
        said.map_or(absent, |n| usize::try_from(n).unwrap_or(usize::MAX))
    };
    match rules {
        LayerRules::FromLayer => {
            let first = count("max_window_layers", 28);
            (0..n_layers).map(|layer| layer >= first).collect()
        }
        LayerRules::AllButEach(each) => {
            let each = count("sliding_window_pattern", each);
            (1..=n_layers).map(|i| !i.is_multiple_of(each)).collect()
        }
        _ => vec![true; n_layers],
    }
}

/// Refuses blocks without turning other than those that llama.cpp has.
fn check_turned(config: &Config<'_>, each: usize, n_layers: usize) -> Result<(), CheckpointError> {
    let interval = "no_rope_layer_interval";
    let list = "no_rope_layers";
    if let Some(turned) = config.fields[list].as_array() {
        let mut turned = turned.iter().take(n_layers).enumerate();
        let is_known =
            |(i, turns): (usize, &Value)| (turns != 0) != (i + 1).is_multiple_of(UNTURNED_EACH);
        return match turned.all(is_known) {
            true => Ok(()),
            false => Err(config.refused_field(list)),
        };
    }
    let said = config.fields[interval].as_u64().unwrap_or(each as u64);
    match said == UNTURNED_EACH as u64 {
        true => Ok(()),
        false => Err(config.refused_field(interval)),
    }
}
