//! Untrusted `tokenizer.json` files that would panic, exhaust memory or never finish must give
//! errors.

use serde_json::json;
use tooltune_template::budgets::TEMPLATE_TEXT_BYTES;

use super::*;
use crate::budgets::{TOKENIZER_LEVELS, TOKENIZER_STEPS};

/// Opens a tiny tokenizer file with one change.
fn open_modified(change: impl Fn(&mut Value)) -> Result<Tokenizer, DataError> {
    let path = fixtures().join("tiny_tokenizer/tokenizer.json");
    let mut file = tooltune_json::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    change(&mut file);
    open_text(&file.to_string())
}

fn open_text(text: &str) -> Result<Tokenizer, DataError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, text).unwrap();
    // The sentence encoder rejects the same files.
    let encoder_result = WordPiece::from_file(&path, WordPieceOptions::with_max_length(128));
    let tokenizer = Tokenizer::from_file(&path);
    assert_eq!(encoder_result.is_ok(), tokenizer.is_ok());
    tokenizer
}

fn assert_refused(opened: Result<Tokenizer, DataError>, parts: &[&str]) {
    let error = opened.expect_err("refused").to_string();
    for part in ["tokenizer.json: ", "not a usable"].iter().chain(parts) {
        assert!(error.contains(part), "{part}: {error}");
    }
}

fn nested(kind: &str, list: &str, levels: usize, inner: Value) -> Value {
    (0..levels).fold(inner, |inside, _| json!({"type": kind, list: [inside]}))
}

fn doubling(n_times: usize) -> Vec<Value> {
    let double = json!({"type": "Replace", "pattern": {"String": "e"}, "content": "ee"});
    vec![double; n_times]
}

/// Invariant: A tokenizer file causes neither a panic nor unbounded growth of a text.
#[test]
fn files_on_which_the_library_panics_are_refused() {
    let path = fixtures().join("tiny_tokenizer/tokenizer.json");
    let file = std::fs::read_to_string(path).unwrap();
    let decoder = file.find("\"decoder\"").unwrap();
    for end in [decoder + 12, decoder + 30, 10, file.len() - 3] {
        assert_refused(open_text(&file[..end]), &["not valid JSON"]);
    }
    for charsmap in ["!!", "", "AAAA", "////////"] {
        let normalizer = json!({"type": "Precompiled", "precompiled_charsmap": charsmap});
        let result = open_modified(|file| file["normalizer"] = normalizer.clone());
        // A map without replacements has no effect.
        if charsmap == "!!" {
            assert_refused(result, &["library fails"]);
        } else if let Ok(tokenizer) = result {
            assert!(
                tokenizer
                    .encode("Seven.")
                    .is_ok_and(|encoded| !encoded.ids.is_empty())
            );
        }
    }
    // The header declares a trie of 4 GiB, for which the library would allocate twice as much.
    let map = format!("/////w{}", "A".repeat(1_000));
    let normalizer = json!({"type": "Precompiled", "precompiled_charsmap": map});
    let normalizer = json!({"type": "Sequence", "normalizers": [normalizer]});
    assert_refused(
        open_modified(|file| file["normalizer"] = normalizer.clone()),
        &["a trie of 4294967295 bytes"],
    );
    for decoder in [
        json!({"type": "Fuse", "x": 1}),
        json!(3),
        json!({}),
        json!({"type": "None"}),
    ] {
        let _ = open_modified(|file| file["decoder"] = decoder.clone()).map(|_| ());
    }
}

#[test]
fn parts_that_are_nested_or_repeated_too_often_are_refused() {
    let inner = json!({"type": "Fuse"});
    let deep = nested("Sequence", "decoders", 100, inner);
    let limit = TOKENIZER_LEVELS.to_string();
    assert_refused(
        open_modified(|file| file["decoder"] = deep.clone()),
        &["levels deep", &limit, "TOKENIZER_LEVELS"],
    );
    let deep = nested("Sequence", "normalizers", 40, json!({"type": "NFC"}));
    let deep = open_modified(|file| file["normalizer"] = deep.clone());
    assert_refused(deep, &["TOKENIZER_LEVELS"]);
    let many = vec![json!({"type": "NFC"}); TOKENIZER_STEPS + 1];
    let many = json!({"type": "Sequence", "normalizers": many});
    assert_refused(
        open_modified(|file| file["normalizer"] = many.clone()),
        &["steps of its normalizer: 101", "TOKENIZER_STEPS"],
    );
}

/// Invariant: A tokenizer file causes neither a panic nor unbounded growth of a text.
#[test]
fn files_that_lengthen_texts_too_much_are_refused() {
    let normalizer = json!({"type": "Sequence", "normalizers": doubling(28)});
    let tokenizer = open_modified(|file| file["normalizer"] = normalizer.clone()).unwrap();
    let error = tokenizer.encode("Seven.").unwrap_err().to_string();
    for part in [
        "tokenizer.json",
        "more than 1048576",
        "TOKENIZER_PIECE_BYTES",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // Replacements that do not lengthen the text are accepted: the letter does not occur.
    assert_eq!(
        tokenizer.encode("Da").unwrap().ids.len(),
        tokenizer.encode("Da").unwrap().ids.len()
    );
    let long = "x".repeat(1 << 20);
    let prepended = json!({"type": "Prepend", "prepend": long});
    let prepended = json!({"type": "Sequence", "normalizers": vec![prepended; 50]});
    let tokenizer = open_modified(|file| file["normalizer"] = prepended.clone()).unwrap();
    let error = tokenizer.encode("Seven.").unwrap_err().to_string();
    assert!(error.contains("TOKENIZER_PIECE_BYTES"), "{error}");

    // The second step would produce gigabytes before any output is counted.
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"Regex": from}, "content": to.repeat(4_000)});
    let twice = [replace(".", "b"), replace("b", "c")];
    let twice = json!({"type": "Sequence", "normalizers": twice});
    let tokenizer = open_modified(|file| file["normalizer"] = twice.clone()).unwrap();
    let error = tokenizer.encode("Seven.").unwrap_err().to_string();
    assert!(error.contains("TOKENIZER_STEP_BYTES"), "{error}");
    // One letter becomes 16 MB, which needs a gigabyte during tokenization.
    assert!(tokenizer.encode("S").is_err());

    let pre_tokenizer =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true});
    let pre_tokenizer = json!({"type": "Sequence", "pretokenizers": vec![pre_tokenizer; 28]});
    let pre_tokenizer = open_modified(|file| file["pre_tokenizer"] = pre_tokenizer.clone());
    assert_refused(
        pre_tokenizer,
        &["pre-tokenizer may lengthen", "TOKENIZER_GROWTH"],
    );
    let decoder = json!({"type": "Sequence", "decoders": doubling(28)});
    let decoder = open_modified(|file| file["decoder"] = decoder.clone());
    assert_refused(decoder, &["decoder may lengthen", "TOKENIZER_GROWTH"]);
}

#[test]
fn a_long_text_is_encoded_if_its_normalizer_lengthens_it_little() {
    let normalizer = json!({"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "ﷺ"}, "content": "x".repeat(100)},
        {"type": "NFKC"},
        {"type": "Lowercase"},
    ]});
    let tokenizer = open_modified(|file| file["normalizer"] = normalizer.clone()).unwrap();
    let text = "ab é 日本 ".repeat(3000);
    assert!(tokenizer.encode(&text).unwrap().ids.len() > 3000);
    let error = tokenizer
        .encode(&"ﷺ".repeat(400_000))
        .unwrap_err()
        .to_string();
    assert!(error.contains("TOKENIZER_TEXT_BYTES"), "{error}");
    let error = self::tokenizer().encode(&"a".repeat(TEMPLATE_TEXT_BYTES + 1));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("TEMPLATE_TEXT_BYTES"), "{error}");
}

#[test]
fn an_empty_vocabulary_and_endless_words_are_refused() {
    let empty = open_modified(|file| {
        file["model"]["vocab"] = json!({});
        file["model"]["merges"] = json!([]);
    });
    assert_refused(empty, &["vocabulary is empty"]);
    let model = json!({
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 1_000_000_000, "vocab": {"[UNK]": 0, "a": 1},
    });
    let words = open_modified(|file| file["model"] = model.clone());
    assert_refused(words, &["max_input_chars_per_word", "TOKENIZER_WORD_CHARS"]);
}

#[test]
fn a_panic_at_encoding_is_an_error_that_names_the_file() {
    let fixed = json!({"type": "FixedLength", "length": 0});
    let tokenizer = open_modified(|file| file["pre_tokenizer"] = fixed.clone()).unwrap();
    let error = tokenizer.encode("Seven.").unwrap_err().to_string();
    assert!(
        error.contains("tokenizer.json") && error.contains("library fails"),
        "{error}"
    );
}
