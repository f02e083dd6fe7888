//! Reads the multipliers of a network from a `config.json`.

use serde_json::Value;
use tooltune_checkpoints::families::Multipliers;

use super::config::DecoderConfigError;
use super::config_fields::optional_number;
use super::rotary::RopeScaling;

/// Scaling of queries by position: `1 + beta ln(1 + ⌊position / context⌋)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryScaling {
    /// `llama_4_scaling_beta`.
    pub beta: f64,
    /// Context of pre-training, in tokens.
    pub context: f64,
}

impl QueryScaling {
    /// Reads the fields of Ministral 3's scaling table.
    pub(super) fn from_json(
        json: &Value,
        scaling: &RopeScaling,
    ) -> Result<Option<Self>, DecoderConfigError> {
        let field = "llama_4_scaling_beta";
        let Some(beta) = json.get("rope_scaling").and_then(|table| table.get(field)) else {
            return Ok(None);
        };
        match (beta.as_f64(), scaling) {
            (None, _) if beta.is_null() => Ok(None),
            (Some(0.0), _) => Ok(None),
            (
                Some(beta),
                RopeScaling::Yarn {
                    original_max_position_embeddings: context,
                    ..
                },
            ) if json["model_type"] == "ministral3" => Ok(Some(Self {
                beta,
                context: *context,
            })),
            _ => Err(DecoderConfigError::unsupported(
                "rope_scaling.llama_4_scaling_beta",
                beta,
                "query scaling by position is only supported for ministral3 with yarn",
            )),
        }
    }
}

/// The multipliers in a config.
pub(super) struct FamilyMultipliers {
    pub(super) embedding: f64,
    pub(super) attention: Option<f64>,
    pub(super) residual: f64,
    pub(super) logits: f64,
}

impl FamilyMultipliers {
    pub(super) fn from_json(
        json: &Value,
        rules: Multipliers,
        hidden_size: usize,
    ) -> Result<Self, DecoderConfigError> {
        let or_one = |field| Ok(optional_number(json, field)?.unwrap_or(1.0));
        let none = Self {
            embedding: 1.0,
            attention: None,
            residual: 1.0,
            logits: 1.0,
        };
        match rules {
            Multipliers::None => Ok(none),
            Multipliers::Granite => Ok(Self {
                embedding: or_one("embedding_multiplier")?,
                attention: Some(or_one("attention_multiplier")?),
                residual: or_one("residual_multiplier")?,
                logits: or_one("logits_scaling")?,
            }),
            Multipliers::Gemma => {
                let scalar = optional_number(json, "query_pre_attn_scalar")?.unwrap_or(256.0);
                Ok(Self {
                    embedding: (hidden_size as f64).sqrt(),
                    attention: Some(1.0 / scalar.sqrt()),
                    ..none
                })
            }
        }
    }
}
