//! Files of SmolLM3.

use super::{
    AutoTokenizer, ConfigRules, Family, GGUF_LIKE_LLAMA, GgufRules, LIKE_LLAMA, LayerRules,
    RotaryRules,
};

/// SmolLM3, `SmolLM3ForCausalLM`.
///
/// # Source
///
/// `configuration_smollm3.py` of transformers 5.23; ggml-org/llama.cpp, `llama-arch.cpp`.
pub const SMOLLM3: Family = Family {
    model_type: "smollm3",
    class: "SmolLM3ForCausalLM",
    models: "SmolLM3",
    config: ConfigRules {
        default_key_value_heads: Some(4),
        default_tie: true,
        layers: LayerRules::NoRopeEvery(4),
        rotary: RotaryRules {
            theta: 2_000_000.0,
            ..LIKE_LLAMA.rotary
        },
        own_keys: &["no_rope_layers", "no_rope_layer_interval"],
        ..LIKE_LLAMA
    },
    config_types: include_str!("../../../tests/fixtures/models/smollm3/config_types.json"),
    auto_tokenizer: AutoTokenizer::Named,
    gguf: GgufRules {
        architecture: "smollm3",
        biases: false,
        ..GGUF_LIKE_LLAMA
    },
};
