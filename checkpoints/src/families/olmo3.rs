//! Files of Olmo 3, which use the Olmo 2 architecture in GGUF.

use super::qwen3::{KEY_NORM, QUERY_NORM};
use super::{
    AutoTokenizer, ConfigRules, Family, GGUF_LIKE_LLAMA, GgufRules, HeadRows, LIKE_LLAMA,
    LayerRules, ModuleName, RotaryRules, llama,
};

/// Olmo 3, `Olmo3ForCausalLM`.
///
/// # Source
///
/// `configuration_olmo3.py` of transformers 5.23; ggml-org/llama.cpp, `llama-arch.cpp`.
pub const OLMO3: Family = Family {
    model_type: "olmo3",
    class: "Olmo3ForCausalLM",
    models: "Olmo 3",
    config: ConfigRules {
        layers: LayerRules::WindowExceptEvery(4),
        rotary: RotaryRules {
            theta: 500_000.0,
            local_theta: Some(500_000.0),
            ..LIKE_LLAMA.rotary
        },
        ..LIKE_LLAMA
    },
    config_types: include_str!("../../../tests/fixtures/models/olmo3/config_types.json"),
    auto_tokenizer: AutoTokenizer::OfFile,
    gguf: GgufRules {
        architecture: "olmo2",
        head_rows: HeadRows::AsIs,
        in_block: &IN_BLOCK,
        numbers: &[("rope.freq_base_swa", "rope_local_base_freq")],
        biases: false,
        ..GGUF_LIKE_LLAMA
    },
};

/// Modules of a block: Llama's projections, with norms after attention and the feed-forward block.
const IN_BLOCK: [ModuleName; 11] = {
    let [_, q, k, v, o, _, gate, up, down] = llama::IN_BLOCK;
    let after_attention = ModuleName::new("post_attention_norm", "post_attention_layernorm");
    let after_feed_forward = ModuleName::new("post_ffw_norm", "post_feedforward_layernorm");
    let norms = [after_attention, after_feed_forward];
    let [a, f] = norms;
    [q, k, v, QUERY_NORM, KEY_NORM, o, a, gate, up, down, f]
};
