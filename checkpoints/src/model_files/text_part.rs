//! The language model within a model that does more: its part of the config and of the weights.

use serde_json::{Map, Value};

use crate::families::Family;

/// Models with a language model of a family in their `text_config`.
const WITH_PICTURES: [&str; 3] = ["gemma3", "mistral3", "qwen3_5"];

/// Keys that the whole model says for its language model.
const OF_THE_WHOLE: [&str; 5] = [
    "tie_word_embeddings",
    "quantization_config",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
];

/// How the tensors of the language model begin within the whole model, and alone.
const PREFIXES: [(&str, &str); 3] = [
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
];

/// How the tensors begin that see pictures.
const OF_PICTURES: [&str; 6] = [
    "model.visual.",
    "visual.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "vision_tower.",
    "multi_modal_projector.",
];

/// The config of the language model alone, if `config` is that of a whole model.
pub(crate) fn of_config(config: &Map<String, Value>) -> Option<Map<String, Value>> {
    let whole = config.get("model_type")?.as_str()?;
    let text = config.get("text_config")?;
    let family = Family::of_config(text).filter(|_| WITH_PICTURES.contains(&whole))?;
    let mut text = text.as_object()?.clone();
    for key in OF_THE_WHOLE {
        if let Some(value) = config.get(key) {
            text.insert(key.to_owned(), value.clone());
        }
    }
    text.insert("architectures".to_owned(), vec![family.class].into());
    Some(text)
}

/// How the tensors begin that guess tokens behind the next one.
const AHEAD: &str = "mtp.";

/// What a tensor of a whole model belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Belongs {
    /// The language model, which alone has the tensor under this name.
    Language(String),
    /// What sees pictures.
    Pictures,
    /// What guesses tokens behind the next one, for servers that write several at a time.
    Ahead,
}

/// What the tensor of this name belongs to.
pub(crate) fn belongs(name: &str) -> Belongs {
    if name.starts_with(AHEAD) {
        return Belongs::Ahead;
    }
    if OF_PICTURES
        .iter()
        .any(|of_pictures| name.starts_with(of_pictures))
    {
        return Belongs::Pictures;
    }
    let renamed = PREFIXES.iter().find_map(|(whole, alone)| {
        let rest = name.strip_prefix(whole)?;
        Some(format!("{alone}{rest}"))
    });
    Belongs::Language(renamed.unwrap_or_else(|| name.to_owned()))
}

/// Whether these are tensors of a whole model.
pub(crate) fn is_within<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    let is_of_the_whole = |name: &str| PREFIXES.iter().any(|(whole, _)| name.starts_with(whole));
    names.any(|name| name.starts_with(AHEAD) || is_of_the_whole(name))
}
