//! Files of Qwen2 and Qwen2.5.

use super::{
    AutoTokenizer, ConfigRules, Family, GGUF_LIKE_LLAMA, GgufRules, HeadRows, LIKE_LLAMA,
    LayerRules,
};

/// Qwen2, `Qwen2ForCausalLM`.
///
/// # Source
///
/// `configuration_qwen2.py` of transformers 5.23.
pub const QWEN2: Family = Family {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    models: "Qwen2, Qwen2.5",
    config: ConfigRules {
        default_key_value_heads: Some(32),
        layers: LayerRules::FromLayer,
        ..LIKE_LLAMA
    },
    config_types: include_str!("../../../tests/fixtures/models/qwen2/config_types.json"),
    auto_tokenizer: AutoTokenizer::Always("Qwen2Tokenizer"),
    gguf: GgufRules {
        architecture: "qwen2",
        head_rows: HeadRows::AsIs,
        biases: false,
        ..GGUF_LIKE_LLAMA
    },
};
