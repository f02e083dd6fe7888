//! Files of Gemma 3's language models, including FunctionGemma.

use super::qwen3::{KEY_NORM, QUERY_NORM};
use super::{
    AutoTokenizer, ConfigRules, DefaultValue, Family, GGUF_LIKE_LLAMA, GgufRules, HeadRows,
    LIKE_LLAMA, LayerRules, ModuleName, Multipliers, RotaryRules, llama,
};

/// Gemma 3, `Gemma3ForCausalLM`.
///
/// # Source
///
/// `configuration_gemma3.py` of transformers 5.23; ggml-org/llama.cpp, `llama-arch.cpp`.
pub const GEMMA3_TEXT: Family = Family {
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    models: "Gemma 3, FunctionGemma",
    config: ConfigRules {
        hidden_act: "gelu_pytorch_tanh",
        default_key_value_heads: Some(4),
        // Gemma 3's own files omit these fields.
        defaults: &[
            ("num_attention_heads", DefaultValue::Count(8)),
            ("vocab_size", DefaultValue::Count(262_208)),
            ("max_position_embeddings", DefaultValue::Count(131_072)),
            ("rms_norm_eps", DefaultValue::Number(1e-6)),
        ],
        default_head_dim: Some(256),
        default_tie: true,
        layers: LayerRules::WindowExceptEvery(6),
        rotary: RotaryRules {
            theta: 1_000_000.0,
            local_theta: Some(10_000.0),
            ..LIKE_LLAMA.rotary
        },
        multipliers: Multipliers::Gemma,
        own_keys: &["query_pre_attn_scalar"],
        ..LIKE_LLAMA
    },
    config_types: include_str!("../../../tests/fixtures/models/gemma3_text/config_types.json"),
    auto_tokenizer: AutoTokenizer::OfFile,
    gguf: GgufRules {
        architecture: "gemma3",
        head_rows: HeadRows::AsIs,
        in_block: &IN_BLOCK,
        biases: false,
        norm_offset: 1.0,
        numbers: &[("rope.freq_base_swa", "rope_local_base_freq")],
        ..GGUF_LIKE_LLAMA
    },
};

/// Modules of a block: Llama's projections, with norms before and after attention and the
/// feed-forward block.
const IN_BLOCK: [ModuleName; 13] = {
    let [attn, q, k, v, o, _, gate, up, down] = llama::IN_BLOCK;
    let after_attention = ModuleName::new("post_attention_norm", "post_attention_layernorm");
    let before = ModuleName::new("ffn_norm", "pre_feedforward_layernorm");
    let after = ModuleName::new("post_ffw_norm", "post_feedforward_layernorm");
    let norms = [after_attention, before, after];
    let [a, b, c] = norms;
    [
        attn, q, k, v, QUERY_NORM, KEY_NORM, o, a, b, gate, up, down, c,
    ]
};
