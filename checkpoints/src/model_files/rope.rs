//! The two spellings of rotary settings in config.json, brought to one.
//!
//! transformers 5 writes `rope_parameters: { rope_theta, rope_type, … }`; earlier versions write
//! `rope_theta` beside `rope_scaling: { type or rope_type, … }`. The earlier form is kept, as
//! other readers of the config know it.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::CheckpointError;

/// Rewrites `config` so that only `rope_theta` and `rope_scaling` (`null` or an object with
/// `rope_type`) remain; a config without rotary settings stays as it is.
pub(super) fn normalise(
    path: &Path,
    config: &mut Map<String, Value>,
) -> Result<(), CheckpointError> {
    if !["rope_theta", "rope_scaling", "rope_parameters"]
        .iter()
        .any(|key| config.contains_key(*key))
    {
        return Ok(());
    }
    let old = config.remove("rope_scaling").unwrap_or(Value::Null);
    let mut scaling = match config.remove("rope_parameters").unwrap_or(Value::Null) {
        Value::Null => old,
        Value::Object(mut parameters) => {
            move_theta(path, config, &mut parameters)?;
            Value::Object(parameters)
        }
        _ => {
            return Err(CheckpointError::field(
                path,
                "rope_parameters",
                "must be an object",
            ));
        }
    };
    match &mut scaling {
        Value::Null => {}
        Value::Object(fields) => {
            name_the_type(path, fields)?;
            if fields["rope_type"] == "default" {
                scaling = Value::Null;
            }
        }
        _ => {
            return Err(CheckpointError::field(
                path,
                "rope_scaling",
                "must be an object or null",
            ));
        }
    }
    config.insert("rope_scaling".to_owned(), scaling);
    Ok(())
}

fn move_theta(
    path: &Path,
    config: &mut Map<String, Value>,
    parameters: &mut Map<String, Value>,
) -> Result<(), CheckpointError> {
    if parameters.values().any(Value::is_object) {
        return Err(CheckpointError::Unsupported {
            path: path.to_owned(),
            feature: "rope_parameters with other settings per layer type".to_owned(),
            mend: "choose a model whose layers share one rotary embedding",
        });
    }
    let Some(theta) = parameters.remove("rope_theta") else {
        return Ok(());
    };
    let differs = config
        .get("rope_theta")
        .is_some_and(|top| top.as_f64() != theta.as_f64());
    if differs {
        let problem = format!("differs from rope_parameters.rope_theta, which is {theta}");
        return Err(CheckpointError::field(path, "rope_theta", problem));
    }
    config.insert("rope_theta".to_owned(), theta);
    Ok(())
}

/// Gives the type its present key; a scaling without one is the default, as in transformers.
fn name_the_type(path: &Path, fields: &mut Map<String, Value>) -> Result<(), CheckpointError> {
    let old = fields.remove("type");
    let kind = fields
        .remove("rope_type")
        .or(old)
        .unwrap_or_else(|| "default".into());
    if !kind.is_string() {
        return Err(CheckpointError::field(
            path,
            "rope_scaling.rope_type",
            "must be a string",
        ));
    }
    fields.insert("rope_type".to_owned(), kind);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn normalised(config: Value) -> Result<Value, CheckpointError> {
        let mut fields = config.as_object().unwrap().clone();
        normalise(Path::new("config.json"), &mut fields)?;
        Ok(Value::Object(fields))
    }

    #[test]
    fn both_spellings_become_one() {
        let llama3 = json!({"factor": 8.0, "low_freq_factor": 1.0, "rope_type": "llama3"});
        let expected = json!({"rope_theta": 5e5, "rope_scaling": llama3});
        let new = json!({"rope_parameters":
            {"rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "rope_type": "llama3"}});
        let old = json!({"rope_theta": 5e5, "rope_scaling":
            {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}});
        assert_eq!(normalised(new).unwrap(), expected);
        assert_eq!(normalised(old).unwrap(), expected);
    }

    #[test]
    fn the_default_type_is_no_scaling() {
        let config = json!({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}});
        assert_eq!(
            normalised(config).unwrap(),
            json!({"rope_theta": 1e4, "rope_scaling": null})
        );
    }

    #[test]
    fn a_config_without_rotary_settings_stays_as_it_is() {
        let config = json!({"model_type": "bert"});
        assert_eq!(normalised(config.clone()).unwrap(), config);
    }

    #[test]
    fn two_different_thetas_are_an_error() {
        let config = json!({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}});
        let error = normalised(config).unwrap_err().to_string();
        assert!(error.contains("rope_theta: differs"), "{error}");
    }

    #[test]
    fn settings_per_layer_type_are_refused() {
        let config = json!({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}});
        let error = normalised(config).unwrap_err().to_string();
        assert!(error.contains("per layer type"), "{error}");
    }
}
