//! Linear attention and the sections of a rotation, as a GGUF file says them.
//!
//! # Source
//!
//! ggml-org/llama.cpp, `conversion/qwen.py`, `Qwen3NextModel.set_gguf_parameters`, and `models/qwen35.cpp`.

use serde_json::Value;

use super::gguf_config::Config;
use crate::error::CheckpointError;
use crate::families::LayerRules;
use crate::model_files::gguf_linear::{
    DEFAULT_SECTIONS, INTERVAL, KERNEL, MROPE_SECTION, RECURRENT, SECTIONS, turns_texts_alike,
};
use crate::weights::gguf_write::GgufHeader;
use crate::weights::{INNER_SIZE, LINEAR_HEADS, VALUE_DIM};

/// Writes what a family with linear attention has; `turned` numbers of a head of `head_dim` are turned.
///
/// # Errors
///
/// A number is absent, or value heads have another size than key heads, which llama.cpp does not load.
pub(super) fn write_linear(
    config: &Config<'_>,
    header: &mut GgufHeader,
    [turned, head_dim]: [u32; 2],
) -> Result<(), CheckpointError> {
    let LayerRules::LinearButEach(each) = config.family.config.layers else {
        return Ok(());
    };
    let [kernel_field, kernel] = KERNEL;
    for (field, name) in LINEAR_HEADS.into_iter().chain([(kernel_field, kernel)]) {
        header.u32(&config.key(name), config.size(field)?);
    }
    let [_, (values, _), (key_dim, _)] = LINEAR_HEADS;
    let value_dim = config.size(VALUE_DIM)?;
    if value_dim != config.size(key_dim)? {
        return Err(config.refused_field(VALUE_DIM));
    }
    let inner = value_dim.checked_mul(config.size(values)?);
    let inner = inner.ok_or_else(|| {
        let problem = "is too large for all value heads together";
        CheckpointError::field(config.path, VALUE_DIM, problem)
    })?;
    header.u32(&config.key(INNER_SIZE), inner);
    write_kinds(config, header, each)?;
    write_sections(config, header, [turned, head_dim])
}

/// Which blocks have linear attention: all but each so-manieth, or a list.
fn write_kinds(
    config: &Config<'_>,
    header: &mut GgufHeader,
    usual: usize,
) -> Result<(), CheckpointError> {
    let n_layers = config.size("num_hidden_layers")? as usize;
    let types = config.fields["layer_types"].as_array();
    let is_linear: Vec<bool> = match types.filter(|types| types.len() == n_layers) {
        Some(types) => types
            .iter()
            .map(|kind| kind == "linear_attention")
            .collect(),
        None => {
            let each = match &config.fields[INTERVAL] {
                Value::Null => usual,
                _ => config.size(INTERVAL)?.max(1) as usize,
            };
            (1..=n_layers).map(|i| !i.is_multiple_of(each)).collect()
        }
    };
    let is_each =
        |each: &usize| (1..=n_layers).all(|i| is_linear[i - 1] != i.is_multiple_of(*each));
    match (1..=n_layers + 1).find(is_each) {
        Some(each) => header.u32(&config.key(INTERVAL), each as u32),
        None => header.bools(&config.key(RECURRENT), &is_linear),
    }
    Ok(())
}

/// By which coordinate of a place in a picture what turns; texts must not feel it.
fn write_sections(
    config: &Config<'_>,
    header: &mut GgufHeader,
    [turned, head_dim]: [u32; 2],
) -> Result<(), CheckpointError> {
    let mut sections = DEFAULT_SECTIONS;
    let said = &config.fields[MROPE_SECTION];
    if !said.is_null() {
        let problem = "must be three counts";
        let wrong = || CheckpointError::field(config.path, MROPE_SECTION, problem);
        let said = said.as_array().filter(|said| said.len() == 3);
        let said = said.ok_or_else(wrong)?;
        sections = [0; 4];
        for (section, said) in sections.iter_mut().zip(said) {
            let count = said.as_u64().and_then(|n| i32::try_from(n).ok());
            *section = count.ok_or_else(wrong)?.unsigned_abs();
        }
    }
    if !turns_texts_alike(sections, turned.into(), head_dim.into()) {
        let feature = format!("a GGUF file with {MROPE_SECTION} = {sections:?}");
        return Err(config.refused(feature));
    }
    let sections = sections.map(u32::cast_signed);
    header.i32s(&config.key(SECTIONS), &sections);
    Ok(())
}
