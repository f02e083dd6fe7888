//! Logits of tiny random models compared with transformers, for every position and token.

use tooltune::models::{BatchContext, Decoder};

use crate::support::bounds::Quantity;
use crate::support::{Tensors, attach_adapter, fixture, load_base, max_abs_difference};

pub(crate) fn logits(decoder: &Decoder, documents: &[Vec<u32>]) -> Vec<f32> {
    let ids = documents.concat();
    let positions: Vec<u32> = documents.iter().flat_map(|d| 0..d.len() as u32).collect();
    let mut borders = vec![0];
    documents
        .iter()
        .for_each(|d| borders.push(borders[borders.len() - 1] + d.len()));
    let context = BatchContext::new(decoder, &positions, &borders);
    let hidden = decoder.forward(&ids, &context);
    decoder.logits(hidden).into_data().iter::<f32>().collect()
}

/// Compares the logits of two documents in one pack with the fixture, which was computed one
/// document at a time.
pub(crate) fn check_family(name: &str) {
    let decoder = load_base(&fixture(&format!("models/{name}")));
    check_logits(name, &decoder, Quantity::Logits.bound());
}

pub(crate) fn check_logits(name: &str, decoder: &Decoder, bound: f64) {
    let expected = Tensors::open(&fixture(&format!("models/{name}/expected.safetensors")));
    let documents = [
        expected.ids("document0.input_ids"),
        expected.ids("document1.input_ids"),
    ];
    let both = [
        expected.floats("document0.logits"),
        expected.floats("document1.logits"),
    ]
    .concat();
    let worst = max_abs_difference(&logits(decoder, &documents), &both);
    assert!(worst < bound, "{name}: {worst}");
}

/// Invariant: Packed documents do not attend to each other.
#[test]
fn llama_3_1_with_rope_scaling_agrees_with_transformers() {
    check_family("llama31");
}

#[test]
fn mistral_with_its_own_head_size_agrees_with_transformers() {
    check_family("mistral");
}

#[test]
fn qwen2_with_biases_agrees_with_transformers() {
    check_family("qwen2");
}

fn check_adapter(folder: &str) {
    let mut decoder = load_base(&fixture("models/llama31"));
    let expected = Tensors::open(&fixture(&format!(
        "models/llama31/{folder}/expected.safetensors"
    )));
    let ids = expected.ids("input_ids");
    let base = logits(&decoder, std::slice::from_ref(&ids));
    attach_adapter(
        &mut decoder,
        &fixture(&format!("models/llama31/{folder}/adapter")),
    );
    let adapted = logits(&decoder, std::slice::from_ref(&ids));
    let worst = max_abs_difference(&adapted, &expected.floats("logits"));
    assert!(worst < Quantity::Logits.bound(), "{folder}: {worst}");
    assert!(
        max_abs_difference(&adapted, &base) > 0.1,
        "the adapter of {folder} changes nothing"
    );
}

#[test]
fn logits_with_an_adapter_from_peft_agree() {
    check_adapter("lora");
}

#[test]
fn rank_and_alpha_patterns_with_rslora_scale_as_in_peft() {
    check_adapter("lora_patterns");
}

/// Invariant: The KV cache does not change logits.
#[test]
fn cached_decoding_equals_reading_the_whole_text() {
    let mut decoder = load_base(&fixture("models/llama31"));
    attach_adapter(&mut decoder, &fixture("models/llama31/lora/adapter"));
    check_cached("llama31", &decoder, &[23, 5, 40]);
}

/// Decodes the last tokens of documents of these lengths one by one, and compares the logits with
/// the uncached ones.
pub(crate) fn check_cached(name: &str, decoder: &Decoder, lengths: &[usize]) {
    let vocab_size = decoder.config.vocab_size;
    let ids = |n: u32| (0..n).map(|i| (i * 37 + 11) % vocab_size as u32).collect();
    let texts: Vec<Vec<u32>> = lengths.iter().map(|&n| ids(n as u32)).collect();
    let n_new = 4;
    let prompts: Vec<&[u32]> = texts
        .iter()
        .map(|text| &text[..text.len() - n_new])
        .collect();
    let (mut cache, hidden) = decoder.refill(None, &[], &prompts, n_new);
    let mut hidden = hidden.unwrap();
    for step in 0..n_new {
        let cached: Vec<f32> = decoder.logits(hidden).into_data().iter::<f32>().collect();
        for (row, (text, prompt)) in texts.iter().zip(&prompts).enumerate() {
            let read = text[..prompt.len() + step].to_vec();
            let uncached = logits(decoder, &[read]);
            let last = &uncached[uncached.len() - vocab_size..];
            let cached = &cached[row * vocab_size..(row + 1) * vocab_size];
            let worst = max_abs_difference(cached, last);
            assert!(
                worst < Quantity::Logits.bound(),
                "{name}, row {row}, step {step}: {worst}"
            );
        }
        if step == 1 {
            let all: Vec<usize> = (0..texts.len()).collect();
            (cache, _) = decoder.refill(Some(cache), &all, &[], n_new);
        }
        let next: Vec<u32> = texts
            .iter()
            .zip(&prompts)
            .map(|(text, prompt)| text[prompt.len() + step])
            .collect();
        hidden = decoder.decode(&mut cache, &next);
    }
}
