//! Files of Llama 2 and 3, and of SmolLM2, which has the same model type.

use super::{AutoTokenizer, Family, GGUF_LIKE_LLAMA, LIKE_LLAMA, ModuleName};

/// Llama, `LlamaForCausalLM`.
pub const LLAMA: Family = Family {
    model_type: "llama",
    class: "LlamaForCausalLM",
    models: "Llama 2 to 3.2, Vicuna, SmolLM2",
    config: LIKE_LLAMA,
    config_types: include_str!("../../../tests/fixtures/models/llama31/config_types.json"),
    auto_tokenizer: AutoTokenizer::Named,
    gguf: GGUF_LIKE_LLAMA,
};

/// Modules outside the blocks, shared by most families.
pub(super) const OUTER: [ModuleName; 3] = [
    ModuleName::new("token_embd", "model.embed_tokens"),
    ModuleName::new("output_norm", "model.norm"),
    ModuleName::new("output", "lm_head"),
];

/// Modules of a block, shared with Qwen2 and others.
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
