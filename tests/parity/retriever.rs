//! InfoNCE, its gradients and five steps of MiniLM compared with sentence-transformers.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use serde_json::Value;
use tooltune::encoder::{EncoderFiles, EncoderOptions, Role};
use tooltune::models::minilm::{EmbeddingHead, ParameterLayout, Sentence};
use tooltune::optim::{Optimizer, StepOutcome};
use tooltune::retriever::{Alone, Direction, Encoder, InfoNce, RetrieverLora, Sentences, Trained};
use tooltune_agents::pairs::{BatchRow, PairBatch, PairSet};
use tooltune_kernels::{AdamW, ComputeDtype};

use super::diagonal_batch;
use crate::support::bounds::Quantity;
use crate::support::{
    Tensors, fixture, max_abs_difference, model, relative_difference, test_device,
};

fn json(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(path)).unwrap()).unwrap()
}

fn ids(texts: &Value) -> Vec<Vec<u32>> {
    let ids_of = |text: &Value| serde_json::from_value(text["input_ids"].clone()).unwrap();
    texts.as_array().unwrap().iter().map(ids_of).collect()
}

/// A batch of the fixture. Its texts may repeat, because every column is a separate candidate.
struct Case {
    batch: PairBatch,
    queries: Vec<Vec<u32>>,
    documents: Vec<Vec<u32>>,
    loss: InfoNce,
}

impl Case {
    fn new(case: &Value) -> Self {
        let queries = ids(&case["anchors"]);
        let n = queries.len();
        let mut documents = ids(&case["positives"]);
        for negatives in case["negatives"].as_array().unwrap() {
            documents.extend(ids(negatives));
        }
        let excluded =
            |row: usize, column: usize| case["excluded"][row][column].as_bool().unwrap_or(false);
        let columns = documents.len();
        let all = |width: usize, is: &dyn Fn(usize, usize) -> bool| -> Vec<bool> {
            (0..n * width).map(|i| is(i / width, i % width)).collect()
        };
        let batch = PairBatch {
            queries: (0..n).collect(),
            documents: (0..columns).collect(),
            rows: (0..n)
                .map(|i| BatchRow {
                    query: i,
                    document: i,
                })
                .collect(),
            excluded_documents: all(columns, &excluded),
            excluded_queries: all(n, &|row, query| excluded(query, row)),
        };
        Self {
            batch,
            queries,
            documents,
            loss: InfoNce {
                scale: case["scale"].as_f64().unwrap(),
                direction: if case["symmetric"].as_bool().unwrap() {
                    Direction::Symmetric
                } else {
                    Direction::QueryToDocument
                },
            },
        }
    }

    fn sentences(&self) -> Sentences<'_> {
        Sentences {
            queries: pool_all_tokens(&self.queries),
            documents: pool_all_tokens(&self.documents),
        }
    }
}

/// Sentences with all tokens pooled.
fn pool_all_tokens(ids: &[Vec<u32>]) -> Vec<Sentence<'_>> {
    ids.iter().map(|ids| Sentence::from(&ids[..])).collect()
}

fn open(dir: &std::path::Path, dtype: ComputeDtype) -> (EncoderFiles, Encoder, Tensor<1>) {
    let files = EncoderFiles::open(dir, &EncoderOptions::default()).unwrap();
    assert_eq!(files.comparison_head(), EmbeddingHead::MEAN);
    let encoder = Encoder::new(files.config.clone(), EmbeddingHead::MEAN, dtype);
    let flat = files.parameters(dir, &test_device()).unwrap();
    (files, encoder, flat)
}

fn floats(x: &Tensor<1>) -> Vec<f32> {
    x.to_data().iter::<f32>().collect()
}

/// The expected gradient of all parameters in the order of the layout.
fn expected_gradient(tensors: &Tensors, case: &str, layout: &ParameterLayout) -> Vec<f32> {
    let slots = layout.slots.iter();
    slots
        .flat_map(|slot| tensors.floats(&format!("{case}.gradient.{}", slot.name)))
        .collect()
}

#[test]
fn texts_are_truncated_at_the_length_of_the_folder_in_both_versions() {
    let cases = json("retriever/cases.json");
    let files =
        EncoderFiles::open(&fixture("retriever/model"), &EncoderOptions::default()).unwrap();
    assert_eq!(
        Some(files.max_seq_length as u64),
        cases["max_seq_length"].as_u64()
    );
    let old = EncoderFiles::open(&model("all-minilm-l6-v2"), &EncoderOptions::default()).unwrap();
    assert_eq!(old.max_seq_length, 256);
    for case in cases["cases"].as_array().unwrap() {
        for text in case["anchors"].as_array().unwrap() {
            let ours = files
                .token_ids(Role::Query, &[text["text"].as_str().unwrap()])
                .unwrap();
            let theirs: Vec<u32> = serde_json::from_value(text["input_ids"].clone()).unwrap();
            assert_eq!(ours.texts[0].ids, theirs, "{text}");
        }
    }
}

/// Invariant: InfoNCE losses, gradients and steps match sentence-transformers, with and without
/// GradCache.
#[test]
fn losses_and_gradients_agree_with_sentence_transformers() {
    let (_, encoder, flat) = open(&fixture("retriever/model"), ComputeDtype::F32);
    let cases = json("retriever/cases.json");
    let expected = json("retriever/expected.json");
    let tensors = Tensors::open(&fixture("retriever/expected.safetensors"));
    let mut n_compared = 0;
    for case in cases["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let ours = Case::new(case);
        let mini_batches: &[usize] = match case["mini_batch_size"].as_u64() {
            // The case's mini-batches, and the whole batch at once.
            Some(size) => &[size as usize, usize::MAX],
            None => &[usize::MAX, 3],
        };
        for &size in mini_batches {
            let pass = encoder
                .gradient(
                    &flat,
                    &ours.sentences(),
                    &ours.batch,
                    &ours.loss,
                    size,
                    &mut Alone,
                )
                .unwrap();
            let loss = expected[name]["loss"].as_f64().unwrap();
            let bound = Quantity::StepLoss.bound();
            assert!(
                (pass.loss - loss).abs() < bound,
                "{name}: {} {loss}",
                pass.loss
            );
            let norm = expected[name]["gradient_norm"].as_f64().unwrap();
            let gradient = floats(&pass.gradient);
            let nothing = Quantity::VanishingGradient.bound();
            if norm < nothing {
                // The gradient of a single pair is 0 up to rounding.
                let mut sizes = gradient.iter().map(|g| f64::from(g.abs()));
                assert!(sizes.all(|g| g < nothing), "{name}");
                n_compared += 1;
                continue;
            }
            if tensors
                .names()
                .iter()
                .any(|n| n.starts_with(&format!("{name}.gradient.")))
            {
                let theirs = expected_gradient(&tensors, name, &encoder.layout);
                let off = relative_difference(&gradient, &theirs);
                assert!(off < Quantity::Gradient.bound(), "{name}, {size}: {off}");
                n_compared += 1;
            }
            let ours_norm = gradient
                .iter()
                .map(|g| f64::from(*g).powi(2))
                .sum::<f64>()
                .sqrt();
            assert!(
                (ours_norm / norm - 1.0).abs() < Quantity::StepNorm.bound(),
                "{name}"
            );
        }
    }
    assert!(n_compared >= 14, "compared {n_compared} gradients");
}

/// GradCache only saves memory: 64 pairs at once and eight at a time give the same gradient.
///
/// Invariant: InfoNCE losses, gradients and steps match sentence-transformers, with and without
/// GradCache.
#[test]
fn mini_batches_of_eight_equal_one_batch_of_sixty_four() {
    let (files, encoder, flat) = open(&fixture("retriever/model"), ComputeDtype::F32);
    let mut set = PairSet::default();
    let words = [
        "train", "hotel", "ticket", "table", "report", "forecast", "city", "time",
    ];
    for i in 0..64 {
        let (a, b) = (words[i % 8], words[i / 8]);
        let texts = (
            format!("{a} in {b} {i}"),
            format!("{b} of {a} number {i} {a}"),
        );
        set.push(i.to_string(), &texts.0, &texts.1, &[]).unwrap();
    }
    let batch = PairBatch::new(&set, &(0..64).collect::<Vec<_>>(), &[]);
    let queries = files.token_ids(Role::Query, set.queries()).unwrap();
    let documents = files.token_ids(Role::Document, set.documents()).unwrap();
    let sentences = Sentences {
        queries: (0..64).map(|i| queries.sentence(i)).collect(),
        documents: (0..64).map(|i| documents.sentence(i)).collect(),
    };
    let loss = InfoNce {
        scale: 20.0,
        direction: Direction::Symmetric,
    };
    let [full, parts] = [usize::MAX, 8].map(|size| {
        encoder
            .gradient(&flat, &sentences, &batch, &loss, size, &mut Alone)
            .unwrap()
    });
    let off = (full.loss - parts.loss).abs() / (1.0 + full.loss);
    assert!(off < Quantity::LossInOtherPieces.bound(), "{off}");
    let off = relative_difference(&floats(&parts.gradient), &floats(&full.gradient));
    assert!(off < Quantity::OtherPieces.bound(), "{off}");
}

/// The gradient of LoRA factors is the gradient of the matrices, propagated through `W + s B A`. It
/// is compared with finite differences of the loss.
#[test]
fn lora_factors_have_the_gradient_of_their_matrices() {
    let (_, mut encoder, base) = open(&fixture("retriever/model"), ComputeDtype::F32);
    let targets = ["query", "value", "intermediate.dense"].map(str::to_owned);
    let lora = RetrieverLora::new(&encoder.layout, base, 3, 6.0, &targets).unwrap();
    let start = lora.initial_factors(7, &test_device());
    assert_eq!(
        lora.matrices.len(),
        6,
        "three tensors of each of two blocks"
    );
    encoder.trained = Trained::Lora(Box::new(lora));
    let case = Case::new(&json("retriever/cases.json")["cases"][0]);
    let run = |flat: &Tensor<1>| {
        encoder
            .gradient(
                flat,
                &case.sentences(),
                &case.batch,
                &case.loss,
                usize::MAX,
                &mut Alone,
            )
            .unwrap()
    };
    // B is initially 0, which would make A's gradient 0.
    let n = start.dims()[0];
    let noise: Vec<f32> = (0..n)
        .map(|i| 0.1 * ((i * 37 % 101) as f32 / 50.0 - 1.0))
        .collect();
    let noise = Tensor::from_data(burn::tensor::TensorData::new(noise, [n]), &test_device());
    let flat = start.add(noise.clone());
    let gradient = floats(&run(&flat).gradient);
    for shift in 0..3 {
        let direction: Vec<f32> = (0..n)
            .map(|i| ((i * 53 + shift * 17) % 97) as f32 / 48.0 - 1.0)
            .collect();
        let expected: f64 = gradient
            .iter()
            .zip(&direction)
            .map(|(g, d)| f64::from(*g) * f64::from(*d))
            .sum();
        let direction = burn::tensor::TensorData::new(direction, [n]);
        let direction = Tensor::<1>::from_data(direction, &test_device());
        let loss_at = |step: f64| run(&flat.clone().add(direction.clone().mul_scalar(step))).loss;
        let difference = (loss_at(1e-3) - loss_at(-1e-3)) / 2e-3;
        // The f32 loss has an error of about 1e-6, which the central difference divides by 2e-3.
        let scale = 0.2 + expected.abs();
        assert!(
            (difference - expected).abs() < Quantity::Slope.bound() * scale,
            "{difference} {expected}"
        );
    }
}

struct MiniLmCase {
    record: Value,
    queries: Vec<Vec<u32>>,
    documents: Vec<Vec<u32>>,
}

impl MiniLmCase {
    fn read() -> Self {
        let record = json("retriever/minilm.json");
        let ids_of = |key: &str| -> Vec<Vec<u32>> {
            let pairs = record["pairs"].as_array().unwrap().iter();
            pairs
                .map(|pair| serde_json::from_value(pair[key].clone()).unwrap())
                .collect()
        };
        Self {
            queries: ids_of("query_ids"),
            documents: ids_of("document_ids"),
            record,
        }
    }

    fn batch(&self, pairs: &[usize]) -> (Sentences<'_>, PairBatch) {
        let n = pairs.len();
        let sentences = Sentences {
            queries: pairs
                .iter()
                .map(|&i| (&self.queries[i][..]).into())
                .collect(),
            documents: pairs
                .iter()
                .map(|&i| (&self.documents[i][..]).into())
                .collect(),
        };
        (sentences, diagonal_batch(n))
    }
}

const LOSS: InfoNce = InfoNce {
    scale: 20.0,
    direction: Direction::QueryToDocument,
};

fn norms(layout: &ParameterLayout, values: &[f32]) -> BTreeMap<String, f64> {
    let norm = |range: std::ops::Range<usize>| {
        values[range]
            .iter()
            .map(|v| f64::from(*v).powi(2))
            .sum::<f64>()
            .sqrt()
    };
    let slots = layout.slots.iter();
    slots
        .map(|slot| (slot.name.clone(), norm(slot.range.clone())))
        .collect()
}

#[test]
fn gradients_of_minilm_agree_with_sentence_transformers() {
    let case = MiniLmCase::read();
    let all: Vec<usize> = (0..case.queries.len()).collect();
    let (sentences, batch) = case.batch(&all);
    for dtype in [ComputeDtype::F32, ComputeDtype::Bf16] {
        let (_, encoder, flat) = open(&model("all-minilm-l6-v2"), dtype);
        let pass = encoder
            .gradient(&flat, &sentences, &batch, &LOSS, usize::MAX, &mut Alone)
            .unwrap();
        let loss = case.record["loss"].as_f64().unwrap();
        let bound = Quantity::StepLoss.bound_in(dtype.dtype());
        assert!((pass.loss - loss).abs() < bound, "{} {loss}", pass.loss);
        let gradient = floats(&pass.gradient);
        let global = case.record["gradient_norm"].as_f64().unwrap();
        let bound = Quantity::Gradient.bound_in(dtype.dtype());
        for (name, norm) in norms(&encoder.layout, &gradient) {
            let theirs = case.record["gradient_norms"][&name].as_f64().unwrap();
            // The gradient norm of each parameter; the bound is relative to the global norm.
            assert!(
                (norm - theirs).abs() < bound * global,
                "{name}: {norm} {theirs}"
            );
        }
        if dtype == ComputeDtype::Bf16 {
            continue;
        }
        let firsts = case.record["gradient_first_values"].as_object().unwrap();
        for (name, expected) in firsts {
            let ours = first_values(&encoder.layout, &gradient, name);
            let expected: Vec<f32> = serde_json::from_value(expected.clone()).unwrap();
            let worst = max_abs_difference(&ours[..expected.len()], &expected);
            assert!(worst < Quantity::GradientElement.bound(), "{name}: {worst}");
        }
    }
}

/// The values of a parameter, or from one of its rows on: `name[row]`.
fn first_values(layout: &ParameterLayout, values: &[f32], name: &str) -> Vec<f32> {
    let (name, row) = match name.split_once('[') {
        Some((name, row)) => (name, row.trim_end_matches(']').parse().unwrap()),
        None => (name, 0),
    };
    let slot = layout.slots.iter().find(|slot| slot.name == name).unwrap();
    let width = slot.shape.last().unwrap();
    values[slot.range.start + row * width..slot.range.end].to_vec()
}

/// Invariant: InfoNCE losses, gradients and steps match sentence-transformers, with and without
/// GradCache.
#[test]
fn five_steps_of_minilm_agree_with_pytorch() {
    let case = MiniLmCase::read();
    let (_, encoder, start) = open(&model("all-minilm-l6-v2"), ComputeDtype::F32);
    let hyperparameters = &case.record["hyperparameters"];
    let number = |key: &str| hyperparameters[key].as_f64().unwrap();
    let adamw = AdamW {
        beta1: hyperparameters["betas"][0].as_f64().unwrap(),
        beta2: hyperparameters["betas"][1].as_f64().unwrap(),
        eps: number("eps"),
        weight_decay: number("weight_decay"),
    };
    let mut flat = start.clone();
    let mut optimizer = Optimizer::new(adamw, number("max_grad_norm"), &flat);
    let n = case.queries.len();
    let pairs_per_step = hyperparameters["pairs_of_a_step"].as_u64().unwrap() as usize;
    let all: Vec<usize> = (0..n).collect();
    for step in case.record["training"]["steps"].as_array().unwrap() {
        let first = step["first_pair"].as_u64().unwrap() as usize;
        let pairs: Vec<usize> = (first..first + pairs_per_step).map(|i| i % n).collect();
        let (sentences, batch) = case.batch(&pairs);
        let pass = encoder
            .gradient(&flat, &sentences, &batch, &LOSS, 5, &mut Alone)
            .unwrap();
        let loss = step["loss"].as_f64().unwrap();
        assert!(
            (pass.loss - loss).abs() < Quantity::StepLoss.bound(),
            "{} {loss}",
            pass.loss
        );
        let outcome = optimizer.step(&mut flat, pass.gradient, pass.loss, number("learning_rate"));
        let StepOutcome::Updated { grad_norm } = outcome else {
            panic!("a step without an update");
        };
        let expected = step["grad_norm"].as_f64().unwrap();
        assert!((grad_norm / expected - 1.0).abs() < Quantity::StepNorm.bound());
        let (sentences, batch) = case.batch(&all);
        let after = encoder
            .gradient(&flat, &sentences, &batch, &LOSS, usize::MAX, &mut Alone)
            .unwrap();
        let expected = step["loss_of_all_after"].as_f64().unwrap();
        assert!((after.loss - expected).abs() < Quantity::StepLoss.bound());
    }
    let change: Vec<f32> = floats(&flat)
        .iter()
        .zip(floats(&start))
        .map(|(after, before)| after - before)
        .collect();
    for (name, norm) in norms(&encoder.layout, &change) {
        let expected = case.record["training"]["change_norms"][&name]
            .as_f64()
            .unwrap();
        // The gradients of key biases are only rounding error, so the sign of their steps may
        // differ.
        if !name.ends_with("key.bias") {
            let off = (norm / expected - 1.0).abs();
            assert!(
                off < Quantity::ParameterChange.bound(),
                "{name}: {norm} {expected}"
            );
        }
    }
}
