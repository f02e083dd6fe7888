//! GGUF metadata as the fields of Hugging Face's config.json.
//!
//! Mistral models carry the architecture "llama" in GGUF and the same computation, so they come
//! out as model type llama. Llama 3.1's rotary scaling is stored as a tensor of divisors, from
//! which its settings are recovered; divisors of any other origin are refused.

use std::f64::consts::TAU;

use serde_json::{Value, json};

use super::gguf_keys;
use crate::error::CheckpointError;
use crate::families::{DEFAULT_ROPE_THETA, Family};
use crate::weights::gguf::{ARCHITECTURE, GgufFile, GgufMetadata};

/// Settings that all published Llama 3 models share; the factor is the one that varies.
const LLAMA3_LOW_FREQ_FACTOR: f64 = 1.0;
const LLAMA3_HIGH_FREQ_FACTOR: f64 = 4.0;
const LLAMA3_ORIGINAL_CONTEXT: f64 = 8192.0;
/// Relative; the divisors are stored as f32 and computed in f32 by some converters.
const DIVISOR_TOLERANCE: f64 = 1e-4;

/// The config as `transformers` would have written it.
pub(super) fn synthesise(gguf: &GgufFile) -> Result<Value, CheckpointError> {
    let metadata = &gguf.metadata;
    let family = family(metadata)?;
    let architecture = family.gguf.architecture;
    gguf_keys::refuse_unknown(metadata, architecture)?;
    let fields = Fields {
        metadata,
        architecture,
    };
    let hidden_size = fields.unsigned("embedding_length")?;
    let n_heads = fields.unsigned("attention.head_count")?;
    if n_heads == 0 {
        let key = fields.key("attention.head_count");
        return Err(CheckpointError::field(
            metadata.path(),
            key,
            "must be at least 1",
        ));
    }
    let head_dim = match metadata.unsigned(&fields.key("attention.key_length"))? {
        Some(head_dim) => head_dim,
        None => hidden_size / n_heads,
    };
    for key in ["attention.value_length", "rope.dimension_count"] {
        fields.must_be(key, head_dim)?;
    }
    let n_key_value = metadata.unsigned(&fields.key("attention.head_count_kv"))?;
    let rope_theta = fields
        .optional_number("rope.freq_base")?
        .unwrap_or_else(|| DEFAULT_ROPE_THETA.into());
    let theta = rope_theta.as_f64().unwrap_or_default();
    let vocab_size = vocab_size(gguf)?;
    let eps = "attention.layer_norm_rms_epsilon";
    Ok(json!({
        "model_type": family.model_type,
        "hidden_size": hidden_size,
        "intermediate_size": fields.unsigned("feed_forward_length")?,
        "num_hidden_layers": fields.unsigned("block_count")?,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_key_value.unwrap_or(n_heads),
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "rms_norm_eps": metadata.require(&fields.key(eps), fields.optional_number(eps)?)?,
        "rope_theta": rope_theta,
        "rope_scaling": rope_scaling(gguf, &fields, theta)?,
        "max_position_embeddings": fields.unsigned("context_length")?,
        "tie_word_embeddings": !gguf.has_tensor("output.weight"),
        "attention_bias": gguf.has_tensor("blk.0.attn_q.bias"),
        "mlp_bias": gguf.has_tensor("blk.0.ffn_gate.bias"),
        "hidden_act": family.config.hidden_act,
    }))
}

fn family(metadata: &GgufMetadata) -> Result<&'static Family, CheckpointError> {
    let name = metadata.require(ARCHITECTURE, metadata.text(ARCHITECTURE)?)?;
    Family::of_architecture(name).ok_or_else(|| CheckpointError::Unsupported {
        path: metadata.path().to_owned(),
        feature: format!("{ARCHITECTURE} \"{name}\""),
        fix: "choose a GGUF model of a family that docs/models.md lists",
    })
}

/// Metadata fields under the architecture's prefix.
struct Fields<'a> {
    metadata: &'a GgufMetadata,
    architecture: &'static str,
}

impl Fields<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn unsigned(&self, name: &str) -> Result<u64, CheckpointError> {
        let key = self.key(name);
        self.metadata.require(&key, self.metadata.unsigned(&key)?)
    }

    /// Refuses a size that is there and is not that of a head.
    fn must_be(&self, name: &str, head_dim: u64) -> Result<(), CheckpointError> {
        let key = self.key(name);
        match self.metadata.unsigned(&key)? {
            Some(size) if size != head_dim => Err(CheckpointError::Unsupported {
                path: self.metadata.path().to_owned(),
                feature: format!("{key} = {size} beside heads of size {head_dim}"),
                fix: "take a model whose heads have one size and are rotated as a whole, or \
                       convert it again",
            }),
            _ => Ok(()),
        }
    }

    /// The shortest decimal that is the stored f32: 1e-5, not 9.999999747378752e-6.
    fn optional_number(&self, name: &str) -> Result<Option<Value>, CheckpointError> {
        let key = self.key(name);
        let Some(number) = self.metadata.f32(&key)? else {
            return Ok(None);
        };
        let shortest: Option<f64> = format!("{number:e}").parse().ok();
        match shortest.filter(|number| number.is_finite()) {
            Some(number) => Ok(Some(number.into())),
            None => Err(CheckpointError::field(
                self.metadata.path(),
                key,
                "must be finite",
            )),
        }
    }
}

/// Rows of the embedding: the metadata's own count is optional and sometimes stale.
fn vocab_size(gguf: &GgufFile) -> Result<usize, CheckpointError> {
    let name = "token_embd.weight";
    match gguf.shape(name) {
        Some([n_rows, _]) => Ok(*n_rows),
        Some(shape) => {
            let problem = format!("must be a matrix, but its shape is {shape:?}");
            Err(CheckpointError::malformed(
                gguf.metadata.path(),
                name,
                problem,
            ))
        }
        None => Err(CheckpointError::malformed(
            gguf.metadata.path(),
            name,
            "the tensor is missing",
        )),
    }
}

/// The rotary scaling as llama.cpp reads it: linear where no type is given, by the factor of the
/// present key or else of the old one, 0 and no factor meaning 1.
///
/// # Source
///
/// ggml-org/llama.cpp, `llama-model.cpp`, `load_hparams`, and `llama-context.cpp`, by which type
/// "none" scales nothing whatever the factor.
fn rope_scaling(
    gguf: &GgufFile,
    fields: &Fields<'_>,
    rope_theta: f64,
) -> Result<Value, CheckpointError> {
    let metadata = fields.metadata;
    let unsupported = |feature: String| CheckpointError::Unsupported {
        path: metadata.path().to_owned(),
        feature,
        fix: "take the model's safetensors directory, or one with no or linear scaling",
    };
    let number = |name: &str| fields.optional_number(name);
    let attn_factor = number("rope.scaling.attn_factor")?;
    if let Some(factor) = attn_factor.filter(|factor| factor.as_f64() != Some(1.0)) {
        let key = fields.key("rope.scaling.attn_factor");
        return Err(unsupported(format!("{key} = {factor}")));
    }
    let type_key = fields.key("rope.scaling.type");
    let scales = match metadata.text(&type_key)? {
        None | Some("linear") => true,
        Some("none") => false,
        Some(other) => return Err(unsupported(format!("{type_key} \"{other}\""))),
    };
    let factor = match (number("rope.scaling.factor")?, number("rope.scale_linear")?) {
        (Some(new), Some(old)) if new != old => {
            let key = fields.key("rope.scaling.factor");
            let problem = format!(
                "is {new}, and its older name {} is {old}; convert the model again",
                fields.key("rope.scale_linear")
            );
            return Err(CheckpointError::field(metadata.path(), key, problem));
        }
        (new, old) => new.or(old),
    };
    let factor =
        factor.filter(|factor| scales && ![Some(0.0), Some(1.0)].contains(&factor.as_f64()));
    match (gguf.rope_divisors()?, factor) {
        (Some(divisors), None) => llama3_scaling(metadata, &divisors, rope_theta),
        (Some(_), Some(factor)) => Err(unsupported(format!(
            "rope_freqs.weight beside a rotary factor of {factor}"
        ))),
        (None, Some(factor)) => Ok(json!({ "rope_type": "linear", "factor": factor })),
        (None, None) => Ok(Value::Null),
    }
}

/// Finds the Llama 3 settings whose divisors are `divisors`.
///
/// The lowest frequency is always divided by the whole factor, so the last divisor is the factor.
fn llama3_scaling(
    metadata: &GgufMetadata,
    divisors: &[f32],
    rope_theta: f64,
) -> Result<Value, CheckpointError> {
    let factor = f64::from(divisors.last().copied().unwrap_or_default());
    let fits = divisors.iter().enumerate().all(|(i, &divisor)| {
        let frequency = rope_theta.powf(-(i as f64) / divisors.len() as f64);
        let expected = llama3_divisor(frequency, factor);
        (f64::from(divisor) - expected).abs() <= DIVISOR_TOLERANCE * expected
    });
    if !fits || factor < 1.0 {
        return Err(CheckpointError::Unsupported {
            path: metadata.path().to_owned(),
            feature: "rope_freqs.weight with other divisors than Llama 3's".to_owned(),
            fix: "take the model's safetensors directory instead",
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

/// By what Llama 3's scaling divides a rotary frequency, given in radians per position.
///
/// # Source
///
/// huggingface/transformers `modeling_rope_utils.py`, `_compute_llama3_parameters`.
pub(crate) fn llama3_divisor(frequency: f64, factor: f64) -> f64 {
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

/// The divisors of a `rope_scaling` of type llama3, which GGUF keeps as a tensor, highest frequency
/// first; `None` if it has other settings than every published model.
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
