//! The tiny model of each family in tests/fixtures/models.

use serde_json::Value;

use crate::support::fixture;

/// The tiny model of a family. Its folder has the name of the `model_type`, unless there are several
/// models of the family.
pub(crate) fn folder_of(model_type: &str) -> &str {
    match model_type {
        "llama" => "llama31",
        "mistral" => "mistral_window",
        // The model `qwen3_5_text` has key and value heads of two sizes, which llama.cpp does not
        // support.
        "qwen3_5_text" => "qwen3_5_text_even",
        other => other,
    }
}

/// The field of a tiny model that llama.cpp does not support in its family, with the values of a
/// config without it.
pub(crate) fn unsupported_by_llama_cpp(folder: &str) -> Option<(String, Value)> {
    let path = fixture(&format!("models/{folder}/unsupported_by_llama_cpp.json"));
    let text = std::fs::read(path).ok()?;
    let fields: Value = serde_json::from_slice(&text).unwrap();
    fields.as_object().unwrap().clone().into_iter().next()
}
