//! Files of Mistral, which use Llama's architecture in GGUF.

use super::{AutoTokenizer, ConfigRules, Family, GGUF_LIKE_LLAMA, LIKE_LLAMA, LayerRules};

/// Mistral, `MistralForCausalLM`.
///
/// # Source
///
/// `configuration_mistral.py` of transformers 5.23.
pub const MISTRAL: Family = Family {
    model_type: "mistral",
    class: "MistralForCausalLM",
    config: ConfigRules {
        default_key_value_heads: Some(8),
        layers: LayerRules::UnlessNull,
        ..LIKE_LLAMA
    },
    auto_tokenizer: AutoTokenizer::OfFile,
    gguf: GGUF_LIKE_LLAMA,
};
