//! A BERT sentence encoder such as all-MiniLM-L6-v2: computes embeddings from the token IDs of
//! sentences.
//!
//! All parameters are in one flat buffer ([`parameters`]), which an optimizer can update. The
//! encoder ([`encoder`]) uses slices of it, with or without autodiff.

pub mod encoder;
pub mod parameters;

use serde_json::Value;
use tooltune_checkpoints::families::BERT;

use crate::budgets::{MODEL_LAYERS, MODEL_PARAMETERS};
pub use encoder::{EmbeddingHead, MiniLm, Sentence};
pub use parameters::{ParameterLayout, ParameterSlot};

/// Shape of the encoder, named as in its `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct MiniLmConfig {
    /// Width of the hidden states and of the embedding.
    pub hidden_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Number of attention heads.
    pub num_attention_heads: usize,
    /// Width of the feed-forward block.
    pub intermediate_size: usize,
    /// Rows of the word embedding.
    pub vocab_size: usize,
    /// Rows of the position embedding.
    pub max_position_embeddings: usize,
    /// Rows of the token type embedding.
    pub type_vocab_size: usize,
    /// Epsilon of layer norms, added to the variance.
    pub layer_norm_eps: f64,
}

impl MiniLmConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    ///
    /// A field is missing or not supported; the message names it.
    pub fn from_json(json: &Value) -> Result<Self, String> {
        let count = |field: &str| {
            json[field]
                .as_u64()
                .filter(|n| (1..1 << 32).contains(n))
                .map(|n| n as usize)
                .ok_or(format!(
                    "config.json: {field} must be a whole number above 0"
                ))
        };
        if json["model_type"] != BERT.model_type || json["hidden_act"] != BERT.hidden_act {
            return Err("config.json: the encoder must be a BERT model with gelu".to_string());
        }
        let positions = &json["position_embedding_type"];
        if !positions.is_null() && positions != "absolute" {
            return Err(format!(
                "config.json: position_embedding_type = {positions} is not supported; use a model \
                 with absolute positions"
            ));
        }
        if json["is_decoder"] == true {
            return Err(
                "config.json: is_decoder = true is not supported; use an encoder".to_string(),
            );
        }
        for key in ["is_encoder_decoder", "add_cross_attention"] {
            if json[key] == true {
                return Err(format!(
                    "config.json: {key} = true is not supported; use an encoder"
                ));
            }
        }
        let layer_norm_eps = match &json["layer_norm_eps"] {
            Value::Null => Some(BERT.layer_norm_eps),
            value => value.as_f64().filter(|eps| eps.is_finite() && *eps > 0.0),
        };
        let config = Self {
            hidden_size: count("hidden_size")?,
            num_hidden_layers: count("num_hidden_layers")?,
            num_attention_heads: count("num_attention_heads")?,
            intermediate_size: count("intermediate_size")?,
            vocab_size: count("vocab_size")?,
            max_position_embeddings: count("max_position_embeddings")?,
            type_vocab_size: count("type_vocab_size")?,
            layer_norm_eps: layer_norm_eps
                .ok_or("config.json: layer_norm_eps must be a number above 0")?,
        };
        config.check_sizes()?;
        Ok(config)
    }

    fn check_sizes(&self) -> Result<(), String> {
        if self.num_hidden_layers > MODEL_LAYERS {
            return Err(format!(
                "config.json: num_hidden_layers = {} is not supported; an encoder has {MODEL_LAYERS} \
                 blocks at most (MODEL_LAYERS in docs/limits.md); fetch or convert it again",
                self.num_hidden_layers
            ));
        }
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            return Err(format!(
                "config.json: hidden_size = {} is not a multiple of num_attention_heads = {}; fetch or \
                 convert the encoder again",
                self.hidden_size, self.num_attention_heads
            ));
        }
        // `[CLS]`, `[SEP]`, and one token in between.
        if self.max_position_embeddings < 3 {
            return Err(format!(
                "config.json: max_position_embeddings = {} leaves no position for a text between \
                 [CLS] and [SEP]; fetch or convert the encoder again",
                self.max_position_embeddings
            ));
        }
        let d = self.hidden_size as u128;
        let tables = self.vocab_size + self.max_position_embeddings + self.type_vocab_size;
        let block = 4 * d * d + 2 * d * self.intermediate_size as u128;
        let n_parameters = d * tables as u128 + self.num_hidden_layers as u128 * block;
        if n_parameters > MODEL_PARAMETERS {
            return Err(format!(
                "config.json: hidden_size = {} implies {n_parameters} parameters with the other sizes, \
                 more than {MODEL_PARAMETERS} (MODEL_PARAMETERS in docs/limits.md); fetch or convert the encoder again",
                self.hidden_size
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Parses the config of all-MiniLM-L6-v2 with these fields.
    fn minilm_with(fields: Value) -> Result<MiniLmConfig, String> {
        let mut file = json!({
            "model_type": "bert", "hidden_act": "gelu", "hidden_size": 384,
            "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536,
            "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
        });
        let fields = fields.as_object().unwrap().clone();
        file.as_object_mut().unwrap().extend(fields);
        MiniLmConfig::from_json(&file)
    }

    #[test]
    fn invalid_encoder_sizes_are_refused() {
        assert_eq!(minilm_with(json!({})).unwrap().layer_norm_eps, 1e-12);
        for (fields, expected) in [
            (
                json!({"num_attention_heads": 7}),
                "not a multiple of num_attention_heads = 7",
            ),
            (
                json!({"num_attention_heads": 0}),
                "num_attention_heads must be",
            ),
            (
                json!({"num_hidden_layers": 10_000_000}),
                "10000 blocks at most",
            ),
            (
                json!({"max_position_embeddings": 1}),
                "leaves no position for a text",
            ),
            (
                json!({"max_position_embeddings": 2}),
                "leaves no position for a text",
            ),
            (json!({"layer_norm_eps": "small"}), "layer_norm_eps must be"),
            (json!({"layer_norm_eps": -1.0}), "layer_norm_eps must be"),
            (
                json!({"hidden_size": 4_294_967_292_u64}),
                "parameters with the other sizes",
            ),
            (
                json!({"position_embedding_type": "relative_key"}),
                "position_embedding_type",
            ),
            (json!({"is_decoder": true}), "is_decoder"),
            (json!({"is_encoder_decoder": true}), "is_encoder_decoder"),
        ] {
            let error = minilm_with(fields.clone()).unwrap_err();
            assert!(error.contains(expected), "{fields}: {error}");
        }
    }
}
