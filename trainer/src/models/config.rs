//! Reads the shape of a decoder from a Hugging Face `config.json`. Errors name the invalid field.
//!
//! One struct serves all families; [`super::families`] describes their differences. An unsupported
//! field that would change the computation is an error. An absent field has its default value in
//! transformers 5.23.

use std::borrow::Cow;

use serde_json::Value;
use thiserror::Error;
use tooltune_checkpoints::families::ConfigRules;

use super::config_fields::{
    count, flag, number, optional_count, optional_number, probability, string, wrong_field,
};
use super::families::{self, Bias, FAMILIES, Family, LINEAR, Projections};
use super::foreign_keys;
use super::layers::{self, LayerKind, Mixer};
use super::linear_attention::LinearShape;
use super::multipliers::{FamilyMultipliers, QueryScaling};
use super::rotary::{self, RopeScaling, Rotary};
use crate::budgets::{MODEL_HEAD_DIM, MODEL_LAYERS, MODEL_PARAMETERS};

/// Why a `config.json` is not a supported decoder.
#[derive(Debug, Error)]
pub enum DecoderConfigError {
    /// Unsupported architecture.
    #[error("config.json: model_type is {0:?}; supported types are {known}", known = supported_types())]
    ModelType(String),
    /// A field is absent or of the wrong type.
    #[error("config.json: {field} must be {expected}, found {found}")]
    Field {
        /// Name in config.json.
        field: &'static str,
        /// Expected value.
        expected: &'static str,
        /// Value in the file.
        found: String,
    },
    /// The field requires a computation that is not implemented.
    #[error("config.json: {field} = {value} is not supported; {hint}")]
    Unsupported {
        /// Name in config.json.
        field: &'static str,
        /// Value of the field.
        value: String,
        /// Supported values.
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

/// The supported model types, as text.
fn supported_types() -> String {
    let names: Vec<&str> = FAMILIES
        .iter()
        .map(|family| family.files.model_type)
        .collect();
    let (last, others) = names.split_last().expect("families");
    format!("{} and {last}", others.join(", "))
}

/// Shape and constants of a Llama-like decoder, named as in `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// Model family.
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
    /// Size of one head; `hidden_size / num_attention_heads` unless the file sets it.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Epsilon of RMSNorm, added to the mean square.
    pub rms_norm_eps: f64,
    /// Length of the model's context, in tokens.
    pub max_position_embeddings: usize,
    /// Whether head and embedding are one weight.
    pub tie_word_embeddings: bool,
    /// Whether q, k and v have biases (Qwen2, or `attention_bias`).
    pub qkv_bias: bool,
    /// Whether o has a bias (`attention_bias` of Llama).
    pub o_bias: bool,
    /// Rotary embedding of queries and keys.
    pub rotary: Rotary,
    /// Rotary embedding of sliding-window blocks, if it differs from `rotary`.
    pub local_rotary: Option<Rotary>,
    /// Attention kind of each block.
    pub layers: Vec<LayerKind>,
    /// Sizes of linear attention, if the family has it.
    pub linear: Option<LinearShape>,
    /// Scaling of queries by position, beyond the context of pre-training.
    pub query_scaling: Option<QueryScaling>,
    /// Factor on embeddings.
    pub embedding_multiplier: f64,
    /// Factor on attention scores; `None` means the inverse square root of the head size.
    pub attention_multiplier: Option<f64>,
    /// Factor on branch outputs before they are added to the residual stream.
    pub residual_multiplier: f64,
    /// Divisor of the logits.
    pub logits_scaling: f64,
    /// Dropout probabilities above 0 that transformers applies in training, by field. They are not
    /// applied here; training prints a warning.
    pub dropouts: Vec<(&'static str, f64)>,
}

impl DecoderConfig {
    /// Reads the fields of `config.json`. Its rotary settings must be normalised by
    /// `tooltune_checkpoints::model_files::ModelFiles::read_config`.
    ///
    /// # Errors
    ///
    /// The `model_type` is unknown, a field is missing or of the wrong type, or a field requires an
    /// unsupported computation, such as a soft cap or another activation or RoPE scaling.
    pub fn from_json(json: &Value) -> Result<Self, DecoderConfigError> {
        let model_type = string(json, "model_type")?;
        let Some(family) = families::of_model_type(&model_type) else {
            return Err(DecoderConfigError::ModelType(model_type));
        };
        let rules = &family.files.config;
        refuse_unsupported(json, rules)?;
        let hidden_size = count(json, "hidden_size")?;
        let num_attention_heads = count(json, "num_attention_heads")?;
        let default_head_dim = rules
            .default_head_dim
            .filter(|_| json.get("head_dim").is_none());
        let head_dim = optional_count(json, "head_dim")?.or(default_head_dim);
        let head_dim = head_dim.unwrap_or(hidden_size / num_attention_heads.max(1));
        foreign_keys::refuse(json, head_dim, rules.own_keys)?;
        let max_position_embeddings = count(json, "max_position_embeddings")?;
        let num_hidden_layers = count(json, "num_hidden_layers")?;
        if num_hidden_layers > MODEL_LAYERS {
            let hint = "a model has 10000 blocks at most (MODEL_LAYERS in docs/limits.md); fetch or convert it again";
            let field = "num_hidden_layers";
            return Err(DecoderConfigError::unsupported(
                field,
                num_hidden_layers,
                hint,
            ));
        }
        let multipliers = FamilyMultipliers::from_json(json, rules.multipliers, hidden_size)?;
        if rules.rotary.requires_rope_parameters && json.get("rope_theta").is_none() {
            return Err(wrong_field(
                json,
                "rope_theta",
                "a number above 0, also within rope_parameters",
            ));
        }
        let rotary = Rotary {
            theta: optional_number(json, "rope_theta")?.unwrap_or(rules.rotary.theta),
            dim: rotary::rotated_dim(json, rules.rotary.partial, head_dim)?,
            scaling: RopeScaling::None,
        };
        let context = rotary::Context {
            json,
            max_position_embeddings,
            dim: rotary.dim,
            rules: rules.rotary,
        };
        let scaling = RopeScaling::from_json(context)?;
        let local_rotary = match rules.rotary.local_theta {
            Some(theta) => Some(Rotary {
                theta: optional_number(json, "rope_local_base_freq")?.unwrap_or(theta),
                ..rotary.clone()
            }),
            None => None,
        };
        let has_bias = |bias: Bias| match bias {
            Bias::Always => Ok(true),
            Bias::Never => Ok(false),
            Bias::Flag(key) => {
                let default = key == "attention_bias" && rules.default_attention_bias;
                flag(json, key, default)
            }
        };
        let config = Self {
            layers: layers::from_json(json, rules, num_hidden_layers)?,
            linear: LinearShape::from_json(json, rules)?,
            query_scaling: QueryScaling::from_json(json, &scaling)?,
            rotary: Rotary { scaling, ..rotary },
            local_rotary,
            embedding_multiplier: multipliers.embedding,
            attention_multiplier: multipliers.attention,
            residual_multiplier: multipliers.residual,
            logits_scaling: multipliers.logits,
            hidden_size,
            intermediate_size: count(json, "intermediate_size")?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: key_value_heads(json, rules, num_attention_heads)?,
            head_dim,
            vocab_size: count(json, "vocab_size")?,
            rms_norm_eps: number(json, "rms_norm_eps")?,
            max_position_embeddings,
            tie_word_embeddings: flag(json, "tie_word_embeddings", rules.default_tie)?,
            qkv_bias: has_bias(family.biases.qkv)?,
            o_bias: has_bias(family.biases.output)?,
            dropouts: dropouts(json, rules)?,
            family,
        };
        config.check_sizes()?;
        Ok(config)
    }

    fn check_sizes(&self) -> Result<(), DecoderConfigError> {
        let unsupported = |field, value: usize, hint: &'static str| {
            Err(DecoderConfigError::unsupported(field, value, hint))
        };
        if self.head_dim > MODEL_HEAD_DIM {
            let hint = "a head has 65536 numbers at most (MODEL_HEAD_DIM in docs/limits.md); fetch or convert the model again";
            return unsupported("head_dim", self.head_dim, hint);
        }
        let [d, heads] = [
            self.hidden_size,
            self.head_dim * (self.num_attention_heads + self.num_key_value_heads),
        ]
        .map(|n| n as u128);
        let linear = self.linear.map(|linear| linear.heads.columns());
        let linear: u128 = linear.iter().flatten().map(|&n| n as u128).sum();
        let block = 3 * d * self.intermediate_size as u128 + 2 * d * (heads + linear);
        let n_parameters = self.num_hidden_layers as u128 * block + 2 * d * self.vocab_size as u128;
        if n_parameters > MODEL_PARAMETERS {
            let hint = "the sizes imply more than 2^44 parameters (MODEL_PARAMETERS in docs/limits.md); fetch or convert the model again";
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
        let local = self.local_rotary.iter().chain([&self.rotary]);
        let long = local.clone().filter_map(Rotary::long_frequencies);
        let mut frequencies = local
            .map(Rotary::inverse_frequencies)
            .chain(long.map(|(_, frequencies)| frequencies))
            .flatten();
        if frequencies.any(|f| !(f as f32).is_finite()) {
            return Err(DecoderConfigError::unsupported(
                "rope_theta",
                self.rotary.theta,
                "with the factor of rope_scaling, the rotary frequencies are not finite; \
                     fetch or convert the model again",
            ));
        }
        Ok(())
    }

    /// Linear layers of a block.
    pub fn projections(&self, layer: usize) -> &'static Projections {
        match self.layers[layer].mixer {
            Mixer::Attention => self.family.projections,
            Mixer::Linear => &LINEAR,
        }
    }

    /// Context of pre-training, in tokens, if longer texts have different rotary frequencies.
    pub fn short_context(&self) -> Option<usize> {
        self.rotary.long_frequencies().map(|(context, _)| context)
    }

    /// Number of frozen parameters; a tied head is counted once.
    pub fn n_parameters(&self) -> usize {
        crate::models::load::expected_tensors(self)
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum()
    }
}

/// Dropout probabilities above 0, by field.
fn dropouts(
    json: &Value,
    rules: &ConfigRules,
) -> Result<Vec<(&'static str, f64)>, DecoderConfigError> {
    let mut dropouts = Vec::new();
    for &(field, default) in rules.dropouts {
        let dropout = match json.get(field) {
            None => default,
            Some(_) => probability(json, field)?,
        };
        if dropout > 0.0 {
            dropouts.push((field, dropout));
        }
    }
    Ok(dropouts)
}

/// Number of key/value heads: the family's default if the key is absent, and one per query head if
/// it is `null`.
fn key_value_heads(
    json: &Value,
    rules: &ConfigRules,
    num_attention_heads: usize,
) -> Result<usize, DecoderConfigError> {
    let key = "num_key_value_heads";
    let default = match json.get(key) {
        None => rules.default_key_value_heads,
        Some(_) => None,
    };
    Ok(optional_count(json, key)?
        .or(default)
        .unwrap_or(num_attention_heads))
}

fn refuse_unsupported(json: &Value, rules: &ConfigRules) -> Result<(), DecoderConfigError> {
    let unsupported = |field, value: &Value, hint: &'static str| {
        Err(DecoderConfigError::unsupported(field, value, hint))
    };
    // Some families also write `hidden_activation`; both fields must agree.
    for field in ["hidden_act", "hidden_activation"] {
        let known = Some(rules.hidden_act);
        if let Some(value) = json.get(field).filter(|v| v.as_str() != known) {
            let hint = format!("the supported value is {}", rules.hidden_act);
            return Err(DecoderConfigError::unsupported(field, value, hint));
        }
    }
    if json.get("use_bidirectional_attention") == Some(&Value::Bool(true)) {
        let field = "use_bidirectional_attention";
        return unsupported(field, &json[field], "only false is supported");
    }
    if let Some(value) = json.get("rope_parameters") {
        return unsupported("rope_parameters", value, "write it as rope_scaling");
    }
    if json.get("mlp_bias") == Some(&Value::Bool(true)) {
        return unsupported("mlp_bias", &json["mlp_bias"], "only false is supported");
    }
    if let Some(value) = json.get("quantization_config").filter(|v| !v.is_null()) {
        return unsupported("quantization_config", value, "load the unquantised weights");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::layers::Rotation;
    use super::*;

    fn llama() -> Value {
        json!({
            "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 32768,
        })
    }

    /// Parses the config of a Llama with these fields.
    fn llama_with(fields: Value) -> Result<DecoderConfig, String> {
        let mut file = llama();
        let fields = fields.as_object().unwrap().clone();
        file.as_object_mut().unwrap().extend(fields);
        DecoderConfig::from_json(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn conflicting_duplicates_are_refused() {
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
        let original = |config: Result<DecoderConfig, String>| match config.unwrap().rotary.scaling
        {
            RopeScaling::Llama3 {
                original_max_position_embeddings,
                ..
            } => original_max_position_embeddings,
            other => panic!("{other:?}"),
        };
        // The values of transformers 5.23's `AutoConfig`.
        for (fields, expected) in [
            (json!({"rope_scaling": llama3(json!({key: 2048}))}), 2048.0),
            (
                json!({"rope_scaling": llama3(json!({key: 2048})), key: 2048}),
                2048.0,
            ),
            (json!({"rope_scaling": llama3(json!({}))}), 32768.0),
        ] {
            assert_eq!(original(llama_with(fields)), expected);
        }
        for (fields, expected) in [
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
                json!({"layer_types": ["full_attention", "sliding_attention"]}),
                "layer_types = \"sliding_attention\"",
            ),
            (
                json!({"use_sliding_window": true}),
                "use_sliding_window = true is not supported",
            ),
            (
                json!({"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]}),
                "layer_types = \"sliding_attention\" is not supported; the file does not set the window",
            ),
            (
                json!({"model_type": "qwen3", "layer_types": ["full_attention"]}),
                "layer_types must be a list with the type of each block",
            ),
            (
                json!({"model_type": "smollm3", "no_rope_layers": [1, 2]}),
                "no_rope_layers must be a list of 0 or 1",
            ),
            (
                json!({"model_type": "phi3", "rope_scaling": {"rope_type": "longrope",
                    "short_factor": [1.0], "long_factor": [1.0]}}),
                "short_factor must be a list of numbers above 0",
            ),
            (json!({"model_type": "ministral3"}), "rope_theta must be"),
            (
                json!({"model_type": "phi3", "partial_rotary_factor": 0.4}),
                "partial_rotary_factor = 0.4",
            ),
            (
                json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                    "llama_4_scaling_beta": 0.1}}),
                "rope_scaling.llama_4_scaling_beta = 0.1",
            ),
            (
                json!({"attention_dropout": 1.5}),
                "attention_dropout must be",
            ),
        ] {
            let error = llama_with(fields).unwrap_err();
            assert!(error.contains(expected), "no {expected:?} in {error}");
        }
        assert_eq!(
            llama_with(json!({"attention_dropout": 0.5}))
                .unwrap()
                .dropouts,
            [("attention_dropout", 0.5)]
        );
    }

    #[test]
    fn absent_key_value_heads_use_the_default_of_the_family() {
        let heads = |fields: Value| llama_with(fields).unwrap().num_key_value_heads;
        let many = json!({"num_attention_heads": 32, "head_dim": 2, "sliding_window": null});
        for (model_type, absent) in [("llama", 32), ("mistral", 8), ("qwen2", 32)] {
            let mut fields = many.clone();
            fields["model_type"] = model_type.into();
            assert_eq!(heads(fields.clone()), absent, "{model_type}");
            fields["num_key_value_heads"] = Value::Null;
            assert_eq!(heads(fields), 32, "{model_type}");
        }
    }

    /// Windows of a model's blocks.
    fn windows(fields: Value) -> Vec<Option<usize>> {
        let config = llama_with(fields).unwrap();
        config.layers.iter().map(|layer| layer.window).collect()
    }

    #[test]
    fn windows_match_transformers() {
        let mistral = |window: Value| {
            let mut fields = json!({"model_type": "mistral", "num_key_value_heads": 4});
            if window != json!("absent") {
                fields["sliding_window"] = window;
            }
            windows(fields)
        };
        assert_eq!(mistral(json!("absent")), [Some(4096); 2]);
        assert_eq!(mistral(Value::Null), [None; 2]);
        assert_eq!(mistral(json!(64)), [Some(64); 2]);
        let qwen = |more: Value| {
            let mut fields = json!({"model_type": "qwen3", "num_key_value_heads": 4,
                "use_sliding_window": true, "sliding_window": 8});
            let more = more.as_object().unwrap().clone();
            fields.as_object_mut().unwrap().extend(more);
            windows(fields)
        };
        assert_eq!(qwen(json!({})), [None; 2]);
        assert_eq!(qwen(json!({"max_window_layers": 1})), [None, Some(8)]);
        assert_eq!(qwen(json!({"max_window_layers": 0})), [Some(8); 2]);
        assert_eq!(
            qwen(json!({"max_window_layers": 0, "use_sliding_window": false})),
            [None; 2]
        );
        assert_eq!(
            qwen(json!({"layer_types": ["sliding_attention", "full_attention"]})),
            [Some(8), None]
        );
        let parse = |model_type: &str, layers: usize| {
            windows(
                json!({"model_type": model_type, "num_hidden_layers": layers,
                "num_key_value_heads": 4, "head_dim": 8}),
            )
        };
        let [near, far] = [Some(4096), None];
        assert_eq!(parse("olmo3", 4), [near, near, near, far]);
        // These families have no window by default.
        for model_type in ["llama", "phi3", "granite", "seed_oss", "smollm3"] {
            assert_eq!(parse(model_type, 2), [far; 2], "{model_type}");
        }
    }

    #[test]
    fn blocks_without_rotation_match_transformers() {
        let rotates = |more: Value| -> Vec<bool> {
            let mut fields = json!({"model_type": "smollm3", "num_hidden_layers": 4});
            let more = more.as_object().unwrap().clone();
            fields.as_object_mut().unwrap().extend(more);
            let layers = llama_with(fields).unwrap().layers;
            let rotates = layers.iter().map(|layer| layer.rotation != Rotation::None);
            rotates.collect()
        };
        assert_eq!(rotates(json!({})), [true, true, true, false]);
        let each = json!({"no_rope_layer_interval": 2});
        assert_eq!(rotates(each), [true, false, true, false]);
        let list = json!({"no_rope_layers": [0, 1, 1, 0, 1], "no_rope_layer_interval": 2});
        assert_eq!(rotates(list), [false, true, true, false]);
    }
}
