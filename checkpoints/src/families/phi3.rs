//! Files of Phi-3 and Phi-4, whose projections are fused.

use super::{
    AutoTokenizer, ConfigRules, Family, GGUF_LIKE_LLAMA, GgufRules, HeadRows, LIKE_LLAMA,
    LayerRules, ModuleName, RotaryRules,
};

/// Phi-3, `Phi3ForCausalLM`; Phi-4 and Phi-4-mini have the same model type.
///
/// # Source
///
/// `configuration_phi3.py` of transformers 5.23; ggml-org/llama.cpp, `llama-arch.cpp`.
pub const PHI3: Family = Family {
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    models: "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
    config: ConfigRules {
        layers: LayerRules::IfGiven,
        rotary: RotaryRules {
            partial: Some(1.0),
            original_context: Some(4096),
            ..LIKE_LLAMA.rotary
        },
        dropouts: &[("attention_dropout", 0.0), ("resid_pdrop", 0.0)],
        ..LIKE_LLAMA
    },
    config_types: include_str!("../../../tests/fixtures/models/phi3/config_types.json"),
    auto_tokenizer: AutoTokenizer::OfFile,
    gguf: GgufRules {
        architecture: "phi3",
        head_rows: HeadRows::AsIs,
        biases: false,
        in_block: &[
            ModuleName::new("attn_norm", "input_layernorm"),
            ModuleName::new("attn_qkv", "self_attn.qkv_proj"),
            ModuleName::new("attn_output", "self_attn.o_proj"),
            ModuleName::new("ffn_norm", "post_attention_layernorm"),
            ModuleName::new("ffn_up", "mlp.gate_up_proj"),
            ModuleName::new("ffn_down", "mlp.down_proj"),
        ],
        ..GGUF_LIKE_LLAMA
    },
};
