//! Models and encoders are rejected, at the latest at the first step, if their files are damaged or
//! specify an unsupported computation. The error names file and field.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, FILES, assert_error, assert_refused};
use crate::support::{fixture, model};
use crate::workplace::{CommandOutput, Workplace, tooltune};

const NOT_FINITE: i32 = 5;

/// Overwrites the first values of an f32 tensor in a safetensors file.
fn overwrite(path: &Path, tensor: &str, numbers: &[f32]) {
    let mut bytes = std::fs::read(path).unwrap();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + n]).unwrap();
    assert_eq!(header[tensor]["dtype"], "F32", "{header}");
    let offset = 8 + n + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    for (i, number) in numbers.iter().enumerate() {
        bytes[offset + 4 * i..offset + 4 * i + 4].copy_from_slice(&number.to_le_bytes());
    }
    std::fs::write(path, bytes).unwrap();
}

const MODEL: [&str; 4] = [
    "--set",
    "model.model_name_or_path=\"model\"",
    "--set",
    "eval.eval_strategy=\"no\"",
];

/// Invariant: A run without a finite step fails and names base weights that are not finite.
#[test]
fn non_finite_weights_are_named_at_the_first_step() {
    let workplace = Workplace::new();
    let file = workplace.copy_model("model").join("model.safetensors");
    let tensor = "model.layers.1.mlp.up_proj.weight";
    overwrite(&file, tensor, &[0.5, f32::NAN]);
    let one = ["--set", "train.max_steps=1"];
    let arguments = [&["train", "config.toml"], &MODEL[..], &one].concat();
    let answer = workplace.run(arguments);
    let expected =
        format!("model/model.safetensors: tensor {tensor} has the value NaN at element 1");
    assert_error(
        &answer,
        NOT_FINITE,
        &["base weights are NaN or infinite", &expected],
    );
    let advice = "lower train.learning_rate";
    assert!(!answer.stderr.contains(advice), "{}", answer.stderr);
    // Generation is also refused, because its logits would be NaN.
    for verb in ["generate --prompt Hello", "eval"] {
        let arguments = format!("{verb} config.toml --checkpoint base");
        let arguments = arguments.split(' ').chain(MODEL);
        let answer = workplace.run(arguments);
        let what = "the logits after a prompt are not finite";
        assert_error(&answer, NOT_FINITE, &[what, &expected]);
    }
}

/// Invariant: A run without a finite step fails and names base weights that are not finite.
#[test]
fn a_run_without_a_finite_step_does_not_succeed() {
    let workplace = Workplace::new();
    let file = workplace.copy_model("model").join("model.safetensors");
    // The weights are finite, but too large for the computation.
    for layer in 0..2 {
        for module in ["mlp.up_proj", "mlp.down_proj", "mlp.gate_proj"] {
            let tensor = format!("model.layers.{layer}.{module}.weight");
            overwrite(&file, &tensor, &[f32::MAX; 64]);
        }
    }
    for steps in ["1", "2"] {
        let steps = format!("train.max_steps={steps}");
        let more = ["--set", &steps, "--set", "train.output_dir=\"short\""];
        let arguments = [&["train", "config.toml"], &MODEL[..], &more].concat();
        let expected = "steps had a finite loss and gradient norm, so the model was not trained";
        for _ in 0..2 {
            // The second time no step is left, but the command still fails.
            assert_error(
                &workplace.run(arguments.iter().copied()),
                NOT_FINITE,
                &[expected],
            );
        }
        std::fs::remove_dir_all(workplace.path("short")).unwrap();
    }
}

#[test]
fn unsupported_model_config_keys_are_refused() {
    let workplace = Workplace::new();
    let path = workplace.copy_model("model").join("config.json");
    let original: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let arguments = [&["train", "config.toml"], &MODEL[..]].concat();
    for (field, value, expected) in [
        (
            "partial_rotary_factor",
            json!(0.5),
            "partial_rotary_factor = 0.5",
        ),
        (
            "query_pre_attn_scalar",
            json!(224),
            "query_pre_attn_scalar = 224",
        ),
        (
            "attention_multiplier",
            json!(0.01),
            "attention_multiplier = 0.01",
        ),
        ("logits_scaling", json!(8), "logits_scaling = 8"),
        (
            "residual_multiplier",
            json!(0.22),
            "residual_multiplier = 0.22",
        ),
        (
            "final_logit_softcapping",
            json!(30.0),
            "final_logit_softcapping = 30.0",
        ),
        ("num_local_experts", json!(8), "num_local_experts = 8"),
        ("use_qk_norm", json!(true), "use_qk_norm = true"),
        ("head_dim", json!(1_000_000), "head_dim = 1000000"),
        ("num_hidden_layers", json!(10_001), "10000 blocks at most"),
        ("rope_theta", json!(1e-300), "not finite"),
    ] {
        let mut config = original.clone();
        config[field] = value;
        std::fs::write(&path, config.to_string()).unwrap();
        assert_refused(&workplace, &arguments, FILES, &[expected]);
    }
    let mut config = original;
    for field in ["hidden_size", "vocab_size"] {
        config[field] = json!(4_294_967_295_u64);
    }
    std::fs::write(&path, config.to_string()).unwrap();
    assert_refused(&workplace, &arguments, FILES, &["2^44 parameters"]);
}

/// Creates the folder `encoder`: its small files are copies that a test can change, and its
/// weights are a link to the fixture.
fn copy_encoder(workplace: &Workplace, encoder: &Path) -> PathBuf {
    let folder = workplace.path("encoder");
    std::fs::create_dir(&folder).unwrap();
    let mut from = vec![encoder.to_owned()];
    while let Some(dir) = from.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let relative = path.strip_prefix(encoder).unwrap().to_owned();
            if path.is_dir() {
                std::fs::create_dir(folder.join(relative)).unwrap();
                from.push(path);
            } else if path.extension().is_some_and(|e| e == "safetensors") {
                std::os::unix::fs::symlink(
                    std::fs::canonicalize(path).unwrap(),
                    folder.join(relative),
                )
                .unwrap();
            } else {
                std::fs::write(folder.join(relative), std::fs::read(&path).unwrap()).unwrap();
            }
        }
    }
    folder
}

#[test]
fn encoders_are_checked_like_language_models() {
    let workplace = Workplace::new();
    let folder = copy_encoder(&workplace, &model("all-minilm-l6-v2"));
    let line = json!({"op": "slot.value_sim", "input": {"a": "a red cat", "b": "the dog"}});
    workplace.write("line.jsonl", line.to_string());
    let score = || {
        let arguments = ["score", "--encoder", "encoder", "line.jsonl"];
        let answer =
            CommandOutput::from_command(tooltune().current_dir(workplace.folder()).args(arguments));
        assert!(!answer.stderr.contains("panicked"), "{}", answer.stderr);
        answer.stdout
    };
    let expected_scores = score();
    assert!(expected_scores.contains("\"value\""), "{expected_scores}");
    for (file, field, value, expected) in [
        (
            "config.json",
            "num_attention_heads",
            json!(7),
            "not a multiple of num_attention_heads = 7",
        ),
        (
            "config.json",
            "num_hidden_layers",
            json!(10_000_000),
            "10000 blocks at most",
        ),
        (
            "config.json",
            "num_hidden_layers",
            json!(7),
            "encoder.layer.6.",
        ),
        (
            "config.json",
            "max_position_embeddings",
            json!(1),
            "no position for a text",
        ),
        (
            "config.json",
            "max_position_embeddings",
            json!(511),
            "position_embeddings",
        ),
        (
            "config.json",
            "layer_norm_eps",
            json!("x"),
            "layer_norm_eps",
        ),
        (
            "sentence_bert_config.json",
            "max_seq_length",
            json!(1),
            "encoder: max_seq_length = 1 leaves no room",
        ),
        (
            "sentence_bert_config.json",
            "max_seq_length",
            json!(2),
            "encoder: max_seq_length = 2 leaves no room",
        ),
        (
            "1_Pooling/config.json",
            "pooling_mode_weightedmean_tokens",
            json!(true),
            "pooling_mode",
        ),
        (
            "1_Pooling/config.json",
            "word_embedding_dimension",
            json!(7),
            "is not 384",
        ),
        (
            "modules.json",
            "",
            json!([]),
            "must list a Transformer and a Pooling",
        ),
    ] {
        let path = folder.join(file);
        let original = std::fs::read(&path).unwrap();
        let mut fields: Value = serde_json::from_slice(&original).unwrap();
        match field {
            "" => fields = value,
            field => fields[field] = value,
        }
        std::fs::write(&path, fields.to_string()).unwrap();
        let answer = score();
        assert!(answer.contains(expected), "{file} {field}: {answer}");
        std::fs::write(&path, original).unwrap();
    }
    // Another pooling mode is supported and changes the scores.
    let path = folder.join("1_Pooling/config.json");
    let mut pooling: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    pooling["pooling_mode_cls_token"] = json!(true);
    pooling["pooling_mode_mean_tokens"] = json!(false);
    std::fs::write(&path, pooling.to_string()).unwrap();
    let cls_scores = score();
    assert!(
        cls_scores.contains("\"value\"") && cls_scores != expected_scores,
        "{cls_scores} {expected_scores}"
    );
}

#[test]
fn an_encoder_with_non_finite_weights_is_refused() {
    let workplace = Workplace::new();
    let folder = copy_encoder(&workplace, &fixture("retriever/model"));
    let tensor = "embeddings.word_embeddings.weight";
    let file = folder.join("model.safetensors");
    let weights = std::fs::read(fixture("retriever/model").join("model.safetensors")).unwrap();
    // Replaces the link to the fixture's file.
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, weights).unwrap();
    overwrite(&file, tensor, &[1.0, 2.0, f32::INFINITY]);
    let line = json!({"op": "slot.value_sim", "input": {"a": "a red cat", "b": "the dog"}});
    workplace.write("line.jsonl", line.to_string());
    let answer = workplace.run(["score", "--encoder", "encoder", "line.jsonl"]);
    let expected = format!("tensor {tensor}: it is inf at element 2");
    assert!(answer.stdout.contains(&expected), "{}", answer.stdout);
}

#[test]
fn a_token_without_an_embedding_row_is_refused() {
    let workplace = Workplace::new();
    let path = copy_encoder(&workplace, &fixture("retriever/model")).join("tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    file["post_processor"]["special_tokens"]["[SEP]"]["ids"] = json!([255]);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, file.to_string()).unwrap();
    let line = json!({"op": "slot.value_sim", "input": {"a": "a red cat", "b": "the dog"}});
    workplace.write("line.jsonl", line.to_string());
    let answer = workplace.run(["score", "--encoder", "encoder", "line.jsonl"]);
    for expected in [
        "tokenizer.json: it produces token 255",
        "vocab_size in config.json is 128",
    ] {
        assert!(answer.stdout.contains(expected), "{}", answer.stdout);
    }
}

#[test]
fn ranks_larger_than_every_matrix_are_refused() {
    let workplace = Workplace::new();
    for (set, expected) in [
        ("lora.r=65536", "`lora.r` is 65536"),
        (
            "lora.rank_pattern={q_proj=65536}",
            "`lora.rank_pattern.q_proj` is 65536",
        ),
    ] {
        for verb in ["train", "plan"] {
            assert_refused(
                &workplace,
                &[verb, "config.toml", "--set", set],
                CONFIG,
                &[expected, "at most 8192"],
            );
        }
    }
}
