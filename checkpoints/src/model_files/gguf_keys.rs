//! Lists the supported metadata keys of a GGUF model, and refuses unknown ones.
//!
//! Keys with the architecture's prefix, such as `llama.rope.scaling.attn_factor`, describe the
//! computation. An unknown key is an error that names it, because it may change the computation.
//! Keys that specify the same value must agree. Keys with other prefixes describe the file or its
//! tokenizer. Source: ggml-org/llama.cpp, `llama-arch.cpp`, `LLM_KV_NAMES`, and `llama-model.cpp`,
//! `load_hparams`.

use super::gguf_linear;
use crate::error::CheckpointError;
use crate::families::{Family, LayerRules};
use crate::weights::gguf::{GgufMetadata, GgufValue};

/// Keys that [`super::gguf_config`] reads or compares.
const CONFIG_KEYS: [&str; 20] = [
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier",
];

/// The window size, read for families that can have a window.
pub(super) const WINDOW: &str = "attention.sliding_window";

/// Which blocks have the window, read for families that also have blocks without it.
pub(super) const PATTERN: &str = "attention.sliding_window_pattern";

/// Keys without effect on these architectures: the number of embedding rows, which equals a
/// dimension of the tensor; whether a scaling was trained; a constant of a norm that these
/// architectures do not have; the tensor layout; the pooling type.
const HARMLESS: [&str; 5] = [
    "vocab_size",
    "rope.scaling.finetuned",
    "attention.layer_norm_epsilon",
    "tensor_data_layout",
    "pooling_type",
];

/// Keys that have no effect at this value.
const HARMLESS_VALUES: [(&str, f64); 11] = [
    ("expert_count", 0.0),
    ("expert_used_count", 0.0),
    ("attention.causal", 1.0),
    (WINDOW, 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("embedding_scale", 1.0),
    ("residual_scale", 1.0),
];

/// Refuses keys of `family`'s group that may change the computation.
pub(super) fn refuse_unknown(
    metadata: &GgufMetadata,
    family: &Family,
) -> Result<(), CheckpointError> {
    let prefix = format!("{}.", family.gguf.architecture);
    let is_family_key = |name: &str| {
        let is_window = name == WINDOW && family.config.layers != LayerRules::Full;
        let is_pattern =
            name == PATTERN && matches!(family.config.layers, LayerRules::WindowExceptEvery(_));
        let is_linear = matches!(family.config.layers, LayerRules::LinearExceptEvery(_));
        let linear = is_linear && gguf_linear::is_supported_key(name);
        is_window || is_pattern || linear || family.gguf.numbers.iter().any(|(own, _)| *own == name)
    };
    for (key, value) in metadata.entries() {
        let Some(name) = key.strip_prefix(&prefix) else {
            continue;
        };
        let has_no_effect = |(harmless_key, neutral): &(&str, f64)| {
            *harmless_key == name && number(value) == Some(*neutral)
        };
        if CONFIG_KEYS.contains(&name)
            || is_family_key(name)
            || HARMLESS.contains(&name)
            || HARMLESS_VALUES.iter().any(has_no_effect)
        {
            continue;
        }
        return Err(CheckpointError::Unsupported {
            path: metadata.path().to_owned(),
            feature: format!("{key} = {}", format_value(value)),
            fix: "it may change the model's output; use the model's safetensors directory, \
                  or a GGUF file without that key",
        });
    }
    Ok(())
}

/// The value as a number; flags are 0 or 1.
fn number(value: &GgufValue) -> Option<f64> {
    match value {
        GgufValue::Unsigned(number) => Some(*number as f64),
        GgufValue::Signed(number) => Some(*number as f64),
        GgufValue::F32(number) => Some((*number).into()),
        GgufValue::F64(number) => Some(*number),
        GgufValue::Bool(flag) => Some(f64::from(*flag)),
        GgufValue::Text(_) | GgufValue::Array(_) => None,
    }
}

fn format_value(value: &GgufValue) -> String {
    match value {
        GgufValue::Text(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
        GgufValue::Array(items) => format!("{} items", items.len()),
        GgufValue::Bool(flag) => flag.to_string(),
        GgufValue::F32(value) => value.to_string(),
        number_like => number(number_like).unwrap_or_default().to_string(),
    }
}
