//! Reads the shape of a decoder from a Hugging Face `config.json`, or names the field that is wrong.
//!
//! One struct serves every family; what differs between them stands in [`super::families`]. A field
//! that would change the function and is not understood is an error, never ignored; an absent one means what it means in transformers 5.23.

use std::borrow::Cow;

use serde_json::Value;
use thiserror::Error;
use tooltune_checkpoints::families::{ConfigRules, DEFAULT_ROPE_THETA, SlidingWindow};

use super::config_fields::{
    count, flag, number, optional_count, optional_number, probability, string,
};
use super::families::{self, FAMILIES, Family};
use super::foreign_keys;
use crate::budgets::{MODEL_HEAD_DIM, MODEL_LAYERS, MODEL_PARAMETERS};

/// Why a `config.json` describes no decoder of this program.
#[derive(Debug, Error)]
pub enum DecoderConfigError {
    /// The architecture is another one.
    #[error("config.json: model_type is {0:?}; supported are {known}", known = supported())]
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
        hint: Cow<'static, str>,
    },
}

impl DecoderConfigError {
    pub(super) fn unsupported(
        field: &'static str,
        value: impl ToString,
        hint: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Unsupported {
            field,
            value: value.to_string(),
            hint: hint.into(),
        }
    }
}

/// The supported model types, for a message.
fn supported() -> String {
    let names = FAMILIES.map(|family| family.files.model_type);
    let (last, others) = names.split_last().expect("families");
    format!("{} and {last}", others.join(", "))
}

/// Shape and constants of a Llama-like decoder, named as in `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// What kind of model it is.
    pub family: &'static Family,
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
    /// Probability with which transformers drops a weight of the attention in training. It is not
    /// applied here, and training says so.
    pub attention_dropout: f64,
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

impl DecoderConfig {
    /// Reads the fields of `config.json`, rotary settings as
    /// `tooltune_checkpoints::model_files::ModelFiles::read_config` spells them.
    ///
    /// # Errors
    ///
    /// An unknown `model_type`, a missing or mistyped field, or a field that asks for another
    /// computation (sliding windows, other activations, other RoPE scalings).
    pub fn from_json(json: &Value) -> Result<Self, DecoderConfigError> {
        let model_type = string(json, "model_type")?;
        let Some(family) = families::of_model_type(&model_type) else {
            return Err(DecoderConfigError::ModelType(model_type));
        };
        let rules = &family.files.config;
        refuse_unsupported(json, rules)?;
        let hidden_size = count(json, "hidden_size")?;
        let num_attention_heads = count(json, "num_attention_heads")?;
        let head_dim =
            optional_count(json, "head_dim")?.unwrap_or(hidden_size / num_attention_heads.max(1));
        foreign_keys::refuse(json, head_dim)?;
        let attention_bias = flag(json, "attention_bias", false)?;
        let max_position_embeddings = count(json, "max_position_embeddings")?;
        let config = Self {
            hidden_size,
            intermediate_size: count(json, "intermediate_size")?,
            num_hidden_layers: count(json, "num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads: key_value_heads(json, rules, num_attention_heads)?,
            head_dim,
            vocab_size: count(json, "vocab_size")?,
            rms_norm_eps: number(json, "rms_norm_eps")?,
            max_position_embeddings,
            tie_word_embeddings: flag(json, "tie_word_embeddings", false)?,
            qkv_bias: family.biases.qkv.is_there(attention_bias),
            o_bias: family.biases.output.is_there(attention_bias),
            rope_theta: optional_number(json, "rope_theta")?.unwrap_or(DEFAULT_ROPE_THETA),
            rope_scaling: RopeScaling::from_json(json, max_position_embeddings)?,
            attention_dropout: probability(json, "attention_dropout")?,
            family,
        };
        config.check_sizes()?;
        Ok(config)
    }

    fn check_sizes(&self) -> Result<(), DecoderConfigError> {
        let unsupported = |field, value: usize, hint: &'static str| {
            Err(DecoderConfigError::unsupported(field, value, hint))
        };
        if self.num_hidden_layers > MODEL_LAYERS {
            let hint = "a model has 10000 blocks at most (MODEL_LAYERS in docs/limits.md); fetch or convert it again";
            return unsupported("num_hidden_layers", self.num_hidden_layers, hint);
        }
        if self.head_dim > MODEL_HEAD_DIM {
            let hint = "a head has 65536 numbers at most (MODEL_HEAD_DIM in docs/limits.md); fetch or convert the model again";
            return unsupported("head_dim", self.head_dim, hint);
        }
        let [d, heads] = [
            self.hidden_size,
            self.head_dim * (self.num_attention_heads + self.num_key_value_heads),
        ]
        .map(|n| n as u128);
        let block = 3 * d * self.intermediate_size as u128 + 2 * d * heads;
        let n_parameters = self.num_hidden_layers as u128 * block + 2 * d * self.vocab_size as u128;
        if n_parameters > MODEL_PARAMETERS {
            let hint = "the sizes make more than 2^44 parameters (MODEL_PARAMETERS in docs/limits.md); fetch or convert the model again";
            return unsupported("hidden_size", self.hidden_size, hint);
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
        let frequencies = self.inverse_frequencies();
        if frequencies.iter().any(|f| !(*f as f32).is_finite()) {
            return Err(DecoderConfigError::unsupported(
                "rope_theta",
                self.rope_theta,
                "with the factor of rope_scaling it makes rotary frequencies that are not \
                       finite; fetch or convert the model again",
            ));
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
    fn from_json(json: &Value, max_position_embeddings: usize) -> Result<Self, DecoderConfigError> {
        let Some(table) = json.get("rope_scaling").filter(|value| value.is_object()) else {
            return Ok(Self::None);
        };
        full_rotation(table, "rope_scaling.partial_rotary_factor")?;
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
                original_max_position_embeddings: original_context(
                    json,
                    table,
                    max_position_embeddings,
                )?,
            }),
            other => Err(DecoderConfigError::unsupported(
                "rope_scaling.rope_type",
                other,
                "supported are default, linear and llama3",
            )),
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

/// Key and value heads; an absent key means what the family says, `null` one for each query head.
fn key_value_heads(
    json: &Value,
    rules: &ConfigRules,
    num_attention_heads: usize,
) -> Result<usize, DecoderConfigError> {
    let key = "num_key_value_heads";
    let absent = match json.get(key) {
        None => rules.absent_key_value_heads,
        Some(_) => None,
    };
    Ok(optional_count(json, key)?
        .or(absent)
        .unwrap_or(num_attention_heads))
}

/// The context of pre-training for Llama 3's scaling, which stands in its table, or is the model's own
/// context. At the top of the file transformers passes over it, so that another number there is an
/// error.
///
/// # Source
///
/// `AutoConfig` of transformers 5.23, of files with each of the three.
fn original_context(
    json: &Value,
    table: &Value,
    max_position_embeddings: usize,
) -> Result<f64, DecoderConfigError> {
    let field = "original_max_position_embeddings";
    let read = optional_number(table, field)?.unwrap_or(max_position_embeddings as f64);
    match optional_number(json, field)? {
        Some(top) if top != read => Err(DecoderConfigError::unsupported(
            field,
            top,
            "rope_scaling says another number, or none, which means \
                   max_position_embeddings; write the right one into rope_scaling",
        )),
        _ => Ok(read),
    }
}

/// Refuses a rotation of a part of each head.
fn full_rotation(json: &Value, field: &'static str) -> Result<(), DecoderConfigError> {
    let key = field.rsplit('.').next().unwrap_or(field);
    match json.get(key) {
        None | Some(Value::Null) => Ok(()),
        Some(value) if value.as_f64() == Some(1.0) => Ok(()),
        Some(value) => Err(DecoderConfigError::unsupported(
            field,
            value,
            "supported is a rotation of whole heads, which is 1",
        )),
    }
}

/// Refuses a window of attention that transformers would apply, also where the file says nothing of it.
fn refuse_window(json: &Value, window: SlidingWindow) -> Result<(), DecoderConfigError> {
    let field = "sliding_window";
    let hint = "set it to null if max_length stays below the window";
    let is_used = || json["use_sliding_window"] == Value::Bool(true);
    let cause = match window {
        SlidingWindow::UnlessNull(family) => family,
        SlidingWindow::IfUsed if is_used() => "use_sliding_window",
        SlidingWindow::IfUsed => return Ok(()),
    };
    let value = match json.get(field) {
        Some(Value::Null) => return Ok(()),
        Some(value) => value.to_string(),
        None => format!("4096, which an absent key means for {cause},"),
    };
    Err(DecoderConfigError::unsupported(field, value, hint))
}

fn refuse_unsupported(json: &Value, rules: &ConfigRules) -> Result<(), DecoderConfigError> {
    let unsupported = |field, value: &Value, hint: &'static str| {
        Err(DecoderConfigError::unsupported(field, value, hint))
    };
    // Some families write `hidden_activation`; a file with both must mean one.
    for field in ["hidden_act", "hidden_activation"] {
        let known = Some(rules.hidden_act);
        if let Some(value) = json.get(field).filter(|v| v.as_str() != known) {
            let hint = format!("supported is {}", rules.hidden_act);
            return Err(DecoderConfigError::unsupported(field, value, hint));
        }
    }
    refuse_window(json, rules.sliding_window)?;
    let is_full = |layer: &Value| layer == "full_attention";
    let layers = json.get("layer_types").and_then(Value::as_array);
    if let Some(other) = layers.and_then(|layers| layers.iter().find(|layer| !is_full(layer))) {
        return unsupported("layer_types", other, "supported is full_attention");
    }
    full_rotation(json, "partial_rotary_factor")?;
    if let Some(value) = json.get("rope_parameters") {
        return unsupported("rope_parameters", value, "write it as rope_scaling");
    }
    if json.get("mlp_bias") == Some(&Value::Bool(true)) {
        return unsupported("mlp_bias", &json["mlp_bias"], "supported is false");
    }
    if let Some(value) = json.get("quantization_config").filter(|v| !v.is_null()) {
        return unsupported("quantization_config", value, "load the unquantised weights");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn llama() -> Value {
        json!({
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 32768,
        })
    }

    /// The config of a Llama with these fields, or how it is refused.
    fn with(fields: Value) -> Result<DecoderConfig, String> {
        let mut file = llama();
        let fields = fields.as_object().unwrap().clone();
        file.as_object_mut().unwrap().extend(fields);
        DecoderConfig::from_json(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_said_twice_agrees_or_is_refused() {
        let llama3 = |more: Value| {
            let mut table = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0});
            table
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            table
        };
        let key = "original_max_position_embeddings";
        let original = |config: Result<DecoderConfig, String>| match config.unwrap().rope_scaling {
            RopeScaling::Llama3 {
                original_max_position_embeddings,
                ..
            } => original_max_position_embeddings,
            other => panic!("{other:?}"),
        };
        // The values of `AutoConfig` of transformers 5.23.
        for (fields, expected) in [
            (json!({"rope_scaling": llama3(json!({key: 2048}))}), 2048.0),
            (
                json!({"rope_scaling": llama3(json!({key: 2048})), key: 2048}),
                2048.0,
            ),
            (json!({"rope_scaling": llama3(json!({}))}), 32768.0),
        ] {
            assert_eq!(original(with(fields)), expected);
        }
        for (fields, said) in [
            (
                json!({"rope_scaling": llama3(json!({key: 2048})), key: 4096}),
                "original_max_position_embeddings = 4096",
            ),
            (
                json!({"rope_scaling": llama3(json!({})), key: 4096}),
                "original_max_position_embeddings = 4096",
            ),
            (
                json!({"hidden_act": "silu", "hidden_activation": "gelu"}),
                "hidden_activation = \"gelu\"",
            ),
            (
                json!({"partial_rotary_factor": 0.5}),
                "partial_rotary_factor = 0.5",
            ),
            (
                json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0,
                    "partial_rotary_factor": 0.5}}),
                "rope_scaling.partial_rotary_factor = 0.5",
            ),
            (
                json!({"layer_types": ["full_attention", "sliding_attention"]}),
                "layer_types = \"sliding_attention\"",
            ),
            (
                json!({"model_type": "qwen2", "use_sliding_window": true}),
                "sliding_window = 4096, which an absent key means for use_sliding_window",
            ),
            (
                json!({"attention_dropout": 1.5}),
                "attention_dropout must be",
            ),
        ] {
            let error = with(fields).unwrap_err();
            assert!(error.contains(said), "no {said:?} in {error}");
        }
        assert_eq!(
            with(json!({"attention_dropout": 0.5}))
                .unwrap()
                .attention_dropout,
            0.5
        );
    }

    #[test]
    fn absent_key_value_heads_are_those_of_the_family() {
        let heads = |fields: Value| with(fields).unwrap().num_key_value_heads;
        let many = json!({"num_attention_heads": 32, "head_dim": 2, "sliding_window": null});
        for (model_type, absent) in [("llama", 32), ("mistral", 8), ("qwen2", 32)] {
            let mut fields = many.clone();
            fields["model_type"] = model_type.into();
            assert_eq!(heads(fields.clone()), absent, "{model_type}");
            fields["num_key_value_heads"] = Value::Null;
            assert_eq!(heads(fields), 32, "{model_type}");
        }
    }

    #[test]
    fn a_mistral_without_a_word_on_its_window_has_that_of_transformers() {
        let mut file = llama();
        file["model_type"] = "mistral".into();
        file["sliding_window"] = Value::Null;
        file["num_key_value_heads"] = 4.into();
        assert!(DecoderConfig::from_json(&file).is_ok());
        let refused = |file: &Value| DecoderConfig::from_json(file).unwrap_err().to_string();
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
        assert!(DecoderConfig::from_json(&file).is_ok());
    }
}
