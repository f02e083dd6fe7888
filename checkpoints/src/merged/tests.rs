//! Compares merged models with the base plus the product of the factors, and tests refused merges.

mod every_family;
mod nf4;

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Map, Value};
use tempfile::TempDir;

use super::*;
use crate::adapter::{ModuleScaling, PeftConfig, TargetModules};
use crate::weights::HostTensor;

const Q: &str = "model.layers.0.self_attn.q_proj";
const DOWN: &str = "model.layers.0.mlp.down_proj";
const CONFIG: &str = "{ \"model_type\":\"llama\",\n\n \"torch_dtype\": \"float32\"}";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn matrix(n_rows: usize, n_columns: usize) -> HostTensor {
    let values = (0..n_rows * n_columns).map(|i| ((i * 37 + 11) % 101) as f32 / 64.0 - 0.75);
    HostTensor {
        shape: vec![n_rows, n_columns],
        values: values.collect(),
    }
}

/// Factors with scaling 1.5 for these modules: name, outputs, rank, inputs.
fn adapter(modules: &[(&str, usize, usize, usize)]) -> (Adapter, Scalings) {
    let targets = TargetModules::Pattern("all-linear".to_owned());
    let mut adapter = Adapter {
        config: PeftConfig::new(2, 3.0, targets),
        tensors: BTreeMap::new(),
    };
    let mut scalings = Scalings::new();
    for &(module, n_out, rank, n_in) in modules {
        let [a, b] = ["A", "B"].map(|half| format!("{module}.lora_{half}.weight"));
        adapter.tensors.insert(a, matrix(rank, n_in));
        adapter.tensors.insert(b, matrix(n_out, rank));
        let scaling = ModuleScaling { rank, scaling: 1.5 };
        scalings.insert(module.to_owned(), scaling);
    }
    (adapter, scalings)
}

fn tiny_llama_adapter() -> (Adapter, Scalings) {
    adapter(&[(Q, 32, 2, 32), (DOWN, 32, 3, 64)])
}

/// `scaling · B·A` of a module in f64.
fn product(adapter: &Adapter, module: &str) -> Vec<f64> {
    let a = &adapter.tensors[&format!("{module}.lora_A.weight")];
    let b = &adapter.tensors[&format!("{module}.lora_B.weight")];
    let (n_in, rank) = (a.shape[1], a.shape[0]);
    let entry = |i: usize| {
        let (row, column) = (i / n_in, i % n_in);
        let terms = (0..rank)
            .map(|k| f64::from(b.values[row * rank + k]) * f64::from(a.values[k * n_in + column]));
        1.5 * terms.sum::<f64>()
    };
    (0..b.shape[0] * n_in).map(entry).collect()
}

/// A Hugging Face directory with these tensors.
fn base_dir(tensors: &BTreeMap<String, (HostTensor, FloatDtype)>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let planned = tensors.iter().map(|(name, (tensor, dtype))| {
        FileTensor::Floats(NewTensor {
            name: name.clone(),
            shape: tensor.shape.clone(),
            dtype: *dtype,
        })
    });
    let path = dir.path().join("model.safetensors");
    write_file_tensors(&path, planned.collect(), |name| {
        Ok(Content::Floats(Cow::Borrowed(&tensors[name].0)))
    })
    .unwrap();
    fs::write(dir.path().join("config.json"), CONFIG).unwrap();
    fs::write(dir.path().join("tokenizer.json"), "{ }").unwrap();
    fs::write(dir.path().join("chat_template.jinja"), "{{ base }}").unwrap();
    dir
}

/// The fixture's tensors, written as a directory with this data type.
fn tiny_llama(dtype: FloatDtype) -> TempDir {
    let weights = Weights::open(&fixture("tiny_llama.safetensors")).unwrap();
    let read_tensor = |name: &str| (name.to_owned(), (weights.read_f32(name).unwrap(), dtype));
    base_dir(&weights.names().map(read_tensor).collect())
}

/// Merges into a new directory next to `base` and opens the result.
fn merge(
    base: &Path,
    (adapter, scalings): &(Adapter, Scalings),
    options: &MergeOptions<'_>,
) -> Result<(TempDir, Weights), CheckpointError> {
    let dir = tempfile::tempdir().unwrap();
    let merged = dir.path().join("merged");
    let result = save_merged(&merged, base, adapter, scalings, options);
    if result.is_err() {
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
    result?;
    let weights = Weights::open(&merged).unwrap();
    Ok((dir, weights))
}

fn adapted(name: &str) -> Option<&str> {
    let module = name.strip_suffix(".weight")?;
    [Q, DOWN].contains(&module).then_some(module)
}

/// Checks that every merged value is base plus product, up to rounding in f32 and `dtype`.
fn check_sums(merged: &Weights, base: &Weights, adapter: &Adapter, dtype: FloatDtype) {
    assert_eq!(
        merged.names().collect::<Vec<_>>(),
        base.names().collect::<Vec<_>>()
    );
    for name in base.names() {
        assert_eq!(merged.float_dtype(name), Some(dtype), "{name}");
        let (ours, before) = (merged.read_f32(name).unwrap(), base.read_f32(name).unwrap());
        assert_eq!(ours.shape, before.shape);
        let Some(module) = adapted(name) else {
            let expected: Vec<f32> = before.values.iter().map(|&v| dtype.rounded(v)).collect();
            assert_eq!(ours.values, expected, "{name}");
            continue;
        };
        // The tolerance is half a unit in the last place of the data type, plus the rounding of f32
        // sums.
        let precision = match dtype {
            FloatDtype::F32 => 1e-6,
            FloatDtype::F16 => 0.5001 / 1024.0,
            FloatDtype::BF16 => 0.5001 / 128.0,
        };
        let sums = before.values.iter().zip(product(adapter, module));
        for (ours, (before, product)) in ours.values.iter().zip(sums) {
            let exact = f64::from(*before) + product;
            let error = (f64::from(*ours) - exact).abs();
            assert!(
                error <= precision * exact.abs() + 1e-5,
                "{name}: {ours} {exact}"
            );
        }
    }
}

/// Invariant: A merged model is the base plus the adapter, rounded once to the base's format.
#[test]
fn a_merged_model_is_base_plus_product_in_the_base_data_type() {
    let adapter = tiny_llama_adapter();
    for dtype in [FloatDtype::F32, FloatDtype::F16, FloatDtype::BF16] {
        let base = tiny_llama(dtype);
        let (_dir, merged) = merge(base.path(), &adapter, &MergeOptions::default()).unwrap();
        let base = Weights::open(base.path()).unwrap();
        check_sums(&merged, &base, &adapter.0, dtype);
        assert_eq!(merged.paths().count(), 1);
    }
}

/// Invariant: A merged model is the base plus the adapter, rounded once to the base's format.
#[test]
fn exact_sums_stay_exact_and_other_weights_keep_their_bits() {
    let base = tiny_llama(FloatDtype::F32);
    let (adapter, mut scalings) = tiny_llama_adapter();
    scalings.remove(DOWN);
    let both = (adapter, scalings);
    let (dir, merged) = merge(base.path(), &both, &MergeOptions::default()).unwrap();
    let base_weights = Weights::open(base.path()).unwrap();
    for name in base_weights.names() {
        let expected = if name.strip_suffix(".weight") == Some(Q) {
            // The factors are multiples of 1/64, so the product is exact in f32.
            let values = base_weights.read_f32(name).unwrap().values;
            let products = product(&both.0, Q).into_iter();
            values
                .iter()
                .zip(products)
                .map(|(v, p)| v + p as f32)
                .collect()
        } else {
            base_weights.read_f32(name).unwrap().values
        };
        assert_eq!(merged.read_f32(name).unwrap().values, expected, "{name}");
    }
    for (name, content) in [
        ("config.json", CONFIG),
        ("tokenizer.json", "{ }"),
        ("chat_template.jinja", "{{ base }}"),
    ] {
        let path = dir.path().join("merged").join(name);
        assert_eq!(fs::read_to_string(path).unwrap(), content);
    }
    // Without any adapted module, the output equals the base file byte for byte.
    let nothing = (both.0.clone(), Scalings::new());
    let (dir, _) = merge(base.path(), &nothing, &MergeOptions::default()).unwrap();
    let [ours, theirs] = [dir.path().join("merged"), base.path().to_owned()];
    let read_weights = |dir: &Path| fs::read(dir.join("model.safetensors")).unwrap();
    assert!(read_weights(&ours) == read_weights(&theirs));
}

#[test]
fn a_gguf_base_becomes_a_hugging_face_directory() {
    let adapter = tiny_llama_adapter();
    let base = fixture("tiny_llama.gguf");
    let tokenizer = MergeOptions {
        tokenizer_json: Some("{\"model\": {}}"),
        ..MergeOptions::default()
    };
    for dtype in [FloatDtype::F32, FloatDtype::BF16] {
        let options = MergeOptions {
            gguf_dtype: dtype,
            ..tokenizer
        };
        let (dir, merged) = merge(&base, &adapter, &options).unwrap();
        let hugging_face = Weights::open(&fixture("tiny_llama.safetensors")).unwrap();
        check_sums(&merged, &hugging_face, &adapter.0, dtype);
        let (ours, theirs) = (
            ModelFiles::open(&dir.path().join("merged")).unwrap(),
            ModelFiles::open(&base).unwrap(),
        );
        for (key, value) in theirs.config.as_object().unwrap() {
            assert_eq!(&ours.config[key], value, "{key}");
        }
        assert_eq!(ours.config["torch_dtype"], dtype.torch_name());
        assert_eq!(ours.config["architectures"][0], "LlamaForCausalLM");
        assert_eq!(ours.special_tokens, theirs.special_tokens);
        assert_eq!(ours.eos_token_ids, theirs.eos_token_ids);
        assert_eq!(ours.chat_template, theirs.chat_template);
    }
    let error = merge(&base, &adapter, &MergeOptions::default()).unwrap_err();
    assert!(
        error.to_string().contains("without its tokenizer.json"),
        "{error}"
    );
}

#[test]
fn the_chat_template_can_be_replaced() {
    let base = tiny_llama(FloatDtype::F32);
    let prompts = PromptFiles {
        chat_template: Some("{{ trained }}".to_owned()),
        slot_prompt: Some("{{ input_text }}".to_owned()),
    };
    let options = MergeOptions {
        prompts: Some(&prompts),
        ..MergeOptions::default()
    };
    let (dir, _) = merge(base.path(), &tiny_llama_adapter(), &options).unwrap();
    let merged = dir.path().join("merged");
    let model = ModelFiles::open(&merged).unwrap();
    assert_eq!(model.chat_template.as_deref(), Some("{{ trained }}"));
    assert_eq!(PromptFiles::read(&merged).unwrap(), prompts);
}

#[test]
fn large_models_are_sharded_with_an_index() {
    let base = tiny_llama(FloatDtype::F32);
    let adapter = tiny_llama_adapter();
    let options = MergeOptions {
        max_shard_bytes: 9000,
        ..MergeOptions::default()
    };
    let (dir, merged) = merge(base.path(), &adapter, &options).unwrap();
    let base_weights = Weights::open(base.path()).unwrap();
    check_sums(&merged, &base_weights, &adapter.0, FloatDtype::F32);
    let merged_dir = dir.path().join("merged");
    let n_shards = merged.paths().count();
    assert!(n_shards > 2);
    assert!(!merged_dir.join("model.safetensors").exists());
    let mut n_tensors = 0;
    for (idx, path) in merged.paths().enumerate() {
        let name = format!("model-{:05}-of-{n_shards:05}.safetensors", idx + 1);
        assert_eq!(path, merged_dir.join(name));
        let bytes = fs::read(path).unwrap();
        let shard = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let size: usize = shard.tensors().iter().map(|(_, t)| t.data().len()).sum();
        assert!(size <= 9000 || shard.len() == 1);
        n_tensors += shard.len();
    }
    assert_eq!(n_tensors, base_weights.names().count());
    let index = fs::read(merged_dir.join("model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    let sizes = base_weights
        .names()
        .map(|name| base_weights.read_f32(name).unwrap().values.len() * 4);
    assert_eq!(index["metadata"]["total_size"], sizes.sum::<usize>());
}

#[test]
fn adapters_of_other_models_are_refused_with_all_mismatches() {
    let base = tiny_llama(FloatDtype::F32);
    let options = MergeOptions::default();
    let layers: Vec<String> = (0..11)
        .map(|i| format!("model.layers.{i}.self_attn.q_proj"))
        .collect();
    let deep: Vec<_> = layers
        .iter()
        .map(|name| (name.as_str(), 32, 2, 32))
        .collect();
    for (adapter, part) in [
        (adapter(&deep), "does not have 10 module(s)"),
        (adapter(&deep), "model.layers.1.self_attn.q_proj, "),
        (
            adapter(&[(Q, 48, 2, 32)]),
            "shape [48, 32], but the base has [32, 32]",
        ),
        (
            adapter(&[(Q, 32, 2, 64)]),
            "the model that the adapter was trained on",
        ),
    ] {
        let error = merge(base.path(), &adapter, &options)
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "no \"{part}\" in: {error}");
    }
    let mut half = tiny_llama_adapter();
    half.0.tensors.remove(&format!("{Q}.lora_B.weight"));
    let error = merge(base.path(), &half, &options).unwrap_err().to_string();
    assert!(error.contains("the other half of"), "{error}");
    let mut infinite = tiny_llama_adapter();
    infinite.1.get_mut(Q).unwrap().scaling = f64::INFINITY;
    let error = merge(base.path(), &infinite, &options)
        .unwrap_err()
        .to_string();
    assert!(error.contains("its scaling is inf"), "{error}");
}

#[test]
fn a_tied_head_stays_tied_and_has_no_adapter() {
    let embedding = (matrix(9, 4), FloatDtype::BF16);
    let both = ["lm_head.weight", "model.embed_tokens.weight"];
    let tensors = both.map(|name| (name.to_owned(), embedding.clone())).into();
    let head = adapter(&[("lm_head", 9, 2, 4)]);
    let options = MergeOptions::default();
    let base = base_dir(&tensors);
    let (_dir, merged) = merge(base.path(), &head, &options).unwrap();
    assert_ne!(
        merged.read_f32(both[0]).unwrap(),
        merged.read_f32(both[1]).unwrap()
    );
    let tied = "{\"model_type\": \"llama\", \"tie_word_embeddings\": true}";
    fs::write(base.path().join("config.json"), tied).unwrap();
    let error = merge(base.path(), &head, &options).unwrap_err().to_string();
    assert!(
        error.contains("1 module(s) of the adapter: lm_head"),
        "{error}"
    );

    let absent = [(both[1].to_owned(), embedding)].into();
    let base = base_dir(&absent);
    fs::write(base.path().join("config.json"), tied).unwrap();
    let error = merge(base.path(), &head, &options).unwrap_err().to_string();
    assert!(error.contains("a tied output layer"), "{error}");
    let none = (head.0.clone(), Scalings::new());
    let (_dir, merged) = merge(base.path(), &none, &options).unwrap();
    assert_eq!(merged.names().collect::<Vec<_>>(), [both[1]]);
}

#[test]
fn a_sum_that_is_not_finite_is_an_error_and_leaves_no_file() {
    let mut diverged = tiny_llama_adapter();
    let a = diverged
        .0
        .tensors
        .get_mut(&format!("{DOWN}.lora_A.weight"))
        .unwrap();
    a.values[5] = f32::NAN;
    let options = MergeOptions::default();
    let error = merge(tiny_llama(FloatDtype::F32).path(), &diverged, &options).unwrap_err();
    let expected = format!("tensor {DOWN}.weight has the value NaN at element 5");
    assert!(error.to_string().contains(&expected), "{error}");

    let mut large = tiny_llama_adapter();
    let b = large
        .0
        .tensors
        .get_mut(&format!("{Q}.lora_B.weight"))
        .unwrap();
    b.values[0] = 1e6;
    let error = merge(tiny_llama(FloatDtype::F16).path(), &large, &options).unwrap_err();
    let expected = format!("element 0 of tensor {Q}.weight is ");
    assert!(error.to_string().contains(&expected), "{error}");
    merge(tiny_llama(FloatDtype::BF16).path(), &large, &options).unwrap();
}

#[test]
fn an_existing_directory_is_not_overwritten() {
    let (base, existing) = (tiny_llama(FloatDtype::F32), tempfile::tempdir().unwrap());
    let (adapter, scalings) = tiny_llama_adapter();
    let options = MergeOptions::default();
    let error = save_merged(existing.path(), base.path(), &adapter, &scalings, &options);
    assert!(matches!(
        error,
        Err(CheckpointError::Disk(
            tooltune_disk::DiskError::AlreadyExists { .. }
        ))
    ));
}

#[test]
fn tensors_that_are_not_floats_are_refused_by_name() {
    let dir = base_dir(&BTreeMap::new());
    let header = r#"{"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0; 8]);
    fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    let none = (tiny_llama_adapter().0, Scalings::new());
    let error = merge(dir.path(), &none, &MergeOptions::default()).unwrap_err();
    assert!(
        error.to_string().contains("tensor ids is stored as I64"),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn shards_contain_every_tensor_once_within_the_limit(max_shard_bytes in 1_u64..40_000) {
        let weights = Weights::open(&fixture("tiny_llama.gguf")).unwrap();
        let options = MergeOptions { max_shard_bytes, ..MergeOptions::default() };
        let shards = shards(&weights, &options).unwrap();
        let names = shards.iter().flat_map(|shard| &shard.tensors).map(|t| t.name.as_str());
        prop_assert_eq!(names.collect::<Vec<_>>(), weights.names().collect::<Vec<_>>());
        for shard in &shards {
            let total: u64 = shard.tensors.iter().map(|new| file_size(new.n_bytes())).sum();
            prop_assert!(total <= max_shard_bytes || shard.tensors.len() == 1);
        }
    }
}

/// Tests that the folder of each family is converted to the same GGUF content as with the `gguf`
/// package.
#[test]
fn a_folder_converts_to_the_same_gguf_file_as_with_llama_cpp() {
    let vocabulary = crate::GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: "smollm".to_owned(),
        tokens: (0..128).map(|i| format!("t{i}")).collect(),
        token_types: vec![1; 128],
        scores: Vec::new(),
        merges: Vec::new(),
        bos_token_id: None,
        eos_token_id: None,
        pad_token_id: None,
        unk_token_id: None,
        add_bos: None,
        adds_space: None,
    };
    let options = GgufMergeOptions {
        dtype: crate::weights::GgufDtype::Float(FloatDtype::BF16),
        chat_template: None,
        add_bos: None,
        vocabulary: Some(&vocabulary),
        dequantised: None,
    };
    let none = (tiny_llama_adapter().0, Scalings::new());
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models");
    let folders = fs::read_dir(&models).unwrap();
    let folders = folders.map(|entry| entry.unwrap().path());
    let in_gguf: Vec<PathBuf> = folders
        .filter(|folder| folder.join("model.gguf").exists())
        .collect();
    assert!(in_gguf.len() > 8, "{in_gguf:?}");
    for family in &in_gguf {
        let family = family.file_name().unwrap().to_str().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("model");
        fs::create_dir(&folder).unwrap();
        fs::copy(
            models.join(family).join("model.safetensors"),
            folder.join("model.safetensors"),
        )
        .unwrap();
        fs::write(folder.join("tokenizer.json"), "{\"model\": {}}").unwrap();
        let original = read_json(&models.join(family).join("config.json"));
        let unsupported = unsupported_fields(&models.join(family));
        let path = dir.path().join("model.gguf");
        let save = |config: &Value| {
            fs::write(folder.join("config.json"), config.to_string()).unwrap();
            save_merged_gguf(&path, &folder, &none.0, &none.1, &options)
        };
        for field in unsupported.keys() {
            let error = save(&original).unwrap_err().to_string();
            assert!(error.contains(field), "{family}: {error}");
        }
        save(&supported_config(&models.join(family)))
            .unwrap_or_else(|error| panic!("{family}: {error}"));
        let [ours, theirs] = [path, models.join(family).join("model.gguf")]
            .map(|path| crate::weights::gguf::GgufFile::open(&path).unwrap());
        let mut names: Vec<&str> = ours.tensor_names().collect();
        let mut expected: Vec<&str> = theirs.tensor_names().collect();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected, "{family}");
        for name in names {
            let [ours, theirs] = [&ours, &theirs].map(|file| file.read_f32(name).unwrap());
            assert_eq!(ours, theirs, "{family} {name}");
        }
        let ours: BTreeMap<_, _> = ours.metadata.entries().collect();
        for (key, value) in theirs.metadata.entries() {
            let is_changed = unsupported.keys().any(|field| match field.as_str() {
                "attention_factor" => key.ends_with("yarn_attn_factor"),
                field => key.ends_with(field),
            });
            if !key.starts_with("tokenizer.") && !is_changed {
                assert_eq!(ours.get(key), Some(&value), "{family} {key}");
            }
        }
    }
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The fields of a tiny model that llama.cpp does not support in its family. Each field has an
/// object of values that make the config supported.
fn unsupported_fields(fixture: &Path) -> Map<String, Value> {
    let path = fixture.join("unsupported_by_llama_cpp.json");
    match path.exists() {
        true => read_json(&path).as_object().unwrap().clone(),
        false => Map::new(),
    }
}

/// The config of a tiny model without those fields.
fn supported_config(fixture: &Path) -> Value {
    let mut config = read_json(&fixture.join("config.json"));
    for values in unsupported_fields(fixture).values() {
        let values = values.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(values);
    }
    config
}

#[test]
fn features_unsupported_by_llama_cpp_are_reported_without_an_export() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models");
    let refused = |family: &str| {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(models.join(family).join(file), folder.path().join(file)).unwrap();
        }
        fs::write(folder.path().join("tokenizer.json"), "{\"model\": {}}").unwrap();
        let files = ModelFiles::open(folder.path()).unwrap();
        let refused = refused_by_llama_cpp(folder.path(), &files).unwrap();
        refused.map(|error| error.to_string())
    };
    assert_eq!(refused("qwen3"), None);
    let window = refused("phi3").unwrap();
    assert!(window.contains("sliding_window = 50"), "{window}");
    let heads = refused("qwen3_5_text").unwrap();
    assert!(heads.contains("linear_value_head_dim"), "{heads}");
}
