//! The memory that `plan` predicts, compared with actual runs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::model_families::write_random_weights;
use crate::planning::{bytes_of, probed_plan};
use crate::support::model;
use crate::workplace::{Workplace, tooltune};

#[test]
fn the_predicted_memory_of_a_step_is_within_20_percent() {
    let workplace = Workplace::new();
    let gguf = model("smollm2-135m-instruct.gguf");
    let base = format!("model.model_name_or_path=\"{}\"", gguf.display());
    // Each setting changes a different part of the memory: dropout, tokens per batch, adapter.
    for setting in [
        "lora.lora_dropout=0.05",
        "train.per_device_train_batch_size=5",
        "lora.r=48",
    ] {
        let plan = probed_plan(&workplace, &[&base, setting]);
        let predicted = plan["step_memory_bytes"].as_f64().unwrap();
        let measured = plan["probe"]["peak_rss_bytes"].as_f64().unwrap();
        let ratio = predicted / measured;
        assert!(
            (0.8..1.2).contains(&ratio),
            "{setting}: {predicted} / {measured} = {ratio:.2}"
        );
    }
}

/// Writes a config for two steps of a random model of this family. The model, in `model`, is large
/// enough to measure its activations next to the memory of the program itself.
fn family_workplace(family: &str, more: &Value) -> Workplace {
    let workplace = Workplace::with_rows("16");
    let mut config = json!({
        "model_type": family,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 1024,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "rope_theta": 1e6,
        "tie_word_embeddings": true,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    write_random_weights(&workplace.copy_model("model"), &config).unwrap();
    let config = r#"device = "cpu"
[model]
model_name_or_path = "model"
[lora]
r = 8
target_modules = "all-linear"
[data]
train = ["train.jsonl"]
format = "slot"
max_length = 4096
[train]
output_dir = "run"
max_steps = 2
per_device_train_batch_size = 4
"#;
    workplace.write("config.toml", config);
    workplace
}

/// Predicted and actual memory of training, in bytes.
fn planned_and_measured(workplace: &Workplace, settings: &[&str]) -> [f64; 2] {
    let sets: Vec<&str> = settings.iter().flat_map(|set| ["--set", set]).collect();
    let arguments = "plan config.toml --format json".split(' ');
    let text = workplace
        .run(arguments.chain(sets.iter().copied()))
        .success();
    let plan: Value = serde_json::from_str(&text).unwrap();
    let mut train = tooltune();
    train
        .current_dir(workplace.folder())
        .args(["train", "config.toml"])
        .args(&sets);
    let measured = peak_of(&mut train);
    [plan["memory"]["peak_bytes"].as_f64().unwrap(), measured]
}

#[cfg(target_os = "linux")]
#[test]
fn the_predicted_memory_is_within_15_percent_for_any_blocks_and_settings() {
    let own_head = json!({"tie_word_embeddings": false, "vocab_size": 8192});
    let biased = json!({"attention_bias": true});
    let window = json!({"sliding_window": 256});
    // Most of the memory is weights.
    let wide = json!({"hidden_size": 1024, "intermediate_size": 8192, "num_hidden_layers": 6});
    let both = "lora.modules_to_save=[\"lm_head\", \"embed_tokens\"]";
    let nf4 = "model.quantization=nf4";
    let cases: [(&str, &Value, &[&str]); 11] = [
        ("llama", &json!({}), &[]),
        ("llama", &json!({}), &[nf4]),
        ("llama", &wide, &[nf4]),
        ("phi3", &json!({}), &["lora.r=16"]),
        ("qwen3", &json!({}), &["lora.lora_dropout=0.05"]),
        (
            "seed_oss",
            &biased,
            &["train.gradient_accumulation_steps=2"],
        ),
        ("olmo3", &window, &[]),
        ("gemma3_text", &window, &[]),
        ("llama", &own_head, &[both]),
        ("llama", &own_head, &["lora.use_dora=true"]),
        (
            "llama",
            &own_head,
            &["lora.use_dora=true", "lora.lora_dropout=0.05"],
        ),
    ];
    for (i, (family, shape, settings)) in cases.into_iter().enumerate() {
        let workplace = family_workplace(family, shape);
        for checkpointing in ["none", "full"] {
            let checkpointing = format!("train.gradient_checkpointing={checkpointing}");
            let dtype = ["f32", "bf16"][i % 2];
            let dtype = format!("model.compute_dtype={dtype}");
            let settings = [settings, &[checkpointing.as_str(), dtype.as_str()]].concat();
            let [predicted, measured] = planned_and_measured(&workplace, &settings);
            let ratio = predicted / measured;
            let what = format!("{family} {settings:?}: {predicted} / {measured} = {ratio:.3}");
            // A prediction that is too low is worse, because the run then runs out of memory.
            assert!((0.93..1.15).contains(&ratio), "{what}");
            std::fs::remove_dir_all(workplace.path("run")).unwrap();
        }
    }
}

/// A retriever run on pairs of random words with `tokens` tokens each.
fn retriever_workplace(tokens: usize) -> Workplace {
    let workplace = Workplace::new();
    let encoder = model("all-minilm-l6-v2");
    let vocabulary = std::fs::read_to_string(encoder.join("vocab.txt")).unwrap();
    let is_word = |word: &&str| word.len() > 3 && word.bytes().all(|b| b.is_ascii_lowercase());
    let words: Vec<&str> = vocabulary.lines().filter(is_word).collect();
    let text = |first: usize| {
        let indices = (0..tokens).map(|i| (first * tokens + i) * 31 % words.len());
        indices
            .map(|index| words[index])
            .collect::<Vec<_>>()
            .join(" ")
    };
    let pair = |i: usize| {
        let pair = serde_json::json!({"query": text(2 * i), "positive": text(2 * i + 1)});
        pair.to_string()
    };
    let pairs: Vec<String> = (0..64).map(pair).collect();
    workplace.write("pairs.jsonl", pairs.join("\n"));
    let config = format!(
        r#"device = "cpu"
[retriever]
model_name_or_path = "{}"
train = ["pairs.jsonl"]
max_steps = 3
per_device_train_batch_size = 32
max_seq_length = {tokens}
[train]
output_dir = "run"
logging_steps = 1
[log]
report_to = ["jsonl"]
"#,
        encoder.display()
    );
    workplace.write("retriever.toml", config);
    workplace
}

/// Trains 3 steps and returns the peak resident set before the last save.
fn peak_of_training(workplace: &Workplace, config: &str, sets: &[&str]) -> f64 {
    let arguments = ["train", config].into_iter();
    workplace
        .run(arguments.chain(sets.iter().copied()))
        .success();
    let timing = workplace.read("run/timing.jsonl");
    let last: Value = serde_json::from_str(timing.lines().last().unwrap()).unwrap();
    last["peak_rss_bytes"].as_f64().unwrap()
}

#[track_caller]
fn assert_within_15_percent(predicted: &Value, measured: f64, what: &[&str]) {
    let predicted = predicted.as_f64().unwrap();
    let ratio = predicted / measured;
    assert!(
        (0.85..1.15).contains(&ratio),
        "{what:?}: {predicted} / {measured} = {ratio:.2}"
    );
}

/// Invariant: The predicted peak memory is within 15 % of the measured peak.
#[test]
fn the_predicted_memory_of_a_retriever_is_within_15_percent() {
    let workplace = retriever_workplace(128);
    for (settings, key) in [
        (
            ["retriever.compute_dtype=\"f32\"", "checkpoint.save_steps=9"],
            "step",
        ),
        (
            [
                "retriever.compute_dtype=\"bf16\"",
                "checkpoint.save_steps=9",
            ],
            "step",
        ),
        (
            [
                "retriever.compute_dtype=\"bf16\"",
                "checkpoint.save_steps=1",
            ],
            "run",
        ),
        (
            ["retriever.mini_batch_size=16", "checkpoint.save_steps=9"],
            "step",
        ),
    ] {
        let sets: Vec<&str> = settings.iter().flat_map(|set| ["--set", set]).collect();
        let arguments = "plan retriever.toml --format json".split(' ');
        let text = workplace
            .run(arguments.chain(sets.iter().copied()))
            .success();
        let plan: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(plan["steps"], 3);
        assert_eq!(plan["retriever"]["pairs"], 64);
        assert_eq!(plan["retriever"]["largest_step_tokens"], 2 * 32 * 128);
        let measured = peak_of_training(&workplace, "retriever.toml", &sets);
        let predicted = match key {
            "step" => &plan["step_memory_bytes"],
            _ => &plan["memory"]["peak_bytes"],
        };
        assert_within_15_percent(predicted, measured, &settings);
        let checkpoint_bytes = bytes_of(&workplace.path("run/checkpoint-000003"), ".safetensors");
        let predicted = plan["checkpoint_bytes"].as_u64().unwrap();
        assert!(
            (checkpoint_bytes..checkpoint_bytes + 20_000).contains(&predicted),
            "{checkpoint_bytes}, {predicted}"
        );
        std::fs::remove_dir_all(workplace.path("run")).unwrap();
    }
}

#[test]
fn the_peak_of_a_joint_run_includes_its_retriever() {
    let workplace = Workplace::new();
    let synth = "data synth goat --rows 24 --output train.jsonl --documents documents.jsonl";
    std::fs::remove_file(workplace.path("train.jsonl")).unwrap();
    workplace.run(synth.split(' ')).success();
    let joint = |train: &str| {
        format!(
            r#"device = "cpu"
[model]
model_name_or_path = "{}"
[lora]
r = 8
lora_alpha = 16
[data]
train = ["train.jsonl"]
format = "goat"
max_length = 4096
[goat]
documents = "documents.jsonl"
[retriever]
model_name_or_path = "{}"
{train}
[train]
output_dir = "run"
max_steps = 3
per_device_train_batch_size = 4
logging_steps = 1
[checkpoint]
save_steps = 1
"#,
            model("smollm2-135m-instruct.gguf").display(),
            model("all-minilm-l6-v2").display()
        )
    };
    let plan = |train: &str| -> Value {
        workplace.write("joint.toml", joint(train));
        let text = workplace
            .run("plan joint.toml --format json".split(' '))
            .success();
        serde_json::from_str(&text).unwrap()
    };
    let alone = plan("");
    assert_eq!(alone["retriever"], Value::Null);
    let beside = plan("train = \"trajectories\"\nmax_steps = 3\nper_device_train_batch_size = 16");
    let retriever = &beside["retriever"];
    assert_eq!(retriever["steps"], 3);
    let retriever_state_bytes = 12 * retriever["parameters"].as_u64().unwrap();
    let peak = |plan: &Value| plan["memory"]["peak_bytes"].as_u64().unwrap();
    assert!(peak(&beside) > peak(&alone) + retriever_state_bytes);
    let checkpoint = |plan: &Value| plan["checkpoint_bytes"].as_u64().unwrap();
    assert!(checkpoint(&beside) > checkpoint(&alone) + retriever_state_bytes);
    let measured = peak_of_training(&workplace, "joint.toml", &[]);
    assert_within_15_percent(&beside["memory"]["peak_bytes"], measured, &["joint"]);
}

/// Writes the rows of a suite, and a config for two steps of SmolLM2 with evaluations before,
/// between and after them.
fn evaluating_workplace(suite: &str) -> Workplace {
    let workplace = Workplace::new();
    let (format, suites, metric, more) = match suite {
        "goat" => {
            std::fs::remove_file(workplace.path("train.jsonl")).unwrap();
            std::fs::remove_file(workplace.path("dev.jsonl")).unwrap();
            for arguments in [
                "data synth goat --rows 24 --output train.jsonl --documents documents.jsonl",
                "data synth goat --split dev --rows 16 --output dev.jsonl",
            ] {
                workplace.run(arguments.split(' ')).success();
            }
            let retriever = model("all-minilm-l6-v2");
            let more = format!(
                "[goat]\ndocuments = \"documents.jsonl\"\n[retriever]\nmodel_name_or_path = {:?}\n",
                retriever.display().to_string()
            );
            ("goat", "[\"goat\"]", "goat.sa", more)
        }
        "slot" => ("slot", "[\"slot\"]", "slot.mean", String::new()),
        _ => ("slot", "[]", "loss", String::new()),
    };
    if suite != "goat" {
        std::fs::remove_file(workplace.path("dev.jsonl")).unwrap();
        let rows = "data synth slot --split dev --rows 16 --output dev.jsonl";
        workplace.run(rows.split(' ')).success();
    }
    if suite == "messages" {
        for file in ["train.jsonl", "dev.jsonl"] {
            let rows = workplace.read(file);
            let rows: Vec<String> = rows.lines().map(as_messages).collect();
            workplace.write(file, rows.join("\n"));
        }
    }
    let format = if suite == "messages" { suite } else { format };
    let config = format!(
        r#"device = "cpu"
[model]
model_name_or_path = "{model}"
[lora]
r = 8
lora_alpha = 16
lora_dropout = 0.05
target_modules = "all-linear"
[data]
train = ["train.jsonl"]
eval = ["dev.jsonl"]
format = "{format}"
max_length = 4096
{more}[train]
output_dir = "run"
max_steps = 2
per_device_train_batch_size = 2
logging_steps = 1
[eval]
eval_steps = 1
suites = {suites}
max_samples = 16
max_new_tokens = 6
metric_for_best_model = "{metric}"
greater_is_better = {is_score}
encoder = "{encoder}"
[log]
report_to = ["jsonl"]
"#,
        model = model("smollm2-135m-instruct.gguf").display(),
        encoder = model("all-minilm-l6-v2").display(),
        is_score = metric != "loss",
    );
    workplace.write("config.toml", config);
    workplace
}

/// Converts a slot row to a conversation.
fn as_messages(row: &str) -> String {
    let row: Value = serde_json::from_str(row).unwrap();
    let question = format!("{} {}", row["input_text"], row["json_schema"]);
    serde_json::json!({"messages": [
        {"role": "user", "content": question},
        {"role": "assistant", "content": row["gold"].to_string()},
    ]})
    .to_string()
}

/// Runs a command to completion and returns its peak resident set, in bytes.
fn peak_of(command: &mut Command) -> f64 {
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0.0;
    loop {
        let text = std::fs::read_to_string(Path::new(&status)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        if let Some(kibibytes) = line.and_then(|line| line.split_whitespace().next()) {
            peak = 1024.0 * kibibytes.parse::<f64>().unwrap();
        }
        if let Some(ended) = child.try_wait().unwrap() {
            assert!(ended.success(), "{command:?}");
            return peak;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(target_os = "linux")]
/// Invariant: The predicted peak memory is within 15 % of the measured peak.
#[test]
fn the_predicted_memory_of_a_run_with_evaluations_is_within_15_percent() {
    // With recomputed layers, generation needs the most memory.
    let generates = [
        "train.gradient_checkpointing=\"full\"",
        "eval.batch_size=16",
    ];
    let cases: [(&str, &[&str]); 6] = [
        ("slot", &["eval.eval_strategy=\"no\""]),
        ("slot", &["eval.batch_size=4"]),
        ("slot", &generates),
        ("messages", &["eval.batch_size=4"]),
        ("goat", &["eval.batch_size=16"]),
        (
            "goat",
            &["eval.batch_size=4", "train.gradient_checkpointing=\"full\""],
        ),
    ];
    for (suite, settings) in cases {
        let workplace = evaluating_workplace(suite);
        let [predicted, measured] = planned_and_measured(&workplace, settings);
        let ratio = predicted / measured;
        let what = format!("{suite} {settings:?}: {predicted} / {measured} = {ratio:.3}");
        // A prediction that is too low is worse, because the run then runs out of memory.
        assert!((0.93..1.15).contains(&ratio), "{what}");
    }
}

#[test]
fn a_plan_names_only_the_phases_of_its_run() {
    let phases = |workplace: &Workplace, settings: &[&str]| -> Vec<String> {
        let sets = settings.iter().flat_map(|set| ["--set", set]);
        let arguments = "plan config.toml --format json".split(' ');
        let text = workplace.run(arguments.chain(sets)).success();
        let plan: Value = serde_json::from_str(&text).unwrap();
        let phases = plan["memory"]["phases"].as_array().unwrap().iter();
        let mut names: Vec<String> = phases
            .map(|phase| phase["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    let always = ["optimizer update", "saving", "training step"];
    let settings_with = |more: &[&'static str]| {
        let mut names: Vec<&str> = always.iter().chain(more).copied().collect();
        names.sort_unstable();
        names
    };
    let messages = evaluating_workplace("messages");
    assert_eq!(phases(&messages, &[]), settings_with(&["evaluation loss"]));
    let output = messages.run(["plan", "config.toml"]).success();
    assert!(output.contains("3: the loss of 16 rows\n"), "{output}");
    assert_eq!(
        phases(&messages, &["eval.eval_strategy=\"no\""]),
        settings_with(&[])
    );
    let goat = evaluating_workplace("goat");
    let reading = "reading texts with the encoder";
    let loss = "evaluation loss";
    assert_eq!(
        phases(&goat, &[]),
        settings_with(&["generation", loss, reading])
    );
    let ranks = "eval.suites=[\"retrieval\"]";
    let best = "eval.metric_for_best_model=retrieval.recall_at_5";
    assert_eq!(
        phases(&goat, &[ranks, best]),
        settings_with(&[loss, reading])
    );
    let output = goat.run(["plan", "config.toml"]).success();
    assert!(
        output.contains(
            "3: the loss of 16 rows, goat (16 prompts), at most 6 new tokens per prompt\n"
        ),
        "{output}"
    );
}
