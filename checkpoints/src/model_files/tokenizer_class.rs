//! Detects whether transformers 5 builds a different tokenizer than `tokenizer.json` describes.
//!
//! For some classes, transformers 5 uses only the vocabulary and merges of the file and creates the
//! normaliser and pre-tokenizer itself. tooltune, the `tokenizers` library and transformers 4 use
//! the file. If the two differ, a remark is printed. Source: huggingface/transformers 5.23,
//! `models/auto/tokenization_auto.py`, and `tokenization_llama.py`, `tokenization_qwen2.py`,
//! `tokenization_qwen3_5.py` and `tokenization_gpt2.py`.

use serde_json::{Map, Value, json};

use crate::families::{AutoTokenizer, Family};

const QWEN3_5_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A remark if transformers 5's `AutoTokenizer` builds a different tokenizer. `tokenizer` is
/// tokenizer.json, `settings` is tokenizer_config.json, and `config` is config.json.
pub(super) fn remark(
    tokenizer: &Map<String, Value>,
    settings: &Map<String, Value>,
    config: &Map<String, Value>,
) -> Option<String> {
    let class = class(tokenizer, settings, config)?;
    let prefix = settings.get("add_prefix_space").and_then(Value::as_bool);
    let (normalizer, pre_tokenizer) = match class {
        "Qwen2Tokenizer" | "Qwen3_5Tokenizer" => {
            let pattern = match class {
                "Qwen2Tokenizer" => QWEN2_PATTERN,
                _ => QWEN3_5_PATTERN,
            };
            let pre_tokenizer = qwen(pattern, prefix.unwrap_or(false));
            (json!({"type": "NFC"}), pre_tokenizer)
        }
        "GPT2Tokenizer" => (Value::Null, byte_level(prefix.unwrap_or(false), true)),
        _ => {
            let legacy = settings.get("legacy") == Some(&Value::Bool(true));
            (Value::Null, metaspace(prefix.unwrap_or(true), legacy))
        }
    };
    let built = [("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer)];
    let differs = |(key, built): &&(&str, Value)| !contains(tokenizer.get(*key), built);
    let differing: Vec<&str> = built.iter().filter(differs).map(|(key, _)| *key).collect();
    if differing.is_empty() {
        return None;
    }
    Some(format!(
        "tokenizer.json is used, but transformers 5 builds a {class} with another {} and may \
         tokenize text differently",
        differing.join(" and ")
    ))
}

/// Roles and default tokens of the class that `AutoTokenizer` uses.
pub(super) fn defaults(
    tokenizer: &Map<String, Value>,
    settings: &Map<String, Value>,
    config: &Map<String, Value>,
) -> Vec<(&'static str, &'static str)> {
    let end = "<|endoftext|>";
    match class(tokenizer, settings, config) {
        Some("Qwen2Tokenizer" | "Qwen3_5Tokenizer") => {
            vec![("unk_token", end), ("eos_token", end), ("pad_token", end)]
        }
        Some("GPT2Tokenizer") => vec![("unk_token", end), ("bos_token", end), ("eos_token", end)],
        Some(_) => vec![
            ("unk_token", "<unk>"),
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
        ],
        None => Vec::new(),
    }
}

/// The tokenizer class, if transformers builds the tokenizers of this class itself.
fn class(
    tokenizer: &Map<String, Value>,
    settings: &Map<String, Value>,
    config: &Map<String, Value>,
) -> Option<&'static str> {
    let configured = settings
        .get("tokenizer_class")
        .filter(|class| !class.is_null());
    let configured = configured
        .or(config.get("tokenizer_class"))
        .and_then(Value::as_str);
    let chosen = configured.map(|class| class.strip_suffix("Fast").unwrap_or(class));
    // If the file has a part of this type, transformers uses the file unchanged.
    let is_byte_level = tokenizer.values().any(|part| mentions(part, "ByteLevel"));
    let model_type = config.get("model_type").and_then(Value::as_str);
    let family = model_type.and_then(Family::of_model_type);
    let chosen = match family.map_or(AutoTokenizer::Named, |family| family.auto_tokenizer) {
        _ if settings.contains_key("auto_map") => None,
        AutoTokenizer::OfFile => None,
        AutoTokenizer::Always(class) => Some(class),
        AutoTokenizer::Named => chosen,
    };
    match chosen? {
        "Qwen2Tokenizer" => Some("Qwen2Tokenizer"),
        "Qwen3_5Tokenizer" => Some("Qwen3_5Tokenizer"),
        "GPT2Tokenizer" => Some("GPT2Tokenizer"),
        "LlamaTokenizer" if !is_byte_level => Some("LlamaTokenizer"),
        _ => None,
    }
}

fn qwen(pattern: &str, add_prefix_space: bool) -> Value {
    let split = json!({"type": "Split", "pattern": {"Regex": pattern},
        "behavior": "Isolated", "invert": false});
    json!({"type": "Sequence", "pretokenizers": [split, byte_level(add_prefix_space, false)]})
}

fn byte_level(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "use_regex": use_regex})
}

fn metaspace(add_prefix_space: bool, legacy: bool) -> Value {
    let scheme = match (add_prefix_space, legacy) {
        (false, _) => "never",
        (true, true) => "always",
        (true, false) => "first",
    };
    json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": false})
}

/// Whether a tokenizer part has all fields of `built`, which omits fields that only affect offsets.
fn contains(part: Option<&Value>, built: &Value) -> bool {
    match (part.unwrap_or(&Value::Null), built) {
        (Value::Object(part), Value::Object(built)) => built
            .iter()
            .all(|(key, value)| contains(part.get(key), value)),
        (Value::Array(part), Value::Array(built)) => {
            part.len() == built.len() && part.iter().zip(built).all(|(f, b)| contains(Some(f), b))
        }
        (part, built) => part == built,
    }
}

/// Whether a tokenizer part, or a part nested in it, has the type `kind`.
fn mentions(part: &Value, kind: &str) -> bool {
    match part {
        Value::Object(fields) => {
            fields
                .get("type")
                .is_some_and(|part_type| part_type == kind)
                || fields.values().any(|value| mentions(value, kind))
        }
        Value::Array(items) => items.iter().any(|item| mentions(item, kind)),
        _ => false,
    }
}
