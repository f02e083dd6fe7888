//! Files of Ministral 3's language models.

use super::{
    AutoTokenizer, ConfigRules, Family, GGUF_LIKE_LLAMA, GgufRules, LIKE_LLAMA, LayerRules,
    RotaryRules,
};

/// Ministral 3, `Ministral3ForCausalLM`.
///
/// # Source
///
/// `configuration_ministral3.py` of transformers 5.23; ggml-org/llama.cpp, `llama-arch.cpp`.
pub const MINISTRAL3: Family = Family {
    model_type: "ministral3",
    class: "Ministral3ForCausalLM",
    models: "Ministral 3",
    config: ConfigRules {
        default_key_value_heads: Some(8),
        default_head_dim: Some(128),
        layers: LayerRules::IfGiven,
        rotary: RotaryRules {
            requires_rope_parameters: true,
            ..LIKE_LLAMA.rotary
        },
        ..LIKE_LLAMA
    },
    config_types: include_str!("../../../tests/fixtures/models/ministral3/config_types.json"),
    auto_tokenizer: AutoTokenizer::OfFile,
    gguf: GgufRules {
        architecture: "mistral3",
        numbers: &[(
            "attention.temperature_scale",
            "rope_scaling.llama_4_scaling_beta",
        )],
        ..GGUF_LIKE_LLAMA
    },
};
