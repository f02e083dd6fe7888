//! Each model family against transformers and PEFT, from the fixtures of
//! `scripts/fixtures/tiny_models.py`.

use std::collections::BTreeMap;

use burn::tensor::DType;
use serde_json::{Value, json};
use tooltune::models::DecoderConfig;
use tooltune::models::load::Projections;
use tooltune_checkpoints::adapter::{
    GgufBase, load_adapter, peft_rules, read_gguf_adapter, write_gguf_adapter,
};
use tooltune_checkpoints::families::FAMILIES;
use tooltune_checkpoints::model_files::ModelFiles;
use tooltune_checkpoints::weights::{FloatDtype, HostTensor, Weights, write_tensors};
use tooltune_kernels::ComputeDtype;

use super::backward::{check_gradients, check_pieces};
use super::logits::{check_cached, check_family, check_logits};
use super::peft::check_steps;
use crate::support::bounds::Quantity;
use crate::support::{attach_adapter, fixture, load_base, load_base_with};

/// Tests of each family. The tests of Llama and Qwen2 are in the other modules of `parity`.
macro_rules! family_agrees {
    (llama) => {};
    (qwen2) => {};
    (mistral) => { model_agrees!(mistral_window); };
    (qwen3_5_text) => { model_agrees!(qwen3_5_text, qwen3_5_text_even); };
    ($family:ident) => { model_agrees!($family); };
    ($($family:ident),+ $(,)?) => { $(family_agrees!($family);)+ };
}

/// Tests of one model: logits of a pack, gradients, five steps, the block-wise pass, the KV cache,
/// and bf16.
macro_rules! model_agrees {
    ($($family:ident),+) => {$(
        mod $family {
            const FAMILY: &str = stringify!($family);

            /// Invariant: Every model family matches transformers and PEFT in logits, training and
            /// decoding.
            #[test]
            fn logits_of_packed_documents_agree_with_transformers() {
                super::check_family(FAMILY);
            }

            /// Invariant: Gradients and twenty training steps match PEFT and PyTorch.
            #[test]
            fn every_gradient_agrees_with_peft() {
                super::check_gradients(FAMILY);
            }

            /// Invariant: Every model family matches transformers and PEFT in logits, training and
            /// decoding.
            #[test]
            fn five_steps_agree_with_peft() {
                super::check_steps(FAMILY, 5);
            }

            /// Invariant: The block-wise backward pass equals plain autodiff.
            #[test]
            fn block_wise_backward_equals_plain_autodiff() {
                super::check_pieces(FAMILY);
            }

            /// Invariant: The KV cache does not change logits.
            #[test]
            fn cached_decoding_equals_reading_the_whole_text() {
                super::check_family_cached(FAMILY);
            }

            #[test]
            fn bf16_logits_are_near_f32() {
                super::check_family_in_bf16(FAMILY);
            }
        }
    )+};
}

tooltune::for_families!(family_agrees);

fn check_family_cached(family: &str) {
    let folder = fixture(&format!("models/{family}"));
    let mut decoder = load_base(&folder);
    attach_adapter(&mut decoder, &folder.join("lora/adapter"));
    check_cached(family, &decoder, &[23, 5, 90, 40]);
}

/// Compares bf16 logits with f32 logits. In Qwen3.5's random model, rounding to bf16 changes the
/// logits more than in other models, because its norms amplify small values; the bound is then a
/// quarter more than the change in transformers.
fn check_family_in_bf16(family: &str) {
    let folder = fixture(&format!("models/{family}"));
    let decoder = load_base_with(ComputeDtype::Bf16, Projections::AsIs, &folder);
    let made_by = std::fs::read(folder.join("made_by.json")).unwrap();
    let made_by: Value = serde_json::from_slice(&made_by).unwrap();
    // If no value is recorded, the general bound applies.
    let theirs = made_by["bf16_against_f32_max_abs"]
        .as_f64()
        .unwrap_or_default();
    let bound = Quantity::Logits.bound_in(DType::BF16).max(1.25 * theirs);
    check_logits(family, &decoder, bound);
}

/// A test of each family in GGUF. Other tests read GGUF files of Llama and Qwen2.
macro_rules! family_in_gguf {
    (llama) => {};
    (mistral) => {};
    (qwen2) => {};
    (qwen3_5_text) => { model_in_gguf!(qwen3_5_text_even); };
    ($family:ident) => { model_in_gguf!($family); };
    ($($family:ident),+ $(,)?) => { $(family_in_gguf!($family);)+ };
}

/// A test of the GGUF file and the GGUF adapter of one model.
macro_rules! model_in_gguf {
    ($family:ident) => {
        #[test]
        fn $family() {
            super::a_gguf_file_computes_the_same(stringify!($family));
            super::an_adapter_survives(stringify!($family));
        }
    };
}

mod gguf {
    tooltune::for_families!(family_in_gguf);
}

/// Logits of `model.gguf`, with llama.cpp's names and layout, and its config except for fields that
/// GGUF encodes differently. There is no such file if another family reads the architecture.
fn a_gguf_file_computes_the_same(family: &str) {
    let folder = fixture(&format!("models/{family}"));
    let gguf = folder.join("model.gguf");
    if FAMILIES
        .iter()
        .any(|other| other.model_type == family && !other.gguf.reads_architecture)
    {
        assert!(
            !gguf.exists(),
            "{} is never read as {family}",
            gguf.display()
        );
        return;
    }
    let decoder = load_base(&gguf);
    check_logits(family, &decoder, Quantity::Logits.bound());
    let config = ModelFiles::read_config(&folder).unwrap();
    let config = DecoderConfig::from_json(&config).unwrap();
    assert_eq!(decoder.config.family, config.family);
    assert_eq!(decoder.config.layers, config.layers);
    assert_eq!(
        decoder.config.tie_word_embeddings,
        config.tie_word_embeddings
    );
}

/// Writes PEFT's adapter as a GGUF file, reads it again, and compares both.
fn an_adapter_survives(family: &str) {
    let folder = fixture(&format!("models/{family}"));
    let adapter = load_adapter(&folder.join("lora/adapter")).unwrap();
    let scalings = peft_rules(&adapter).unwrap();
    let config = ModelFiles::read_config(&folder).unwrap();
    let base = GgufBase::from_config(&folder, &config).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.gguf");
    write_gguf_adapter(&path, &adapter, &scalings, &base, FloatDtype::F32).unwrap();
    let read = read_gguf_adapter(&path, base.architecture).unwrap();
    assert_eq!(read.tensors, adapter.tensors);
    assert_eq!(read.scalings, scalings);
}

/// Checks the logits of a vision-language model whose language model is the fixture of `family`.
fn check_vision_model(family: &str, model_type: &str, [prefix, head]: [&str; 2]) {
    let folder = fixture(&format!("models/{family}"));
    let text = std::fs::read(folder.join("config.json")).unwrap();
    let text: Value = serde_json::from_slice(&text).unwrap();
    let config = json!({"model_type": model_type, "text_config": text, "vision_config": {},
        "tie_word_embeddings": true});
    let weights = Weights::open(&folder).unwrap();
    let mut tensors: BTreeMap<String, HostTensor> = weights
        .names()
        .map(|name| {
            let model_type = match name.strip_prefix("model.") {
                Some(rest) => format!("{prefix}{rest}"),
                None => format!("{head}{name}"),
            };
            (model_type, weights.read_f32(name).unwrap())
        })
        .collect();
    let vision_tensor = HostTensor {
        shape: vec![2],
        values: vec![1.0; 2],
    };
    for unrelated_tensor in [
        "vision_tower.x.weight",
        "model.multi_modal_projector.y.weight",
        "model.visual.z.weight",
        "mtp.norm.weight",
    ] {
        tensors.insert(unrelated_tensor.to_owned(), vision_tensor.clone());
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    write_tensors(&dir.path().join("model.safetensors"), &tensors).unwrap();
    let weights = Weights::open(dir.path()).unwrap();
    assert_eq!([weights.n_vision(), weights.n_prediction()], [3, 1]);
    let decoder = load_base(dir.path());
    check_logits(family, &decoder, Quantity::Logits.bound());
}

#[test]
fn only_the_language_model_of_a_vision_model_is_loaded() {
    for names in [
        ["model.language_model.", ""],
        ["language_model.model.", "language_model."],
    ] {
        check_vision_model("ministral3", "mistral3", names);
        check_vision_model("gemma3_text", "gemma3", names);
        check_vision_model("qwen3_5_text", "qwen3_5", names);
    }
}
