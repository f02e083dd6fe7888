//! The types that transformers declares for the fields of a `config.json`.
//!
//! transformers 5 refuses a config with a value of another type: `256.0` is not an `int`, and `1`
//! is not a `float`. [`Family::config_types`] lists the types of each family.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::budgets::JSON_BYTES;
use crate::error::CheckpointError;
use crate::families::{FAMILIES, Family};
use crate::regular_file;

/// The JSON types that the class accepts, by `model_type` and field.
type Table = BTreeMap<&'static str, BTreeMap<String, Vec<String>>>;

static DECLARED: LazyLock<Table> = LazyLock::new(|| {
    let types = FAMILIES.iter().map(|family| {
        let fields = serde_json::from_str(family.config_types);
        (family.model_type, fields.expect("types are valid JSON"))
    });
    types.collect()
});

/// A field that transformers refuses because of its type.
#[derive(Debug, Clone, PartialEq)]
pub struct WrongType {
    /// The key in `config.json`.
    pub field: String,
    /// The value of the key.
    pub value: Value,
    /// The types that transformers declares, such as "int or null".
    pub declared: String,
}

impl fmt::Display for WrongType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.to_string();
        let excerpt: String = value.chars().take(80).collect();
        let (field, declared) = (&self.field, &self.declared);
        write!(
            f,
            "{field} is {excerpt}, but transformers requires {declared}"
        )
    }
}

/// The fields of a `config.json` that transformers refuses because of their types. Empty for models
/// of an unknown family.
pub fn wrong_types(config: &Value) -> Vec<WrongType> {
    let (Some(fields), Some(declared)) = (config.as_object(), declared_types(config)) else {
        return Vec::new();
    };
    let wrong = fields.iter().filter_map(|(field, value)| {
        let kinds = declared.get(field)?;
        let is_accepted = kinds.iter().any(|kind| has_type(value, kind));
        (!is_accepted).then(|| WrongType {
            field: field.clone(),
            value: value.clone(),
            declared: kinds.join(" or "),
        })
    });
    wrong.collect()
}

/// [`wrong_types`] of the `config.json` in a model folder, as stored in the file. Empty for a GGUF
/// file.
///
/// # Errors
///
/// The file cannot be read or is not JSON.
pub fn wrong_types_in(folder: &Path) -> Result<Vec<WrongType>, CheckpointError> {
    let path = folder.join("config.json");
    if !regular_file::is_there(&path)? {
        return Ok(Vec::new());
    }
    let bytes = regular_file::read(&path, JSON_BYTES)?;
    let config: Value = serde_json::from_slice(&bytes).map_err(CheckpointError::json(&path))?;
    Ok(wrong_types(&config))
}

/// Converts every number to the type that transformers declares, if its value stays the same: 256.0
/// becomes 256 for an `int`, 1 becomes 1.0 for a `float`.
pub(crate) fn convert_numbers(fields: &mut Map<String, Value>) {
    for wrong in wrong_types(&Value::Object(fields.clone())) {
        let kinds: Vec<&str> = wrong.declared.split(" or ").collect();
        let Some(number) = wrong.value.as_f64() else {
            continue;
        };
        // Above 2^53 a float does not identify a single integer.
        let is_whole = number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0;
        if kinds.contains(&"int") && is_whole {
            fields.insert(wrong.field, Value::from(number as i64));
        } else if kinds.contains(&"float") {
            fields.insert(wrong.field, Value::from(number));
        }
    }
}

fn declared_types(config: &Value) -> Option<&'static BTreeMap<String, Vec<String>>> {
    DECLARED.get(Family::of_config(config)?.model_type)
}

/// Whether Python parses `value` as this type.
fn has_type(value: &Value, kind: &str) -> bool {
    if let Some(inner) = kind.strip_prefix("list[").and_then(|k| k.strip_suffix(']')) {
        let items = value.as_array();
        return items.is_some_and(|items| items.iter().all(|item| has_type(item, inner)));
    }
    match kind {
        "int" => value.is_i64() || value.is_u64(),
        "float" => value.is_f64(),
        "bool" => value.is_boolean(),
        "str" => value.is_string(),
        "null" => value.is_null(),
        "list" => value.is_array(),
        "dict" => value.is_object(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_family_has_declared_types() {
        for family in FAMILIES {
            let config = json!({"model_type": family.model_type});
            let fields = declared_types(&config).expect("a family");
            for field in ["vocab_size", "rms_norm_eps", "eos_token_id"] {
                assert!(
                    fields.contains_key(field),
                    "config_types of {} has no {field}: see step 3 of \"Add a model family\" in \
                     CONTRIBUTING.md",
                    family.model_type
                );
            }
        }
    }

    #[test]
    fn numbers_of_wrong_type_are_found_and_converted() {
        let config = json!({
            "model_type": "gemma3_text", "query_pre_attn_scalar": 256.0, "rms_norm_eps": 1,
            "sliding_window": 512.0, "attention_bias": 0, "attention_dropout": 0,
            "eos_token_id": [1, 106], "layer_types": ["full_attention"], "unknown": 1.5,
        });
        let found: Vec<String> = wrong_types(&config).iter().map(|w| w.to_string()).collect();
        assert_eq!(
            found,
            [
                "query_pre_attn_scalar is 256.0, but transformers requires int",
                "rms_norm_eps is 1, but transformers requires float",
                "sliding_window is 512.0, but transformers requires int or null",
                "attention_bias is 0, but transformers requires bool",
            ]
        );
        let mut fields = config.as_object().unwrap().clone();
        convert_numbers(&mut fields);
        assert_eq!(fields["query_pre_attn_scalar"].to_string(), "256");
        assert_eq!(fields["rms_norm_eps"].to_string(), "1.0");
        assert_eq!(fields["sliding_window"].to_string(), "512");
        // The caller refuses a flag written as a number.
        let remaining = wrong_types(&Value::Object(fields.clone()));
        assert_eq!(remaining.len(), 1);
        fields.insert("query_pre_attn_scalar".to_owned(), json!(256.5));
        fields.insert("eos_token_id".to_owned(), json!([1, 2.0]));
        let remaining = wrong_types(&Value::Object(fields));
        assert_eq!(remaining.len(), 3);
        assert_eq!(
            wrong_types(&json!({"model_type": "other", "vocab_size": 1.5})),
            []
        );
    }
}
