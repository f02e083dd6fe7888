//! Outputs of a run: adapters and merged weights, which are read again by the rules of their target
//! programs, a report page, and a comparison with an earlier run.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::bad_input::edit;
use crate::support::fixture;
use crate::workplace::{CommandOutput, Workplace, tooltune};

/// A finished run of 4 steps in `run`.
fn trained_workplace() -> Workplace {
    let workplace = Workplace::new();
    workplace.run(["train", "config.toml"]).success();
    workplace
}

fn verify(workplace: &Workplace, reader: &str, export: &str) -> CommandOutput {
    let arguments = ["verify", "run", "--checkpoint", "last", "--rows", "2"];
    let against = ["--against", reader, "--export", export];
    workplace.run(arguments.into_iter().chain(against))
}

fn export(workplace: &Workplace, more: &str) {
    let arguments = format!("export run --checkpoint last {more}");
    workplace.run(arguments.split(' ')).success();
}

#[test]
fn every_export_matches_the_checkpoint_by_the_rules_of_its_target() {
    let workplace = trained_workplace();
    export(&workplace, "--to peft --output peft");
    export(&workplace, "--to peft --neutral --output neutral");
    export(&workplace, "--to gguf --output adapter.gguf");
    export(
        &workplace,
        "--to gguf --dtype bf16 --output adapter-bf16.gguf",
    );
    export(
        &workplace,
        "--to merged --max-shard-size 0.0001 --output merged",
    );
    export(
        &workplace,
        "--to peft --neutral --dtype bf16 --output neutral-bf16",
    );
    export(
        &workplace,
        "--to gguf --merged --dtype f32 --output whole.gguf",
    );
    export(&workplace, "--to gguf --merged --output whole-f16.gguf");
    export(
        &workplace,
        "--to gguf --merged --dtype q8_0 --output whole-q8.gguf",
    );
    export(&workplace, "--to ollama --output ollama");
    for (reader, export) in [
        ("merged", "whole.gguf"),
        ("merged", "whole-f16.gguf"),
        ("merged", "ollama/model.gguf"),
        ("peft-rules", "peft"),
        ("vllm-rules", "peft"),
        ("peft-rules", "neutral"),
        ("vllm-rules", "neutral"),
        ("vllm-rules", "neutral-bf16"),
        ("gguf", "adapter.gguf"),
        ("gguf", "adapter-bf16.gguf"),
        ("merged", "merged"),
    ] {
        let output = verify(&workplace, reader, export).success();
        assert!(output.contains(" matches "), "{reader} {export}: {output}");
    }
    let size = |adapter: &str| {
        let path = workplace.path(&format!("{adapter}/adapter_model.safetensors"));
        std::fs::metadata(path).unwrap().len()
    };
    assert!(
        size("neutral-bf16") * 3 < size("neutral") * 2,
        "the file is not half as large"
    );
    let index = workplace.read("merged/model.safetensors.index.json");
    let index: Value = serde_json::from_str(&index).unwrap();
    let files: std::collections::BTreeSet<&str> = index["weight_map"]
        .as_object()
        .unwrap()
        .values()
        .filter_map(Value::as_str)
        .collect();
    assert!(files.len() > 1, "{files:?}");
    let bytes = |file: &str| std::fs::metadata(workplace.path(file)).unwrap().len();
    assert!(bytes("whole-q8.gguf") < bytes("whole-f16.gguf"));
    assert!(bytes("whole-f16.gguf") < bytes("whole.gguf"));
    let modelfile = workplace.read("ollama/Modelfile");
    for part in [
        "FROM ./model.gguf\nTEMPLATE \"\"\"{{",
        "{{- range .Messages }}{{- if eq .Role \"system\" }}{{ \"<|im_start|>system\\n\" }}{{ .Content }}",
        "PARAMETER stop \"\"\"<|im_end|>\"\"\"\n",
        "PARAMETER temperature 0\n",
    ] {
        assert!(modelfile.contains(part), "{part} is not in\n{modelfile}");
    }
    let greedy = ["whole-q8.gguf", "whole.gguf", "merged"].map(|model| {
        let arguments = format!("generate {model} --message Hi --set eval.max_new_tokens=8");
        workplace.run(arguments.split(' ')).success()
    });
    assert_eq!(greedy[1], greedy[2]);
    // A merged model needs no other files.
    let plain = "eval config.toml --checkpoint base --set model.model_name_or_path=merged";
    workplace.run(plain.split(' ')).success();
}

#[test]
fn modules_selected_by_a_pattern_are_exported_by_name() {
    let workplace = Workplace::new();
    let targets = r"target_modules = '.*q_proj|.*v_proj|.*\.1\.mlp\.up_proj'";
    let table = format!("{targets}\nrank_pattern = {{ q_proj = 3 }}");
    let config = workplace.read("config.toml");
    let config = config.replace("target_modules = \"all-linear\"", &table);
    workplace.write("config.toml", config);
    let quick = ["train", "config.toml", "--set", "eval.eval_strategy=no"];
    workplace.run(quick).success();
    let check = |checkpoint: &str| {
        let arguments = format!("export run --check --checkpoint {checkpoint}");
        let table = workplace.run(arguments.split(' ')).success();
        let row = table.lines().find(|line| line.contains("target_modules"));
        row.map(str::to_owned)
    };
    let row = check("last").expect("a row with the pattern");
    assert!(
        row.contains("| refused: it needs a list of names |"),
        "{row}"
    );
    export(&workplace, "--to peft --output peft");
    let config: Value = serde_json::from_str(&workplace.read("peft/adapter_config.json")).unwrap();
    let names = ["model.layers.1.mlp.up_proj", "q_proj", "v_proj"];
    assert_eq!(config["target_modules"], serde_json::json!(names));
    assert_eq!(config["rank_pattern"], serde_json::json!({"q_proj": 3}));
    assert_eq!(check("peft"), None);
    let output = verify(&workplace, "peft-rules", "peft").success();
    assert!(output.contains(" matches "), "{output}");
    // If the base is not available, the export lists every module by name, which selects the same
    // modules.
    std::fs::write(
        workplace.path("run/config.resolved.toml"),
        workplace
            .read("run/config.resolved.toml")
            .replace("tiny_chat_model", "not_there"),
    )
    .unwrap();
    export(&workplace, "--to peft --output far");
    let config: Value = serde_json::from_str(&workplace.read("far/adapter_config.json")).unwrap();
    assert_eq!(config["target_modules"].as_array().unwrap().len(), 5);
    // The checkpoint keeps the configured pattern, because resuming compares it with the config.
    let own = workplace.read("run/checkpoint-000004/adapter_config.json");
    let own: Value = serde_json::from_str(&own).unwrap();
    assert!(own["target_modules"].is_string(), "{own}");
}

/// Returns the peak memory of a command in bytes, from `/proc`.
fn peak_of(command: &mut Command) -> u64 {
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        let ended = child.try_wait().unwrap();
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
        peak = peak.max(kibibytes.map_or(0, |n| n.parse::<u64>().unwrap() * 1024));
        if let Some(ended) = ended {
            assert!(ended.success(), "{ended}");
            return peak;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn merging_needs_memory_for_one_tensor_at_a_time() {
    let workplace = Workplace::new();
    let model = crate::support::model("smollm2-135m-instruct.gguf");
    let set = format!("model.model_name_or_path={}", model.display());
    let train = [
        "train",
        "config.toml",
        "--set",
        &set,
        "--set",
        "train.max_steps=1",
    ];
    let unmeasured = ["--set", "eval.eval_strategy=no"];
    workplace.run(train.into_iter().chain(unmeasured)).success();
    let export =
        "export run --checkpoint last --to merged --dtype f32 --max-shard-size 0.1 --output merged";
    let mut command = tooltune();
    command
        .current_dir(workplace.folder())
        .args(export.split(' '));
    let peak = peak_of(&mut command);
    let files = std::fs::read_dir(workplace.path("merged")).unwrap();
    let model_bytes: u64 = files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!(model_bytes > 500_000_000, "{model_bytes}");
    // The largest tensor, the embedding, has 113 MB. The base of 98 MB is not loaded into memory.
    assert!(
        peak < model_bytes / 2,
        "{peak} bytes for a model of {model_bytes}"
    );
    // Computing with W + sBA rounds differently from computing with W and sBA separately. The
    // difference grows with the logits.
    let output = verify(&workplace, "merged", "merged").success();
    assert!(output.contains(" matches "), "{output}");
}

#[test]
fn verify_detects_a_merge_with_a_wrong_scaling() {
    let workplace = trained_workplace();
    export(&workplace, "--to peft --output adapter");
    edit(
        &workplace.path("adapter/adapter_config.json"),
        "lora_alpha",
        4.1.into(),
    );
    for (format, output) in [("merged", "merged"), ("gguf", "adapter.gguf")] {
        let other =
            format!("export run --checkpoint adapter --to {format} --dtype f32 --output {output}");
        workplace.run(other.split(' ')).success();
        let answer = verify(&workplace, format, output);
        assert_eq!(answer.status, Some(1), "{}", answer.stdout);
        let again = format!("again with --to {format}");
        for expected in ["does not compute the same results", "--checkpoint", &again] {
            assert!(answer.stderr.contains(expected), "{}", answer.stderr);
        }
        assert!(!answer.stderr.contains("--neutral"), "{}", answer.stderr);
    }
}

#[test]
fn an_adapter_is_not_merged_into_a_different_base() {
    let workplace = trained_workplace();
    export(&workplace, "--to peft --output adapter");
    let config = workplace.read("adapter/adapter_config.json");
    let config: Value = serde_json::from_str(&config).unwrap();
    let export_of = |base: &str, output: &str| {
        let mut config = config.clone();
        config["base_model_name_or_path"] = base.into();
        workplace.write("adapter/adapter_config.json", config.to_string());
        workplace.run([
            "export",
            "run",
            "--checkpoint",
            "adapter",
            "--output",
            output,
            "--to",
            "merged",
        ])
    };
    let refused = export_of("other/Model-7B", "merged");
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("other/Model-7B"),
        "{}",
        refused.stderr
    );
    assert!(!workplace.path("merged").exists());
    export_of("someone/Tiny_Chat_Model", "merged").success();

    // Checkpoints of a run identify their base weights by a hash.
    let resolved = workplace.read("run/config.resolved.toml");
    let model = crate::support::fixture("tiny_chat_model")
        .display()
        .to_string();
    workplace.write(
        "run/config.resolved.toml",
        resolved.replace(&model, "merged"),
    );
    for format in ["merged", "gguf"] {
        let refused = workplace.run([
            "export",
            "run",
            "--checkpoint",
            "last",
            "--to",
            format,
            "--output",
            "again",
        ]);
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        assert!(
            refused.stderr.contains("that the adapter was trained on"),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn scalings_that_a_server_ignores_are_reported_by_check_and_verify() {
    let workplace = Workplace::new();
    let patterned =
        "train config.toml --set lora.rank_pattern={'q_proj'=4} --set lora.use_rslora=true";
    workplace.run(patterned.split(' ')).success();
    let table = workplace
        .run(["export", "run", "--check", "--checkpoint", "last"])
        .success();
    assert!(
        table.contains("vLLM") && table.contains("--neutral"),
        "{table}"
    );
    export(&workplace, "--to peft --output peft");
    verify(&workplace, "peft-rules", "peft").success();
    let answer = verify(&workplace, "vllm-rules", "peft");
    assert_eq!(answer.status, Some(1), "{}", answer.stdout);
    assert!(
        answer.stderr.contains("does not compute the same results"),
        "{}",
        answer.stderr
    );
    export(&workplace, "--to peft --neutral --output neutral");
    verify(&workplace, "vllm-rules", "neutral").success();
    export(&workplace, "--to gguf --output adapter.gguf");
    verify(&workplace, "gguf", "adapter.gguf").success();
}

#[test]
fn a_report_shows_the_run_and_a_comparison_names_changed_samples() {
    let workplace = trained_workplace();
    workplace.run(["report", "run"]).success();
    let page = workplace.read("run/report.html");
    for part in [
        "<!doctype html>",
        "slot.mean",
        "dev.jsonl:1",
        "train.jsonl:1",
        "max_steps",
    ] {
        assert!(
            page.to_lowercase().contains(part),
            "{part} is not in the page"
        );
    }
    workplace
        .run(["report", "run", "run", "--output", "two.html"])
        .success();
    let checkpoints = ["run/checkpoint-000002", "run/checkpoint-000004"];
    let table = workplace
        .run(["compare", checkpoints[0], checkpoints[1]])
        .success();
    assert!(table.contains("content_similarity"), "{table}");
    let answer = workplace.run(["compare", "run", checkpoints[1]]);
    assert_eq!(answer.status, Some(2));
    assert!(
        answer
            .stderr
            .contains("cannot compare the run run with run/checkpoint-000004"),
        "{}",
        answer.stderr
    );
}

#[test]
fn options_that_do_not_apply_to_an_export_format_are_refused() {
    let workplace = trained_workplace();
    for (more, expected) in [
        (
            "--to gguf --neutral --output a",
            "--neutral only applies to --to peft",
        ),
        (
            "--to sentence-transformers --dtype f16 --output a",
            "--dtype only applies to",
        ),
        (
            "--to merged --max-shard-size 0 --output a",
            "--max-shard-size",
        ),
        ("--to gguf", "--output"),
    ] {
        let arguments = format!("export run --checkpoint last {more}");
        let answer = workplace.run(arguments.split(' '));
        assert_eq!(answer.status, Some(2), "{more}");
        assert!(
            answer.stderr.contains(expected),
            "{more}: {}",
            answer.stderr
        );
    }
}

/// Writes `predictions` for two test rows, and evaluates them into the folder `output`.
fn evaluate_predictions(workplace: &Workplace, predictions: [&str; 2], output: &str) {
    let line = |(i, text): (usize, &&str)| {
        let line = serde_json::json!({"id": format!("test.jsonl:{}", i + 1), "prediction": text});
        format!("{line}\n")
    };
    let lines: String = predictions.iter().enumerate().map(line).collect();
    workplace.write("texts.jsonl", lines);
    let eval = "eval run --data test.jsonl --predictions texts.jsonl --output";
    workplace.run(eval.split(' ').chain([output])).success();
}

#[test]
fn a_report_shows_further_evaluations_with_their_worst_sample_first() {
    let workplace = trained_workplace();
    let synth = "data synth slot --split test --rows 2 --output test.jsonl";
    workplace.run(synth.split(' ')).success();
    let rows: Vec<Value> = workplace
        .read("test.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let gold = |i: usize| serde_json::to_string(&rows[i]["gold"]).unwrap();
    evaluate_predictions(&workplace, [&gold(0), "Sorry."], "eval/plain");
    evaluate_predictions(&workplace, [&gold(0), &gold(1)], "eval/constrained");

    let report = "report run --output page.html --eval eval/plain eval/constrained";
    workplace.run(report.split(' ')).success();
    let page = workplace.read("page.html");
    for part in [
        "Suite slot, further evaluations",
        "<caption>by complexity</caption>",
        "<span>plain</span>",
        "<span>constrained</span>",
        "breaks json: ",
        "ranked by <span>mean of slot.schema_accuracy and slot.content_similarity</span> <b>0.000</b>",
    ] {
        assert!(page.contains(part), "{part} is not in the page");
    }
    // The page shows the row with invalid JSON in one evaluation, but not the row that is right in
    // both.
    let (_, page) = page.split_once("id=\"samples\"").expect("worst samples");
    let position_of = |id: &str| page.find(&format!("<h3><code>{id}</code></h3>"));
    let worst = position_of("test.jsonl:2").unwrap();
    assert_eq!(position_of("test.jsonl:1"), None);
    let card = &page[worst..];
    assert!(card.contains("Sorry"), "{card}");
    let (_, prompt) = card.split_once("\"Prompt of test.jsonl:2\">").unwrap();
    let (prompt, _) = prompt.split_once("</div>").unwrap();
    let input_text = rows[1]["input_text"].as_str().unwrap();
    let words = input_text.split(|sign: char| !sign.is_alphanumeric());
    let longest = words.max_by_key(|word| word.len()).unwrap();
    assert!(prompt.contains(longest), "{longest} is not in {prompt}");

    let refused = |arguments: &str| {
        let answer = workplace.run(arguments.split(' '));
        assert_eq!(answer.status, Some(2), "{}", answer.stderr);
        answer.stderr
    };
    let output = refused("report run --eval eval");
    assert!(
        output.contains("eval has no metrics.json; name the --output"),
        "{output}"
    );
    refused("report run run --eval eval/plain");
    workplace.write("eval/metrics.json", r#"{"accuracy": 1.0}"#);
    let output = refused("report run --eval eval");
    assert!(
        output.contains("not the metrics of a known suite"),
        "{output}"
    );
}

/// Exported files describe themselves and include their tokenizer.
#[test]
fn an_export_contains_its_card_tokenizer_and_base_name() {
    let workplace = trained_workplace();
    let answer = workplace.run("export run --checkpoint last --to peft --output plain".split(' '));
    assert!(
        answer.stderr.contains("set model.hub_id"),
        "{}",
        answer.stderr
    );
    answer.success();
    export(
        &workplace,
        "--set model.hub_id=org/tiny --to peft --output named",
    );
    export(
        &workplace,
        "--set model.hub_id=org/tiny --to merged --output merged",
    );
    let config: Value = serde_json::from_str(&workplace.read("named/adapter_config.json")).unwrap();
    assert_eq!(config["base_model_name_or_path"], "org/tiny");
    let tokenizer = fixture("tiny_chat_model").join("tokenizer.json");
    let tokenizer = std::fs::read_to_string(tokenizer).unwrap();
    let card = workplace.read("named/README.md");
    assert_eq!(workplace.read("named/tokenizer.json"), tokenizer);
    for expected in [
        "base_model: org/tiny\nlibrary_name: peft",
        "| LoRA | r 2, alpha 4 |",
        "| checkpoint | checkpoint-000004 |",
        "| `data.train[0]` | train.jsonl (24 rows, sha256 ",
        "| at its checkpoint | slot.mean | ",
        "learning_rate = 0.01",
        "```jinja\n",
        "from_pretrained(\"org/tiny\")",
    ] {
        assert!(card.contains(expected), "{expected:?} is not in\n{card}");
    }
    let merged = workplace.read("merged/README.md");
    assert!(merged.contains("library_name: transformers"), "{merged}");
    let plain = workplace.read("plain/README.md");
    assert!(
        !plain.contains("base_model:") && plain.contains("was not set"),
        "{plain}"
    );
}

#[test]
fn a_missing_best_checkpoint_is_named_by_every_command() {
    let workplace = trained_workplace();
    let base = "export run --checkpoint base --to merged --output merged";
    workplace.run(base.split(' ')).success();
    let reply =
        workplace.run("generate merged --message Hi --set eval.max_new_tokens=3".split(' '));
    let shown = reply.success();
    assert!(shown.contains("3 tokens after"), "{shown}");
    let [exported, original] = [workplace.path("merged"), fixture("tiny_chat_model")]
        .map(|folder| std::fs::read(folder.join("model.safetensors")).unwrap());
    assert_eq!(exported, original, "the base has no other weights");

    let best: Value = serde_json::from_str(&workplace.read("run/BEST")).unwrap();
    let best = best["checkpoint"].as_str().unwrap().to_owned();
    std::fs::remove_dir_all(workplace.path("run").join(&best)).unwrap();
    for command in [
        "generate run --message Hi",
        "eval run",
        "export run --output adapter",
        "chat run",
        "verify run --rows 1 --logits logits.safetensors",
    ] {
        let refused = workplace.run(command.split(' '));
        assert_eq!(refused.status, Some(1), "{command}: {}", refused.stderr);
        for part in [
            format!("run/BEST names {best}, which does not exist"),
            "--checkpoint last".to_owned(),
        ] {
            assert!(
                refused.stderr.contains(&part),
                "{command}: {}",
                refused.stderr
            );
        }
    }
    assert!(!workplace.path("adapter").exists());
}
