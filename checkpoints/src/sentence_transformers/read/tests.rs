//! Tests the config formats of all sentence-transformers versions, and errors that name the file
//! and field.

use serde_json::json;

use std::fs;

use super::*;

/// A folder with these JSON files.
fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, value) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, value.to_string()).expect("written");
    }
    folder
}

fn modules(names: &[&str]) -> Value {
    let module = |(i, name): (usize, &&str)| {
        let path = match i {
            0 => String::new(),
            i => format!("{i}_{name}"),
        };
        json!({"idx": i, "name": i.to_string(), "path": path,
               "type": format!("sentence_transformers.models.{name}")})
    };
    names.iter().enumerate().map(module).collect()
}

/// The pooling mode of a folder with this file, or the reason it is refused.
fn read_pooling(pooling: Value) -> Result<Pooling, String> {
    let files = [
        ("modules.json", modules(&["Transformer", "Pooling"])),
        ("1_Pooling/config.json", pooling),
    ];
    let folder = folder(&files);
    let encoder = SentenceTransformer::read(folder.path(), 32);
    encoder
        .map(|encoder| encoder.pooling)
        .map_err(|e| e.to_string())
}

#[test]
fn pooling_is_read_in_both_formats() {
    for (name, flag, pooling) in Pooling::ALL {
        assert_eq!(read_pooling(json!({"pooling_mode": name})), Ok(pooling));
        assert_eq!(read_pooling(json!({"pooling_mode": [name]})), Ok(pooling));
        let old = json!({"word_embedding_dimension": 32, flag: true, WEIGHTED.1: false});
        assert_eq!(read_pooling(old), Ok(pooling));
        let both = json!({"embedding_dimension": 32, flag: true, "pooling_mode": name});
        assert_eq!(read_pooling(both), Ok(pooling));
    }
    assert_eq!(
        read_pooling(json!({"pooling_mode_cls_token": false})),
        Ok(Pooling::Mean)
    );
}

#[test]
fn unsupported_pooling_error_names_file_and_field() {
    for (pooling, expected) in [
        (
            json!({"pooling_mode": "weightedmean"}),
            "pooling_mode = \"weightedmean\" is not",
        ),
        (
            json!({"pooling_mode": ["cls", "mean"]}),
            "pooling_mode = [\"cls\",\"mean\"] is not",
        ),
        (
            json!({"pooling_mode_weightedmean_tokens": true}),
            "pooling_mode_weightedmean_tokens = true is not",
        ),
        (
            json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}),
            "pooling_mode_mean_tokens = true is not",
        ),
        (
            json!({"pooling_mode": "cls", "pooling_mode_mean_tokens": true}),
            "pooling_mode_mean_tokens: is true but contradicts pooling_mode",
        ),
        (
            json!({"pooling_mode_cls_token": "yes"}),
            "must be true or false",
        ),
        (
            json!({"pooling_mode_first_token": true}),
            "pooling_mode_first_token = true",
        ),
        (
            json!({"word_embedding_dimension": 64}),
            "is not 32, the encoder's hidden_size",
        ),
    ] {
        let error = read_pooling(pooling).expect_err(expected);
        assert!(error.contains("1_Pooling/config.json"), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn normalize_module_sets_normalize_and_unknown_modules_are_refused() {
    let read_normalize = |names: &[&str]| {
        let files = [
            ("modules.json", modules(names)),
            ("1_Pooling/config.json", json!({"pooling_mode": "mean"})),
        ];
        let folder = folder(&files);
        let read_normalize = SentenceTransformer::read(folder.path(), 32);
        read_normalize
            .map(|read_normalize| read_normalize.normalize)
            .map_err(|e| e.to_string())
    };
    assert_eq!(read_normalize(&["Transformer", "Pooling"]), Ok(false));
    assert_eq!(
        read_normalize(&["Transformer", "Pooling", "Normalize"]),
        Ok(true)
    );
    for (names, at) in [
        (
            vec!["Transformer", "Pooling", "Dense", "Normalize"],
            "[2].type",
        ),
        (vec!["Transformer", "CNN", "Pooling"], "[1].type"),
        (vec!["WordEmbeddings", "WordWeights", "Pooling"], "[0].type"),
        (vec!["Transformer", "Normalize", "Pooling"], "[1].type"),
        (vec!["Transformer"], "must list a Transformer and a Pooling"),
    ] {
        let error = read_normalize(&names).expect_err(at);
        assert!(
            error.contains("modules.json: ") && error.contains(at),
            "{error}"
        );
    }
    let plain = folder(&[]);
    let plain = SentenceTransformer::read(plain.path(), 32).expect("a plain encoder");
    assert_eq!((plain.pooling, plain.normalize), (Pooling::Mean, false));
}

#[test]
fn query_and_document_prompts_are_read_separately() {
    let read_settings = |config: Value| {
        let folder = folder(&[(MODEL_CONFIG, config)]);
        SentenceTransformer::read(folder.path(), 32).map_err(|e| e.to_string())
    };
    let prompts = json!({"query": "query: ", "document": "passage: ", "cluster": "c: "});
    let both = read_settings(json!({"prompts": prompts, "default_prompt_name": "cluster"}))
        .expect("prompts");
    assert_eq!(both.query_prompt(), "query: ");
    assert_eq!(both.document_prompt().expect("one"), "passage: ");
    assert_eq!(both.default_prompt(), "c: ");
    let replaced = both.with_prompts(Some(""), Some("text: "));
    assert_eq!(replaced.query_prompt(), "");
    assert_eq!(replaced.document_prompt().expect("one"), "text: ");

    // The default prompt applies to neither queries nor documents.
    let only = read_settings(json!({"prompts": {"query": "q: "}, "default_prompt_name": "query"}));
    let only = only.expect("a prompt");
    assert_eq!(only.document_prompt().expect("none"), "");
    assert_eq!(only.default_prompt(), "q: ");

    let passage = read_settings(json!({"prompts": {"passage": "p: "}})).expect("a prompt");
    let error = passage.document_prompt().expect_err("not read").to_string();
    assert!(error.contains("prompts.passage"), "{error}");
    assert!(
        error.contains("retriever.document_prompt = \"p: \""),
        "{error}"
    );
    let chosen = passage.with_prompts(None, Some("p: "));
    assert_eq!(chosen.document_prompt().expect("chosen"), "p: ");
}

#[test]
fn settings_that_would_change_an_embedding_are_refused() {
    for (file, settings, expected) in [
        (
            MODEL_CONFIG,
            json!({"similarity_fn_name": "euclidean"}),
            "similarity_fn_name",
        ),
        (
            MODEL_CONFIG,
            json!({"truncate_dim": 16}),
            "truncate_dim = 16",
        ),
        (
            MODEL_CONFIG,
            json!({"model_type": "SparseEncoder"}),
            "model_type",
        ),
        (
            MODEL_CONFIG,
            json!({"default_prompt_name": "x"}),
            "default_prompt_name",
        ),
        (
            MODEL_CONFIG,
            json!({"prompts": {"query": 1}}),
            "prompts.query",
        ),
        (
            "sentence_bert_config.json",
            json!({"query_length": 8}),
            "query_length = 8",
        ),
        (
            "sentence_bert_config.json",
            json!({"do_lowercase": true}),
            "do_lowercase = true",
        ),
        (
            "sentence_bert_config.json",
            json!({"max_seq_length": "256"}),
            "max_seq_length",
        ),
        (
            "tokenizer_config.json",
            json!({"truncation_side": "middle"}),
            "truncation_side",
        ),
    ] {
        let folder = folder(&[(file, settings)]);
        let error = SentenceTransformer::read(folder.path(), 32)
            .expect_err(expected)
            .to_string();
        assert!(error.contains(file) && error.contains(expected), "{error}");
    }
    let supported = json!({
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        "module_output_name": "token_embeddings",
        "max_seq_length": 12,
        "do_lower_case": true,
        "query_length": null,
    });
    let folder = folder(&[
        ("sentence_bert_config.json", supported),
        (
            "tokenizer_config.json",
            json!({"model_max_length": 1e30, "do_lower_case": false}),
        ),
    ]);
    let encoder = SentenceTransformer::read(folder.path(), 32).expect("served");
    assert_eq!(
        (encoder.max_seq_length, encoder.do_lower_case),
        (Some(12), true)
    );
    assert_eq!(encoder.tokenizer.bert, Some((false, None, true)));
    assert_eq!(encoder.tokenizer.model_max_length, None);
}
