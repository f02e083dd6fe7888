//! Converts the RoPE scaling of a GGUF file to the fields of Hugging Face's config.json.
//!
//! GGUF stores Llama 3.1's scaling as a tensor of divisors, from which the settings are recovered.
//! Other divisors are refused. Phi's scaling consists of two such tensors.

use std::f64::consts::TAU;

use serde_json::{Value, json};

use super::gguf_fields::{Fields, shortest};
use crate::error::CheckpointError;
use crate::weights::gguf::{GgufFile, GgufMetadata};

/// Settings shared by all published Llama 3 models; only the factor varies.
const LLAMA3_LOW_FREQ_FACTOR: f64 = 1.0;
const LLAMA3_HIGH_FREQ_FACTOR: f64 = 4.0;
const LLAMA3_ORIGINAL_CONTEXT: f64 = 8192.0;
/// Relative tolerance, because divisors are stored as f32 and some converters compute them in f32.
const DIVISOR_TOLERANCE: f64 = 1e-4;

/// The RoPE scaling as llama.cpp reads it. It is linear if the file names no type. The factor comes
/// from the current key, otherwise from the old key; 0 or no factor means 1.
///
/// # Source
///
/// ggml-org/llama.cpp, `llama-model.cpp`, `load_hparams`, and `llama-context.cpp`, which ignores the
/// factor of type "none".
pub(super) fn scaling(
    gguf: &GgufFile,
    fields: &Fields<'_>,
    rope_theta: f64,
) -> Result<Value, CheckpointError> {
    let metadata = fields.metadata;
    let unsupported = |feature: String| CheckpointError::Unsupported {
        path: metadata.path().to_owned(),
        feature,
        fix: "use the model's safetensors directory, or a file with linear, yarn or no scaling",
    };
    let number = |name: &str| fields.optional_number(name);
    if let Some(factors) = gguf.rope_factors()? {
        return longrope(fields, factors);
    }
    if metadata.text(&fields.key("rope.scaling.type"))? == Some("yarn") {
        return yarn(fields);
    }
    let attn_factor = number("rope.scaling.attn_factor")?;
    if let Some(factor) = attn_factor.filter(|factor| factor.as_f64() != Some(1.0)) {
        let key = fields.key("rope.scaling.attn_factor");
        return Err(unsupported(format!("{key} = {factor}")));
    }
    let type_key = fields.key("rope.scaling.type");
    let is_linear = match metadata.text(&type_key)? {
        None | Some("linear") => true,
        Some("none") => false,
        Some(other) => return Err(unsupported(format!("{type_key} \"{other}\""))),
    };
    let factor = match (number("rope.scaling.factor")?, number("rope.scale_linear")?) {
        (Some(new), Some(old)) if new != old => {
            let key = fields.key("rope.scaling.factor");
            let problem = format!(
                "is {new}, but its older name {} is {old}; convert the model again",
                fields.key("rope.scale_linear")
            );
            return Err(CheckpointError::field(metadata.path(), key, problem));
        }
        (new, old) => new.or(old),
    };
    let factor =
        factor.filter(|factor| is_linear && ![Some(0.0), Some(1.0)].contains(&factor.as_f64()));
    match (gguf.rope_divisors()?, factor) {
        (Some(divisors), None) => llama3_scaling(metadata, &divisors, rope_theta),
        (Some(_), Some(factor)) => Err(unsupported(format!(
            "rope_freqs.weight together with a RoPE factor of {factor}"
        ))),
        (None, Some(factor)) => Ok(json!({ "rope_type": "linear", "factor": factor })),
        (None, None) => Ok(Value::Null),
    }
}

/// Frequency divisors for short and for long prompts.
///
/// # Source
///
/// ggml-org/llama.cpp, `models/phi3.cpp` and `convert_hf_to_gguf.py`.
fn longrope(fields: &Fields<'_>, [short, long]: [Vec<f32>; 2]) -> Result<Value, CheckpointError> {
    let factors = |name: &str, divisors: Vec<f32>| {
        let factors: Option<Vec<f64>> = divisors.into_iter().map(shortest).collect();
        let tensor = format!("rope_factors_{name}.weight");
        factors
            .ok_or_else(|| CheckpointError::field(fields.metadata.path(), tensor, "must be finite"))
    };
    let mut table = json!({
        "rope_type": "longrope",
        "short_factor": factors("short", short)?,
        "long_factor": factors("long", long)?,
        "original_max_position_embeddings": original_context(fields)?,
    });
    if let Some(factor) = fields.optional_number("rope.scaling.attn_factor")? {
        table["attention_factor"] = factor;
    }
    Ok(table)
}

/// YaRN, including llama.cpp's factor on cosines and sines.
///
/// # Source
///
/// ggml-org/llama.cpp, `llama-context.cpp` and `convert_hf_to_gguf.py`.
fn yarn(fields: &Fields<'_>) -> Result<Value, CheckpointError> {
    let number = |name: &str| fields.optional_number(name);
    if let Some(factor) = number("rope.scaling.attn_factor")?.filter(|f| f.as_f64() != Some(1.0)) {
        return Err(CheckpointError::Unsupported {
            path: fields.metadata.path().to_owned(),
            feature: format!("{} = {factor}", fields.key("rope.scaling.attn_factor")),
            fix: "use the model's safetensors directory",
        });
    }
    let mut table = json!({
        "rope_type": "yarn",
        "factor": number("rope.scaling.factor")?,
        "original_max_position_embeddings": original_context(fields)?,
    });
    for (key, field) in [
        ("rope.scaling.yarn_attn_factor", "attention_factor"),
        ("rope.scaling.yarn_beta_fast", "beta_fast"),
        ("rope.scaling.yarn_beta_slow", "beta_slow"),
        ("rope.scaling.yarn_log_multiplier", "mscale_all_dim"),
    ] {
        if let Some(number) = number(key)?.filter(|number| number.as_f64() != Some(0.0)) {
            table[field] = number;
        }
    }
    if !table["mscale_all_dim"].is_null() {
        table["mscale"] = 1.0.into();
    }
    Ok(table)
}

/// The pre-training context; defaults to the model's context.
fn original_context(fields: &Fields<'_>) -> Result<u64, CheckpointError> {
    let key = fields.key("rope.scaling.original_context_length");
    match fields.metadata.unsigned(&key)? {
        Some(original) => Ok(original),
        None => {
            let key = fields.key("context_length");
            fields
                .metadata
                .require(&key, fields.metadata.unsigned(&key)?)
        }
    }
}

/// Finds the Llama 3 settings that produce `divisors`.
///
/// The lowest frequency is always divided by the factor, so the last divisor is the factor.
fn llama3_scaling(
    metadata: &GgufMetadata,
    divisors: &[f32],
    rope_theta: f64,
) -> Result<Value, CheckpointError> {
    let factor = divisors
        .last()
        .copied()
        .and_then(shortest)
        .unwrap_or_default();
    let fits = divisors.iter().enumerate().all(|(i, &divisor)| {
        let frequency = rope_theta.powf(-(i as f64) / divisors.len() as f64);
        let expected = llama3_divisor(frequency, factor);
        (f64::from(divisor) - expected).abs() <= DIVISOR_TOLERANCE * expected
    });
    if !fits || factor < 1.0 {
        return Err(CheckpointError::Unsupported {
            path: metadata.path().to_owned(),
            feature: "rope_freqs.weight with other divisors than Llama 3's".to_owned(),
            fix: "use the model's safetensors directory instead",
        });
    }
    Ok(json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW_FREQ_FACTOR,
        "high_freq_factor": LLAMA3_HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": LLAMA3_ORIGINAL_CONTEXT as u64,
    }))
}

/// Llama 3's divisor of a rotary frequency, given in radians per position.
///
/// # Source
///
/// huggingface/transformers `modeling_rope_utils.py`, `_compute_llama3_parameters`.
fn llama3_divisor(frequency: f64, factor: f64) -> f64 {
    let wavelength = TAU / frequency;
    if wavelength < LLAMA3_ORIGINAL_CONTEXT / LLAMA3_HIGH_FREQ_FACTOR {
        return 1.0;
    }
    if wavelength > LLAMA3_ORIGINAL_CONTEXT / LLAMA3_LOW_FREQ_FACTOR {
        return factor;
    }
    let span = LLAMA3_HIGH_FREQ_FACTOR - LLAMA3_LOW_FREQ_FACTOR;
    let smooth = (LLAMA3_ORIGINAL_CONTEXT / wavelength - LLAMA3_LOW_FREQ_FACTOR) / span;
    1.0 / ((1.0 - smooth) / factor + smooth)
}

/// The divisors of a `rope_scaling` of type llama3, which GGUF stores as a tensor with the highest
/// frequency first. `None` if its settings differ from the settings of all published models.
pub(crate) fn llama3_divisors(scaling: &Value, theta: f64, head_dim: u64) -> Option<Vec<f32>> {
    let is = |key: &str, value: f64| scaling[key].as_f64() == Some(value);
    let is_published = is("low_freq_factor", LLAMA3_LOW_FREQ_FACTOR)
        && is("high_freq_factor", LLAMA3_HIGH_FREQ_FACTOR)
        && is("original_max_position_embeddings", LLAMA3_ORIGINAL_CONTEXT);
    let factor = scaling["factor"].as_f64().filter(|_| is_published)?;
    let n = head_dim / 2;
    let frequency = |i: u64| theta.powf(-(i as f64) / n as f64);
    Some(
        (0..n)
            .map(|i| llama3_divisor(frequency(i), factor) as f32)
            .collect(),
    )
}
