//! A Hugging Face `config.json` to the shape of a decoder, or an error that names the field.
//!
//! One struct serves Llama, Mistral and Qwen2: they differ in biases, tying, head size and RoPE
//! scaling. A field that would change the function and is not understood is an error, never
//! ignored.

use serde_json::Value;
use thiserror::Error;

/// Why a `config.json` describes no decoder of this program.
#[derive(Debug, Error)]
pub enum ModelConfigError {
    /// The architecture is another one.
    #[error("config.json: model_type is {0:?}; supported are llama, mistral and qwen2")]
    ModelType(String),
    /// A field is absent or of the wrong type.
    #[error("config.json: {field} must be {expected}, found {found}")]
    Field {
        /// Name in config.json.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A field asks for a computation that is not implemented.
    #[error("config.json: {field} = {value} is not supported; {hint}")]
    Unsupported {
        /// Name in config.json.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is supported.
        hint: &'static str,
    },
}

/// Blocks of a model. Lists are made with an entry for each before any tensor is looked for.
const MAX_LAYERS: usize = 10_000;

/// Shape and constants of a Llama-like decoder, named as in `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// `llama`, `mistral` or `qwen2`.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward block.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Size of one head; `hidden_size / num_attention_heads` unless the file says otherwise.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Added to the mean square of RMSNorm.
    pub rms_norm_eps: f64,
    /// Longest position the model was made for.
    pub max_position_embeddings: usize,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether q, k and v have biases (Qwen2, or `attention_bias`).
    pub qkv_bias: bool,
    /// Whether o has a bias (`attention_bias` of Llama).
    pub o_bias: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Rescaling of the rotary frequencies.
    pub rope_scaling: RopeScaling,
}

/// How rotary frequencies are stretched beyond the context of pre-training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, those between blended.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context of pre-training, in tokens.
        original_max_position_embeddings: f64,
    },
}

impl ModelConfig {
    /// Reads the fields of `config.json`.
    ///
    /// # Errors
    ///
    /// An unknown `model_type`, a missing or mistyped field, or a field that asks for another
    /// computation (sliding windows, other activations, other RoPE scalings).
    pub fn from_json(json: &Value) -> Result<Self, ModelConfigError> {
        let model_type = string(json, "model_type")?;
        if !["llama", "mistral", "qwen2"].contains(&model_type.as_str()) {
            return Err(ModelConfigError::ModelType(model_type));
        }
        refuse_unsupported(json, &model_type)?;
        let hidden_size = count(json, "hidden_size")?;
        let num_attention_heads = count(json, "num_attention_heads")?;
        let head_dim =
            optional_count(json, "head_dim")?.unwrap_or(hidden_size / num_attention_heads.max(1));
        let num_key_value_heads =
            optional_count(json, "num_key_value_heads")?.unwrap_or(num_attention_heads);
        let attention_bias = flag(json, "attention_bias", false)?;
        let rope = json
            .get("rope_parameters")
            .filter(|value| value.is_object())
            .unwrap_or(json);
        let config = Self {
            hidden_size,
            intermediate_size: count(json, "intermediate_size")?,
            num_hidden_layers: count(json, "num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            vocab_size: count(json, "vocab_size")?,
            rms_norm_eps: number(json, "rms_norm_eps")?,
            max_position_embeddings: count(json, "max_position_embeddings")?,
            tie_word_embeddings: flag(json, "tie_word_embeddings", false)?,
            qkv_bias: attention_bias || model_type == "qwen2",
            o_bias: attention_bias && model_type == "llama",
            rope_theta: optional_number(rope, "rope_theta")?
                .or(optional_number(json, "rope_theta")?)
                .unwrap_or(10_000.0),
            rope_scaling: RopeScaling::from_json(json)?,
            model_type,
        };
        config.check_sizes()?;
        Ok(config)
    }

    fn check_sizes(&self) -> Result<(), ModelConfigError> {
        let unsupported = |field, value: usize, hint| {
            Err(ModelConfigError::Unsupported {
                field,
                value: value.to_string(),
                hint,
            })
        };
        if self.num_hidden_layers > MAX_LAYERS {
            let hint = "a model has 10000 blocks at most; fetch or convert it again";
            return unsupported("num_hidden_layers", self.num_hidden_layers, hint);
        }
        if self.num_key_value_heads == 0
            || !self
                .num_attention_heads
                .is_multiple_of(self.num_key_value_heads)
        {
            let hint = "num_attention_heads must be a multiple of it";
            return unsupported("num_key_value_heads", self.num_key_value_heads, hint);
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return unsupported(
                "head_dim",
                self.head_dim,
                "rotary embedding needs an even size",
            );
        }
        Ok(())
    }

    /// Rotary frequencies of one head, `head_dim / 2` values, after scaling.
    ///
    /// # Source
    ///
    /// `_compute_llama3_parameters` and `_compute_linear_scaling_rope_parameters` of
    /// transformers 5.23, `modeling_rope_utils.py`.
    pub fn inverse_frequencies(&self) -> Vec<f64> {
        (0..self.head_dim / 2)
            .map(|i| {
                let exponent = 2.0 * i as f64 / self.head_dim as f64;
                self.rope_scaling
                    .apply(1.0 / self.rope_theta.powf(exponent))
            })
            .collect()
    }

    /// Number of frozen parameters; the head counts once when it is tied.
    pub fn n_parameters(&self) -> usize {
        crate::models::load::expected_tensors(self)
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum()
    }
}

impl RopeScaling {
    fn from_json(json: &Value) -> Result<Self, ModelConfigError> {
        let table = ["rope_scaling", "rope_parameters"]
            .iter()
            .filter_map(|key| json.get(*key))
            .find(|value| value.is_object());
        let Some(table) = table else {
            return Ok(Self::None);
        };
        let kind = table
            .get("rope_type")
            .or_else(|| table.get("type"))
            .and_then(Value::as_str)
            .unwrap_or("default");
        match kind {
            "default" => Ok(Self::None),
            "linear" => Ok(Self::Linear {
                factor: number(table, "factor")?,
            }),
            "llama3" => Ok(Self::Llama3 {
                factor: number(table, "factor")?,
                low_freq_factor: number(table, "low_freq_factor")?,
                high_freq_factor: number(table, "high_freq_factor")?,
                original_max_position_embeddings: number(
                    table,
                    "original_max_position_embeddings",
                )?,
            }),
            other => Err(ModelConfigError::Unsupported {
                field: "rope_scaling.rope_type",
                value: other.to_string(),
                hint: "supported are default, linear and llama3",
            }),
        }
    }

    fn apply(self, frequency: f64) -> f64 {
        match self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: original,
            } => {
                let wavelength = 2.0 * std::f64::consts::PI / frequency;
                if wavelength < original / high_freq_factor {
                    frequency
                } else if wavelength > original / low_freq_factor {
                    frequency / factor
                } else {
                    let smooth = (original / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
        }
    }
}

fn refuse_unsupported(json: &Value, model_type: &str) -> Result<(), ModelConfigError> {
    let unsupported = |field, value: &Value, hint| {
        Err(ModelConfigError::Unsupported {
            field,
            value: value.to_string(),
            hint,
        })
    };
    if let Some(value) = json
        .get("hidden_act")
        .filter(|v| v.as_str() != Some("silu"))
    {
        return unsupported("hidden_act", value, "supported is silu");
    }
    // Qwen2 writes a window that it does not use unless use_sliding_window is true.
    let window = json.get("sliding_window").filter(|v| !v.is_null());
    let uses_window = model_type == "mistral" || json["use_sliding_window"] == Value::Bool(true);
    let hint = "set it to null if max_length stays below the window";
    if let Some(value) = window.filter(|_| uses_window) {
        return unsupported("sliding_window", value, hint);
    }
    // `MistralConfig` of transformers 5.23 has a window where the file says nothing of it.
    if model_type == "mistral" && json.get("sliding_window").is_none() {
        return Err(ModelConfigError::Unsupported {
            field: "sliding_window",
            value: "4096, which an absent key means for Mistral,".to_string(),
            hint,
        });
    }
    if json.get("mlp_bias") == Some(&Value::Bool(true)) {
        return unsupported("mlp_bias", &json["mlp_bias"], "supported is false");
    }
    if let Some(value) = json.get("quantization_config").filter(|v| !v.is_null()) {
        return unsupported("quantization_config", value, "load the unquantised weights");
    }
    Ok(())
}

fn wrong(json: &Value, field: &'static str, expected: &'static str) -> ModelConfigError {
    let found = json
        .get(field)
        .map_or("nothing".to_string(), Value::to_string);
    ModelConfigError::Field {
        field,
        expected,
        found,
    }
}

fn string(json: &Value, field: &'static str) -> Result<String, ModelConfigError> {
    let value = json.get(field).and_then(Value::as_str);
    value
        .map(str::to_string)
        .ok_or_else(|| wrong(json, field, "a string"))
}

fn count(json: &Value, field: &'static str) -> Result<usize, ModelConfigError> {
    optional_count(json, field)?.ok_or_else(|| wrong(json, field, "a whole number above 0"))
}

fn optional_count(json: &Value, field: &'static str) -> Result<Option<usize>, ModelConfigError> {
    match json.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            // 2^32 bounds every product of two sizes within 64 bits.
            Some(n) if n > 0 && n < 1 << 32 => Ok(Some(n as usize)),
            _ => Err(wrong(json, field, "a whole number above 0")),
        },
    }
}

fn number(json: &Value, field: &'static str) -> Result<f64, ModelConfigError> {
    optional_number(json, field)?.ok_or_else(|| wrong(json, field, "a number above 0"))
}

fn optional_number(json: &Value, field: &'static str) -> Result<Option<f64>, ModelConfigError> {
    match json.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(x) if x > 0.0 && x.is_finite() => Ok(Some(x)),
            _ => Err(wrong(json, field, "a number above 0")),
        },
    }
}

fn flag(json: &Value, field: &'static str, default: bool) -> Result<bool, ModelConfigError> {
    match json.get(field) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(wrong(json, field, "true or false")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mistral_without_a_word_on_its_window_has_that_of_transformers() {
        let mut file = json!({
            "model_type": "mistral", "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "sliding_window": null,
        });
        assert!(ModelConfig::from_json(&file).is_ok());
        let refused = |file: &Value| ModelConfig::from_json(file).unwrap_err().to_string();
        file["sliding_window"] = 4096.into();
        assert!(refused(&file).contains("sliding_window = 4096 is not supported"));
        file.as_object_mut().unwrap().remove("sliding_window");
        let said = refused(&file);
        assert!(
            said.contains("sliding_window = 4096") && said.contains("absent"),
            "{said}"
        );
        // Other families have no window unless they say so.
        file["model_type"] = "llama".into();
        assert!(ModelConfig::from_json(&file).is_ok());
    }
}
