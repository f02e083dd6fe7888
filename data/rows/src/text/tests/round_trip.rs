//! Texts that a tokenizer does not reproduce.

use serde_json::json;

use super::*;

/// The tiny tokenizer with changes to its file.
fn modified_tokenizer(change: impl Fn(&mut Value)) -> Tokenizer {
    let path = fixtures().join("tiny_tokenizer/tokenizer.json");
    let mut file = tooltune_json::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    change(&mut file);
    let tokenizer: tokenizers::Tokenizer = file.to_string().parse().unwrap();
    Tokenizer::from_tokenizers(tokenizer)
}

fn normalizing(normalizer: Value) -> Tokenizer {
    modified_tokenizer(|file| file["normalizer"] = normalizer.clone())
}

/// Removes a byte token, given as spelled in the vocabulary, and the tokens built from it.
fn without_byte_token(byte: char) -> Tokenizer {
    modified_tokenizer(|file| {
        let model = &mut file["model"];
        let vocabulary = model["vocab"].as_object_mut().unwrap();
        vocabulary.retain(|token, _| !token.contains(byte) || token.starts_with("<|"));
        let merges = model["merges"].as_array_mut().unwrap();
        merges.retain(|merge| !merge.to_string().contains(byte));
    })
}

fn prepare_answer(answer: &str, tokenizer: &Tokenizer) -> Result<(), DataError> {
    let row = row(turn("Hi", answer).to_vec());
    tokenize_row(&row, &chatml(), tokenizer, &options(tokenizer)).map(|_| ())
}

/// Invariant: A text that its tokens do not decode to is an error.
#[test]
fn a_byte_without_a_token_is_an_error_with_its_location() {
    // The tilde is in no merge; byte-level BPE drops characters without a token.
    let tokenizer = without_byte_token('~');
    assert!(prepare_answer("about 5", &tokenizer).is_ok());
    let error = prepare_answer("It is ~5 metres.", &tokenizer).unwrap_err();
    assert_eq!(
        error.to_string(),
        "row: the tokenizer does not reproduce \"~5 metres.<|\" after \
         \">\\n<|im_start|>assistant\\nIt is \": its tokens decode to \"5 metres.<|i\", which would \
         be trained on; its vocabulary lacks the characters, or its normalizer changes them: replace \
         the characters in the text, or use a tokenizer that has them"
    );
    // The same applies to prompts and user text.
    let row = row(turn("About ~5?", "Yes.").to_vec());
    assert!(tokenize_row(&row, &chatml(), &tokenizer, &options(&tokenizer)).is_err());
    assert!(inspect_row(&row, &chatml(), &tokenizer, &options(&tokenizer)).is_err());
    assert!(TokenizedPrompt::from_text("--prompt", "~", &tokenizer).is_err());
    // A part of a character.
    let part = without_byte_token('Ã');
    assert!(prepare_answer("Zurich", &part).is_ok());
    assert!(matches!(
        prepare_answer("Zürich", &part).unwrap_err().fault(),
        DataError::RoundTripMismatch(lost) if lost.lost.starts_with('ü')
    ));
}

#[test]
fn case_folding_is_an_error_but_another_unicode_composition_is_accepted() {
    let nfc = normalizing(json!({"type": "NFC"}));
    // Composed, decomposed, and marks in a different order.
    for text in [
        "Zürich",
        "Zu\u{308}rich",
        "q\u{323}\u{307} q\u{307}\u{323}",
        "한글 \u{1112}\u{1161}\u{11ab}",
    ] {
        prepare_answer(text, &nfc).unwrap();
        prepare_answer(text, &normalizing(json!({"type": "NFD"}))).unwrap();
        prepare_answer(text, &tokenizer()).unwrap();
    }
    for (normalizer, text, lost) in [
        (json!({"type": "Lowercase"}), "In Oslo", "In Oslo"),
        (json!({"type": "NFKC"}), "a ﬁsh", "ﬁsh"),
        (json!({"type": "NFKC"}), "５ m", "５ m"),
        (json!({"type": "StripAccents"}), "ue ü", ""),
        (
            json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
            "a  b",
            " b",
        ),
        (
            json!({"type": "Replace", "pattern": {"String": "\n"}, "content": " "}),
            "a\nb",
            "\n",
        ),
        (
            json!({"type": "Replace", "pattern": {"String": "%"}, "content": ""}),
            "5%",
            "%",
        ),
    ] {
        let tokenizer = normalizing(normalizer.clone());
        match (prepare_answer(text, &tokenizer), lost) {
            // Accents are stripped only if they are separate characters.
            (Ok(()), "") => {}
            (Err(error), lost) => assert!(
                matches!(error.fault(), DataError::RoundTripMismatch(found) if found.lost.starts_with(lost)
                    || normalizer["type"] != "NFKC"),
                "{normalizer}: {error}"
            ),
            (Ok(()), _) => panic!("{normalizer} changed {text:?} without an error"),
        }
    }
}

#[test]
fn an_unknown_token_instead_of_a_character_is_an_error() {
    let tokenizer = modified_tokenizer(|file| {
        let words = json!({"<unk>": 0, "Hi": 1, "Bye": 2, "<|im_start|>": 3, "<|im_end|>": 4, "user": 5,
            "assistant": 6});
        file["model"] = json!({"type": "WordLevel", "vocab": words, "unk_token": "<unk>"});
        file["pre_tokenizer"] = json!({"type": "Split", "pattern": {"String": "\n"}, "behavior": "Isolated",
            "invert": false});
        file["decoder"] = json!({"type": "Fuse"});
        file["post_processor"] = Value::Null;
        file["added_tokens"] = json!([]);
    });
    let encoded = tokenizer.encode("Hi").unwrap();
    assert_eq!(encoded.ids, [1]);
    assert!(TokenizedPrompt::from_text("--prompt", "Hi", &tokenizer).is_ok());
    let error = TokenizedPrompt::from_text("--prompt", "Ho", &tokenizer).unwrap_err();
    assert!(
        error.to_string().contains("its tokens decode to \"<unk>\""),
        "{error}"
    );
}

#[test]
fn white_space_absorbed_by_a_special_token_is_not_an_error() {
    let stripping = modified_tokenizer(|file| {
        for token in file["added_tokens"].as_array_mut().unwrap() {
            token["rstrip"] = json!(true);
        }
    });
    // ChatML's line breaks are then part of its tokens, as in Phi-3.
    prepare_answer("Hello.", &stripping).unwrap();
    let encoded = stripping.encode("<|im_end|>\n\na").unwrap();
    assert_eq!(encoded.offsets[0], (0, 12));
}

#[test]
fn a_text_that_loses_all_its_tokens_is_an_error() {
    let removing = modified_tokenizer(|file| {
        file["pre_tokenizer"] = json!({
            "type": "Split", "pattern": {"Regex": "."}, "behavior": "Removed", "invert": false,
        });
    });
    let error = prepare_answer("Seven.", &removing).unwrap_err();
    assert!(
        matches!(error.fault(), DataError::RoundTripMismatch(_)),
        "{error}"
    );
}
