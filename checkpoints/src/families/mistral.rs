//! Describes the files of Mistral, which are Llama's in GGUF.

use super::{AutoTokenizer, ConfigRules, Family, SlidingWindow, llama};

/// Mistral, `MistralForCausalLM`.
///
/// # Source
///
/// `configuration_mistral.py` of transformers 5.23.
pub const MISTRAL: Family = Family {
    model_type: "mistral",
    class: "MistralForCausalLM",
    config: ConfigRules {
        hidden_act: "silu",
        absent_key_value_heads: Some(8),
        sliding_window: SlidingWindow::UnlessNull("Mistral"),
    },
    auto_tokenizer: AutoTokenizer::OfFile,
    gguf: llama::GGUF,
};
