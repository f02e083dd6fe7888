//! Tests adapter directories that are written and read back, and directories that are refused.

use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

use super::*;

fn factor(shape: &[usize], value: f32) -> HostTensor {
    HostTensor {
        shape: shape.to_vec(),
        values: vec![value; shape.iter().product()],
    }
}

fn adapter() -> Adapter {
    let module = "model.layers.0.self_attn.q_proj";
    let targets = TargetModules::Names(vec!["q_proj".to_owned()]);
    let mut config = PeftConfig::new(2, 4.0, targets);
    config.base_model_name_or_path = Some("models/tiny".to_owned());
    Adapter {
        config,
        tensors: BTreeMap::from([
            (format!("{module}.lora_A.weight"), factor(&[2, 8], 0.25)),
            (format!("{module}.lora_B.weight"), factor(&[6, 2], -1.5)),
        ]),
    }
}

/// An adapter directory whose config has these fields in addition to, or instead of, the default
/// ones.
fn with_config(fields: Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_adapter_files(
        dir.path(),
        &adapter(),
        FloatDtype::F32,
        &PromptFiles::default(),
    )
    .unwrap();
    let path = dir.path().join(CONFIG_FILE);
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (key, value) in fields.as_object().unwrap() {
        config[key] = value.clone();
    }
    fs::write(&path, config.to_string()).unwrap();
    dir
}

/// An adapter directory with these tensors, given by key and shape.
fn with_tensors(tensors: &[(&str, &[usize])]) -> TempDir {
    let dir = with_config(json!({}));
    let path = dir.path().join(TENSORS_FILE);
    fs::remove_file(&path).unwrap();
    let tensors: BTreeMap<String, HostTensor> = tensors
        .iter()
        .map(|(key, shape)| ((*key).to_owned(), factor(shape, 1.0)))
        .collect();
    crate::weights::write_tensors(&path, &tensors).unwrap();
    dir
}

#[test]
fn a_saved_adapter_loads_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made/adapter");
    let prompts = PromptFiles {
        chat_template: Some("{{ messages }}".to_owned()),
        ..PromptFiles::default()
    };
    save_adapter(&path, &adapter(), FloatDtype::F32, &prompts).unwrap();
    assert_eq!(load_adapter(&path).unwrap(), adapter());
    assert_eq!(PromptFiles::read(&path).unwrap(), prompts);
    assert_eq!(fs::read_dir(dir.path().join("made")).unwrap().count(), 1);
}

/// Invariant: Adapters are written as PEFT writes them.
#[test]
fn the_files_equal_those_of_peft() {
    let dir = with_config(json!({}));
    let weights = Weights::open(&dir.path().join(TENSORS_FILE)).unwrap();
    assert_eq!(
        weights.names().collect::<Vec<_>>(),
        [
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
            "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
        ]
    );
    let header = fs::read(dir.path().join(TENSORS_FILE)).unwrap();
    assert!(header[8..].starts_with(br#"{"__metadata__":{"format":"pt"}"#));
    let config: Value =
        serde_json::from_slice(&fs::read(dir.path().join(CONFIG_FILE)).unwrap()).unwrap();
    // The keys that PEFT 0.10 knows; its constructor refuses all other keys.
    assert_eq!(
        config,
        json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "auto_mapping": null,
            "base_model_name_or_path": "models/tiny", "revision": null, "inference_mode": true,
            "r": 2, "lora_alpha": 4, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": false,
            "target_modules": ["q_proj"], "modules_to_save": null, "init_lora_weights": true,
            "use_rslora": false, "use_dora": false, "rank_pattern": {}, "alpha_pattern": {},
            "layers_to_transform": null, "layers_pattern": null, "layer_replication": null,
            "loftq_config": {}, "megatron_config": null, "megatron_core": "megatron.core",
        })
    );
}

#[test]
fn an_existing_directory_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let error = save_adapter(
        dir.path(),
        &adapter(),
        FloatDtype::F32,
        &PromptFiles::default(),
    )
    .unwrap_err();
    assert!(
        matches!(
            error,
            CheckpointError::Disk(tooltune_disk::DiskError::AlreadyExists { .. })
        ),
        "{error}"
    );
}

/// Invariant: An adapter with a value that is not finite is never written.
#[test]
fn a_diverged_adapter_is_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut diverged = adapter();
    diverged.tensors.values_mut().next().unwrap().values[3] = f32::INFINITY;
    let error = save_adapter(
        &dir.path().join("a"),
        &diverged,
        FloatDtype::F32,
        &PromptFiles::default(),
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.contains("lora_A.weight has the value inf at element 3"),
        "{error}"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn an_adapter_with_nan_does_not_load() {
    let dir = with_config(json!({}));
    let path = dir.path().join(TENSORS_FILE);
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let error = load_adapter(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("q_proj.lora_B.weight, element 11: it is NaN"),
        "{error}"
    );
}

#[test]
fn configs_of_newer_peft_load_if_new_features_are_off() {
    let dir = with_config(json!({
        "peft_version": "0.21.2", "eva_config": null, "lora_bias": false, "qalora_group_size": 16,
        "exclude_modules": ["lm_head"], "ensure_weight_tying": false, "auto_mapping": {"a": "b"},
        "some_future_switch": false, "some_future_mode": "fast",
        "lora_alpha": 0.5, "init_lora_weights": "gaussian", "target_modules": "all-linear",
        "rank_pattern": {"v_proj": 4, "^model.layers.0": 1}, "loftq_config": null,
    }));
    let config = load_adapter(dir.path()).unwrap().config;
    assert_eq!(config.unrecognised, ["some_future_mode"]);
    assert_eq!(
        config.target_modules,
        Some(TargetModules::Pattern("all-linear".to_owned()))
    );
    assert_eq!(config.lora_alpha, 0.5);
    let in_order: Vec<&str> = config
        .rank_pattern
        .0
        .iter()
        .map(|(key, _)| key.as_str())
        .collect();
    assert_eq!(in_order, ["v_proj", "^model.layers.0"]);
}

#[test]
fn a_config_with_only_pefts_required_fields_loads() {
    let dir = with_config(json!({}));
    let minimal = json!({"peft_type": "LORA", "target_modules": ["q_proj"]});
    fs::write(dir.path().join(CONFIG_FILE), minimal.to_string()).unwrap();
    let config = load_adapter(dir.path()).unwrap().config;
    assert_eq!(
        (config.r, config.lora_alpha, config.bias.as_str()),
        (8, 8.0, "none")
    );
}

#[test]
fn unsupported_features_are_refused_by_name() {
    for (fields, part) in [
        (
            json!({"bias": "lora_only"}),
            "bias \"lora_only\" is not supported",
        ),
        (
            json!({"modules_to_save": ["lm_head", "norm"]}),
            "modules_to_save \"norm\"",
        ),
        (json!({"fan_in_fan_out": true}), "fan_in_fan_out true"),
        (json!({"lora_bias": true}), "lora_bias true"),
        (
            json!({"trainable_token_indices": [1]}),
            "trainable_token_indices [1]",
        ),
        (
            json!({"init_lora_weights": "pissa_niter_4"}),
            "init_lora_weights \"pissa_niter_4\"",
        ),
        (json!({"peft_type": "IA3"}), "peft_type \"IA3\""),
        (json!({"peft_type": null}), "peft_type: must be \"LORA\""),
        (json!({"r": 0}), "r: must be at least 1"),
        (json!({"r": "eight"}), "invalid type"),
    ] {
        let error = load_adapter(with_config(fields).path())
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "no \"{part}\" in: {error}");
        assert!(error.contains(CONFIG_FILE), "{error}");
    }
}

#[test]
fn tensors_that_are_not_factor_pairs_are_errors() {
    let a = "base_model.model.m.lora_A.weight";
    let b = "base_model.model.m.lora_B.weight";
    for (tensors, part) in [
        (
            [(a, [2, 8].as_slice())].as_slice(),
            "no tensor m.lora_B.weight, the other half",
        ),
        (&[(a, &[2, 8]), (b, &[6, 3])], "shape [2, 8] does not fit"),
        (&[(a, &[2, 8]), (b, &[12])], "shape [2, 8] does not fit"),
        (
            &[("m.lora_A.weight", &[2, 8])],
            "without the prefix base_model.model.",
        ),
        (
            &[("base_model.model.m.lora_magnitude_vector", &[8])],
            "which m.lora_magnitude_vector belongs to",
        ),
        (&[], "without tensors"),
    ] {
        let error = load_adapter(with_tensors(tensors).path())
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "no \"{part}\" in: {error}");
        assert!(error.contains(TENSORS_FILE), "{error}");
    }
}

#[test]
fn magnitudes_and_whole_weights_must_match_the_config() {
    let module = "model.layers.0.self_attn.q_proj";
    let magnitudes = |n: usize| (format!("{module}.lora_magnitude_vector"), factor(&[n], 0.5));
    let head = || ("lm_head.weight".to_owned(), factor(&[9, 8], 0.5));
    let dora = |is_on: bool| {
        let mut config = adapter().config;
        config.use_dora = is_on;
        config
    };
    let saving = |modules: &[&str]| {
        let mut config = adapter().config;
        config.modules_to_save = Some(modules.iter().map(|&module| module.to_owned()).collect());
        config
    };
    let written = |config: PeftConfig, more: &[(String, HostTensor)]| {
        let dir = tempfile::tempdir().unwrap();
        let mut adapter = Adapter {
            config,
            ..adapter()
        };
        adapter.tensors.extend(more.iter().cloned());
        let prompts = PromptFiles::default();
        write_adapter_files(dir.path(), &adapter, FloatDtype::F32, &prompts)?;
        Ok::<_, CheckpointError>((load_adapter(dir.path())? == adapter, dir))
    };
    for (config, more) in [
        (dora(true), magnitudes(6)),
        (saving(&["lm_head"]), head()),
        (saving(&["lm_head", "lm_head"]), head()),
    ] {
        assert!(written(config, &[more]).unwrap().0);
    }
    for (config, more, part) in [
        (dora(true), vec![], "lora_magnitude_vector: is missing"),
        (
            dora(false),
            vec![magnitudes(6)],
            "lora_magnitude_vector: exists",
        ),
        (dora(true), vec![magnitudes(5)], "shape [5] does not fit"),
        (saving(&["lm_head"]), vec![], "lm_head.weight: is missing"),
        (
            saving(&["embed_tokens"]),
            vec![head()],
            "without its module",
        ),
        (dora(false), vec![head()], "save_embedding_layers=False"),
    ] {
        let error = written(config, &more).unwrap_err().to_string();
        assert!(error.contains(part), "no \"{part}\" in: {error}");
    }
}

#[test]
fn names_and_shapes_are_compared_with_the_model_in_both_directions() {
    let module = "model.layers.0.self_attn.q_proj";
    let expected = |b_rows: usize, b_module: &str| {
        [
            (format!("{module}.lora_A.weight"), vec![2, 8]),
            (format!("{b_module}.lora_B.weight"), vec![b_rows, 2]),
        ]
    };
    let adapter = adapter();
    let path = Path::new("runs/a/adapter");
    adapter.check(path, &expected(6, module)).unwrap();
    let error = adapter
        .check(path, &expected(7, module))
        .unwrap_err()
        .to_string();
    assert!(error.contains("is [6, 2] instead of [7, 2]"), "{error}");
    let error = adapter
        .check(path, &expected(6, "model.norm"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("1 missing tensor(s): model.norm"), "{error}");
    assert!(
        error.contains("1 extra tensor(s): model.layers.0"),
        "{error}"
    );
}
