//! Checks the config of a merged model of each family, from a folder and from a GGUF file.

use serde_json::json;

use super::*;
use crate::config_types::wrong_types;
use crate::families::{FAMILIES, Family};

/// The fixture folder of a family, which is not always named after the `model_type`.
fn folder_of(model_type: &str) -> &str {
    match model_type {
        "llama" => "llama31",
        "qwen3_5_text" => "qwen3_5_text_even",
        other => other,
    }
}

/// Numeric config fields that no class declares. The comments explain how transformers handles
/// them.
const UNDECLARED: [&str; 8] = [
    // Moved into the object rope_parameters.
    "rope_theta",
    "rope_local_base_freq",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    // The class computes the same value.
    "head_dim",
    // Converted to layer_types.
    "sliding_window_pattern",
    "full_attention_interval",
    "no_rope_layer_interval",
];

fn check_types(family: &str, config: &Value) {
    let wrong = wrong_types(config);
    assert!(wrong.is_empty(), "{family}: {wrong:?}");
}

/// Checks a config derived from a GGUF file, whose numeric fields all have a declared type.
fn check_converted(family: &str, config: &Value) {
    check_types(family, config);
    let types = Family::of_model_type(family).unwrap().config_types;
    let types: Value = serde_json::from_str(types).unwrap();
    for (key, value) in config.as_object().unwrap() {
        let is_known = !types[key].is_null() || UNDECLARED.contains(&key.as_str());
        assert!(is_known || !value.is_number(), "{family}: {key} = {value}");
    }
}

pub(super) fn vocabulary(
    n_tokens: usize,
    bos: Option<u32>,
    pad: Option<u32>,
) -> crate::GgufVocabulary {
    crate::GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: "smollm".to_owned(),
        tokens: (0..n_tokens).map(|i| format!("t{i}")).collect(),
        token_types: vec![1; n_tokens],
        bos_token_id: bos,
        eos_token_id: Some(2),
        pad_token_id: pad,
        ..crate::GgufVocabulary::default()
    }
}

/// The `config.json` and `generation_config.json` of a merged folder of this base.
fn merged_configs(base: &Path) -> [Value; 2] {
    let options = MergeOptions {
        tokenizer_json: Some("{}"),
        ..MergeOptions::default()
    };
    let none = (tiny_llama_adapter().0, Scalings::new());
    let (dir, _) = merge(base, &none, &options).unwrap();
    ["config.json", "generation_config.json"].map(|file| {
        let text = fs::read_to_string(dir.path().join("merged").join(file)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    })
}

#[test]
fn numbers_of_every_merged_config_have_the_types_that_transformers_declares() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models");
    for family in FAMILIES {
        let name = family.model_type;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("model");
        fs::create_dir(&folder).unwrap();
        let fixture = models.join(folder_of(name));
        assert!(
            fixture.exists(),
            "{} does not exist: see step 3 of \"Add a model family\" in CONTRIBUTING.md",
            fixture.display()
        );
        let tensors = fixture.join("model.safetensors");
        fs::copy(tensors, folder.join("model.safetensors")).unwrap();
        fs::write(folder.join("tokenizer.json"), "{\"model\": {}}").unwrap();
        let mut original = supported_config(&fixture);
        // llama.cpp supports only this value.
        if name == "llama" {
            original["rope_scaling"]["original_max_position_embeddings"] = json!(8192);
        }
        let mut loose = original.clone();
        loose["vocab_size"] = json!(original["vocab_size"].as_f64().unwrap());
        for config in [&original, &loose] {
            fs::write(folder.join("config.json"), config.to_string()).unwrap();
            check_types(name, &merged_configs(&folder)[0]);
        }
        fs::write(folder.join("config.json"), original.to_string()).unwrap();
        let n_tokens = original["vocab_size"].as_u64().unwrap() as usize;
        for (bos, pad) in [(Some(1), Some(3)), (None, None)] {
            let gguf = dir.path().join("model.gguf");
            let _ = fs::remove_file(&gguf);
            let options = GgufMergeOptions {
                dtype: crate::weights::GgufDtype::Float(FloatDtype::F32),
                chat_template: None,
                add_bos: None,
                vocabulary: Some(&vocabulary(n_tokens, bos, pad)),
                dequantised: None,
            };
            let none = (tiny_llama_adapter().0, Scalings::new());
            save_merged_gguf(&gguf, &folder, &none.0, &none.1, &options).unwrap();
            let [config, generation] = merged_configs(&gguf);
            check_converted(name, &config);
            // A family default must not replace an ID that the file omits.
            assert_eq!(config["bos_token_id"], json!(bos), "{name}");
            assert_eq!(config["pad_token_id"], json!(pad), "{name}");
            assert!(config.get("pad_token_id").is_some() && config.get("bos_token_id").is_some());
            assert_eq!(config["eos_token_id"], 2, "{name}");
            assert_eq!(generation["eos_token_id"], 2, "{name}");
            assert_eq!(
                generation.get("pad_token_id"),
                pad.map(|id| json!(id)).as_ref()
            );
        }
        let theirs = fixture.join("model.gguf");
        if theirs.exists() {
            check_converted(name, &merged_configs(&theirs)[0]);
        }
    }
}
