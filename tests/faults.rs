//! Runs that were killed at a bad moment, whose files are damaged, or whose input files have
//! changed. `tests/fault_sweep.rs` injects failures into individual file calls.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tooltune_disk::atomic::FolderLock;

use crate::support::server::{Response, TestServer, chat};
use crate::support::{fixture, model};
use crate::workplace::{
    CommandOutput, FOUR_STEPS, SLOT_DATA, Workplace, parse_lines, small_lora, tooltune,
};

/// Runs of 4 steps on copies of a model and an encoder, evaluated after steps 0, 2 and 4; every
/// step improves the model.
fn workplace() -> Workplace {
    let workplace = Workplace::with_rows("12");
    workplace.copy_model("base");
    copy(&fixture("retriever/model"), &workplace.path("encoder"));
    let config = format!(
        r#"{lora}{SLOT_DATA}{FOUR_STEPS}max_new_tokens = 4
encoder = "encoder"
metric_for_best_model = "loss"
[checkpoint]
save_steps = 2
save_total_limit = 9
"#,
        lora = small_lora("base", ""),
    );
    workplace.write("config.toml", config);
    workplace
}

/// [`workplace`] after its run.
fn trained_workplace() -> Workplace {
    let workplace = workplace();
    train(&workplace, &[]).success();
    assert_eq!(best_step(&workplace), 4, "the last step must be the best");
    workplace
}

fn train(workplace: &Workplace, sets: &[&str]) -> CommandOutput {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    // Warnings are included in the output.
    let mut command = tooltune();
    command
        .current_dir(workplace.folder())
        .env("RUST_LOG", "warn");
    CommandOutput::from_command(command.args(["train", "config.toml"]).args(sets))
}

/// The step in `BEST`.
fn best_step(workplace: &Workplace) -> u64 {
    let best: Value = serde_json::from_str(&workplace.read("run/BEST")).unwrap();
    best["step"].as_u64().expect("a step")
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target)
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn checkpoints(workplace: &Workplace) -> Vec<String> {
    let entries = std::fs::read_dir(workplace.path("run")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut checkpoints: Vec<String> = names
        .filter(|name| name.starts_with("checkpoint-"))
        .collect();
    checkpoints.sort();
    checkpoints
}

/// Invariant: `BEST` moves before a checkpoint is deleted and can be restored from the checkpoints.
#[test]
fn a_damaged_best_pointer_is_restored_and_its_checkpoint_kept() {
    let workplace = trained_workplace();
    let expected = workplace.read("run/BEST");
    // The run was killed between writing the checkpoint and writing BEST, which names an earlier
    // checkpoint, is missing, or is truncated.
    let earlier = r#"{"checkpoint":"checkpoint-000002","step":2,"metric":"loss","value":9.0}"#;
    for damaged in [Some(earlier), None, Some("{\"checkpo"), Some("")] {
        match damaged {
            Some(text) => workplace.write("run/BEST", text),
            None => std::fs::remove_file(workplace.path("run/BEST")).unwrap(),
        }
        let output = train(&workplace, &["checkpoint.save_total_limit=1"]);
        let is_reported = damaged.is_some_and(|text| text != earlier);
        assert_eq!(
            output.stderr.contains("run/BEST"),
            is_reported,
            "{}",
            output.stderr
        );
        output.success();
        assert_eq!(workplace.read("run/BEST"), expected);
        assert!(checkpoints(&workplace).contains(&"checkpoint-000004".to_owned()));
    }
    // The best checkpoint is older, and the next one is not better.
    let workplace = workplace_whose_first_is_best();
    workplace.write("run/BEST", earlier);
    std::fs::remove_dir_all(workplace.path("run/checkpoint-000004")).unwrap();
    train(&workplace, &["checkpoint.save_total_limit=1"]).success();
    assert_eq!(best_step(&workplace), 0);
    assert_eq!(
        checkpoints(&workplace),
        ["checkpoint-000000", "checkpoint-000004"]
    );
}

fn workplace_whose_first_is_best() -> Workplace {
    let workplace = workplace();
    let config = workplace.read("config.toml");
    let config = config.replace("suites =", "greater_is_better = true\nsuites =");
    workplace.write("config.toml", config);
    train(&workplace, &[]).success();
    assert_eq!(
        best_step(&workplace),
        0,
        "the first loss must be the highest"
    );
    workplace
}

#[test]
fn a_selection_by_the_user_is_kept_until_the_next_evaluation() {
    let workplace = trained_workplace();
    let select = "select run --metric loss";
    workplace
        .run(select.split(' ').chain(["--lower-is-better"]))
        .success();
    assert_eq!(best_step(&workplace), 4);
    // None of the three completions is right, so all checkpoints are equal and BEST does not
    // change.
    workplace
        .run("select run --metric slot.exact_match".split(' '))
        .success();
    assert_eq!(best_step(&workplace), 4);
    workplace
        .run("select run --metric slot.exact_match+loss".split(' '))
        .success();
    assert_eq!(best_step(&workplace), 0);
    let chosen = workplace.read("run/BEST");
    train(&workplace, &[]).success();
    assert_eq!(workplace.read("run/BEST"), chosen);
    std::fs::remove_dir_all(workplace.path("run/checkpoint-000004")).unwrap();
    train(&workplace, &[]).success();
    assert_eq!(best_step(&workplace), 4);
}

#[test]
fn an_evaluation_without_a_saved_checkpoint_is_ignored() {
    let workplace = trained_workplace();
    let metrics = workplace.read("run/metrics.jsonl");
    let lines: Vec<&str> = metrics.lines().collect();
    let evaluated = |step: u64| {
        let begin = format!("{{\"step\":{step},\"eval/");
        let first_line = lines.iter().position(|line| line.starts_with(&begin));
        first_line.expect("an evaluation of this step")
    };
    // The run was killed three times between the evaluation after step 4 and its checkpoint.
    std::fs::remove_dir_all(workplace.path("run/checkpoint-000004")).unwrap();
    let last = lines[evaluated(4)];
    workplace.write(
        "run/metrics.jsonl",
        format!("{metrics}{last}\n{last}\n{last}\n"),
    );
    // It was also killed in the evaluation after step 2, whose line is in the file twice.
    let mut twice = lines.clone();
    twice.insert(evaluated(2), lines[evaluated(2)]);
    for damaged in [
        format!("{metrics}{last}\n{last}\n"),
        twice.join("\n") + "\n",
    ] {
        let _ = std::fs::remove_dir_all(workplace.path("run/checkpoint-000004"));
        workplace.write("run/metrics.jsonl", damaged);
        let output = train(&workplace, &["eval.early_stopping_patience=2"]).success();
        assert!(!output.contains("stopped early"), "{output}");
        let metrics = parse_lines(&workplace.read("run/metrics.jsonl"));
        let is_evaluation_of_4 =
            |line: &&Value| line["step"] == 4 && line.get("eval/loss").is_some();
        assert_eq!(metrics.iter().filter(is_evaluation_of_4).count(), 1);
    }
}

/// Changes a file, runs `check`, and restores the file.
fn check_with_change(
    workplace: &Workplace,
    name: &str,
    change: impl FnOnce(&[u8]) -> Vec<u8>,
    check: impl FnOnce(),
) {
    let path = workplace.path(name);
    let before = std::fs::read(&path).ok();
    let changed = change(before.as_deref().unwrap_or_default());
    assert_ne!(Some(&changed), before.as_ref(), "{name} is unchanged");
    std::fs::write(&path, changed).unwrap();
    check();
    match before {
        Some(before) => std::fs::write(&path, before).unwrap(),
        None => std::fs::remove_file(&path).unwrap(),
    }
}

/// Flips the lowest bit near the end of a file, which in weights is part of a mantissa.
fn flip_bit(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    // Two bytes from the end, so that the value stays finite.
    let idx = bytes.len() - 2;
    bytes[idx] ^= 1;
    bytes
}

fn append_newline(bytes: &[u8]) -> Vec<u8> {
    [bytes, b"\n"].concat()
}

/// Invariant: A run is resumed and used only with its original input files.
#[test]
fn every_changed_input_file_of_a_run_is_named() {
    let workplace = trained_workplace();
    let outcome = workplace.read("run/checkpoint-000004/manifest.json");
    let theta = |bytes: &[u8]| {
        let mut config: Value = serde_json::from_slice(bytes).unwrap();
        config["rope_theta"] = json!(50_000.0);
        config.to_string().into_bytes()
    };
    let empty = |_: &[u8]| b"{}".to_vec();
    type Change<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
    let files: [(&str, Change<'_>); 11] = [
        ("base/config.json", &theta),
        ("base/generation_config.json", &append_newline),
        ("base/tokenizer.json", &append_newline),
        ("base/tokenizer_config.json", &append_newline),
        ("base/chat_template.jinja", &append_newline),
        ("base/added_tokens.json", &empty),
        ("base/model.safetensors", &flip_bit),
        ("encoder/config.json", &append_newline),
        ("encoder/model.safetensors", &flip_bit),
        ("train.jsonl", &append_newline),
        ("dev.jsonl", &append_newline),
    ];
    for (name, change) in files {
        check_with_change(&workplace, name, change, || {
            let refused = train(&workplace, &[]);
            assert_eq!(refused.status, Some(2), "{name}: {}", refused.stderr);
            assert!(refused.stderr.contains(name), "{name}: {}", refused.stderr);
            assert!(!refused.stderr.contains("_sha256"), "{}", refused.stderr);
        });
    }
    // If the lock is missing, the digests in the checkpoints are compared, and the lock is written
    // again.
    let lock = workplace.read("run/run.lock.json");
    std::fs::remove_file(workplace.path("run/run.lock.json")).unwrap();
    check_with_change(&workplace, "train.jsonl", append_newline, || {
        let refused = train(&workplace, &[]);
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("train.jsonl"), "{}", refused.stderr);
    });
    train(&workplace, &[]).success();
    assert_eq!(workplace.read("run/run.lock.json"), lock);
    assert_eq!(
        workplace.read("run/checkpoint-000004/manifest.json"),
        outcome
    );
}

/// Invariant: A run is resumed and used only with its original input files.
#[test]
fn other_base_weights_are_refused_by_every_command_that_uses_a_run() {
    let workplace = trained_workplace();
    copy(&workplace.path("base"), &workplace.path("moved"));
    let export = |format: &str| format!("export run --to {format} --output out-{format}");
    let commands = [
        "eval run --output evaluated".to_owned(),
        "eval run --checkpoint base".to_owned(),
        "eval config.toml --checkpoint last".to_owned(),
        "generate run --max-samples 1".to_owned(),
        "verify run --logits logits.safetensors".to_owned(),
        "select run --evaluate --metric loss".to_owned(),
        export("merged"),
        export("gguf"),
    ];
    check_with_change(&workplace, "base/model.safetensors", flip_bit, || {
        for command in &commands {
            let refused = workplace.run(command.split(' '));
            assert_eq!(refused.status, Some(2), "{command}: {}", refused.stderr);
            let expected = "differ from the weights that the adapter was trained on";
            assert!(
                refused.stderr.contains(expected),
                "{command}: {}",
                refused.stderr
            );
        }
        // A copy of the weights in another folder is accepted.
        let moved = "generate run --max-samples 1 --set model.model_name_or_path=moved";
        workplace.run(moved.split(' ')).success();
    });
    check_with_change(
        &workplace,
        "base/generation_config.json",
        append_newline,
        || {
            let refused = workplace.run(commands[0].split(' '));
            assert_eq!(refused.status, Some(2), "{}", refused.stderr);
            let expected = "base/generation_config.json";
            assert!(refused.stderr.contains(expected), "{}", refused.stderr);
        },
    );
    // A checkpoint that was copied elsewhere still identifies its base.
    copy(
        &workplace.path("run/checkpoint-000004"),
        &workplace.path("taken"),
    );
    check_with_change(&workplace, "base/model.safetensors", flip_bit, || {
        let refused = workplace.run("eval config.toml --checkpoint taken".split(' '));
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    });
    for command in &commands {
        workplace.run(command.split(' ')).success();
    }
}

/// Invariant: `BEST` moves before a checkpoint is deleted and can be restored from the checkpoints.
#[test]
fn damaged_metrics_are_reported_and_change_no_pointer() {
    let workplace = trained_workplace();
    let (metrics, best) = (
        workplace.read("run/metrics.jsonl"),
        workplace.read("run/BEST"),
    );
    let altered = metrics.replacen("\"loss\":", "\"lost\":", 1);
    let broken = metrics.replacen("{\"step\":2", "{\"step\"~2", 1);
    let half = &metrics[..metrics.len() / 2];
    for damaged in [None, Some(half), Some(""), Some(&altered), Some(&broken)] {
        for is_over in [true, false] {
            if !is_over {
                std::fs::remove_dir_all(workplace.path("run/checkpoint-000004")).unwrap();
            }
            match damaged {
                Some(text) => workplace.write("run/metrics.jsonl", text),
                None => std::fs::remove_file(workplace.path("run/metrics.jsonl")).unwrap(),
            }
            let output = train(&workplace, &[]);
            let step = if is_over { 4 } else { 2 };
            let expected = format!("lines up to step {step} differ from the checkpoint");
            assert!(output.stderr.contains(&expected), "{}", output.stderr);
            output.success();
            assert_eq!(workplace.read("run/BEST"), best);
            // The warning is printed once if the run resumed and wrote the metrics again.
            let again = train(&workplace, &[]);
            assert_eq!(
                again.stderr.contains("differ from the checkpoint"),
                is_over,
                "{}",
                again.stderr
            );
        }
        // Start again: the last checkpoint has a digest of the damaged metrics.
        workplace.write("run/metrics.jsonl", &metrics);
        std::fs::remove_dir_all(workplace.path("run")).unwrap();
        train(&workplace, &[]).success();
    }
}

#[test]
fn a_run_without_its_config_still_refuses_other_settings() {
    let workplace = trained_workplace();
    let resolved = workplace.read("run/config.resolved.toml");
    let remove = || std::fs::remove_file(workplace.path("run/config.resolved.toml")).unwrap();
    remove();
    let refused = train(&workplace, &["train.learning_rate=5e-3"]);
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("resume_digest"),
        "{}",
        refused.stderr
    );
    // If config and lock are missing, the checkpoints still have the digest.
    std::fs::remove_file(workplace.path("run/run.lock.json")).unwrap();
    let refused = train(&workplace, &["train.seed=18"]);
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    train(&workplace, &["eval.max_new_tokens=4"]).success();
    assert_eq!(workplace.read("run/config.resolved.toml"), resolved);
}

#[test]
fn evaluation_files_can_be_renamed_but_not_changed() {
    let workplace = trained_workplace();
    std::fs::copy(workplace.path("dev.jsonl"), workplace.path("other.jsonl")).unwrap();
    let other = "data.eval=[\"other.jsonl\"]";
    train(&workplace, &[other]).success();
    let lock = workplace.read("run/run.lock.json");
    assert!(lock.contains("other.jsonl"), "{lock}");
    check_with_change(&workplace, "other.jsonl", append_newline, || {
        let refused = train(&workplace, &[other]);
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("other.jsonl"), "{}", refused.stderr);
    });
    // Training files must not change; the error names the setting.
    std::fs::copy(workplace.path("train.jsonl"), workplace.path("more.jsonl")).unwrap();
    let refused = train(&workplace, &["data.train=[\"more.jsonl\"]"]);
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("data.train"), "{}", refused.stderr);
}

/// Invariant: A failed evaluation within a run loses no training step.
#[test]
fn a_failing_judge_in_a_run_loses_no_step() {
    let workplace = crate::suites::workplace();
    for (arguments, file) in [("--rows 4", "rows"), ("--split dev --rows 1", "dev")] {
        let synth = format!(
            "data synth goat {arguments} --output {file}.goat.jsonl --documents {file}.apis.jsonl"
        );
        workplace.run(synth.split(' ')).success();
    }
    let is_judge_up = Arc::new(AtomicBool::new(true));
    let server = {
        let is_judge_up = is_judge_up.clone();
        TestServer::start(move |_, _| {
            if is_judge_up.load(Ordering::SeqCst) {
                chat("{\"answer_status\": \"Solved\"}")
            } else {
                Response::json(400, &json!({"error": {"message": "no such model"}}))
            }
        })
    };
    let judge = format!(
        "[goat.judge]\nbase_url = \"{}/v1\"\nmodel = \"judge-1\"\nin_loop = true\n",
        server.url()
    );
    let gguf = model("smollm2-135m-instruct.gguf").display().to_string();
    let tiny = fixture("tiny_chat_model").display().to_string();
    let config = crate::suites::config(&judge)
        .replace(&gguf, &tiny)
        .replace("none.jsonl", "rows.goat.jsonl")
        .replace("queries.json", "dev.goat.jsonl")
        .replace("documents.jsonl", "rows.apis.jsonl")
        .replace("max_length = 4096", "max_length = 8192")
        .replace("\"run\"", "\"run\"\nmax_steps = 3")
        .replace(
            "max_new_tokens = 64",
            "max_new_tokens = 4\nsuites = [\"goat\"]\neval_steps = 3",
        );
    workplace.write("run.toml", config);
    // The judge works during the evaluation before the first step, and fails during the last one.
    let failing = std::thread::spawn({
        let (metrics, is_judge_up) = (workplace.path("run/metrics.jsonl"), is_judge_up.clone());
        move || {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(300);
            let has_evaluated =
                || std::fs::read_to_string(&metrics).is_ok_and(|text| text.contains("eval/"));
            while !has_evaluated() && std::time::Instant::now() < deadline {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            is_judge_up.store(false, Ordering::SeqCst);
        }
    });
    let failed = workplace.run(["train", "run.toml"]);
    failing.join().unwrap();
    assert_eq!(failed.status, Some(1), "{}{}", failed.stdout, failed.stderr);
    let expected = "saved run/checkpoint-000003; the same command resumes from there";
    assert!(failed.stderr.contains(expected), "{}", failed.stderr);
    assert!(failed.stderr.contains("goat.judge"), "{}", failed.stderr);
    let before = workplace.read("run/timing.jsonl");
    is_judge_up.store(true, Ordering::SeqCst);
    workplace.run(["train", "run.toml"]).success();
    // No step was repeated, and the last evaluation is complete.
    assert_eq!(workplace.read("run/timing.jsonl"), before);
    let metrics = workplace.read("run/metrics.jsonl");
    assert_eq!(metrics.matches("\"eval/goat.sr\"").count(), 2, "{metrics}");
}

#[test]
fn leftovers_of_killed_commands_are_removed_by_the_next_one() {
    let workplace = trained_workplace();
    for name in [
        "run/.config.resolved.toml.tmp-1",
        "run/.BEST.tmp-1",
        "run/.checkpoint-000008.tmp-1",
        ".out.tmp-1",
        ".out.gguf.tmp-1",
    ] {
        let path = workplace.path(name);
        if name.contains("toml") || name.contains("gguf") || name.contains("BEST") {
            std::fs::write(path, "half").unwrap()
        } else {
            std::fs::create_dir(path).unwrap()
        }
    }
    train(&workplace, &[]).success();
    for command in [
        "export run --to peft --output out",
        "export run --to gguf --output out.gguf",
    ] {
        workplace.run(command.split(' ')).success();
    }
    for folder in ["", "run"] {
        let entries = std::fs::read_dir(workplace.path(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let temporary: Vec<String> = names.filter(|name| name.contains(".tmp-")).collect();
        assert!(temporary.is_empty(), "{temporary:?}");
    }
}

#[test]
fn two_evaluations_do_not_share_an_output() {
    let workplace = trained_workplace();
    let eval = "eval run --output out --max-samples 1";
    std::fs::create_dir(workplace.path("out")).unwrap();
    let first = FolderLock::take(&workplace.path("out")).unwrap();
    let refused = workplace.run(eval.split(' '));
    assert_eq!(refused.status, Some(1), "{}", refused.stderr);
    let expected = "out is in use by another process";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    drop(first);
    workplace.run(eval.split(' ')).success();
}

/// If the output cannot be written, as on a full disk, the exit code reports it.
#[test]
fn output_on_a_full_disk_is_reported_without_a_panic() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let workplace = workplace();
    let status = |command: &str, stdout_is_full: bool| {
        let mut program = tooltune();
        program.current_dir(workplace.folder());
        program.args(command.split(' '));
        if stdout_is_full {
            program.stdout(full())
        } else {
            program.stderr(full()).env("RUST_LOG", "warn")
        };
        CommandOutput::from_command(&mut program).status
    };
    // If an error message cannot be printed, the exit code is unchanged. A run whose warnings
    // cannot be printed succeeds.
    assert_eq!(status("plan nowhere.toml", false), Some(2));
    assert_eq!(status("score nowhere.jsonl", false), Some(1));
    assert_eq!(status("train config.toml", false), Some(0));
    // Output that fits into a buffer is also checked when it is flushed.
    assert_eq!(status("data synth slot --rows 2", true), Some(1));
    assert_eq!(status("data reduce train.jsonl", true), Some(1));
}
