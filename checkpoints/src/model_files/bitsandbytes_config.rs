//! The `quantization_config` of folders that bitsandbytes quantised.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::CheckpointError;
use crate::weights::Weights;

const KEY: &str = "quantization_config";

const FIX: &str = "use the model before quantisation, or one that is quantised with load_in_4bit and \
     bnb_4bit_quant_type = \"nf4\"";

/// Removes a `quantization_config` that describes NF4 weights of bitsandbytes, which are read with
/// their values. Returns whether there was one. Configs of other programs remain.
///
/// # Source
///
/// huggingface/transformers 5.23, `quantizers/auto.py`, `AutoQuantizationConfig.from_dict`, and
/// `utils/quantization_config.py`, `BitsAndBytesConfig`.
///
/// # Errors
///
/// It describes another layout of bitsandbytes, or one of its fields has the wrong type.
pub(super) fn take(path: &Path, config: &mut Map<String, Value>) -> Result<bool, CheckpointError> {
    let Some(quantization) = config.get(KEY).filter(|value| !value.is_null()) else {
        return Ok(false);
    };
    let flag = |key: &str| match quantization.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(value) => {
            let problem = format!("is {value}, but must be true or false");
            Err(CheckpointError::field(
                path,
                format!("{KEY}.{key}"),
                problem,
            ))
        }
    };
    let [is_4bit, is_8bit] = [flag("load_in_4bit")?, flag("load_in_8bit")?];
    let is_named = quantization
        .get("quant_method")
        .is_some_and(|name| name == "bitsandbytes");
    if !(is_named || is_4bit || is_8bit) {
        return Ok(false);
    }
    let unsupported = |feature: &str| {
        Err(CheckpointError::Unsupported {
            path: path.to_owned(),
            feature: format!("{KEY} with {feature}"),
            fix: FIX,
        })
    };
    if is_8bit {
        return unsupported("load_in_8bit");
    }
    if !is_4bit {
        return unsupported("quant_method \"bitsandbytes\" and without load_in_4bit");
    }
    match quantization.get("bnb_4bit_quant_type") {
        Some(Value::String(name)) if name == "nf4" => {}
        None | Some(Value::Null) => {
            return unsupported("load_in_4bit and without bnb_4bit_quant_type, which means fp4");
        }
        Some(other) => {
            let other: String = other.to_string().chars().take(200).collect();
            return unsupported(&format!("bnb_4bit_quant_type {other}"));
        }
    }
    config.remove(KEY);
    Ok(true)
}

/// Refuses weights that contradict the config, which `path` names: programs disagree about such
/// folders.
pub(super) fn check(
    path: &Path,
    is_declared: bool,
    weights: &Weights,
) -> Result<(), CheckpointError> {
    let problem = match (is_declared, weights.n_nf4()) {
        (true, 0) => {
            "describes NF4 weights, but no tensor is stored as NF4; remove it to use the weights as \
             they are"
                .to_owned()
        }
        (false, n @ 1..) => format!(
            "is absent, but {n} tensors are stored as NF4, which transformers then refuses; \
             restore the config.json that belongs to these weights"
        ),
        _ => return Ok(()),
    };
    Err(CheckpointError::field(path, KEY, problem))
}

/// A remark that the weights are quantised, if they are.
pub(super) fn remark(weights: &Weights) -> Option<String> {
    let n = weights.n_nf4();
    (n > 0).then(|| {
        format!(
            "{n} tensors are quantised (bitsandbytes NF4); exports of the whole model contain their \
             dequantised values, unless they are written in NF4"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whether the config is removed, or the error.
    fn taken(quantization: Value) -> Result<bool, String> {
        let mut config = Map::from_iter([(KEY.to_owned(), quantization)]);
        let taken = take(Path::new("config.json"), &mut config).map_err(|e| e.to_string())?;
        assert_eq!(config.is_empty(), taken);
        Ok(taken)
    }

    #[test]
    fn only_nf4_of_bitsandbytes_is_accepted() {
        let nf4 = json!({"quant_method": "bitsandbytes", "load_in_4bit": true,
            "load_in_8bit": false, "bnb_4bit_quant_type": "nf4"});
        assert_eq!(taken(nf4.clone()), Ok(true));
        // Older files have no quant_method.
        let mut old = nf4.clone();
        old.as_object_mut().unwrap().remove("quant_method");
        assert_eq!(taken(old), Ok(true));
        // Readers of other methods refuse these.
        for other in [
            json!(null),
            json!({"quant_method": "gptq", "bits": 4}),
            json!([]),
        ] {
            assert_eq!(taken(other), Ok(false));
        }
        for (key, value, named) in [
            ("load_in_8bit", json!(true), "load_in_8bit"),
            ("load_in_4bit", json!(false), "without load_in_4bit"),
            ("load_in_4bit", json!("yes"), "must be true or false"),
            ("bnb_4bit_quant_type", json!("fp4"), "\"fp4\""),
            ("bnb_4bit_quant_type", json!(null), "means fp4"),
            ("bnb_4bit_quant_type", json!([4]), "[4]"),
        ] {
            let mut wrong = nf4.clone();
            wrong[key] = value;
            let error = taken(wrong).unwrap_err();
            assert!(error.contains(KEY) && error.contains(named), "{error}");
        }
    }
}
