//! Which metadata of a GGUF model are known, and what the others are answered with.
//!
//! Keys of the architecture's own group, such as `llama.rope.scaling.attn_factor`, describe the
//! computation. One that is not known here may change it, so that it is refused by name; what is
//! said in two keys must agree. Keys of other groups describe the file or its tokenizer.
//! Source: ggml-org/llama.cpp, `llama-arch.cpp`, `LLM_KV_NAMES`, and `llama-model.cpp`,
//! `load_hparams`.

use super::gguf_linear;
use crate::error::CheckpointError;
use crate::families::{Family, LayerRules};
use crate::weights::gguf::{GgufMetadata, GgufValue};

/// Keys that [`super::gguf_config`] reads or compares.
const READ: [&str; 20] = [
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

/// The window, which is read for families that may have one.
pub(super) const WINDOW: &str = "attention.sliding_window";

/// Which blocks have the window, which is read for families that have others beside them.
pub(super) const PATTERN: &str = "attention.sliding_window_pattern";

/// Keys that change nothing of what these architectures compute: the rows of the embedding, which
/// the tensor says itself; whether a scaling was trained; a constant of a norm that they do not have; how the tensors came to lie
/// as they do; how vectors of a text are pooled.
const HARMLESS: [&str; 5] = [
    "vocab_size",
    "rope.scaling.finetuned",
    "attention.layer_norm_epsilon",
    "tensor_data_layout",
    "pooling_type",
];

/// Keys that change nothing at one value.
const HARMLESS_AT: [(&str, f64); 11] = [
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

/// Refuses keys of the group of `family` that may change what the model computes.
pub(super) fn refuse_unknown(
    metadata: &GgufMetadata,
    family: &Family,
) -> Result<(), CheckpointError> {
    let prefix = format!("{}.", family.gguf.architecture);
    let is_own = |name: &str| {
        let window = name == WINDOW && family.config.layers != LayerRules::Full;
        let pattern = name == PATTERN && matches!(family.config.layers, LayerRules::AllButEach(_));
        let is_linear = matches!(family.config.layers, LayerRules::LinearButEach(_));
        let linear = is_linear && gguf_linear::is_read(name);
        window || pattern || linear || family.gguf.numbers.iter().any(|(own, _)| *own == name)
    };
    for (key, value) in metadata.entries() {
        let Some(name) = key.strip_prefix(&prefix) else {
            continue;
        };
        let is_at = |(known, at): &(&str, f64)| *known == name && number(value) == Some(*at);
        if READ.contains(&name)
            || is_own(name)
            || HARMLESS.contains(&name)
            || HARMLESS_AT.iter().any(is_at)
        {
            continue;
        }
        return Err(CheckpointError::Unsupported {
            path: metadata.path().to_owned(),
            feature: format!("{key} = {}", shown(value)),
            fix: "it may change what the model computes; take the model's safetensors directory, \
                   or a GGUF file without that key",
        });
    }
    Ok(())
}

/// A number or a flag as a number.
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

fn shown(value: &GgufValue) -> String {
    match value {
        GgufValue::Text(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
        GgufValue::Array(items) => format!("{} items", items.len()),
        GgufValue::Bool(flag) => flag.to_string(),
        GgufValue::F32(value) => value.to_string(),
        number_like => number(number_like).unwrap_or_default().to_string(),
    }
}
