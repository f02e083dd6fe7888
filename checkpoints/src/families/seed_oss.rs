//! Files of Seed-OSS.

use super::{
    AutoTokenizer, ConfigRules, Family, GGUF_LIKE_LLAMA, GgufRules, HeadRows, LIKE_LLAMA,
    ModuleName, llama,
};

/// Seed-OSS, `SeedOssForCausalLM`.
///
/// # Source
///
/// `configuration_seed_oss.py` of transformers 5.23; ggml-org/llama.cpp, `llama-arch.cpp`.
pub const SEED_OSS: Family = Family {
    model_type: "seed_oss",
    class: "SeedOssForCausalLM",
    models: "Seed-OSS",
    config: ConfigRules {
        default_key_value_heads: Some(8),
        default_head_dim: Some(128),
        default_attention_bias: true,
        dropouts: &[("attention_dropout", 0.1), ("residual_dropout", 0.1)],
        ..LIKE_LLAMA
    },
    config_types: include_str!("../../../tests/fixtures/models/seed_oss/config_types.json"),
    auto_tokenizer: AutoTokenizer::Named,
    gguf: GgufRules {
        architecture: "seed_oss",
        head_rows: HeadRows::AsIs,
        biases: false,
        in_block: &IN_BLOCK,
        ..GGUF_LIKE_LLAMA
    },
};

/// Modules of a block: Llama's, with another name for the norm before the feed-forward block.
const IN_BLOCK: [ModuleName; 9] = {
    let [a, b, c, d, e, _, g, h, i] = llama::IN_BLOCK;
    let norm = ModuleName::new("post_attention_norm", "post_attention_layernorm");
    [a, b, c, d, e, norm, g, h, i]
};
