//! Files of Mistral, which use Llama's architecture in GGUF.

use super::{
    AutoTokenizer, ConfigRules, Family, GGUF_LIKE_LLAMA, GgufRules, LIKE_LLAMA, LayerRules,
};

/// Mistral, `MistralForCausalLM`.
///
/// # Source
///
/// `configuration_mistral.py` of transformers 5.23.
pub const MISTRAL: Family = Family {
    model_type: "mistral",
    class: "MistralForCausalLM",
    models: "Mistral",
    config: ConfigRules {
        default_key_value_heads: Some(8),
        layers: LayerRules::UnlessNull,
        ..LIKE_LLAMA
    },
    config_types: include_str!("../../../tests/fixtures/models/mistral/config_types.json"),
    auto_tokenizer: AutoTokenizer::OfFile,
    gguf: GgufRules {
        reads_architecture: false,
        ..GGUF_LIKE_LLAMA
    },
};
