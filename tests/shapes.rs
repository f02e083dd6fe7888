//! The tiny models of tests/fixtures/models, by the tests that they have.
//!
//! Each macro calls another one with its list. To test a new family, add its shapes here;
//! `scripts/fixtures/tiny_models.py` writes their folders.

/// The shapes with logits, gradients and steps of transformers and PEFT.
macro_rules! shapes_with_references {
    ($callback:ident) => {
        $callback!(
            qwen3,
            mistral_window,
            granite,
            smollm3,
            phi3,
            seed_oss,
            olmo3,
            gemma3_text,
            ministral3,
            qwen3_5_text,
            qwen3_5_text_even,
        );
    };
}

/// The shapes with a GGUF file.
macro_rules! shapes_in_gguf {
    ($callback:ident) => {
        $callback!(
            qwen3,
            granite,
            smollm3,
            phi3,
            seed_oss,
            olmo3,
            gemma3_text,
            ministral3,
            qwen3_5_text_even,
        );
    };
}

/// One shape per family. Where llama.cpp lacks a field of the shape, the field is named with the
/// values of a config without it.
macro_rules! shapes_of_families {
    ($callback:ident) => {
        $callback!(
            llama31;
            mistral_window, "sliding_window": {"sliding_window": null};
            qwen2;
            qwen3;
            granite;
            smollm3;
            phi3, "sliding_window": {"sliding_window": null};
            seed_oss;
            olmo3, "attention_factor": {"rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0,
                    "original_max_position_embeddings": 128,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
            }};
            gemma3_text;
            ministral3;
            qwen3_5_text_even;
        );
    };
}
