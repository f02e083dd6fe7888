//! Reads and merges a folder that transformers quantised with bitsandbytes.

use std::collections::BTreeSet;

use safetensors::SafeTensors;

use super::*;
use crate::weights::{Nf4Absmax, Nf4Tensor};

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
        dequantised: None,
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

/// The tensors of a folder's files as they are stored: data type, shape and bytes.
fn stored(folder: &Path) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let mut tensors = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "safetensors") {
            continue;
        }
        let bytes = fs::read(path).unwrap();
        for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let dtype = format!("{:?}", tensor.dtype());
            let content = (dtype, tensor.shape().to_vec(), tensor.data().to_vec());
            tensors.insert(name, content);
        }
    }
    tensors
}

/// The projections of a model with `_proj` in their names.
fn projections(weights: &Weights) -> BTreeSet<String> {
    let names = weights.names().filter(|name| name.contains("_proj"));
    names.map(str::to_owned).collect()
}

/// Options that write these weights in NF4, from bf16.
fn in_nf4(names: &BTreeSet<String>) -> MergeOptions<'_> {
    let dtype = FloatDtype::BF16;
    MergeOptions {
        quantised: Some(Nf4Weights { names, dtype }),
        ..MergeOptions::default()
    }
}

fn config(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// Invariant: An export in NF4 has the tensors and the bits of bitsandbytes.
#[test]
fn a_quantised_folder_is_written_again_byte_for_byte() {
    let base = nf4_model();
    let expected = stored(base.path());
    let none = (adapter(&[]).0, Scalings::new());
    let names = BTreeSet::new();
    for max_shard_bytes in [u64::MAX, 20_000] {
        let options = MergeOptions {
            max_shard_bytes,
            ..in_nf4(&names)
        };
        let (dir, merged) = merge(base.path(), &none, &options).unwrap();
        let folder = dir.path().join("merged");
        assert_eq!(merged.n_nf4(), 13);
        let found = stored(&folder);
        let differ = |name: &&String| found.get(*name) != expected.get(*name);
        let names = found.keys().chain(expected.keys());
        let different: BTreeSet<&String> = names.filter(differ).collect();
        assert!(different.is_empty(), "{max_shard_bytes}: {different:?}");
        assert_eq!(config(&folder), config(base.path()));
        let n_files = fs::read_dir(&folder).unwrap().count();
        assert!((n_files > 6) == (max_shard_bytes == 20_000), "{n_files}");
        if max_shard_bytes == 20_000 {
            let index = fs::read(folder.join(INDEX)).unwrap();
            let index: Value = serde_json::from_slice(&index).unwrap();
            let total: usize = expected.values().map(|tensor| tensor.2.len()).sum();
            assert_eq!(index["metadata"]["total_size"], total);
        }
    }
}

/// Invariant: An export in NF4 has the tensors and the bits of bitsandbytes.
#[test]
fn a_plain_base_gets_the_codes_of_bitsandbytes() {
    let expected = stored(&fixture("nf4/model"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama31");
    let weights = Weights::open(&fixture("nf4/model")).unwrap();
    let is_quantised = |name: &&str| weights.stored_as(name) == Some("NF4");
    let quantised = weights.names().filter(is_quantised);
    let names: BTreeSet<String> = quantised.map(str::to_owned).collect();
    let none = (adapter(&[]).0, Scalings::new());
    let base = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(source.join(name), base.path().join(name)).unwrap();
    }
    fs::write(base.path().join("tokenizer.json"), "{ }").unwrap();
    let (dir, merged) = merge(base.path(), &none, &in_nf4(&names)).unwrap();
    let folder = dir.path().join("merged");
    let ours = stored(&folder);
    assert!(ours.keys().eq(expected.keys()));
    for name in &names {
        for part in [
            "",
            ".quant_map",
            ".nested_quant_map",
            ".quant_state.bitsandbytes__nf4",
        ] {
            let part = format!("{name}{part}");
            let (ours, expected) = (&ours[&part], &expected[&part]);
            assert_eq!((&ours.0, &ours.1.len()), (&expected.0, &expected.1.len()));
            if !part.contains("quant_state") {
                assert!(ours == expected, "{part}");
            }
        }
        let [read, theirs] =
            [&merged, &weights].map(|weights| weights.read_nf4(name).unwrap().unwrap());
        // The nested absmax values depend on the order in which their mean is summed, and may have
        // a neighbouring code: see the tests of `weights::bitsandbytes`.
        for block in 0..theirs.absmax.len() {
            let [ours, theirs] = [&read, &theirs].map(|nf4| nf4.absmax.of_block(block));
            assert!(
                (ours - theirs).abs() <= 0.02 * theirs.abs(),
                "{name} {block}"
            );
        }
        let Nf4Absmax::Nested { offset, .. } = theirs.absmax else {
            panic!("nested")
        };
        let Nf4Absmax::Nested { offset: ours, .. } = read.absmax else {
            panic!("nested")
        };
        assert!(ours.to_bits().abs_diff(offset.to_bits()) <= 1, "{name}");
        // Our reader reads the written codes back bit for bit.
        let bf16 = Weights::open(&source).unwrap();
        let again = bf16.quantise_nf4(name, FloatDtype::BF16).unwrap();
        assert_eq!(merged.read_nf4(name).unwrap(), Some(again), "{name}");
    }
    let quantization = |folder: &Path| config(folder)["quantization_config"].clone();
    assert_eq!(quantization(&folder), quantization(&fixture("nf4/model")));
    assert_eq!(ModelFiles::open(&folder).unwrap().remarks.len(), 1);
}

/// Invariant: A merged model is the base plus the adapter, rounded once to the base's format.
#[test]
fn an_adapter_is_merged_onto_the_nf4_values_if_they_are_chosen() {
    let base = tiny_llama(FloatDtype::BF16);
    let weights = Weights::open(base.path()).unwrap();
    let names = projections(&weights);
    let both = tiny_llama_adapter();
    let dequantised = Some(Nf4Weights {
        names: &names,
        dtype: FloatDtype::BF16,
    });
    let options = MergeOptions {
        dequantised,
        ..MergeOptions::default()
    };
    // The same merge from a folder with the NF4 values.
    let values = weights.names().map(|name| {
        let tensor = match names.contains(name) {
            true => weights
                .quantise_nf4(name, FloatDtype::BF16)
                .unwrap()
                .dequantise(),
            false => weights.read_f32(name).unwrap(),
        };
        (name.to_owned(), (tensor, FloatDtype::BF16))
    });
    let values_dir = base_dir(&values.collect());
    let (_first, ours) = merge(base.path(), &both, &options).unwrap();
    let (_second, expected) = merge(values_dir.path(), &both, &MergeOptions::default()).unwrap();
    let (_third, original) = merge(base.path(), &both, &MergeOptions::default()).unwrap();
    for name in weights.names() {
        let [ours, expected, original] =
            [&ours, &expected, &original].map(|weights| weights.read_f32(name).unwrap());
        assert_eq!(ours, expected, "{name}");
        assert_eq!(ours == original, !names.contains(name), "{name}");
    }
    // Merged and written in NF4: the codes of the merged values, or the codes of the base for
    // weights that the adapter does not change.
    let options = MergeOptions {
        dequantised,
        ..in_nf4(&names)
    };
    let (_fourth, quantised) = merge(base.path(), &both, &options).unwrap();
    let exact = MergeOptions {
        dequantised,
        ..MergeOptions::default()
    };
    let (_fifth, sums) = merge(base.path(), &both, &exact).unwrap();
    for name in &names {
        let read = quantised.read_nf4(name).unwrap().unwrap();
        let expected = match adapted(name) {
            None => weights.quantise_nf4(name, FloatDtype::BF16).unwrap(),
            Some(_) => {
                let sum = sums.read_f32(name).unwrap();
                Nf4Tensor::quantise(&sum, FloatDtype::BF16, true).unwrap()
            }
        };
        assert_eq!(read, expected, "{name}");
    }
}

#[test]
fn a_gguf_base_is_dequantised_in_the_row_order_of_hugging_face() {
    let gguf = fixture("tiny_llama.gguf");
    let weights = Weights::open(&gguf).unwrap();
    let names = projections(&weights);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("merged.gguf");
    let options = GgufMergeOptions {
        dtype: crate::weights::GgufDtype::Float(FloatDtype::F32),
        chat_template: None,
        add_bos: None,
        vocabulary: None,
        dequantised: Some(Nf4Weights {
            names: &names,
            dtype: FloatDtype::F32,
        }),
    };
    let none = (tiny_llama_adapter().0, Scalings::new());
    save_merged_gguf(&path, &gguf, &none.0, &none.1, &options).unwrap();
    let merged = Weights::open(&path).unwrap();
    for name in weights.names() {
        let expected = match names.contains(name) {
            true => weights
                .quantise_nf4(name, FloatDtype::F32)
                .unwrap()
                .dequantise(),
            false => weights.read_f32(name).unwrap(),
        };
        assert_eq!(merged.read_f32(name).unwrap(), expected, "{name}");
    }
}

#[test]
fn a_value_without_a_code_is_named() {
    let base = tiny_llama(FloatDtype::F32);
    let weights = Weights::open(base.path()).unwrap();
    let names = projections(&weights);
    let (mut factors, scalings) = tiny_llama_adapter();
    let b = factors.tensors.get_mut(&format!("{DOWN}.lora_B.weight"));
    b.unwrap().values[0] = f32::MAX;
    let error = merge(base.path(), &(factors, scalings), &in_nf4(&names)).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains(DOWN) && error.contains("no NF4 code"),
        "{error}"
    );
}
