//! Each model family by the program: it learns, is planned, exported in every way and read again, and its
//! GGUF file computes what its folder does.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tooltune::models::DecoderConfig;
use tooltune::models::load::expected_tensors;
use tooltune_checkpoints::families::{FAMILIES, Family};
use tooltune_checkpoints::model_files::ModelFiles;
use tooltune_checkpoints::weights::{HostTensor, write_tensors};
use tooltune_rows::batches::SeededRandom;

use crate::support::fixture;
use crate::workplace::Workplace;

/// A random model of the shape of a fixture, with the tokenizer of the tiny chat model, in `model`.
fn write_model(workplace: &Workplace, shape: &str) {
    let folder = workplace.copy_model("model");
    let path = fixture(&format!("models/{shape}/config.json"));
    let text = std::fs::read_to_string(path).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["vocab_size"] = json!(1024);
    config["max_position_embeddings"] = json!(4096);
    for (id, of) in [
        ("bos_token_id", 1),
        ("eos_token_id", 2),
        ("pad_token_id", 0),
    ] {
        config[id] = json!(of);
    }
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let config = ModelFiles::read_config(&folder).unwrap();
    let config = DecoderConfig::from_json(&config).unwrap();
    let mut random = SeededRandom::new(11, 0);
    let mut number = move || random.uniform_f64() as f32 - 0.5;
    let tensors: BTreeMap<String, HostTensor> = expected_tensors(&config)
        .into_iter()
        .map(|(name, shape)| {
            let n = shape.iter().product();
            let width = (shape[shape.len() - 1] as f32).sqrt();
            let scale = 1.7 / if shape.len() == 1 { 1.0 } else { width };
            let centre = match name.contains("norm") {
                true => 1.0 - config.family.norms.offset,
                false => 0.0,
            };
            let values = (0..n).map(|_| centre + scale * number()).collect();
            (name, HostTensor { shape, values })
        })
        .collect();
    let weights = folder.join("model.safetensors");
    std::fs::remove_file(&weights).unwrap();
    write_tensors(&weights, &tensors).unwrap();
}

/// Learns two steps, evaluates, exports, and reads every export by the rules of its target.
fn check(shape: &str) {
    let workplace = Workplace::new();
    write_model(&workplace, shape);
    let model = ["--set", "model.model_name_or_path=model"];
    let short = [
        "--set",
        "train.max_steps=2",
        "--set",
        "data.max_length=2048",
    ];
    let run = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        workplace.run(words).success()
    };
    let train = [&["train", "config.toml"], &model[..], &short].concat();
    workplace.run(train.iter().copied()).success();
    let plan = [&["plan", "config.toml"], &model[..], &short].concat();
    workplace.run(plan.iter().copied()).success();
    let config = ModelFiles::read_config(&workplace.path("model")).unwrap();
    let refused = Family::of_config(&config).and_then(|family| family.gguf.refused);
    for (target, output, reader) in [
        ("peft", "peft", "peft-rules"),
        ("peft --neutral", "neutral", "vllm-rules"),
        ("gguf", "adapter.gguf", "gguf"),
        ("gguf --merged", "merged.gguf", "gguf"),
        ("merged", "merged", "merged"),
    ] {
        let export = format!("export run --checkpoint last --to {target} --output {output}");
        if let Some(reason) = refused.filter(|_| output.ends_with(".gguf")) {
            let answer = workplace.run(export.split(' '));
            assert_eq!(answer.status, Some(2), "{}", answer.stderr);
            assert!(answer.stderr.contains(reason), "{}", answer.stderr);
            assert!(!workplace.path(output).exists());
            continue;
        }
        if output == "merged.gguf" {
            continue;
        }
        run(&export);
        let said = run(&format!(
            "verify run --checkpoint last --rows 1 --against {reader} --export {output}"
        ));
        assert!(said.contains("agrees with"), "{shape} {reader}: {said}");
    }
    // A merged model is a model of the same family.
    let merged = std::fs::read_to_string(workplace.path("merged/config.json")).unwrap();
    let merged: Value = serde_json::from_str(&merged).unwrap();
    let family = Family::of_config(&merged).map(|family| family.model_type);
    let text = std::fs::read_to_string(fixture(&format!("models/{shape}/config.json"))).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(family, config["model_type"].as_str());
}

macro_rules! goes_its_way {
    ($($shape:ident),+ $(,)?) => {
        /// Shapes of the families that have a test here.
        const SHAPES: &[&str] = &[$(stringify!($shape)),+];

        $(#[test]
        fn $shape() {
            check(stringify!($shape));
        })+
    };
}

goes_its_way!(
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
);

#[test]
fn every_family_has_a_test() {
    let others = ["llama", "qwen2"];
    for family in FAMILIES {
        let name = family.model_type;
        let is_tested = SHAPES.iter().any(|shape| shape.starts_with(name));
        assert!(is_tested || others.contains(&name), "{name}");
    }
}
