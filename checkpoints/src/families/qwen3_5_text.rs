//! Files of Qwen3.5's dense language models.

use super::qwen3::{KEY_NORM, QUERY_NORM};
use super::{
    AutoTokenizer, ConfigRules, DefaultValue, Family, GGUF_LIKE_LLAMA, GgufRules, HeadRows,
    LIKE_LLAMA, LayerRules, ModuleName, RotaryRules, llama,
};

/// Qwen3.5, `Qwen3_5ForCausalLM`: blocks of linear attention interleaved with blocks of full
/// attention.
///
/// # Source
///
/// `configuration_qwen3_5.py` of transformers 5.23; ggml-org/llama.cpp, `llama-arch.cpp`,
/// `models/qwen35.cpp` and `conversion/qwen.py`.
pub const QWEN3_5_TEXT: Family = Family {
    model_type: "qwen3_5_text",
    class: "Qwen3_5ForCausalLM",
    models: "Qwen3.5 (dense)",
    config: ConfigRules {
        default_key_value_heads: Some(4),
        defaults: &[
            ("linear_num_key_heads", DefaultValue::Count(16)),
            ("linear_num_value_heads", DefaultValue::Count(32)),
            ("linear_key_head_dim", DefaultValue::Count(128)),
            ("linear_value_head_dim", DefaultValue::Count(128)),
            ("linear_conv_kernel_dim", DefaultValue::Count(4)),
            ("max_position_embeddings", DefaultValue::Count(32_768)),
            ("rms_norm_eps", DefaultValue::Number(1e-6)),
        ],
        default_head_dim: Some(256),
        layers: LayerRules::LinearExceptEvery(4),
        rotary: RotaryRules {
            partial: Some(0.25),
            ..LIKE_LLAMA.rotary
        },
        own_keys: &["attn_output_gate", "output_gate_type"],
        ..LIKE_LLAMA
    },
    config_types: include_str!("../../../tests/fixtures/models/qwen3_5_text/config_types.json"),
    auto_tokenizer: AutoTokenizer::Always("Qwen3_5Tokenizer"),
    gguf: GgufRules {
        architecture: "qwen35",
        head_rows: HeadRows::ValueHeadsInterleaved,
        biases: false,
        in_block: &IN_BLOCK,
        parameters: &PARAMETERS,
        norm_offset: 1.0,
        norms_without_offset: &["linear_attn.norm"],
        ..GGUF_LIKE_LLAMA
    },
};

/// Modules of full-attention and linear-attention blocks.
const IN_BLOCK: [ModuleName; 18] = {
    let [a, b, c, d, e, _, g, h, i] = llama::IN_BLOCK;
    let after_attention = ModuleName::new("post_attention_norm", "post_attention_layernorm");
    let [j, k, l, m, n, o, p] = LINEAR_ATTENTION;
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
        j,
        k,
        l,
        m,
        n,
        o,
        p,
    ]
};

/// Linear-attention modules, which llama.cpp names after state-space models.
const LINEAR_ATTENTION: [ModuleName; 7] = [
    ModuleName::new("attn_qkv", "linear_attn.in_proj_qkv"),
    ModuleName::new("attn_gate", "linear_attn.in_proj_z"),
    ModuleName::new("ssm_beta", "linear_attn.in_proj_b"),
    ModuleName::new("ssm_alpha", "linear_attn.in_proj_a"),
    ModuleName::new(CONVOLUTION, "linear_attn.conv1d"),
    ModuleName::new("ssm_norm", "linear_attn.norm"),
    ModuleName::new("ssm_out", "linear_attn.out_proj"),
];

/// The linear-attention convolution in GGUF: a matrix in f32, not a linear layer.
pub(crate) const CONVOLUTION: &str = "ssm_conv1d";

/// Log decay rates; GGUF stores them as -exp(A_log).
pub(crate) const LOG_RATES: &str = "linear_attn.A_log";

/// Linear-attention parameters that are not the weight or bias of a module.
const PARAMETERS: [ModuleName; 2] = [
    ModuleName::new("ssm_a", LOG_RATES),
    ModuleName::new("ssm_dt.bias", "linear_attn.dt_bias"),
];
