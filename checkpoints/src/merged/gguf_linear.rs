//! Writes GGUF metadata about linear attention and RoPE sections.
//!
//! # Source
//!
//! ggml-org/llama.cpp, `conversion/qwen.py`, `Qwen3NextModel.set_gguf_parameters`, and
//! `models/qwen35.cpp`.

use serde_json::Value;

use super::gguf_fields::Config;
use crate::error::CheckpointError;
use crate::families::LayerRules;
use crate::model_files::gguf_linear::{
    DEFAULT_SECTIONS, INTERVAL, KERNEL, MROPE_SECTION, RECURRENT, SECTIONS,
    rotates_by_text_position,
};
use crate::weights::gguf_write::GgufHeader;
use crate::weights::{INNER_SIZE, LINEAR_HEADS, VALUE_DIM};

/// Writes the fields of a linear-attention family. RoPE rotates `rotary_dim` of the `head_dim`
/// numbers of a head.
///
/// # Errors
///
/// A number is absent, or value heads and key heads have different sizes, which llama.cpp does not
/// support.
pub(super) fn write_linear(
    config: &Config<'_>,
    header: &mut GgufHeader,
    [rotary_dim, head_dim]: [u32; 2],
) -> Result<(), CheckpointError> {
    let LayerRules::LinearExceptEvery(default_interval) = config.family.config.layers else {
        return Ok(());
    };
    let [kernel_field, kernel] = KERNEL;
    for (field, name) in LINEAR_HEADS.into_iter().chain([(kernel_field, kernel)]) {
        header.u32(&config.key(name), config.size(field)?);
    }
    let [_, (values, _), (key_dim, _)] = LINEAR_HEADS;
    let value_dim = config.size(VALUE_DIM)?;
    if value_dim != config.size(key_dim)? {
        return Err(config.unsupported_field(VALUE_DIM));
    }
    let inner = value_dim.checked_mul(config.size(values)?);
    let inner = inner.ok_or_else(|| {
        let problem = "is too large for the total size of all value heads";
        CheckpointError::field(config.path, VALUE_DIM, problem)
    })?;
    header.u32(&config.key(INNER_SIZE), inner);
    write_kinds(config, header, default_interval)?;
    write_sections(config, header, [rotary_dim, head_dim])
}

/// Writes which blocks have linear attention: every block except each nth, or a list.
fn write_kinds(
    config: &Config<'_>,
    header: &mut GgufHeader,
    default_interval: usize,
) -> Result<(), CheckpointError> {
    let n_layers = config.size("num_hidden_layers")? as usize;
    let types = config.fields["layer_types"].as_array();
    let is_linear: Vec<bool> = match types.filter(|types| types.len() == n_layers) {
        Some(types) => types
            .iter()
            .map(|kind| kind == "linear_attention")
            .collect(),
        None => {
            let interval = match &config.fields[INTERVAL] {
                Value::Null => default_interval,
                _ => config.size(INTERVAL)?.max(1) as usize,
            };
            (1..=n_layers)
                .map(|i| !i.is_multiple_of(interval))
                .collect()
        }
    };
    let matches_interval =
        |interval: &usize| (1..=n_layers).all(|i| is_linear[i - 1] != i.is_multiple_of(*interval));
    match (1..=n_layers + 1).find(matches_interval) {
        Some(interval) => header.u32(&config.key(INTERVAL), interval as u32),
        None => header.bools(&config.key(RECURRENT), &is_linear),
    }
    Ok(())
}

/// Writes which image coordinate rotates which dimensions. Refuses sections that llama.cpp would
/// apply differently to text.
fn write_sections(
    config: &Config<'_>,
    header: &mut GgufHeader,
    [rotary_dim, head_dim]: [u32; 2],
) -> Result<(), CheckpointError> {
    let mut sections = DEFAULT_SECTIONS;
    let setting = &config.fields[MROPE_SECTION];
    if !setting.is_null() {
        let problem = "must be three counts";
        let wrong = || CheckpointError::field(config.path, MROPE_SECTION, problem);
        let setting = setting.as_array().filter(|setting| setting.len() == 3);
        let setting = setting.ok_or_else(wrong)?;
        sections = [0; 4];
        for (section, setting) in sections.iter_mut().zip(setting) {
            let count = setting.as_u64().and_then(|n| i32::try_from(n).ok());
            *section = count.ok_or_else(wrong)?.unsigned_abs();
        }
    }
    if !rotates_by_text_position(sections, rotary_dim.into(), head_dim.into()) {
        let feature = format!("a GGUF file with {MROPE_SECTION} = {sections:?}");
        return Err(config.unsupported(feature));
    }
    let sections = sections.map(u32::cast_signed);
    header.i32s(&config.key(SECTIONS), &sections);
    Ok(())
}
