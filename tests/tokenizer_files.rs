//! All files of a tokenizer are interpreted as by AutoTokenizer, or the folder is rejected.

use std::path::Path;

use serde_json::{Map, Value};
use tempfile::TempDir;
use tooltune::base_model::BaseModel;
use tooltune_checkpoints::ModelFiles;
use tooltune_rows::text::{Specials, Tokenizer};

use crate::support::fixture;

/// Applies a JSON merge patch (RFC 7396).
fn patch(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, value) in fields {
        self::patch(&mut target[key], value);
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Writes the folder of a case, with the weights of the tiny chat model.
fn folder(case: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        let from = fixture("tiny_chat_model").join(name);
        std::fs::copy(from, dir.path().join(name)).unwrap();
    }
    let mut tokenizer = json(&fixture("tiny_tokenizer").join("tokenizer.json"));
    patch(&mut tokenizer, &case["tokenizer_patch"]);
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    for (name, content) in case["files"].as_object().unwrap() {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = content.as_str().map(str::to_owned);
        std::fs::write(path, text.unwrap_or_else(|| content.to_string())).unwrap();
    }
    dir
}

/// Loads the tokenizer of a folder as the program does.
fn read(path: &Path) -> Result<(Tokenizer, ModelFiles), String> {
    let files = ModelFiles::open(path).map_err(|error| error.to_string())?;
    let tokenizer = BaseModel::open_tokenizer(path).map_err(|error| error.to_string())?;
    Ok((tokenizer, files))
}

/// Invariant: A tokenizer folder gives the same tokens as AutoTokenizer or is refused.
#[test]
fn every_tokenizer_folder_is_read_as_auto_tokenizer_reads_it_or_refused() {
    let cases = json(&fixture("tokenizer_files").join("cases.json"));
    let text = cases["text"].as_str().unwrap();
    for case in cases["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let folder = folder(case);
        let result = read(folder.path());
        let ours = case["ours"].as_str().unwrap();
        if let Some(expected) = ours.strip_prefix("refused: ") {
            let error = result.expect_err(name);
            assert!(
                error.contains(expected),
                "{name}: no {expected:?} in {error}"
            );
            continue;
        }
        let (tokenizer, files) = result.unwrap_or_else(|error| panic!("{name}: {error}"));
        let ids = tokenizer.encode(text).unwrap().ids;
        if let Some(expected) = ours.strip_prefix("file: ") {
            assert_eq!(serde_json::json!(ids), case["file_ids"], "{name}");
            assert_ne!(case["ids"], case["file_ids"], "{name}");
            let remarks = files.remarks.join("; ");
            assert!(
                remarks.contains(expected),
                "{name}: no {expected:?} in {remarks}"
            );
            continue;
        }
        assert_eq!(ours, "same", "{name}");
        assert_eq!(serde_json::json!(ids), case["ids"], "{name}");
        assert_eq!(tokenizer.vocab_size(), case["n_tokens"], "{name}");
        for (key, specials) in [
            ("text", Specials::Keep),
            ("text_without_special_tokens", Specials::Skip),
        ] {
            let decoded = tokenizer.decode(&ids, specials).unwrap();
            assert_eq!(decoded, case[key].as_str().unwrap(), "{name}: {key}");
        }
        let special = &files.special_tokens;
        for (role, token) in [
            ("bos_token", &special.bos_token),
            ("eos_token", &special.eos_token),
            ("pad_token", &special.pad_token),
            ("unk_token", &special.unk_token),
        ] {
            let expected = &case["special_tokens"][role];
            assert_eq!(token.as_deref(), expected.as_str(), "{name}: {role}");
        }
        let template = files.chat_template.as_deref();
        assert_eq!(template, case["chat_template"].as_str(), "{name}");
    }
}
