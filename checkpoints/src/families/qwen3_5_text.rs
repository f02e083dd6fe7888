//! Describes the files of Qwen3.5's dense language models.

use super::qwen3::{KEY_NORM, QUERY_NORM};
use super::{
    Absent, AutoTokenizer, ConfigRules, Family, GGUF_LIKE_LLAMA, GgufRules, HeadRows, LIKE_LLAMA,
    LayerRules, ModuleName, RotaryRules, llama,
};

/// Qwen3.5, `Qwen3_5ForCausalLM`: blocks of linear attention, and of full attention between them.
///
/// # Source
///
/// `configuration_qwen3_5.py` of transformers 5.23; ggml-org/llama.cpp, `llama-arch.cpp` and
/// `convert_hf_to_gguf.py`.
pub const QWEN3_5_TEXT: Family = Family {
    model_type: "qwen3_5_text",
    class: "Qwen3_5ForCausalLM",
    config: ConfigRules {
        absent_key_value_heads: Some(4),
        absent: &[
            ("linear_num_key_heads", Absent::Count(16)),
            ("linear_num_value_heads", Absent::Count(32)),
            ("linear_key_head_dim", Absent::Count(128)),
            ("linear_value_head_dim", Absent::Count(128)),
            ("linear_conv_kernel_dim", Absent::Count(4)),
            ("max_position_embeddings", Absent::Count(32_768)),
            ("rms_norm_eps", Absent::Number(1e-6)),
        ],
        absent_head_dim: Some(256),
        layers: LayerRules::LinearButEach(4),
        rotary: RotaryRules {
            partial: Some(0.25),
            ..LIKE_LLAMA.rotary
        },
        own_keys: &["attn_output_gate", "output_gate_type"],
        ..LIKE_LLAMA
    },
    auto_tokenizer: AutoTokenizer::Always("Qwen3_5Tokenizer"),
    gguf: GgufRules {
        architecture: "qwen35",
        head_rows: HeadRows::AsIs,
        biases: false,
        in_block: &IN_BLOCK,
        norm_offset: 1.0,
        refused: Some(
            "llama.cpp orders the value heads of linear attention, which share keys, otherwise, and \
             stores -exp(A_log); neither is done here",
        ),
        ..GGUF_LIKE_LLAMA
    },
};

/// Modules of a block of full attention; those of linear attention are neither read nor written.
const IN_BLOCK: [ModuleName; 11] = {
    let [a, b, c, d, e, _, g, h, i] = llama::IN_BLOCK;
    let after_attention = ModuleName::new("post_attention_norm", "post_attention_layernorm");
    [
        a,
        b,
        c,
        d,
        e,
        after_attention,
        g,
        h,
        i,
        QUERY_NORM,
        KEY_NORM,
    ]
};
