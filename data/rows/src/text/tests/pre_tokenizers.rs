//! Compares GGUF vocabularies with Python's tokenizers library for the pre-tokenizers of real
//! models. The fixture's merges cross word boundaries, so every boundary changes ids.

use std::path::Path;

use serde_json::{Value, json};

use super::super::ByteLevelBpe;

fn fixture(file: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/pre_tokenizers");
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn every_named_pre_tokenizer_is_written_by_its_name_and_reads_as_the_models_own() {
    let (vocabulary, cases) = (fixture("vocabulary.json"), fixture("cases.json"));
    let n_tokens = vocabulary["vocab"].as_object().unwrap().len();
    let texts = cases["texts"].as_array().unwrap();
    for (name, case) in cases["cases"].as_object().unwrap() {
        let file = json!({
            "normalizer": case["normalizer"], "pre_tokenizer": case["pre_tokenizer"],
            "model": {"type": "BPE", "vocab": vocabulary["vocab"], "merges": vocabulary["merges"],
                "ignore_merges": case["ignore_merges"]},
        });
        let parts = ByteLevelBpe::from_json(&file.to_string(), n_tokens);
        let parts = parts.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(&parts.pre, name);
        let tokenizer = parts.into_tokenizer().unwrap();
        for (text, ids) in texts.iter().zip(case["ids"].as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let encoding = tokenizer.encode(text, false).unwrap();
            assert_eq!(&json!(encoding.get_ids()), ids, "{name}: {text:?}");
        }
    }
}

#[test]
fn a_vocabulary_whose_merges_do_not_produce_its_tokens_is_not_renamed() {
    let (vocabulary, cases) = (fixture("vocabulary.json"), fixture("cases.json"));
    let n_tokens = vocabulary["vocab"].as_object().unwrap().len();
    let tekken = |vocabulary: &Value| {
        let file = json!({
            "pre_tokenizer": cases["cases"]["tekken"]["pre_tokenizer"],
            "model": {"type": "BPE", "vocab": vocabulary, "merges": fixture("vocabulary.json")["merges"],
                "ignore_merges": false},
        });
        ByteLevelBpe::from_json(&file.to_string(), n_tokens)
    };
    let error = tekken(&vocabulary["vocab"]).unwrap_err().to_string();
    assert!(error.contains("ignore_merges"), "{error}");
    let mut reached = vocabulary["vocab"].clone();
    let tokens = reached.as_object_mut().unwrap();
    let unreached = ["\u{120}world", "Hello", "\u{120}SELECT"];
    tokens.retain(|text, _| !unreached.contains(&text.as_str()));
    assert_eq!(tekken(&reached).unwrap().pre, "tekken");
}
