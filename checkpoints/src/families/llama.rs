//! Describes the files of Llama 2 and 3, and of SmolLM2, which has the same model type.

use super::{AutoTokenizer, ConfigRules, Family, GgufRules, HeadRows, ModuleName, SlidingWindow};

/// Llama, `LlamaForCausalLM`.
pub const LLAMA: Family = Family {
    model_type: "llama",
    class: "LlamaForCausalLM",
    config: ConfigRules {
        hidden_act: "silu",
        absent_key_value_heads: None,
        sliding_window: SlidingWindow::IfUsed,
    },
    auto_tokenizer: AutoTokenizer::Named,
    gguf: GGUF,
};

/// What GGUF files of the architecture say, those of Mistral too.
pub(super) const GGUF: GgufRules = GgufRules {
    architecture: "llama",
    head_rows: HeadRows::HalvesInterleaved,
    written_from_config: true,
    outer: &OUTER,
    in_block: &IN_BLOCK,
};

/// Modules outside the blocks, which Qwen2 has as well.
pub(super) const OUTER: [ModuleName; 3] = [
    ModuleName::new("token_embd", "model.embed_tokens"),
    ModuleName::new("output_norm", "model.norm"),
    ModuleName::new("output", "lm_head"),
];

/// Modules of a block, which Qwen2 has as well.
pub(super) const IN_BLOCK: [ModuleName; 9] = [
    ModuleName::new("attn_norm", "input_layernorm"),
    ModuleName::new("attn_q", "self_attn.q_proj"),
    ModuleName::new("attn_k", "self_attn.k_proj"),
    ModuleName::new("attn_v", "self_attn.v_proj"),
    ModuleName::new("attn_output", "self_attn.o_proj"),
    ModuleName::new("ffn_norm", "post_attention_layernorm"),
    ModuleName::new("ffn_gate", "mlp.gate_proj"),
    ModuleName::new("ffn_up", "mlp.up_proj"),
    ModuleName::new("ffn_down", "mlp.down_proj"),
];
