//! Files of Qwen3's dense models.

use super::{
    AutoTokenizer, ConfigRules, Family, GGUF_LIKE_LLAMA, GgufRules, HeadRows, LIKE_LLAMA,
    LayerRules, ModuleName, llama,
};

/// Qwen3, `Qwen3ForCausalLM`.
///
/// # Source
///
/// `configuration_qwen3.py` of transformers 5.23; ggml-org/llama.cpp, `llama-arch.cpp`.
pub const QWEN3: Family = Family {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    models: "Qwen3 (dense)",
    config: ConfigRules {
        default_key_value_heads: Some(32),
        default_head_dim: Some(128),
        layers: LayerRules::FromLayer,
        ..LIKE_LLAMA
    },
    config_types: include_str!("../../../tests/fixtures/models/qwen3/config_types.json"),
    auto_tokenizer: AutoTokenizer::Named,
    gguf: GgufRules {
        architecture: "qwen3",
        head_rows: HeadRows::AsIs,
        biases: false,
        in_block: &IN_BLOCK,
        ..GGUF_LIKE_LLAMA
    },
};

/// Modules of a block: Llama's modules and the norms of query and key heads.
const IN_BLOCK: [ModuleName; 11] = {
    let [a, b, c, d, e, f, g, h, i] = llama::IN_BLOCK;
    [a, b, c, d, e, f, g, h, i, QUERY_NORM, KEY_NORM]
};

/// Query and key norms, shared with other families.
pub(super) const QUERY_NORM: ModuleName = ModuleName::new("attn_q_norm", "self_attn.q_norm");
pub(super) const KEY_NORM: ModuleName = ModuleName::new("attn_k_norm", "self_attn.k_norm");
