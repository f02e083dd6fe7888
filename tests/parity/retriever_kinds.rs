//! Poolings, prompts and tokenizer settings of encoders compared with sentence-transformers.

use std::path::{Path, PathBuf};

use burn::tensor::Tensor;
use serde_json::Value;
use tempfile::TempDir;
use tooltune::encoder::documents::scores;
use tooltune::encoder::{EncoderFiles, EncoderOptions, MiniLmEncoder, Role, TextIds};
use tooltune::optim::Optimizer;
use tooltune::retriever::{Alone, Direction, Encoder, InfoNce, Sentences};
use tooltune_checkpoints::sentence_transformers::save_sentence_transformer;
use tooltune_kernels::{AdamW, ComputeDtype};

use super::diagonal_batch;
use crate::support::bounds::Quantity;
use crate::support::{Tensors, fixture, max_abs_difference, relative_difference, test_device};

fn record() -> Value {
    let file = fixture("retriever_kinds/cases.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn texts(value: &Value) -> Vec<String> {
    serde_json::from_value(value.clone()).unwrap()
}

fn vectors(value: &Value) -> Vec<Vec<f32>> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Copies the model of the fixture `retriever`, and replaces its config files by a case's files.
fn folder(case: &Value) -> TempDir {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            let target = to.join(path.file_name().unwrap());
            if path.is_dir() {
                copy(&path, &target)
            } else {
                std::fs::copy(&path, &target).unwrap();
            }
        }
    }
    let folder = TempDir::new().unwrap();
    copy(&fixture("retriever/model"), folder.path());
    for (name, value) in case["files"].as_object().unwrap() {
        let path = folder.path().join(name);
        match value {
            Value::Null => std::fs::remove_file(path).unwrap(),
            value => std::fs::write(path, value.to_string()).unwrap(),
        }
    }
    folder
}

fn open(dir: &Path) -> (EncoderFiles, MiniLmEncoder) {
    let files = EncoderFiles::open(dir, &EncoderOptions::default()).unwrap();
    let flat = files.parameters(dir, &test_device()).unwrap();
    let encoder = files.encoder(&flat);
    (files, encoder)
}

/// Roles, each with the key of its texts, and the key prefix of its ids and embeddings in a case.
const ROLES: [(Role, &str, &str); 3] = [
    (Role::Query, "queries", "query"),
    (Role::Document, "documents", "document"),
    (Role::Text, "texts", "text"),
];

#[track_caller]
fn assert_embedded(
    case: &Value,
    texts_by_role: &Value,
    (files, encoder): &(EncoderFiles, MiniLmEncoder),
) {
    let name = &case["name"];
    for (role, all, one) in ROLES {
        let texts = texts(&texts_by_role[all]);
        let ids = files.token_ids(role, &texts).unwrap();
        let ids: Vec<&[u32]> = ids.texts.iter().map(|text| &text.ids[..]).collect();
        let expected: Vec<Vec<u32>> =
            serde_json::from_value(case[&format!("{one}_ids")].clone()).unwrap();
        assert_eq!(ids, expected, "{name} {one}");
        let expected = vectors(&case[&format!("{one}_embeddings")]);
        for (ours, theirs) in encoder.embed(role, &texts).unwrap().iter().zip(expected) {
            let length = theirs.iter().map(|x| x * x).sum::<f32>().sqrt();
            let worst = max_abs_difference(ours, &theirs) / f64::from(length);
            assert!(worst < Quantity::Embedding.bound(), "{name} {one}: {worst}");
        }
    }
}

/// Invariant: Encoders embed, train and export as in sentence-transformers.
#[test]
fn every_kind_of_encoder_embeds_as_in_sentence_transformers() {
    let record = record();
    let mut n = 0;
    for case in record["cases"].as_array().unwrap() {
        let folder = folder(case);
        let opened = open(folder.path());
        assert_embedded(case, &record, &opened);
        let (files, encoder) = opened;
        let [queries, documents] = [(Role::Query, "queries"), (Role::Document, "documents")]
            .map(|(role, key)| files.token_ids(role, &texts(&record[key])).unwrap())
            .map(|ids| encoder.comparison_embeddings(&ids, &mut Alone).unwrap());
        for (query, expected) in queries.iter().zip(vectors(&case["similarities"])) {
            let ours: Vec<f32> = scores(&documents, query)
                .iter()
                .map(|x| *x as f32)
                .collect();
            let off = relative_difference(&ours, &expected);
            assert!(off < Quantity::Embedding.bound(), "{}: {off}", case["name"]);
        }
        n += 1;
    }
    assert!(n >= 13, "{n} folders");
}

/// Exports are read again unchanged, in the format of the oldest version.
///
/// Invariant: Encoders embed, train and export as in sentence-transformers.
#[test]
fn every_kind_of_encoder_is_exported_unchanged() {
    let record = record();
    for case in record["cases"].as_array().unwrap() {
        let folder = folder(case);
        let (files, _) = open(folder.path());
        let device = test_device();
        let flat = files.parameters(folder.path(), &device).unwrap();
        let tensors = Encoder::new(
            files.config.clone(),
            files.comparison_head(),
            ComputeDtype::F32,
        )
        .layout
        .to_tensors(&flat);
        let exported: PathBuf = folder.path().join("exported");
        save_sentence_transformer(&exported, &files.rules, tensors, files.max_seq_length).unwrap();
        let again = open(&exported);
        assert_embedded(case, &record, &again);
        let pooling = std::fs::read_to_string(exported.join("1_Pooling/config.json")).unwrap();
        assert!(!pooling.contains("\"pooling_mode\""), "{pooling}");
        assert_eq!(again.0.rules.prompts, files.rules.prompts);
        assert_eq!(again.0.rules.similarity.name(), case["similarity"]);
        assert_eq!(again.0.rules.do_lower_case, files.rules.do_lower_case);
        assert_eq!(again.0.max_seq_length, files.max_seq_length);
    }
}

fn sentences<'a>(queries: &'a TextIds, documents: &'a TextIds) -> Sentences<'a> {
    let all = |ids: &'a TextIds| (0..ids.texts.len()).map(|i| ids.sentence(i)).collect();
    Sentences {
        queries: all(queries),
        documents: all(documents),
    }
}

/// Invariant: Encoders embed, train and export as in sentence-transformers.
#[test]
fn losses_gradients_and_steps_of_every_kind_agree_with_sentence_transformers() {
    let record = record();
    let number = |key: &str| record[key].as_f64().unwrap();
    let adamw = AdamW {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: number("weight_decay"),
    };
    let tensors = Tensors::open(&fixture("retriever_kinds/gradients.safetensors"));
    let mut n_whole = 0;
    for case in record["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let folder = folder(case);
        let (files, _) = open(folder.path());
        let encoder = Encoder::new(
            files.config.clone(),
            files.comparison_head(),
            ComputeDtype::F32,
        );
        let ids = |role, key: &str| files.token_ids(role, &texts(&record[key])).unwrap();
        let (queries, documents) = (
            ids(Role::Query, "queries"),
            ids(Role::Document, "documents"),
        );
        let sentences = sentences(&queries, &documents);
        let batch = diagonal_batch(queries.texts.len());
        let loss = InfoNce {
            scale: if case["similarity"] == "dot" {
                1.0
            } else {
                20.0
            },
            direction: Direction::QueryToDocument,
        };
        let gradient_of = |flat: &Tensor<1>, size| {
            encoder
                .gradient(flat, &sentences, &batch, &loss, size, &mut Alone)
                .unwrap()
        };
        let mut flat = files.parameters(folder.path(), &test_device()).unwrap();
        for size in [usize::MAX, 3] {
            let pass = gradient_of(&flat, size);
            let gradient: Vec<f32> = pass.gradient.to_data().iter::<f32>().collect();
            let global = case["gradient_norm"].as_f64().unwrap();
            for slot in &encoder.layout.slots {
                let own = &gradient[slot.range.clone()];
                let theirs = case["gradient_norms"][&slot.name].as_f64().unwrap();
                let norm = own
                    .iter()
                    .map(|g| f64::from(*g).powi(2))
                    .sum::<f64>()
                    .sqrt();
                let off = (norm - theirs).abs() / global;
                assert!(
                    off < Quantity::Gradient.bound(),
                    "{name} {}: {off}",
                    slot.name
                );
            }
            if tensors
                .names()
                .iter()
                .any(|n| n.starts_with(&format!("{name}.")))
            {
                let slots = encoder.layout.slots.iter();
                let theirs: Vec<f32> = slots
                    .flat_map(|slot| tensors.floats(&format!("{name}.{}", slot.name)))
                    .collect();
                let off = relative_difference(&gradient, &theirs);
                assert!(off < Quantity::Gradient.bound(), "{name} {size}: {off}");
                n_whole += 1;
            }
        }
        let mut optimizer = Optimizer::new(adamw, number("max_grad_norm"), &flat);
        let losses: Vec<f64> = serde_json::from_value(case["losses"].clone()).unwrap();
        for expected in losses {
            let pass = gradient_of(&flat, 3);
            let off = (pass.loss - expected).abs() / (1.0 + expected);
            assert!(off < Quantity::StepLossShare.bound(), "{name}: {off}");
            optimizer.step(&mut flat, pass.gradient, pass.loss, number("learning_rate"));
        }
    }
    assert_eq!(n_whole, 4, "two folders, at once and in parts");
}
