//! Predictions of `plan` compared with training, messages of `doctor`, and measures of `data
//! stats`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::bad_input::row;
use crate::workplace::{CommandOutput, Workplace, tooltune};

/// Returns the plan as JSON, with `--probe` and additional settings.
pub(crate) fn probed_plan(workplace: &Workplace, settings: &[&str]) -> Value {
    let sets = settings.iter().flat_map(|setting| ["--set", setting]);
    // Memory is predicted for a step on the CPU.
    let arguments = "plan config.toml --probe --format json --device cpu".split(' ');
    let text = workplace.run(arguments.chain(sets)).success();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) fn bytes_of(folder: &std::path::Path, ending: &str) -> u64 {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(ending))
        .map(|entry| entry.metadata().unwrap().len())
        .sum()
}

#[test]
fn a_plan_matches_training_and_writes_nothing() {
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
    assert_eq!(plan["evaluations"]["queries"]["slot"], 3);
    assert_eq!(plan["goes_on_from_step"], Value::Null);
    let checkpoint_bytes = bytes_of(&workplace.path("run/checkpoint-000004"), ".safetensors");
    let predicted = plan["checkpoint_bytes"].as_u64().unwrap();
    assert!(
        (checkpoint_bytes..checkpoint_bytes + 20_000).contains(&predicted),
        "{checkpoint_bytes}, {predicted}"
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

/// The plan as JSON with these options, in one string.
fn plan_as_json(workplace: &Workplace, options: &str) -> Value {
    let arguments = "plan config.toml --format json --device cpu".split(' ');
    let text = workplace.run(arguments.chain(options.split(' ')));
    serde_json::from_str(&text.success()).unwrap()
}

#[test]
fn a_plan_for_ranks_predicts_waiting_and_communication() {
    let workplace = Workplace::new();
    let steps = "--set train.gradient_accumulation_steps=4";
    for offline in ["", " --offline"] {
        let plan = |options: &str| plan_as_json(&workplace, &format!("{steps}{offline}{options}"));
        assert_eq!(plan("")["ranks"], Value::Null);
        let two = plan(" --ranks 2 --bandwidth 0.5");
        let n_trained = two["trained_weights"].as_f64().unwrap();
        // Rank 0 receives and sends one integer of 8 bytes per trained value.
        assert_eq!(two["ranks"]["bytes_per_step"], 16.0 * n_trained);
        assert_eq!(
            two["ranks"]["seconds_per_step"],
            16.0 * n_trained / (0.5 * 1e9)
        );
        assert_eq!(two["ranks"]["is_upper_bound"], !offline.is_empty());
        let busy = |plan: &Value| plan["ranks"]["busy_share"].as_f64().unwrap();
        // Rows differ in length, so one of the two ranks waits. With three ranks, one has two of
        // the four micro-batches.
        let three = plan(" --ranks 3");
        if offline.is_empty() {
            assert!((0.7..0.999).contains(&busy(&two)), "{two}");
            assert!((0.5..0.95).contains(&busy(&three)), "{three}");
        } else {
            assert_eq!((busy(&two), busy(&three)), (1.0, 4.0 / 6.0));
        }
        let sums = |plan: &Value| {
            let phases = plan["memory"]["phases"].as_array().unwrap();
            let step = phases.iter().find(|phase| phase["name"] == "training step");
            let mut parts = step.unwrap()["parts"].as_array().unwrap().iter();
            let sums = parts.find(|part| part["name"] == "exact sums of gradients");
            sums.map(|part| part["bytes"].as_f64().unwrap())
        };
        assert_eq!(sums(&two), Some(8.0 * n_trained));
        let single = format!("--set train.gradient_accumulation_steps=1{offline}");
        assert_eq!(sums(&plan_as_json(&workplace, &single)), None);
    }
    let text = format!("plan config.toml --device cpu {steps} --ranks 4");
    let text = workplace.run(text.split(' ')).success();
    for expected in [
        "busy ",
        "communication",
        "assumed",
        "4 ranks on one machine need",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// Invariant: `plan --ranks` refuses the numbers of ranks that `train --ranks` refuses.
#[test]
fn a_plan_refuses_more_ranks_than_micro_batches_as_training_does() {
    let workplace = Workplace::new();
    let said = |verb: &str, options: &str| {
        let arguments = format!("{verb} config.toml --ranks 3{options}");
        let answer = workplace.run(arguments.split(' '));
        assert_eq!(answer.status, Some(2), "{verb}: {}", answer.stderr);
        answer.stderr
    };
    let expected = "3 ranks, but a step has train.gradient_accumulation_steps = 1";
    for text in [
        said("train", ""),
        said("plan", ""),
        said("plan", " --offline"),
    ] {
        assert!(text.contains(expected), "{text}");
    }
    for (options, expected) in [
        ("--ranks 1 --bandwidth 0", "--bandwidth is 0"),
        ("--offline --tflops nan", "--tflops is NaN"),
    ] {
        let arguments = format!("plan config.toml {options}");
        let answer = workplace.run(arguments.split(' '));
        assert_eq!(answer.status, Some(2), "{}", answer.stdout);
        assert!(answer.stderr.contains(expected), "{}", answer.stderr);
    }
}

#[test]
fn an_offline_plan_predicts_the_time_of_a_step_from_its_operations() {
    let workplace = Workplace::new();
    let plan = |options: &str| plan_as_json(&workplace, &format!("--offline {options}"));
    assert_eq!(plan("--ranks 1")["step_time"], Value::Null);
    let fast = plan("--tflops 0.5")["step_time"].clone();
    let tflop = fast["tflop"].as_f64().unwrap();
    assert_eq!(fast["seconds"].as_f64().unwrap(), tflop / 0.5);
    let more = plan("--tflops 0.5 --set train.gradient_accumulation_steps=3");
    let ratio = more["step_time"]["tflop"].as_f64().unwrap() / tflop;
    assert!((ratio - 3.0).abs() < 1e-9, "{ratio}");
}

/// Invariant: A plan of a GPU's memory is near the peak that `scripts/check-cuda-launches` measures on a
/// simulated driver.
#[test]
fn an_offline_plan_predicts_the_memory_of_a_gpu() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/gpu");
    let steps = std::fs::read_to_string(scripts.join("launches.json")).unwrap();
    let steps: BTreeMap<String, Value> = serde_json::from_str(&steps).unwrap();
    let workplace = Workplace::with_rows("1");
    let mut n_compared = 0;
    for (step, record) in &steps {
        let Some(measured) = record["gib"].as_f64() else {
            continue;
        };
        // "llama-3-8b, 2 x 4096, dropout 0.05, kept"
        let words: Vec<&str> = step
            .split([',', ' '])
            .filter(|word| !word.is_empty())
            .collect();
        let [shape, documents, "x", length, "dropout", dropout, blocks] = words[..] else {
            panic!("{step}");
        };
        let checkpointing = match blocks {
            "kept" => "none",
            _ => "full",
        };
        std::fs::create_dir_all(workplace.path(shape)).unwrap();
        let config = scripts.join(format!("shapes/{shape}.json"));
        std::fs::copy(config, workplace.path(shape).join("config.json")).unwrap();
        let config = format!(
            r#"device = "cuda"
[model]
model_name_or_path = "{shape}"
[lora]
r = 16
lora_alpha = 32
lora_dropout = {dropout}
target_modules = "all-linear"
[data]
train = ["train.jsonl"]
max_length = {length}
[train]
output_dir = "run"
max_steps = 2
per_device_train_batch_size = {documents}
learning_rate = 1e-4
gradient_checkpointing = "{checkpointing}"
[eval]
eval_strategy = "no"
"#
        );
        workplace.write("config.toml", config);
        let plan = workplace.run("plan config.toml --offline --format json".split(' '));
        let plan: Value = serde_json::from_str(&plan.success()).unwrap();
        // The program of the measurement takes steps and saves nothing.
        let phases = plan["memory"]["phases"].as_array().unwrap().iter();
        let bytes = phases.filter(|phase| phase["name"] != "saving");
        let bytes = bytes.filter_map(|phase| phase["bytes"].as_f64());
        let planned = bytes.fold(0.0, f64::max) / (1u64 << 30) as f64;
        let ratio = planned / measured;
        assert!(
            (0.85..1.15).contains(&ratio),
            "{step}: planned {planned:.2} GiB, measured {measured:.2}"
        );
        n_compared += 1;
    }
    assert!(n_compared >= 12, "{n_compared} steps");
}

/// The offline plan of a model with the shape of Llama 3 70B in bf16 on eight GPUs.
#[test]
fn eight_gpus_divide_70b_in_bf16_and_gather_it_while_they_compute() {
    let workplace = Workplace::new();
    let shape = include_str!("../scripts/gpu/shapes/llama-3-70b.json");
    std::fs::create_dir_all(workplace.path("llama-70b")).unwrap();
    std::fs::write(workplace.path("llama-70b/config.json"), shape).unwrap();
    let plan = |options: &str| {
        let options = format!(
            "plan config.toml --offline --format json --device cuda \
             --set model.model_name_or_path=\"llama-70b\" --set model.compute_dtype=\"bf16\" \
             --set lora.r=8 --set lora.target_modules=\"all-linear\" --set data.max_length=4096 \
             --set train.per_device_train_batch_size=1 \
             --set train.gradient_accumulation_steps=16 {options}"
        );
        workplace.run(options.split_whitespace())
    };
    let json = |options: &str| -> Value { serde_json::from_str(&plan(options).success()).unwrap() };
    let gib = |plan: &Value| {
        let bytes = plan["memory"]["peak_bytes"].as_f64().unwrap();
        bytes / f64::from(1 << 30)
    };
    let node = "--set model.frozen_weights=\"node\"";
    let eight = json(&format!("{node} --ranks 8"));
    assert!((30.0..60.0).contains(&gib(&eight)), "{}", gib(&eight));
    // 137 GB of projections: one of eight ranks has an eighth instead of all of them, and two of
    // the 80 blocks.
    let whole = json("--ranks 8");
    let saved = (gib(&whole) - gib(&eight)) * f64::from(1 << 30);
    let projections = 80.0 * 855_638_016.0 * 2.0;
    let expected = projections * (7.0 / 8.0 - 2.0 / 80.0);
    assert!((saved / expected - 1.0).abs() < 1e-6, "{saved} {expected}");
    assert_eq!(whole["ranks"]["gathers"], Value::Null);
    // Every block twice, but for the last two; seven eighths come from the other GPUs.
    let gathers = &eight["ranks"]["gathers"];
    let received = gathers["bytes_per_micro_batch"].as_f64().unwrap();
    let expected = projections * 158.0 / 80.0 * 7.0 / 8.0;
    assert!(
        (received / expected - 1.0).abs() < 1e-6,
        "{received} {expected}"
    );
    let waits = |plan: &Value| plan["step_time"]["gather_seconds"].as_f64().unwrap();
    assert_eq!(waits(&eight), 0.0);
    let slow = json(&format!("{node} --ranks 8 --bandwidth 10"));
    assert!(waits(&slow) > 20.0, "{slow}");
    let alone = plan(node);
    assert_eq!(alone.status, Some(2), "{}", alone.stderr);
    assert!(alone.stderr.contains("add --ranks"), "{}", alone.stderr);
    let dora = plan(&format!("{node} --ranks 8 --set lora.use_dora=true"));
    assert!(
        dora.stderr
            .contains("`lora.use_dora` cannot be combined with"),
        "{}",
        dora.stderr
    );
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
fn absurd_numbers_are_refused_and_long_runs_planned_quickly() {
    let workplace = Workplace::new();
    let plan = |set: &str| {
        let arguments = ["plan", "config.toml", "--format", "json", "--set", set];
        workplace.run(arguments)
    };
    let answer = plan("train.num_train_epochs=1e12");
    assert_eq!(answer.status, Some(2), "{}", answer.stdout);
    for expected in ["train.num_train_epochs", "at most 100000"] {
        assert!(
            answer.stderr.contains(expected),
            "{expected}: {}",
            answer.stderr
        );
    }
    let output = |set: &str| -> Value { serde_json::from_str(&plan(set).success()).unwrap() };
    let (once, long) = (
        output("train.num_train_epochs=1"),
        output("train.num_train_epochs=1e5"),
    );
    assert_eq!(once["steps"], 12);
    assert_eq!(long["steps"], 1_200_000);
    let tokens = |plan: &Value| plan["tokens"].as_f64().unwrap();
    let times = tokens(&long) / tokens(&once);
    assert!((99_900.0..100_100.0).contains(&times), "{times}");
    let endless = output("train.max_steps=9000000000000000000");
    assert_eq!(endless["steps"], 9_000_000_000_000_000_000_u64);
}

#[test]
fn executors_of_suites_are_opened_by_plan_and_before_a_run() {
    let workplace = Workplace::new();
    for arguments in [
        "data synth goat --rows 4 --output train.goat.jsonl --documents documents.jsonl",
        "data synth goat --rows 4 --split dev --output dev.goat.jsonl",
    ] {
        workplace.run(arguments.split(' ')).success();
    }
    workplace.write("responses.jsonl", "{\"endpoint\": 5}\n");
    let encoder = crate::support::model("all-minilm-l6-v2");
    let tables = format!(
        "[goat]\ndocuments = \"documents.jsonl\"\n[goat.executor]\nkind = \"canned\"\n\
         responses = \"responses.jsonl\"\n[retriever]\nmodel_name_or_path = {:?}\n",
        encoder.display().to_string()
    );
    let config = workplace
        .read("config.toml")
        .replace("\"slot\"", "\"goat\"");
    let config = config
        .replace("slot.mean", "goat.sa")
        .replace(".jsonl", ".goat.jsonl");
    workplace.write("goat.toml", config + &tables);
    for verb in ["plan", "train"] {
        let answer = workplace.run([verb, "goat.toml"]);
        assert_eq!(answer.status, Some(3), "{verb}: {}", answer.stderr);
        let location = "responses.jsonl:1";
        assert!(
            answer.stderr.contains(location),
            "{verb}: {}",
            answer.stderr
        );
        assert!(!workplace.path("run").exists(), "{verb}");
    }
}

#[test]
fn a_plan_checks_the_run_directory() {
    let workplace = Workplace::new();
    workplace.run(["train", "config.toml"]).success();
    for mode in [
        &["plan", "config.toml"][..],
        &["plan", "config.toml", "--offline"],
    ] {
        let plan = |set: &str| workplace.run(mode.iter().copied().chain(["--set", set]));
        let output = plan("train.max_steps=4").success();
        let expected = "training resumes from step 4 of run";
        assert!(output.contains(expected), "{mode:?}: {output}");
        for (set, output) in [
            ("lora.r=3", "lora.r: 2 -> 3"),
            // Even root cannot create a file there.
            (
                "train.output_dir=/proc/run",
                "no file can be created in /proc",
            ),
            ("train.output_dir=train.jsonl", "train.jsonl is a file"),
        ] {
            let answer = plan(set);
            assert_eq!(answer.status, Some(2), "{mode:?} {set}: {}", answer.stdout);
            assert!(
                answer.stderr.contains(output),
                "{mode:?} {set}: {}",
                answer.stderr
            );
        }
    }
}

#[test]
fn a_plan_reserves_disk_space_for_simultaneous_checkpoints() {
    let workplace = Workplace::new();
    let checkpoints = |limit: u64, strategy: &str| -> u64 {
        let limit = format!("checkpoint.save_total_limit={limit}");
        let strategy = format!("eval.eval_strategy={strategy}");
        let sets = ["--set", &limit, "--set", &strategy];
        let arguments = "plan config.toml --format json".split(' ').chain(sets);
        let plan: Value = serde_json::from_str(&workplace.run(arguments).success()).unwrap();
        plan["disk_bytes"].as_u64().unwrap() / plan["checkpoint_bytes"].as_u64().unwrap()
    };
    // The kept checkpoints, including the best and the newest, and the one that is being written.
    assert_eq!(checkpoints(1, "no"), 2);
    assert_eq!(checkpoints(1, "steps"), 3);
    assert_eq!(checkpoints(2, "steps"), 3);
    assert_eq!(checkpoints(5, "steps"), 6);
}

#[test]
fn only_a_complete_checkpoint_is_exported() {
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
fn doctor_gives_remedies_and_never_shows_a_token() {
    let workplace = Workplace::new();
    let doctor = || {
        let mut command = tooltune();
        command
            .current_dir(workplace.folder())
            .args(["doctor", "config.toml"]);
        CommandOutput::from_command(command.env("HF_TOKEN", "hf_never_to_be_seen"))
    };
    let healthy = doctor().success();
    assert!(
        healthy.contains("set in the variable HF_TOKEN"),
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
    for expected in ["not ready", "dev.jsonl", "data.eval"] {
        assert!(ill.stderr.contains(expected), "{expected}: {}", ill.stderr);
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
    let output = workplace
        .run(["data", "stats", "train.jsonl", "--model", "model"])
        .success();
    for measure in ["prompt_tokens", "completion_tokens"] {
        assert!(
            output.contains(&format!("| {measure} ")),
            "{measure}: {output}"
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
        let output = workplace.run(arguments).success();
        let dropped = "dropped train.jsonl:1: longer than data.max_length = 4096 tokens";
        assert!(output.contains(dropped), "{output}");
    }
}
