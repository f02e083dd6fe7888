//! Reads the attention kind of each block from a `config.json`: window, linear attention and
//! rotation.

use serde_json::Value;
use tooltune_checkpoints::families::{ConfigRules, DEFAULT_WINDOW, LayerRules};

use super::config::DecoderConfigError;
use super::config_fields::{flag, optional_count, wrong_field};

/// Attention kind of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerKind {
    /// Attention or linear attention.
    pub mixer: Mixer,
    /// Number of tokens that a token attends to, including itself; `None` for all.
    pub window: Option<usize>,
    /// Rotation of queries and keys.
    pub rotation: Rotation,
}

/// How a block mixes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    /// Attention.
    Attention,
    /// Linear attention, which has no positions.
    Linear,
}

/// Rotation of a block's queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// The model's rotary embedding.
    Global,
    /// The rotary embedding of sliding-window blocks.
    Local,
    /// No rotation.
    None,
}

const WINDOW: &str = "sliding_window";
const TYPES: &str = "layer_types";
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
const LINEAR: &str = "linear_attention";

/// Kinds of all blocks.
pub(super) fn from_json(
    json: &Value,
    rules: &ConfigRules,
    n_layers: usize,
) -> Result<Vec<LayerKind>, DecoderConfigError> {
    if let LayerRules::LinearExceptEvery(each) = rules.layers {
        return linear(json, each, n_layers);
    }
    let rotates = rotates(json, rules.layers, n_layers)?;
    let window = window(json, rules.layers)?;
    let has_sliding_window = has_sliding_window(json, rules.layers, &rotates, window.is_some())?;
    let kinds =
        has_sliding_window
            .into_iter()
            .zip(rotates)
            .map(|(has_sliding_window, is_rotated)| {
                let rotation = match (
                    is_rotated,
                    has_sliding_window && rules.rotary.local_theta.is_some(),
                ) {
                    (false, _) => Rotation::None,
                    (true, true) => Rotation::Local,
                    (true, false) => Rotation::Global,
                };
                LayerKind {
                    mixer: Mixer::Attention,
                    window: window.filter(|_| has_sliding_window),
                    rotation,
                }
            });
    Ok(kinds.collect())
}

/// Kinds of the blocks in a family with linear attention.
fn linear(
    json: &Value,
    each: usize,
    n_layers: usize,
) -> Result<Vec<LayerKind>, DecoderConfigError> {
    let full = match json.get(TYPES).filter(|types| !types.is_null()) {
        Some(types) => blocks_of_type(json, types, n_layers, [FULL, LINEAR])?,
        None => {
            let each = optional_count(json, "full_attention_interval")?.unwrap_or(each);
            let is_full = |i: usize| i.is_multiple_of(each);
            (1..=n_layers).map(is_full).collect()
        }
    };
    let kinds = full.into_iter().map(|is_full| LayerKind {
        mixer: match is_full {
            true => Mixer::Attention,
            false => Mixer::Linear,
        },
        window: None,
        rotation: match is_full {
            true => Rotation::Global,
            false => Rotation::None,
        },
    });
    Ok(kinds.collect())
}

/// Size of the sliding window; `None` if no block has one.
fn window(json: &Value, rules: LayerRules) -> Result<Option<usize>, DecoderConfigError> {
    let window = optional_count(json, WINDOW)?;
    let or_default = || match json.get(WINDOW) {
        None => Some(DEFAULT_WINDOW),
        Some(_) => window,
    };
    let is_used = flag(json, "use_sliding_window", false)?;
    match rules {
        LayerRules::Full if is_used => Err(DecoderConfigError::unsupported(
            "use_sliding_window",
            true,
            "models of this type have no window; use the model's own config.json",
        )),
        LayerRules::Full | LayerRules::LinearExceptEvery(_) => Ok(None),
        LayerRules::IfGiven => Ok(window),
        LayerRules::UnlessNull | LayerRules::WindowExceptEvery(_) => Ok(or_default()),
        LayerRules::FromLayer => Ok(or_default().filter(|_| is_used)),
        LayerRules::NoRopeEvery(_) => Ok(window.filter(|_| is_used)),
    }
}

/// For each block: whether it rotates queries and keys.
fn rotates(
    json: &Value,
    rules: LayerRules,
    n_layers: usize,
) -> Result<Vec<bool>, DecoderConfigError> {
    let LayerRules::NoRopeEvery(each) = rules else {
        return Ok(vec![true; n_layers]);
    };
    let field = "no_rope_layers";
    match json.get(field) {
        None | Some(Value::Null) => {
            let each = optional_count(json, "no_rope_layer_interval")?.unwrap_or(each);
            Ok((1..=n_layers).map(|i| !i.is_multiple_of(each)).collect())
        }
        Some(value) => {
            let entries = value.as_array().into_iter().flatten();
            let rotates: Option<Vec<bool>> = entries
                .map(|entry| match entry.as_u64() {
                    Some(0) => Some(false),
                    Some(1) => Some(true),
                    _ => None,
                })
                .collect();
            let mut rotates = rotates
                .filter(|rotates| rotates.len() >= n_layers)
                .ok_or_else(|| wrong_field(json, field, "a list of 0 or 1 for each block"))?;
            rotates.truncate(n_layers);
            Ok(rotates)
        }
    }
}

/// For each block: whether it has a sliding window.
fn has_sliding_window(
    json: &Value,
    rules: LayerRules,
    rotates: &[bool],
    has_window: bool,
) -> Result<Vec<bool>, DecoderConfigError> {
    if let Some(types) = json.get(TYPES).filter(|types| !types.is_null()) {
        let has_sliding_window = blocks_of_type(json, types, rotates.len(), [SLIDING, FULL])?;
        match has_sliding_window
            .iter()
            .any(|&has_sliding_window| has_sliding_window)
        {
            true if !rules.uses_layer_types() => {
                return Err(DecoderConfigError::unsupported(
                    TYPES,
                    "\"sliding_attention\"",
                    "only full_attention is supported: models of this type ignore the field",
                ));
            }
            true if !has_window => {
                return Err(DecoderConfigError::unsupported(
                    TYPES,
                    "\"sliding_attention\"",
                    "the file does not set the window; set sliding_window, and \
                     use_sliding_window if the model type has it",
                ));
            }
            _ if rules.uses_layer_types() => return Ok(has_sliding_window),
            _ => {}
        }
    }
    let n_layers = rotates.len();
    let all = |has_sliding_window| Ok(vec![has_sliding_window; n_layers]);
    match rules {
        _ if !has_window => all(false),
        LayerRules::Full | LayerRules::LinearExceptEvery(_) => all(false),
        LayerRules::UnlessNull | LayerRules::IfGiven => all(true),
        LayerRules::FromLayer => {
            let first = whole_number(json, "max_window_layers")?.unwrap_or(28);
            Ok((0..n_layers).map(|layer| layer >= first).collect())
        }
        LayerRules::WindowExceptEvery(each) => {
            let each = optional_count(json, "sliding_window_pattern")?.unwrap_or(each);
            Ok((1..=n_layers).map(|i| !i.is_multiple_of(each)).collect())
        }
        LayerRules::NoRopeEvery(_) => Ok(rotates.iter().map(|rotates| !rotates).collect()),
    }
}

/// For each block: whether its entry in `layer_types` is `kind`. All other entries must be `other`.
fn blocks_of_type(
    json: &Value,
    types: &Value,
    n_layers: usize,
    [kind, other]: [&str; 2],
) -> Result<Vec<bool>, DecoderConfigError> {
    let entries = types.as_array().filter(|types| types.len() == n_layers);
    let entries =
        entries.ok_or_else(|| wrong_field(json, TYPES, "a list with the type of each block"))?;
    let is_kind = entries.iter().map(|entry| match entry.as_str() {
        Some(value) if value == other => Ok(false),
        Some(value) if value == kind => Ok(true),
        _ => Err(DecoderConfigError::unsupported(
            TYPES,
            entry,
            format!("supported types are {kind} and {other}"),
        )),
    });
    is_kind.collect()
}

fn whole_number(json: &Value, field: &'static str) -> Result<Option<usize>, DecoderConfigError> {
    match json.get(field) {
        Some(value) if value.as_u64() == Some(0) => Ok(Some(0)),
        _ => optional_count(json, field),
    }
}
