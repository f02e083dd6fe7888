//! Tests models in several files, and indexes that do not match them.

use super::*;

fn write_shards(dir: &Path) {
    for (shard, name) in [("model-00001-of-00002", "a"), ("model-00002-of-00002", "b")] {
        let tensors = BTreeMap::from([(name.to_owned(), tensor(&[2], 1.0))]);
        write_tensors(&dir.join(format!("{shard}.safetensors")), &tensors).unwrap();
    }
    write_index(dir, "model-00002-of-00002.safetensors");
}

fn write_index(dir: &Path, shard_of_b: &str) {
    let shards = serde_json::json!({"a": "model-00001-of-00002.safetensors", "b": shard_of_b});
    write_weight_map(dir, &shards);
}

fn write_weight_map(dir: &Path, shards: &serde_json::Value) {
    let index = serde_json::json!({"metadata": {"total_size": 16}, "weight_map": shards});
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

/// Opens a folder, and checks the parts of the error.
fn assert_error_contains(dir: &Path, parts: &[&str]) {
    let error = Weights::open(dir).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "no \"{part}\" in: {error}");
    }
}

#[test]
fn shards_are_opened_as_one_model() {
    let dir = tempfile::tempdir().unwrap();
    write_shards(dir.path());
    let weights = Weights::open(dir.path()).unwrap();
    assert_eq!(weights.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(weights.read_f32("b").unwrap(), tensor(&[2], 1.0));
}

#[test]
fn a_missing_shard_is_reported_with_one_of_its_tensors() {
    let dir = tempfile::tempdir().unwrap();
    write_shards(dir.path());
    fs::remove_file(dir.path().join("model-00002-of-00002.safetensors")).unwrap();
    let error = Weights::open(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("model-00002-of-00002.safetensors, which contain tensors such as b"),
        "{error}"
    );
}

#[test]
fn an_index_that_disagrees_with_its_shards_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    write_shards(dir.path());
    write_index(dir.path(), "model-00001-of-00002.safetensors");
    assert_error_contains(
        dir.path(),
        &[
            "model-00001-of-00002.safetensors has no tensor b, although model.safetensors.index.json assigns it there",
            "no other shard of the index has it",
        ],
    );
    let shards = serde_json::json!({"a": "model-00002-of-00002.safetensors",
        "b": "model-00001-of-00002.safetensors"});
    write_weight_map(dir.path(), &shards);
    assert_error_contains(
        dir.path(),
        &[
            "model-00002-of-00002.safetensors has no tensor a",
            "but model-00001-of-00002.safetensors has it",
        ],
    );
    write_index(dir.path(), "../model-00002-of-00002.safetensors");
    let error = Weights::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("without directories"), "{error}");
}

#[test]
fn a_tensor_missing_from_all_shards_is_reported_with_the_indexed_file() {
    let dir = tempfile::tempdir().unwrap();
    write_shards(dir.path());
    let shards = serde_json::json!({"a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"});
    write_weight_map(dir.path(), &shards);
    assert_error_contains(
        dir.path(),
        &[
            "model-00002-of-00002.safetensors has no tensor c",
            "no other shard of the index has it",
        ],
    );
}

#[test]
fn a_tensor_in_two_shards_is_refused_with_both_files() {
    let dir = tempfile::tempdir().unwrap();
    write_shards(dir.path());
    let both = BTreeMap::from([
        ("a".to_owned(), tensor(&[2], 5.0)),
        ("b".to_owned(), tensor(&[2], 1.0)),
    ]);
    let second = dir.path().join("model-00002-of-00002.safetensors");
    fs::remove_file(&second).unwrap();
    write_tensors(&second, &both).unwrap();
    let error = Weights::open(dir.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::TensorInTwoShards { .. }));
    let error = error.to_string();
    for part in [
        "tensor a is both in",
        "model-00001-of-00002.safetensors and in",
        "model-00002-of-00002.safetensors; fetch the model again",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn an_index_with_a_duplicate_tensor_is_refused_with_both_files() {
    let dir = tempfile::tempdir().unwrap();
    write_shards(dir.path());
    let index = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors", "a": "model-00002-of-00002.safetensors"}}"#;
    fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    assert_error_contains(
        dir.path(),
        &[
            "tensor a occurs twice in weight_map",
            "in model-00001-of-00002.safetensors and in model-00002-of-00002.safetensors",
        ],
    );
}
