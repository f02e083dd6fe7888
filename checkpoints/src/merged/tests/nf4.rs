//! Reads and merges a folder that transformers quantised with bitsandbytes.

use super::*;

fn nf4_model() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(fixture("nf4/model").join(name), dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("tokenizer.json"), "{ }").unwrap();
    dir
}

/// Opens the model after this change of its config.
fn open_with(change: impl FnOnce(&mut Value)) -> Result<ModelFiles, String> {
    let dir = nf4_model();
    let path = dir.path().join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(&path, config.to_string()).unwrap();
    ModelFiles::open(dir.path()).map_err(|error| error.to_string())
}

#[test]
fn a_quantised_folder_opens_without_its_quantization_config() {
    let files = open_with(|_| {}).unwrap();
    assert_eq!(files.config.get("quantization_config"), None);
    assert_eq!(files.config["hidden_size"], 64);
    assert_eq!(files.remarks.len(), 1);
    assert!(files.remarks[0].starts_with("13 tensors are quantised"));
    assert!(refused_as_folder(&files).is_none());
    let config = ModelFiles::read_config(nf4_model().path()).unwrap();
    assert_eq!(config, files.config);
    for (key, value) in [
        ("load_in_8bit", json!(true)),
        ("bnb_4bit_quant_type", json!("fp4")),
    ] {
        let error = open_with(|config| config["quantization_config"][key] = value).unwrap_err();
        assert!(error.contains("quantization_config with"), "{error}");
        assert!(error.contains("before quantisation"), "{error}");
    }
    // Config and weights that contradict each other.
    let without = |config: &mut Value| {
        config
            .as_object_mut()
            .unwrap()
            .remove("quantization_config");
    };
    let error = open_with(without).unwrap_err();
    assert!(error.contains("13 tensors are stored as NF4"), "{error}");
    let plain = tiny_llama(FloatDtype::F32);
    let path = plain.path().join("config.json");
    let mut config: Value = serde_json::from_str(CONFIG).unwrap();
    config["quantization_config"] = json!({"load_in_4bit": true, "bnb_4bit_quant_type": "nf4"});
    fs::write(&path, config.to_string()).unwrap();
    let error = ModelFiles::open(plain.path()).unwrap_err().to_string();
    assert!(error.contains("no tensor is stored as NF4"), "{error}");
}

/// Invariant: A merged model is the base plus the adapter, rounded once to the base's format.
#[test]
fn a_merged_quantised_model_has_the_dequantised_values() {
    let base = nf4_model();
    let weights = Weights::open(base.path()).unwrap();
    let module = DOWN;
    let (adapter, scalings) = adapter(&[(module, 64, 3, 128)]);
    let both = (adapter, scalings);
    let (dir, merged) = merge(base.path(), &both, &MergeOptions::default()).unwrap();
    assert_eq!(merged.n_nf4(), 0);
    assert_eq!(
        merged.names().collect::<Vec<_>>(),
        weights.names().collect::<Vec<_>>()
    );
    for name in merged.names() {
        assert_eq!(merged.stored_as(name), Some("BF16"), "{name}");
        let (ours, before) = (
            merged.read_f32(name).unwrap(),
            weights.read_f32(name).unwrap(),
        );
        if name.strip_suffix(".weight") != Some(module) {
            assert_eq!(ours, before, "{name}");
            continue;
        }
        let sums = before.values.iter().zip(product(&both.0, module));
        for (ours, (before, product)) in ours.values.iter().zip(sums) {
            let exact = f64::from(*before) + product;
            let error = (f64::from(*ours) - exact).abs();
            assert!(error <= exact.abs() / 255.0 + 1e-5, "{ours} {exact}");
        }
    }
    let config = fs::read(dir.path().join("merged/config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    let mut original: Value =
        serde_json::from_slice(&fs::read(base.path().join("config.json")).unwrap()).unwrap();
    assert_eq!(config["dtype"], "bfloat16");
    assert_eq!(config.get("quantization_config"), None);
    // Nothing else changes.
    for config in [&mut config, &mut original] {
        config
            .as_object_mut()
            .unwrap()
            .remove("quantization_config");
    }
    assert_eq!(config, original);
    // The merged folder is a base like any other.
    assert!(
        ModelFiles::open(&dir.path().join("merged"))
            .unwrap()
            .remarks
            .is_empty()
    );
}

#[test]
fn a_quantised_base_becomes_a_gguf_model_with_the_dequantised_values() {
    let base = nf4_model();
    let path = base.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    // llama.cpp supports only one value.
    config["rope_parameters"]["original_max_position_embeddings"] = json!(8192);
    fs::write(&path, config.to_string()).unwrap();
    let files = ModelFiles::open(base.path()).unwrap();
    assert!(refused_by_llama_cpp(base.path(), &files).unwrap().is_none());
    let vocabulary = every_family::vocabulary(256, Some(1), None);
    let options = GgufMergeOptions {
        dtype: crate::weights::GgufDtype::Float(FloatDtype::BF16),
        chat_template: None,
        add_bos: None,
        vocabulary: Some(&vocabulary),
    };
    let dir = tempfile::tempdir().unwrap();
    let gguf = dir.path().join("model.gguf");
    let none = (tiny_llama_adapter().0, Scalings::new());
    save_merged_gguf(&gguf, base.path(), &none.0, &none.1, &options).unwrap();
    let merged = Weights::open(&gguf).unwrap();
    for name in files.weights.names() {
        let theirs = files.weights.read_f32(name).unwrap();
        assert_eq!(merged.read_f32(name).unwrap(), theirs, "{name}");
    }
}
