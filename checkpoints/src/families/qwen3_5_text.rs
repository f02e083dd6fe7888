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
/// `configuration_qwen3_5.py` of transformers 5.23; ggml-org/llama.cpp, `llama-arch.cpp`,
/// `models/qwen35.cpp` and `conversion/qwen.py`.
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
        head_rows: HeadRows::ValuesByTurns,
        biases: false,
        in_block: &IN_BLOCK,
        parameters: &PARAMETERS,
        norm_offset: 1.0,
        norms_without_offset: &["linear_attn.norm"],
        ..GGUF_LIKE_LLAMA
    },
};

/// Modules of a block of full attention, and of one of linear attention.
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

/// Modules of linear attention, which llama.cpp names after state-space models.
const LINEAR_ATTENTION: [ModuleName; 7] = [
    ModuleName::new("attn_qkv", "linear_attn.in_proj_qkv"),
    ModuleName::new("attn_gate", "linear_attn.in_proj_z"),
    ModuleName::new("ssm_beta", "linear_attn.in_proj_b"),
    ModuleName::new("ssm_alpha", "linear_attn.in_proj_a"),
    ModuleName::new(CONVOLUTION, "linear_attn.conv1d"),
    ModuleName::new("ssm_norm", "linear_attn.norm"),
    ModuleName::new("ssm_out", "linear_attn.out_proj"),
];

/// The convolution of linear attention in GGUF: no linear layer, a matrix there, and always in f32.
pub(crate) const CONVOLUTION: &str = "ssm_conv1d";

/// The logarithms of rates, of which GGUF holds the rates, below 0.
pub(crate) const LOG_RATES: &str = "linear_attn.A_log";

/// Parameters of linear attention that are no module's weight or bias.
const PARAMETERS: [ModuleName; 2] = [
    ModuleName::new("ssm_a", LOG_RATES),
    ModuleName::new("ssm_dt.bias", "linear_attn.dt_bias"),
];
