//! What `plan` predicts beside what training then does, what `doctor` finds, and what `data stats`
//! measures.

use serde_json::Value;

use crate::bad_input::row;
use crate::support::model;
use crate::workplace::{Answer, Workplace, tooltune};

/// Asks for a plan with a probe, as JSON, with further settings.
fn probed_plan(workplace: &Workplace, settings: &[&str]) -> Value {
    let sets = settings.iter().flat_map(|setting| ["--set", setting]);
    // What is predicted is the memory of a step on the CPU.
    let arguments = "plan config.toml --probe --format json --device cpu".split(' ');
    let text = workplace.run(arguments.chain(sets)).success();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn bytes_of(folder: &std::path::Path, ending: &str) -> u64 {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(ending))
        .map(|entry| entry.metadata().unwrap().len())
        .sum()
}

#[test]
fn a_plan_counts_what_training_then_does_and_writes_nothing() {
    let workplace = Workplace::new();
    let plan = probed_plan(&workplace, &[]);
    assert!(!workplace.path("run").exists());
    workplace.run(["train", "config.toml"]).success();
    let metrics = workplace.read("run/metrics.jsonl");
    let lines = metrics
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let (evaluations, steps): (Vec<Value>, Vec<Value>) =
        lines.partition(|line: &Value| line.get("loss").is_none());
    let last = steps.last().unwrap();
    assert_eq!(plan["steps"], last["step"]);
    assert_eq!(plan["tokens"], last["tokens"]);
    assert_eq!(plan["trained_tokens"], last["trained_tokens"]);
    assert_eq!(plan["epochs"], last["epoch"]);
    assert_eq!(plan["evaluations"]["n"], evaluations.len());
    assert_eq!(plan["evaluations"]["rows"], 3);
    let written = bytes_of(&workplace.path("run/checkpoint-000004"), ".safetensors");
    let predicted = plan["checkpoint_bytes"].as_u64().unwrap();
    assert!(
        (written..written + 20_000).contains(&predicted),
        "{written}, {predicted}"
    );

    assert_eq!(
        plan["probe"]["n_tokens"],
        plan["largest_micro_batch_tokens"]
    );
    assert!(plan["hours"]["training"].as_f64() > Some(0.0), "{plan}");
    for phase in plan["memory"]["phases"].as_array().unwrap() {
        let parts = phase["parts"].as_array().unwrap();
        let sum: u64 = parts
            .iter()
            .map(|part| part["bytes"].as_u64().unwrap())
            .sum();
        assert_eq!(phase["bytes"], sum, "{phase}");
        assert!(
            phase["bytes"].as_u64() <= plan["memory"]["peak_bytes"].as_u64(),
            "{phase}"
        );
    }
}

#[test]
fn the_predicted_memory_of_a_step_is_within_a_fifth_of_what_it_takes() {
    let workplace = Workplace::new();
    let gguf = model("smollm2-135m-instruct.gguf");
    let base = format!("model.model_name_or_path=\"{}\"", gguf.display());
    // Each changes another part: dropout, the tokens of a batch, the adapter.
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

/// A retriever alone, learning from pairs of random words that fill its `tokens`.
fn retriever_workplace(tokens: usize) -> Workplace {
    let workplace = Workplace::new();
    let encoder = model("all-minilm-l6-v2");
    let vocabulary = std::fs::read_to_string(encoder.join("vocab.txt")).unwrap();
    let is_word = |word: &&str| word.len() > 3 && word.bytes().all(|b| b.is_ascii_lowercase());
    let words: Vec<&str> = vocabulary.lines().filter(is_word).collect();
    let text = |first: usize| {
        let places = (0..tokens).map(|i| (first * tokens + i) * 31 % words.len());
        places
            .map(|place| words[place])
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

/// Trains 3 steps and answers the largest resident set before the last save.
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

#[test]
fn the_predicted_memory_of_a_retriever_is_within_15_percent_of_what_it_takes() {
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
        let written = bytes_of(&workplace.path("run/checkpoint-000003"), ".safetensors");
        let predicted = plan["checkpoint_bytes"].as_u64().unwrap();
        assert!(
            (written..written + 20_000).contains(&predicted),
            "{written}, {predicted}"
        );
        std::fs::remove_dir_all(workplace.path("run")).unwrap();
    }
}

#[test]
fn a_retriever_beside_a_model_counts_in_the_peak() {
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
    let of_retriever = 12 * retriever["parameters"].as_u64().unwrap();
    let peak = |plan: &Value| plan["memory"]["peak_bytes"].as_u64().unwrap();
    assert!(peak(&beside) > peak(&alone) + of_retriever);
    let checkpoint = |plan: &Value| plan["checkpoint_bytes"].as_u64().unwrap();
    assert!(checkpoint(&beside) > checkpoint(&alone) + of_retriever);
    let measured = peak_of_training(&workplace, "joint.toml", &[]);
    assert_within_15_percent(&beside["memory"]["peak_bytes"], measured, &["joint"]);
}

#[test]
fn a_plan_refuses_what_training_would_refuse_later() {
    let workplace = Workplace::new();
    let folder = workplace.copy_model("narrow");
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let narrow = config.replace("\"intermediate_size\": 64", "\"intermediate_size\": 48");
    assert_ne!(config, narrow);
    std::fs::write(folder.join("config.json"), narrow).unwrap();
    let set = "model.model_name_or_path=\"narrow\"";
    let answer = workplace.run(["plan", "config.toml", "--set", set]);
    assert_eq!(answer.status, Some(1), "{}", answer.stderr);
    assert!(
        answer.stderr.contains("mlp.down_proj.weight"),
        "{}",
        answer.stderr
    );
    let answer = workplace.run(["plan", "config.toml", "--device", "gpu"]);
    assert_eq!(answer.status, Some(2), "{}", answer.stderr);
}

#[test]
fn a_named_checkpoint_is_exported_only_if_it_is_whole() {
    let workplace = Workplace::new();
    workplace.run(["train", "config.toml"]).success();
    let path = "run/checkpoint-000004/adapter_model.safetensors";
    let mut bytes = std::fs::read(workplace.path(path)).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    workplace.write(path, bytes);
    let export = |checkpoint: &str| {
        let arguments = [
            "export",
            "run",
            "--output",
            "out",
            "--checkpoint",
            checkpoint,
        ];
        workplace.run(arguments)
    };
    let answer = export("run/checkpoint-000004");
    assert_eq!(answer.status, Some(1), "{}", answer.stdout);
    assert!(
        answer.stderr.contains("checkpoint-000004"),
        "{}",
        answer.stderr
    );
    assert!(!workplace.path("out").exists());
    let answer = export("run/checkpoint-000009");
    assert_eq!(answer.status, Some(1), "{}", answer.stdout);
    assert!(
        answer.stderr.contains("checkpoint-000009"),
        "{}",
        answer.stderr
    );
    assert!(
        export("run/checkpoint-000002")
            .success()
            .contains("checkpoint-000002")
    );
}

#[test]
fn doctor_says_what_to_do_and_never_shows_a_token() {
    let workplace = Workplace::new();
    let doctor = || {
        let mut command = tooltune();
        command
            .current_dir(workplace.folder())
            .args(["doctor", "config.toml"]);
        Answer::of(command.env("HF_TOKEN", "hf_never_to_be_seen"))
    };
    let healthy = doctor().success();
    assert!(
        healthy.contains("present in the variable HF_TOKEN"),
        "{healthy}"
    );
    assert!(!healthy.contains("never_to_be_seen"), "{healthy}");
    assert!(
        healthy.contains("llama, 2 blocks of 32, 1024 tokens"),
        "{healthy}"
    );
    workplace.run(["doctor"]).success();

    std::fs::remove_file(workplace.path("dev.jsonl")).unwrap();
    let ill = doctor();
    assert_eq!(ill.status, Some(2), "{}", ill.stdout);
    for said in ["not ready", "dev.jsonl", "data.eval"] {
        assert!(ill.stderr.contains(said), "{said}: {}", ill.stderr);
    }
    let answer = workplace.run(["doctor", "--device", "cuda:99"]);
    assert_eq!(answer.status, Some(2), "{}", answer.stdout);
    assert!(answer.stderr.contains("--device cpu"), "{}", answer.stderr);
}

#[test]
fn data_stats_measure_characters_and_with_a_model_tokens() {
    let workplace = Workplace::new();
    let plain = workplace.run(["data", "stats", "train.jsonl"]).success();
    for measure in [
        "depth",
        "keys",
        "size",
        "elements",
        "cyclomatic",
        "schema_complexity",
        "content_complexity",
        "input_text_characters",
        "gold_characters",
    ] {
        assert!(
            plain.contains(&format!("| {measure} ")),
            "{measure}: {plain}"
        );
    }
    assert!(plain.starts_with("24 rows in train.jsonl"), "{plain}");
    assert!(!plain.contains("tokens"), "{plain}");
    let model = workplace.copy_model("model");
    // Counting tokens needs no template.
    std::fs::remove_file(model.join("chat_template.jinja")).unwrap();
    let counted = workplace
        .run(["data", "stats", "train.jsonl", "--model", "model"])
        .success();
    for measure in ["prompt_tokens", "completion_tokens"] {
        assert!(
            counted.contains(&format!("| {measure} ")),
            "{measure}: {counted}"
        );
    }
}

#[test]
fn a_dropped_row_is_named_with_the_limit_that_it_exceeds() {
    let workplace = Workplace::new();
    let long = row(&workplace, |row| {
        row["input_text"] = "many words ".repeat(5000).into();
    });
    let rows = workplace.read("train.jsonl");
    workplace.write("train.jsonl", format!("{}\n{rows}", long.trim()));
    for verb in ["plan", "train"] {
        let arguments = [verb, "config.toml", "--set", "data.on_overflow=drop"];
        let said = workplace.run(arguments).success();
        let dropped = "dropped train.jsonl:1: it has more tokens than data.max_length, 4096";
        assert!(said.contains(dropped), "{said}");
    }
}
