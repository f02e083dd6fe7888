//! Embeddings of the real all-MiniLM-L6-v2 compared with sentence-transformers.

use serde_json::Value;
use tooltune::encoder::MiniLmEncoder;
use tooltune_suites::SentenceEncoder;

use crate::support::bounds::Quantity;
use crate::support::{Tensors, fixture, max_abs_difference, model, test_device};

#[test]
fn embeddings_agree_with_sentence_transformers() {
    let encoder = MiniLmEncoder::open(&model("all-minilm-l6-v2"), &test_device()).unwrap();
    let file: Value =
        serde_json::from_slice(&std::fs::read(fixture("minilm/sentences.json")).unwrap()).unwrap();
    let sentences: Vec<&str> = file["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["sentence"].as_str().unwrap())
        .collect();
    let ours = encoder.encode(&sentences).unwrap();
    let expected = Tensors::open(&fixture("minilm/embeddings.safetensors"));
    let width = expected.shape("normalised")[1];
    for (row, theirs) in expected.floats("normalised").chunks(width).enumerate() {
        let worst = max_abs_difference(&ours[row], theirs);
        assert!(
            worst < Quantity::Embedding.bound(),
            "{:?}: {worst}",
            sentences[row]
        );
    }
}
