//! Which blocks attend within a window or linearly, and which turn queries and keys, from a `config.json`.

use serde_json::Value;
use tooltune_checkpoints::families::{ConfigRules, DEFAULT_WINDOW, LayerRules};

use super::config::DecoderConfigError;
use super::config_fields::{flag, optional_count, wrong};

/// How one block looks at other tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerKind {
    /// By what.
    pub mixer: Mixer,
    /// Tokens that a token sees, itself and those before it; `None` for all.
    pub window: Option<usize>,
    /// How its queries and keys are turned.
    pub rotation: Rotation,
}

/// By what a block looks at other tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    /// Attention.
    Attention,
    /// Linear attention, which knows no positions.
    Linear,
}

/// How the queries and keys of a block are turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// By the model's rotary embedding.
    Global,
    /// By that of blocks with a window.
    Local,
    /// Not at all.
    None,
}

const WINDOW: &str = "sliding_window";
const TYPES: &str = "layer_types";
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
const LINEAR: &str = "linear_attention";

/// The kind of each block.
pub(super) fn from_json(
    json: &Value,
    rules: &ConfigRules,
    n_layers: usize,
) -> Result<Vec<LayerKind>, DecoderConfigError> {
    if let LayerRules::LinearButEach(each) = rules.layers {
        return linear(json, each, n_layers);
    }
    let turned = turned(json, rules.layers, n_layers)?;
    let window = window(json, rules.layers)?;
    let slides = slides(json, rules.layers, &turned, window.is_some())?;
    let kinds = slides.into_iter().zip(turned).map(|(slides, is_turned)| {
        let rotation = match (is_turned, slides && rules.rotary.local_theta.is_some()) {
            (false, _) => Rotation::None,
            (true, true) => Rotation::Local,
            (true, false) => Rotation::Global,
        };
        LayerKind {
            mixer: Mixer::Attention,
            window: window.filter(|_| slides),
            rotation,
        }
    });
    Ok(kinds.collect())
}

/// The kinds of a family with blocks of linear attention.
fn linear(
    json: &Value,
    each: usize,
    n_layers: usize,
) -> Result<Vec<LayerKind>, DecoderConfigError> {
    let full = match json.get(TYPES).filter(|types| !types.is_null()) {
        Some(types) => of_types(json, types, n_layers, [FULL, LINEAR])?,
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

/// The window of the blocks that have one; `None` where none has.
fn window(json: &Value, rules: LayerRules) -> Result<Option<usize>, DecoderConfigError> {
    let given = optional_count(json, WINDOW)?;
    let or_default = || match json.get(WINDOW) {
        None => Some(DEFAULT_WINDOW),
        Some(_) => given,
    };
    let is_used = flag(json, "use_sliding_window", false)?;
    match rules {
        LayerRules::Full if is_used => Err(DecoderConfigError::unsupported(
            "use_sliding_window",
            true,
            "models of this type have no window; take the model's own config.json",
        )),
        LayerRules::Full | LayerRules::LinearButEach(_) => Ok(None),
        LayerRules::IfGiven => Ok(given),
        LayerRules::UnlessNull | LayerRules::AllButEach(_) => Ok(or_default()),
        LayerRules::FromLayer => Ok(or_default().filter(|_| is_used)),
        LayerRules::UnturnedEach(_) => Ok(given.filter(|_| is_used)),
    }
}

/// Of each block, whether it turns queries and keys.
fn turned(
    json: &Value,
    rules: LayerRules,
    n_layers: usize,
) -> Result<Vec<bool>, DecoderConfigError> {
    let LayerRules::UnturnedEach(each) = rules else {
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
            let turned: Option<Vec<bool>> = entries
                .map(|entry| match entry.as_u64() {
                    Some(0) => Some(false),
                    Some(1) => Some(true),
                    _ => None,
                })
                .collect();
            let mut turned = turned
                .filter(|turned| turned.len() >= n_layers)
                .ok_or_else(|| wrong(json, field, "a list of 0 or 1 for each block"))?;
            turned.truncate(n_layers);
            Ok(turned)
        }
    }
}

/// Of each block, whether it has the window.
fn slides(
    json: &Value,
    rules: LayerRules,
    turned: &[bool],
    has_window: bool,
) -> Result<Vec<bool>, DecoderConfigError> {
    if let Some(types) = json.get(TYPES).filter(|types| !types.is_null()) {
        let slides = of_types(json, types, turned.len(), [SLIDING, FULL])?;
        match slides.iter().any(|&slides| slides) {
            true if !rules.read_types() => {
                return Err(DecoderConfigError::unsupported(
                    TYPES,
                    "\"sliding_attention\"",
                    "supported is full_attention: models of this type do not read it",
                ));
            }
            true if !has_window => {
                return Err(DecoderConfigError::unsupported(
                    TYPES,
                    "\"sliding_attention\"",
                    "the file names no window for it; write sliding_window, and \
                     use_sliding_window where the model type has it",
                ));
            }
            _ if rules.read_types() => return Ok(slides),
            _ => {}
        }
    }
    let n_layers = turned.len();
    let all = |slides| Ok(vec![slides; n_layers]);
    match rules {
        _ if !has_window => all(false),
        LayerRules::Full | LayerRules::LinearButEach(_) => all(false),
        LayerRules::UnlessNull | LayerRules::IfGiven => all(true),
        LayerRules::FromLayer => {
            let first = whole_number(json, "max_window_layers")?.unwrap_or(28);
            Ok((0..n_layers).map(|layer| layer >= first).collect())
        }
        LayerRules::AllButEach(each) => {
            let each = optional_count(json, "sliding_window_pattern")?.unwrap_or(each);
            Ok((1..=n_layers).map(|i| !i.is_multiple_of(each)).collect())
        }
        LayerRules::UnturnedEach(_) => Ok(turned.iter().map(|turned| !turned).collect()),
    }
}

/// Of each block, whether `layer_types` says `kind` of it, and not the other one.
fn of_types(
    json: &Value,
    types: &Value,
    n_layers: usize,
    [kind, other]: [&str; 2],
) -> Result<Vec<bool>, DecoderConfigError> {
    let entries = types.as_array().filter(|types| types.len() == n_layers);
    let entries =
        entries.ok_or_else(|| wrong(json, TYPES, "a list with the type of each block"))?;
    let is_kind = entries.iter().map(|entry| match entry.as_str() {
        Some(said) if said == other => Ok(false),
        Some(said) if said == kind => Ok(true),
        _ => Err(DecoderConfigError::unsupported(
            TYPES,
            entry,
            format!("supported are {kind} and {other}"),
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
