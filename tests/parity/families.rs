//! Each model family against transformers and PEFT, from the fixtures of `scripts/fixtures/tiny_models.py`.

use std::collections::BTreeMap;

use burn::tensor::DType;
use serde_json::{Value, json};
use tooltune::models::DecoderConfig;
use tooltune_checkpoints::adapter::{
    GgufBase, load_adapter, peft_rules, read_gguf_adapter, write_gguf_adapter,
};
use tooltune_checkpoints::model_files::ModelFiles;
use tooltune_checkpoints::weights::{FloatDtype, HostTensor, Weights, write_tensors};
use tooltune_kernels::ComputeDtype;

use super::backward::{check_gradients, check_pieces};
use super::logits::{check_cached, check_family, check_logits};
use super::peft::check_steps;
use crate::support::bounds::Quantity;
use crate::support::{attach_adapter, fixture, load_base, load_base_in};

/// Logits of a pack, gradients, five steps, pieces, the cache and bf16 of one model.
macro_rules! agrees {
    ($($family:ident),+ $(,)?) => {$(
        mod $family {
            const FAMILY: &str = stringify!($family);

            #[test]
            fn logits_of_packed_documents_agree_with_transformers() {
                super::check_family(FAMILY);
            }

            #[test]
            fn every_gradient_agrees_with_peft() {
                super::check_gradients(FAMILY);
            }

            #[test]
            fn five_steps_agree_with_peft() {
                super::check_steps(FAMILY, 5);
            }

            #[test]
            fn block_wise_backward_equals_plain_autodiff() {
                super::check_pieces(FAMILY);
            }

            #[test]
            fn cached_decoding_equals_reading_the_whole_text() {
                super::cached(FAMILY);
            }

            #[test]
            fn bf16_is_near() {
                super::in_bf16(FAMILY);
            }
        }
    )+};
}

agrees!(
    qwen3,
    mistral_window,
    granite,
    smollm3,
    phi3,
    seed_oss,
    olmo3,
    gemma3_text,
    ministral3,
    qwen3_5_text,
    qwen3_5_text_even,
);

fn cached(family: &str) {
    let folder = fixture(&format!("models/{family}"));
    let mut decoder = load_base(&folder);
    attach_adapter(&mut decoder, &folder.join("lora/adapter"));
    check_cached(family, &decoder, &[23, 5, 90, 40]);
}

/// Rounding to bf16 moves the logits of Qwen3.5's random model farther than others', because its norms
/// enlarge what is small; not more than a quarter farther than in transformers.
fn in_bf16(family: &str) {
    let folder = fixture(&format!("models/{family}"));
    let decoder = load_base_in(ComputeDtype::Bf16, &folder);
    let made_by = std::fs::read(folder.join("made_by.json")).unwrap();
    let made_by: Value = serde_json::from_slice(&made_by).unwrap();
    // Where it is not recorded, the bound holds.
    let theirs = made_by["bf16_against_f32_max_abs"]
        .as_f64()
        .unwrap_or_default();
    let bound = Quantity::Logits.bound_in(DType::BF16).max(1.25 * theirs);
    check_logits(family, &decoder, bound);
}

/// What a GGUF file and a GGUF adapter of one model say.
macro_rules! in_gguf {
    ($($family:ident),+ $(,)?) => {
        mod gguf {$(
            #[test]
            fn $family() {
                super::a_gguf_file_computes_the_same(stringify!($family));
                super::an_adapter_survives(stringify!($family));
            }
        )+}
    };
}

in_gguf!(
    qwen3,
    granite,
    smollm3,
    phi3,
    seed_oss,
    olmo3,
    gemma3_text,
    ministral3,
    qwen3_5_text_even,
);

/// Logits of `model.gguf`, whose names and layout are llama.cpp's, and its config but for what GGUF says
/// in another way.
fn a_gguf_file_computes_the_same(family: &str) {
    let folder = fixture(&format!("models/{family}"));
    let decoder = load_base(&folder.join("model.gguf"));
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

/// PEFT's adapter as a GGUF file and back.
fn an_adapter_survives(family: &str) {
    let folder = fixture(&format!("models/{family}"));
    let adapter = load_adapter(&folder.join("lora/adapter")).unwrap();
    let scalings = peft_rules(&adapter).unwrap();
    let config = ModelFiles::read_config(&folder).unwrap();
    let base = GgufBase::from_config(&folder, &config).unwrap();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("adapter.gguf");
    write_gguf_adapter(&path, &adapter, &scalings, &base, FloatDtype::F32).unwrap();
    let read = read_gguf_adapter(&path, base.architecture).unwrap();
    assert_eq!(read.tensors, adapter.tensors);
    assert_eq!(read.scalings, scalings);
}

/// A model that reads pictures, too, whose language model is that of a fixture.
fn with_pictures(family: &str, whole: &str, [prefix, head]: [&str; 2]) {
    let folder = fixture(&format!("models/{family}"));
    let text = std::fs::read(folder.join("config.json")).unwrap();
    let text: Value = serde_json::from_slice(&text).unwrap();
    let config = json!({"model_type": whole, "text_config": text, "vision_config": {},
        "tie_word_embeddings": true});
    let weights = Weights::open(&folder).unwrap();
    let mut tensors: BTreeMap<String, HostTensor> = weights
        .names()
        .map(|name| {
            let whole = match name.strip_prefix("model.") {
                Some(rest) => format!("{prefix}{rest}"),
                None => format!("{head}{name}"),
            };
            (whole, weights.read_f32(name).unwrap())
        })
        .collect();
    let seen = HostTensor {
        shape: vec![2],
        values: vec![1.0; 2],
    };
    for of_pictures in [
        "vision_tower.x.weight",
        "model.multi_modal_projector.y.weight",
        "model.visual.z.weight",
        "mtp.norm.weight",
    ] {
        tensors.insert(of_pictures.to_owned(), seen.clone());
    }
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("config.json"), config.to_string()).unwrap();
    write_tensors(&place.path().join("model.safetensors"), &tensors).unwrap();
    let weights = Weights::open(place.path()).unwrap();
    assert_eq!([weights.n_of_pictures(), weights.n_ahead()], [3, 1]);
    let decoder = load_base(place.path());
    check_logits(family, &decoder, Quantity::Logits.bound());
}

#[test]
fn the_language_model_of_one_that_reads_pictures_is_read_alone() {
    for names in [
        ["model.language_model.", ""],
        ["language_model.model.", "language_model."],
    ] {
        with_pictures("ministral3", "mistral3", names);
        with_pictures("gemma3_text", "gemma3", names);
        with_pictures("qwen3_5_text", "qwen3_5", names);
    }
}
