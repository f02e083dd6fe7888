//! Texts that a tokenizer does not give back.

use serde_json::json;

use super::*;

/// The tiny tokenizer with changes to its file.
fn changed(change: impl Fn(&mut Value)) -> Tokenizer {
    let path = fixtures().join("tiny_tokenizer/tokenizer.json");
    let mut file = crate::json::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    change(&mut file);
    let tokenizer: tokenizers::Tokenizer = file.to_string().parse().unwrap();
    Tokenizer::from_tokenizers(tokenizer)
}

fn normalizing(normalizer: Value) -> Tokenizer {
    changed(|file| file["normalizer"] = normalizer.clone())
}

/// Without a byte of the vocabulary, as it is spelled, and without what is made of it.
fn lacking(byte: char) -> Tokenizer {
    changed(|file| {
        let model = &mut file["model"];
        let vocabulary = model["vocab"].as_object_mut().unwrap();
        vocabulary.retain(|token, _| !token.contains(byte) || token.starts_with("<|"));
        let merges = model["merges"].as_array_mut().unwrap();
        merges.retain(|merge| !merge.to_string().contains(byte));
    })
}

fn learn(answer: &str, tokenizer: &Tokenizer) -> Result<(), DataError> {
    let row = row(turn("Hi", answer).to_vec());
    tokenize_row(&row, &chatml(), tokenizer, &options(tokenizer)).map(|_| ())
}

#[test]
fn a_byte_without_a_token_is_an_error_with_its_place() {
    // The tilde is no letter of any merge; byte-level BPE drops what it has no token for.
    let tokenizer = lacking('~');
    assert!(learn("about 5", &tokenizer).is_ok());
    let error = learn("It is ~5 metres.", &tokenizer).unwrap_err();
    assert_eq!(
        error.to_string(),
        "row: the tokenizer does not give \"~5 metres.<|\" back, which stands after \
         \">\\n<|im_start|>assistant\\nIt is \": of its tokens comes \"5 metres.<|i\", and that would be \
         learned; its vocabulary lacks the characters, or its normalizer changes them: write them \
         otherwise, or take a tokenizer that has them"
    );
    // It is the same in what is read, and in prompts of the user.
    let row = row(turn("About ~5?", "Yes.").to_vec());
    assert!(tokenize_row(&row, &chatml(), &tokenizer, &options(&tokenizer)).is_err());
    assert!(inspect_row(&row, &chatml(), &tokenizer, &options(&tokenizer)).is_err());
    assert!(AskedPrompt::of_text("--prompt", "~", &tokenizer).is_err());
    // A part of a character.
    let part = lacking('Ã');
    assert!(learn("Zurich", &part).is_ok());
    assert!(matches!(
        learn("Zürich", &part).unwrap_err().fault(),
        DataError::NotGivenBack(lost) if lost.lost.starts_with('ü')
    ));
}

#[test]
fn what_a_normalizer_folds_is_an_error_and_another_composition_is_none() {
    let nfc = normalizing(json!({"type": "NFC"}));
    // Composed, decomposed, and marks in an order of their own.
    for text in [
        "Zürich",
        "Zu\u{308}rich",
        "q\u{323}\u{307} q\u{307}\u{323}",
        "한글 \u{1112}\u{1161}\u{11ab}",
    ] {
        learn(text, &nfc).unwrap();
        learn(text, &normalizing(json!({"type": "NFD"}))).unwrap();
        learn(text, &tokenizer()).unwrap();
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
        match (learn(text, &tokenizer), lost) {
            // Accents can be stripped only where they stand alone.
            (Ok(()), "") => {}
            (Err(error), lost) => assert!(
                matches!(error.fault(), DataError::NotGivenBack(found) if found.lost.starts_with(lost)
                    || normalizer["type"] != "NFKC"),
                "{normalizer}: {error}"
            ),
            (Ok(()), _) => panic!("{normalizer} changed {text:?} unseen"),
        }
    }
}

#[test]
fn an_unknown_token_in_the_place_of_a_character_is_an_error() {
    let tokenizer = changed(|file| {
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
    assert!(AskedPrompt::of_text("--prompt", "Hi", &tokenizer).is_ok());
    let error = AskedPrompt::of_text("--prompt", "Ho", &tokenizer).unwrap_err();
    assert!(
        error.to_string().contains("of its tokens comes \"<unk>\""),
        "{error}"
    );
}

#[test]
fn white_space_that_a_special_token_takes_in_is_none_that_is_lost() {
    let taking = changed(|file| {
        for token in file["added_tokens"].as_array_mut().unwrap() {
            token["rstrip"] = json!(true);
        }
    });
    // ChatML's line breaks belong to its tokens then, as in Phi-3.
    learn("Hello.", &taking).unwrap();
    let encoded = taking.encode("<|im_end|>\n\na").unwrap();
    assert_eq!(encoded.offsets[0], (0, 12));
}

#[test]
fn a_text_that_loses_all_its_tokens_is_an_error() {
    let removing = changed(|file| {
        file["pre_tokenizer"] = json!({
            "type": "Split", "pattern": {"Regex": "."}, "behavior": "Removed", "invert": false,
        });
    });
    let error = learn("Seven.", &removing).unwrap_err();
    assert!(
        matches!(error.fault(), DataError::NotGivenBack(_)),
        "{error}"
    );
}
