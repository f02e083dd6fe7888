//! A BERT sentence encoder: token ids of many sentences to a vector each, as all-MiniLM-L6-v2.
//!
//! All of its parameters are one flat buffer ([`parameters`]), which an optimizer can move; the
//! encoder ([`encoder`]) is cut out of it, with or without autodiff.

pub mod encoder;
pub mod parameters;

use serde_json::Value;

pub use encoder::{EmbeddingHead, MiniLm, Sentence};
pub use parameters::{ParameterLayout, ParameterSlot};

/// Shape of the encoder, named as in its `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct MiniLmConfig {
    /// Width of the hidden states and of the embedding.
    pub hidden_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Heads of attention.
    pub num_attention_heads: usize,
    /// Width of the feed-forward block.
    pub intermediate_size: usize,
    /// Rows of the word embedding.
    pub vocab_size: usize,
    /// Rows of the position embedding.
    pub max_position_embeddings: usize,
    /// Rows of the token type embedding.
    pub type_vocab_size: usize,
    /// Added to the variance.
    pub layer_norm_eps: f64,
}

impl MiniLmConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    ///
    /// A message that names the field that is missing or not supported.
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
        if json["model_type"] != "bert" || json["hidden_act"] != "gelu" {
            return Err("config.json: the encoder must be a BERT model with gelu".to_string());
        }
        let positions = &json["position_embedding_type"];
        if !positions.is_null() && positions != "absolute" {
            return Err(format!(
                "config.json: position_embedding_type = {positions} is not supported; take a model \
                 with absolute positions"
            ));
        }
        if json["is_decoder"] == true {
            return Err(
                "config.json: is_decoder = true is not supported; take an encoder".to_string(),
            );
        }
        Ok(Self {
            hidden_size: count("hidden_size")?,
            num_hidden_layers: count("num_hidden_layers")?,
            num_attention_heads: count("num_attention_heads")?,
            intermediate_size: count("intermediate_size")?,
            vocab_size: count("vocab_size")?,
            max_position_embeddings: count("max_position_embeddings")?,
            type_vocab_size: count("type_vocab_size")?,
            layer_norm_eps: json["layer_norm_eps"].as_f64().unwrap_or(1e-12),
        })
    }
}
