//! Tests the vocabulary and the end-of-turn tokens of a GGUF file.

use super::*;

/// A file whose end-of-text token is 1 and whose tokens have these types.
fn with_tokens(tokens: &[&str; 4], types: &[i32]) -> GgufWriter {
    GgufWriter::tiny_with("gemma3", "llama", tokens)
        .i32s("tokenizer.ggml.token_type", types)
        .u32("tokenizer.ggml.eos_token_id", 1)
}

#[test]
fn a_control_token_known_to_llama_cpp_is_the_default_end_of_turn() {
    let ends = |gguf| open_gguf(gguf).unwrap().eos_token_ids;
    let gemma = ["<bos>", "<eos>", "a", "<end_of_turn>"];
    assert_eq!(ends(with_tokens(&gemma, &[3, 3, 1, 3])), [1, 3]);
    // A token that is not a control token does not end a turn, nor does a second end-of-turn token.
    assert_eq!(ends(with_tokens(&gemma, &[3, 3, 1, 4])), [1]);
    let chat = ["<bos>", "<|im_end|>", "a", "<end_of_turn>"];
    assert_eq!(ends(with_tokens(&chat, &[3; 4])), [1]);
    let with_eot = |id| with_tokens(&gemma, &[3; 4]).u32("tokenizer.ggml.eot_token_id", id);
    assert_eq!(ends(with_eot(3)), [1, 3]);
    // If the file names its end-of-turn token, no other token ends a turn.
    assert_eq!(ends(with_eot(1)), [1]);
    assert_eq!(
        ends(with_eot(0).u32("tokenizer.ggml.eom_token_id", 2)),
        [1, 0, 2]
    );
}

#[test]
fn the_vocabulary_defines_whether_a_space_is_prepended() {
    let adds_space = |gguf| match open_gguf(gguf).unwrap().tokenizer {
        TokenizerSource::Gguf(vocabulary) => (vocabulary.model, vocabulary.adds_space),
        TokenizerSource::Json(path) => panic!("{path:?}"),
    };
    let gguf = || with_tokens(&["<s>", "</s>", "a", "b"], &[3, 3, 1, 1]);
    assert_eq!(adds_space(gguf()), ("llama".to_owned(), None));
    let without = gguf().bool("tokenizer.ggml.add_space_prefix", false);
    assert_eq!(adds_space(without), ("llama".to_owned(), Some(false)));
}
