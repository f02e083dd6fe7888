//! What a GGUF file says of its vocabulary and of the ends of turns.

use super::*;

/// A file whose texts end with token 1, and whose tokens are of these types.
fn with_tokens(tokens: &[&str; 4], types: &[i32]) -> GgufWriter {
    GgufWriter::tiny_with("gemma3", "llama", tokens)
        .i32s("tokenizer.ggml.token_type", types)
        .u32("tokenizer.ggml.eos_token_id", 1)
}

#[test]
fn a_control_token_that_llama_cpp_knows_ends_turns_where_the_file_names_none() {
    let ends = |gguf| open_gguf(gguf).unwrap().eos_token_ids;
    let gemma = ["<bos>", "<eos>", "a", "<end_of_turn>"];
    assert_eq!(ends(with_tokens(&gemma, &[3, 3, 1, 3])), [1, 3]);
    // A text that is no control token ends nothing, nor does a second end of turns.
    assert_eq!(ends(with_tokens(&gemma, &[3, 3, 1, 4])), [1]);
    let chat = ["<bos>", "<|im_end|>", "a", "<end_of_turn>"];
    assert_eq!(ends(with_tokens(&chat, &[3; 4])), [1]);
    let named = with_tokens(&gemma, &[3; 4]).u32("tokenizer.ggml.eot_token_id", 3);
    assert_eq!(ends(named), [1, 3]);
}

#[test]
fn a_vocabulary_says_whether_a_blank_begins_texts() {
    let adds_space = |gguf| match open_gguf(gguf).unwrap().tokenizer {
        TokenizerSource::Gguf(vocabulary) => (vocabulary.model, vocabulary.adds_space),
        TokenizerSource::Json(path) => panic!("{path:?}"),
    };
    let gguf = || with_tokens(&["<s>", "</s>", "a", "b"], &[3, 3, 1, 1]);
    assert_eq!(adds_space(gguf()), ("llama".to_owned(), None));
    let without = gguf().bool("tokenizer.ggml.add_space_prefix", false);
    assert_eq!(adds_space(without), ("llama".to_owned(), Some(false)));
}
