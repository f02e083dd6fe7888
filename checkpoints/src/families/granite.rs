//! Files of Granite's dense models.

use super::{
    AutoTokenizer, ConfigRules, Family, GGUF_LIKE_LLAMA, GgufRules, LIKE_LLAMA, Multipliers,
};

/// Granite, `GraniteForCausalLM`.
///
/// # Source
///
/// `configuration_granite.py` of transformers 5.23; ggml-org/llama.cpp, `llama-arch.cpp`.
pub const GRANITE: Family = Family {
    model_type: "granite",
    class: "GraniteForCausalLM",
    models: "Granite 3 (dense)",
    config: ConfigRules {
        multipliers: Multipliers::Granite,
        own_keys: &[
            "embedding_multiplier",
            "attention_multiplier",
            "residual_multiplier",
            "logits_scaling",
        ],
        ..LIKE_LLAMA
    },
    config_types: include_str!("../../../tests/fixtures/models/granite/config_types.json"),
    auto_tokenizer: AutoTokenizer::OfFile,
    gguf: GgufRules {
        architecture: "granite",
        numbers: &[
            ("attention.scale", "attention_multiplier"),
            ("embedding_scale", "embedding_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("logit_scale", "logits_scaling"),
        ],
        ..GGUF_LIKE_LLAMA
    },
};
