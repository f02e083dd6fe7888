//! Normalises the two formats of RoPE settings in config.json.
//!
//! transformers 5 writes `rope_parameters: { rope_theta, rope_type, … }`; earlier versions write
//! `rope_theta` and `rope_scaling: { type or rope_type, … }`. The result uses the earlier format,
//! which other readers of the config support.
//!
//! Families whose sliding-window layers use a different rotation write
//! `rope_parameters: { full_attention: { … }, sliding_attention: { rope_theta } }`, or
//! `rope_local_base_freq` with the earlier format.
//!
//! A file may contain both formats. transformers 5.23 and this module then read only
//! `rope_scaling`. Differences between the two are an error, because other programs read
//! `rope_parameters`. Source: huggingface/transformers 5.23, `modeling_rope_utils.py`,
//! `convert_rope_params_to_dict` and `standardize_rope_params`.

use std::path::Path;

use serde_json::{Map, Value};

use super::gguf_linear::MROPE_SECTION;
use crate::error::CheckpointError;
use crate::families::{DEFAULT_ROPE_THETA, Family};

const OLD: &str = "rope_scaling";
const NEW: &str = "rope_parameters";
const THETA: &str = "rope_theta";
const LOCAL_THETA: &str = "rope_local_base_freq";
const PARTIAL: &str = "partial_rotary_factor";
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// Rewrites `config` so that only `rope_theta` and `rope_scaling` (`null` or an object with
/// `rope_type`) remain. A config without RoPE settings is unchanged.
///
/// # Errors
///
/// - A field has the wrong type, or there are unsupported settings per layer type.
/// - Theta, the type or the scaling is specified twice with different values.
pub(super) fn normalise(
    path: &Path,
    config: &mut Map<String, Value>,
) -> Result<(), CheckpointError> {
    if ![THETA, OLD, NEW]
        .iter()
        .any(|key| config.contains_key(*key))
    {
        return Ok(());
    }
    flatten_layer_types(path, config)?;
    let mut old = table(path, config, OLD)?;
    let mut new = table(path, config, NEW)?;
    for (key, table) in [(OLD, &mut old), (NEW, &mut new)] {
        move_partial_factor(path, config, key, table)?;
        // Move the sections of image coordinates to the top level. They do not affect text.
        let sections = table.as_mut().and_then(|table| table.remove(MROPE_SECTION));
        if let Some(sections) = sections {
            config.insert(MROPE_SECTION.to_owned(), sections);
        }
    }
    let theta = theta(path, config, [&mut old, &mut new])?;
    if let Some(theta) = theta {
        config.insert(THETA.to_owned(), theta);
    }
    let scaling = match (old, new) {
        (None, None) => None,
        (Some(present), None) | (None, Some(present)) => Some(present),
        (Some(old), Some(new)) => Some(effective_table(path, old, new)?),
    };
    let scaling = scaling.filter(|scaling| scaling["rope_type"] != "default");
    let scaling = scaling.map_or(Value::Null, Value::Object);
    config.insert(OLD.to_owned(), scaling);
    Ok(())
}

/// Converts per-layer-type settings to one table and `rope_local_base_freq`, for families that
/// support it.
fn flatten_layer_types(
    path: &Path,
    config: &mut Map<String, Value>,
) -> Result<(), CheckpointError> {
    let family = config.get("model_type").and_then(Value::as_str);
    let rules = family.and_then(Family::of_model_type).map(|f| &f.config);
    let is_local = rules.is_some_and(|rules| rules.rotary.local_theta.is_some());
    let Some(Value::Object(tables)) = config.get(NEW).filter(|_| is_local) else {
        return Ok(());
    };
    let wrong = |key: String, problem: &str| Err(CheckpointError::field(path, key, problem));
    if let Some(unknown_type) = tables
        .keys()
        .find(|key| ![FULL, SLIDING].contains(&key.as_str()))
    {
        let problem = "must have settings for full_attention and sliding_attention";
        return wrong(format!("{NEW}.{unknown_type}"), problem);
    }
    let full = tables.get(FULL).cloned().unwrap_or(Value::Null);
    let local = tables.get(SLIDING).cloned().unwrap_or(Value::Null);
    let key = |name: &str| format!("{NEW}.{SLIDING}.{name}");
    if let Value::Object(local) = local {
        for (name, value) in local {
            match (name.as_str(), &value) {
                (_, Value::Null) => {}
                (THETA, _) => match config.get(LOCAL_THETA) {
                    Some(top) if top.as_f64() != value.as_f64() => {
                        let problem = format!("is {value}, but {LOCAL_THETA} is {top}");
                        return wrong(key(&name), &problem);
                    }
                    _ => {
                        config.insert(LOCAL_THETA.to_owned(), value);
                    }
                },
                ("rope_type" | "type", kind) if kind == "default" => {}
                _ => {
                    return wrong(
                        key(&name),
                        "sliding-window layers must not have a RoPE scaling",
                    );
                }
            }
        }
    }
    config.insert(NEW.to_owned(), full);
    Ok(())
}

/// Moves the rotated fraction of a head from a table to the top level of the file.
fn move_partial_factor(
    path: &Path,
    config: &mut Map<String, Value>,
    key: &str,
    table: &mut Option<Map<String, Value>>,
) -> Result<(), CheckpointError> {
    let Some(share) = table.as_mut().and_then(|table| table.remove(PARTIAL)) else {
        return Ok(());
    };
    match config.get(PARTIAL) {
        Some(top) if top.as_f64() != share.as_f64() => {
            let problem = format!("is {top} and differs from {key}.{PARTIAL}, which is {share}");
            Err(CheckpointError::field(path, PARTIAL, problem))
        }
        _ => {
            config.insert(PARTIAL.to_owned(), share);
            Ok(())
        }
    }
}

/// Removes a table from the config and renames its type to the current key. An empty table counts
/// as absent.
fn table(
    path: &Path,
    config: &mut Map<String, Value>,
    key: &'static str,
) -> Result<Option<Map<String, Value>>, CheckpointError> {
    let mut fields = match config.remove(key).unwrap_or(Value::Null) {
        Value::Null => return Ok(None),
        Value::Object(fields) if fields.is_empty() => return Ok(None),
        Value::Object(fields) => fields,
        _ => {
            let problem = "must be an object or null";
            return Err(CheckpointError::field(path, key, problem));
        }
    };
    if fields.values().any(Value::is_object) {
        return Err(CheckpointError::Unsupported {
            path: path.to_owned(),
            feature: format!("{key} with other settings per layer type"),
            fix: "choose a model whose layers share the RoPE settings",
        });
    }
    rename_type(path, key, &mut fields)?;
    Ok(Some(fields))
}

/// Renames the type to its current key. A scaling without a type is the default, as in
/// transformers.
fn rename_type(
    path: &Path,
    table: &str,
    fields: &mut Map<String, Value>,
) -> Result<(), CheckpointError> {
    let old = fields.remove("type");
    let new = fields.remove("rope_type");
    if let (Some(old), Some(new)) = (&old, &new)
        && old != new
    {
        let problem = format!("is {old}, but rope_type is {new}; keep the right one");
        return Err(CheckpointError::field(
            path,
            format!("{table}.type"),
            problem,
        ));
    }
    let kind = new.or(old).unwrap_or_else(|| "default".into());
    if !kind.is_string() {
        let key = format!("{table}.rope_type");
        return Err(CheckpointError::field(path, key, "must be a string"));
    }
    fields.insert("rope_type".to_owned(), kind);
    Ok(())
}

/// The theta of the config, which may also be in the two tables. Removes it from the tables.
fn theta(
    path: &Path,
    config: &mut Map<String, Value>,
    [old, new]: [&mut Option<Map<String, Value>>; 2],
) -> Result<Option<Value>, CheckpointError> {
    let mut take =
        |table: &mut Map<String, Value>| table.remove(THETA).filter(|value| !value.is_null());
    let from_new = new.as_mut().and_then(&mut take);
    let from_old = old.as_mut().and_then(&mut take);
    let from_top = take(config);
    let thetas = [
        (THETA, from_top),
        ("rope_scaling.rope_theta", from_old),
        ("rope_parameters.rope_theta", from_new),
    ];
    let thetas: Vec<(&str, Value)> = thetas
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .collect();
    let Some(((first, theta), others)) = thetas.split_first() else {
        return Ok(None);
    };
    let differs = |(_, other): &&(&str, Value)| other.as_f64() != theta.as_f64();
    if let Some((other, value)) = others.iter().find(differs) {
        let problem = format!("is {theta} and differs from {other}, which is {value}");
        return Err(CheckpointError::field(path, *first, problem));
    }
    let is_ignored = *first == "rope_parameters.rope_theta" && old.is_some();
    if is_ignored && theta.as_f64() != Some(DEFAULT_ROPE_THETA) {
        let problem = format!(
            "is {theta}, but transformers ignores this theta because rope_scaling is also set; \
             write rope_theta next to rope_scaling"
        );
        return Err(CheckpointError::field(path, *first, problem));
    }
    Ok(Some(theta.clone()))
}

/// Returns the table that transformers reads. `theta` was already removed from both tables.
fn effective_table(
    path: &Path,
    old: Map<String, Value>,
    new: Map<String, Value>,
) -> Result<Map<String, Value>, CheckpointError> {
    if new["rope_type"] == "default" || is_equal(&old, &new) {
        return Ok(old);
    }
    let [old, new] = [old, new].map(Value::Object);
    let problem = format!(
        "is {old}, but rope_parameters is {new}; transformers reads the first, other \
         programs the second: keep the right one"
    );
    Err(CheckpointError::field(path, OLD, problem))
}

/// Whether two tables have equal values; 4 equals 4.0.
fn is_equal(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let equal = |a: &Value, b: &Value| a == b || (a.is_number() && a.as_f64() == b.as_f64());
    one.len() == other.len()
        && one
            .iter()
            .all(|(key, value)| other.get(key).is_some_and(|other| equal(value, other)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn normalise_config(config: Value) -> Result<Value, CheckpointError> {
        let mut fields = config.as_object().unwrap().clone();
        normalise(Path::new("config.json"), &mut fields)?;
        Ok(Value::Object(fields))
    }

    #[test]
    fn both_formats_are_normalised_to_one() {
        let llama3 = json!({"factor": 8.0, "low_freq_factor": 1.0, "rope_type": "llama3"});
        let expected = json!({"rope_theta": 5e5, "rope_scaling": llama3});
        let new = json!({"rope_parameters":
            {"rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "rope_type": "llama3"}});
        let old = json!({"rope_theta": 5e5, "rope_scaling":
            {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}});
        assert_eq!(normalise_config(new).unwrap(), expected);
        assert_eq!(normalise_config(old).unwrap(), expected);
    }

    #[test]
    fn the_default_type_is_no_scaling() {
        let config = json!({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}});
        assert_eq!(
            normalise_config(config).unwrap(),
            json!({"rope_theta": 1e4, "rope_scaling": null})
        );
    }

    #[test]
    fn a_config_without_rope_settings_is_unchanged() {
        let config = json!({"model_type": "bert"});
        assert_eq!(normalise_config(config.clone()).unwrap(), config);
    }

    #[test]
    fn two_different_thetas_are_an_error() {
        let config = json!({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}});
        let error = normalise_config(config).unwrap_err().to_string();
        assert!(
            error.contains("rope_theta: is 10000.0 and differs"),
            "{error}"
        );
    }

    #[test]
    fn settings_per_layer_type_are_refused() {
        for table in ["rope_parameters", "rope_scaling"] {
            let config = json!({ table: {"full_attention": {"rope_theta": 1e4}} });
            let error = normalise_config(config).unwrap_err().to_string();
            assert!(error.contains("per layer type"), "{error}");
        }
    }

    #[test]
    fn rope_scaling_takes_precedence_over_rope_parameters() {
        let linear = json!({"rope_type": "linear", "factor": 4.0});
        let default = json!({"rope_type": "default", "rope_theta": 1e4});
        for (old, new) in [
            (json!({"type": "linear", "factor": 4.0}), default.clone()),
            (linear.clone(), json!({})),
            (json!({}), linear.clone()),
            (Value::Null, linear.clone()),
            (linear.clone(), Value::Null),
            (linear.clone(), json!({"type": "linear", "factor": 4})),
        ] {
            let config = json!({"rope_theta": 1e4, "rope_scaling": old, "rope_parameters": new});
            let expected = json!({"rope_theta": 1e4, "rope_scaling": linear});
            assert_eq!(normalise_config(config).unwrap(), expected);
        }
        let yarn = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0},
            "rope_parameters": default});
        assert_eq!(
            normalise_config(yarn).unwrap()["rope_scaling"]["rope_type"],
            "yarn"
        );
    }

    #[test]
    fn two_scalings_that_differ_are_an_error() {
        let linear = |factor: f64| json!({"rope_type": "linear", "factor": factor});
        for (config, expected) in [
            (
                json!({"rope_scaling": linear(2.0), "rope_parameters": linear(4.0)}),
                "rope_scaling: is {\"factor\":2.0",
            ),
            (
                json!({"rope_scaling": {"type": "default"}, "rope_parameters": linear(4.0)}),
                "keep the right one",
            ),
            (
                json!({"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 4.0}}),
                "rope_scaling.type: is \"linear\"",
            ),
            (
                json!({"rope_scaling": {"type": "linear", "rope_theta": 5e5}, "rope_theta": 1e4}),
                "rope_theta: is 10000.0 and differs from rope_scaling.rope_theta",
            ),
            (
                json!({"rope_scaling": linear(4.0), "rope_parameters": {"rope_theta": 5e5}}),
                "rope_parameters.rope_theta: is 500000.0",
            ),
        ] {
            let error = normalise_config(config).unwrap_err().to_string();
            assert!(error.contains(expected), "no {expected:?} in {error}");
        }
    }
}
