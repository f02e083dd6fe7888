//! Selects the language model inside a vision-language model: its part of the config and of the
//! weights.

use serde_json::{Map, Value};

use crate::families::Family;

/// Vision-language models whose `text_config` is a supported language model.
const VISION_MODELS: [&str; 3] = ["gemma3", "mistral3", "qwen3_5"];

/// Keys that are at the top level of the config, but apply to the language model.
const WHOLE_MODEL_KEYS: [&str; 5] = [
    "tie_word_embeddings",
    "quantization_config",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
];

/// Tensor prefixes of the language model: within the whole model, and standalone.
const PREFIXES: [(&str, &str); 3] = [
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
];

/// Tensor prefixes of the vision model.
const VISION_PREFIXES: [&str; 6] = [
    "model.visual.",
    "visual.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "vision_tower.",
    "multi_modal_projector.",
];

/// The config of the language model, if `config` describes a vision-language model.
pub(crate) fn language_model_config(config: &Map<String, Value>) -> Option<Map<String, Value>> {
    let model_type = config.get("model_type")?.as_str()?;
    let text = config.get("text_config")?;
    let family = Family::of_config(text).filter(|_| VISION_MODELS.contains(&model_type))?;
    let mut text = text.as_object()?.clone();
    for key in WHOLE_MODEL_KEYS {
        if let Some(value) = config.get(key) {
            text.insert(key.to_owned(), value.clone());
        }
    }
    text.insert("architectures".to_owned(), vec![family.class].into());
    Some(text)
}

/// Prefix of tensors for multi-token prediction.
const PREDICTION_PREFIX: &str = "mtp.";

/// The part of a vision-language model that a tensor belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TensorOwner {
    /// The language model; the name is the tensor's name in the standalone model.
    Language(String),
    /// The vision model.
    Vision,
    /// Multi-token prediction, for servers that generate several tokens per step.
    Prediction,
}

/// The part that the tensor with this name belongs to.
pub(crate) fn tensor_owner(name: &str) -> TensorOwner {
    if name.starts_with(PREDICTION_PREFIX) {
        return TensorOwner::Prediction;
    }
    if VISION_PREFIXES
        .iter()
        .any(|prefix| name.starts_with(prefix))
    {
        return TensorOwner::Vision;
    }
    let renamed = PREFIXES.iter().find_map(|(larger, alone)| {
        let suffix = name.strip_prefix(larger)?;
        Some(format!("{alone}{suffix}"))
    });
    TensorOwner::Language(renamed.unwrap_or_else(|| name.to_owned()))
}

/// Whether these are the tensors of a vision-language model.
pub(crate) fn is_larger_model<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    let has_prefix = |name: &str| PREFIXES.iter().any(|(prefix, _)| name.starts_with(prefix));
    names.any(|name| name.starts_with(PREDICTION_PREFIX) || has_prefix(name))
}
