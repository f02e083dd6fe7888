//! What a run does when it died at a bad moment, when its files are damaged, and when what it was made
//! from is no longer the same. `tests/fault_sweep.rs` makes single file calls fail.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tooltune_checkpoints::atomic::FolderLock;

use crate::support::place::TestDevice;
use crate::support::server::{Response, TestServer, chat};
use crate::support::{fixture, model};
use crate::workplace::{Answer, Workplace, tooltune};

/// Runs of 4 steps on copies of a model and an encoder, which are evaluated after 0, 2 and 4, and
/// learn with every step.
fn workplace() -> Workplace {
    let workplace = Workplace::with_rows("12");
    workplace.copy_model("base");
    copy(&fixture("retriever/model"), &workplace.path("encoder"));
    let config = format!(
        r#"device = "{device}"
[model]
model_name_or_path = "base"
[lora]
r = 2
lora_alpha = 4
[data]
train = ["train.jsonl"]
eval = ["dev.jsonl"]
format = "slot"
max_length = 4096
[train]
output_dir = "run"
max_steps = 4
per_device_train_batch_size = 2
learning_rate = 1e-2
logging_steps = 1
[eval]
eval_steps = 2
suites = ["slot"]
max_new_tokens = 4
encoder = "encoder"
metric_for_best_model = "loss"
[checkpoint]
save_steps = 2
save_total_limit = 9
"#,
        device = TestDevice::chosen(),
    );
    workplace.write("config.toml", config);
    workplace
}

/// The same after its run.
fn trained() -> Workplace {
    let workplace = workplace();
    train(&workplace, &[]).success();
    assert_eq!(best(&workplace), 4, "the last step is the best");
    workplace
}

fn train(workplace: &Workplace, sets: &[&str]) -> Answer {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    // Warnings are part of what is said.
    let mut command = tooltune();
    command
        .current_dir(workplace.folder())
        .env("RUST_LOG", "warn");
    Answer::of(command.args(["train", "config.toml"]).args(sets))
}

/// The step that `BEST` names.
fn best(workplace: &Workplace) -> u64 {
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

fn steps(workplace: &Workplace) -> Vec<String> {
    let entries = std::fs::read_dir(workplace.path("run")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<String> = names
        .filter(|name| name.starts_with("checkpoint-"))
        .collect();
    steps.sort();
    steps
}

#[test]
fn a_best_checkpoint_without_its_pointer_is_found_again_and_never_dropped() {
    let workplace = trained();
    let whole = workplace.read("run/BEST");
    // Died between the checkpoint and the pointer, which is the earlier one, none, or half of one.
    let earlier = r#"{"checkpoint":"checkpoint-000002","step":2,"metric":"loss","value":9.0}"#;
    for damaged in [Some(earlier), None, Some("{\"checkpo"), Some("")] {
        match damaged {
            Some(text) => workplace.write("run/BEST", text),
            None => std::fs::remove_file(workplace.path("run/BEST")).unwrap(),
        }
        let said = train(&workplace, &["checkpoint.save_total_limit=1"]);
        let told = damaged.is_some_and(|text| text != earlier);
        assert_eq!(said.stderr.contains("run/BEST"), told, "{}", said.stderr);
        said.success();
        assert_eq!(workplace.read("run/BEST"), whole);
        assert!(steps(&workplace).contains(&"checkpoint-000004".to_owned()));
    }
    // The best is an older one, and what comes is no better.
    let workplace = workplace_whose_first_is_best();
    workplace.write("run/BEST", earlier);
    std::fs::remove_dir_all(workplace.path("run/checkpoint-000004")).unwrap();
    train(&workplace, &["checkpoint.save_total_limit=1"]).success();
    assert_eq!(best(&workplace), 0);
    assert_eq!(
        steps(&workplace),
        ["checkpoint-000000", "checkpoint-000004"]
    );
}

fn workplace_whose_first_is_best() -> Workplace {
    let workplace = workplace();
    let config = workplace.read("config.toml");
    let config = config.replace("suites =", "greater_is_better = true\nsuites =");
    workplace.write("config.toml", config);
    train(&workplace, &[]).success();
    assert_eq!(best(&workplace), 0, "the first loss is the greatest");
    workplace
}

#[test]
fn what_a_user_selected_stays_until_a_newer_checkpoint_is_evaluated() {
    let workplace = trained();
    let select = "select run --metric loss";
    workplace
        .run(select.split(' ').chain(["--lower-is-better"]))
        .success();
    assert_eq!(best(&workplace), 4);
    // No text of the three is right, and BEST stays among equals.
    workplace
        .run("select run --metric slot.exact_match".split(' '))
        .success();
    assert_eq!(best(&workplace), 4);
    workplace
        .run("select run --metric slot.exact_match+loss".split(' '))
        .success();
    assert_eq!(best(&workplace), 0);
    let chosen = workplace.read("run/BEST");
    train(&workplace, &[]).success();
    assert_eq!(workplace.read("run/BEST"), chosen);
    std::fs::remove_dir_all(workplace.path("run/checkpoint-000004")).unwrap();
    train(&workplace, &[]).success();
    assert_eq!(best(&workplace), 4);
}

#[test]
fn an_evaluation_whose_checkpoint_was_never_saved_counts_for_nothing() {
    let workplace = trained();
    let whole = workplace.read("run/metrics.jsonl");
    let lines: Vec<&str> = whole.lines().collect();
    let evaluated = |step: u64| {
        let begin = format!("{{\"step\":{step},\"eval/");
        let at = lines.iter().position(|line| line.starts_with(&begin));
        at.expect("an evaluation of this step")
    };
    // The run died three times between the evaluation after step 4 and its checkpoint.
    std::fs::remove_dir_all(workplace.path("run/checkpoint-000004")).unwrap();
    let last = lines[evaluated(4)];
    workplace.write(
        "run/metrics.jsonl",
        format!("{whole}{last}\n{last}\n{last}\n"),
    );
    // And once in the one after step 2, whose line stands twice.
    let mut twice = lines.clone();
    twice.insert(evaluated(2), lines[evaluated(2)]);
    for damaged in [format!("{whole}{last}\n{last}\n"), twice.join("\n") + "\n"] {
        let _ = std::fs::remove_dir_all(workplace.path("run/checkpoint-000004"));
        workplace.write("run/metrics.jsonl", damaged);
        let said = train(&workplace, &["eval.early_stopping_patience=2"]).success();
        assert!(!said.contains("stopped early"), "{said}");
        let read: Vec<Value> = workplace
            .read("run/metrics.jsonl")
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let of_4 = read.iter().filter(|line| line["step"] == 4);
        assert_eq!(
            of_4.filter(|line| line.get("eval/loss").is_some()).count(),
            1
        );
    }
}

/// Changes a file, runs `check`, and puts the file back as it was.
fn with_change(
    workplace: &Workplace,
    name: &str,
    change: impl FnOnce(&[u8]) -> Vec<u8>,
    check: impl FnOnce(),
) {
    let path = workplace.path(name);
    let before = std::fs::read(&path).ok();
    let changed = change(before.as_deref().unwrap_or_default());
    assert_ne!(Some(&changed), before.as_ref(), "{name} is as it was");
    std::fs::write(&path, changed).unwrap();
    check();
    match before {
        Some(before) => std::fs::write(&path, before).unwrap(),
        None => std::fs::remove_file(&path).unwrap(),
    }
}

/// The last byte with its lowest bit flipped: of weights, a mantissa.
fn flipped(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    // Two bytes from the end, so that the value stays finite.
    let at = bytes.len() - 2;
    bytes[at] ^= 1;
    bytes
}

fn spaced(bytes: &[u8]) -> Vec<u8> {
    [bytes, b"\n"].concat()
}

#[test]
fn every_file_that_a_run_depends_on_is_named_where_it_differs() {
    let workplace = trained();
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
        ("base/generation_config.json", &spaced),
        ("base/tokenizer.json", &spaced),
        ("base/tokenizer_config.json", &spaced),
        ("base/chat_template.jinja", &spaced),
        ("base/added_tokens.json", &empty),
        ("base/model.safetensors", &flipped),
        ("encoder/config.json", &spaced),
        ("encoder/model.safetensors", &flipped),
        ("train.jsonl", &spaced),
        ("dev.jsonl", &spaced),
    ];
    for (name, change) in files {
        with_change(&workplace, name, change, || {
            let refused = train(&workplace, &[]);
            assert_eq!(refused.status, Some(2), "{name}: {}", refused.stderr);
            assert!(refused.stderr.contains(name), "{name}: {}", refused.stderr);
            assert!(!refused.stderr.contains("_sha256"), "{}", refused.stderr);
        });
    }
    // Without the lock the checkpoints know it, and the file comes back.
    let lock = workplace.read("run/run.lock.json");
    std::fs::remove_file(workplace.path("run/run.lock.json")).unwrap();
    with_change(&workplace, "train.jsonl", spaced, || {
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

#[test]
fn other_base_weights_are_refused_by_every_command_that_uses_a_run() {
    let workplace = trained();
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
    with_change(&workplace, "base/model.safetensors", flipped, || {
        for command in &commands {
            let refused = workplace.run(command.split(' '));
            assert_eq!(refused.status, Some(2), "{command}: {}", refused.stderr);
            let said = "other weights than those that the adapter was trained on";
            assert!(
                refused.stderr.contains(said),
                "{command}: {}",
                refused.stderr
            );
        }
        // A copy of the weights somewhere else is as good.
        let moved = "generate run --max-samples 1 --set model.model_name_or_path=moved";
        workplace.run(moved.split(' ')).success();
    });
    with_change(&workplace, "base/generation_config.json", spaced, || {
        let refused = workplace.run(commands[0].split(' '));
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        let said = "base/generation_config.json";
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    });
    // A checkpoint that was copied elsewhere still knows its base.
    copy(
        &workplace.path("run/checkpoint-000004"),
        &workplace.path("taken"),
    );
    with_change(&workplace, "base/model.safetensors", flipped, || {
        let refused = workplace.run("eval config.toml --checkpoint taken".split(' '));
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    });
    for command in &commands {
        workplace.run(command.split(' ')).success();
    }
}

#[test]
fn damaged_metrics_are_told_and_move_no_pointer() {
    let workplace = trained();
    let (whole, best) = (
        workplace.read("run/metrics.jsonl"),
        workplace.read("run/BEST"),
    );
    let flipped = whole.replacen("\"loss\":", "\"lost\":", 1);
    let broken = whole.replacen("{\"step\":2", "{\"step\"~2", 1);
    let half = &whole[..whole.len() / 2];
    for damaged in [None, Some(half), Some(""), Some(&flipped), Some(&broken)] {
        for is_over in [true, false] {
            if !is_over {
                std::fs::remove_dir_all(workplace.path("run/checkpoint-000004")).unwrap();
            }
            match damaged {
                Some(text) => workplace.write("run/metrics.jsonl", text),
                None => std::fs::remove_file(workplace.path("run/metrics.jsonl")).unwrap(),
            }
            let said = train(&workplace, &[]);
            let step = if is_over { 4 } else { 2 };
            let told = format!("lines up to step {step} are not those that were written");
            assert!(said.stderr.contains(&told), "{}", said.stderr);
            said.success();
            assert_eq!(workplace.read("run/BEST"), best);
            // A run that went on from there has said it once.
            let again = train(&workplace, &[]);
            assert_eq!(
                again.stderr.contains("not those"),
                is_over,
                "{}",
                again.stderr
            );
        }
        // The last checkpoint is marked with what there was.
        workplace.write("run/metrics.jsonl", &whole);
        std::fs::remove_dir_all(workplace.path("run")).unwrap();
        train(&workplace, &[]).success();
    }
}

#[test]
fn a_run_without_its_config_still_refuses_other_settings() {
    let workplace = trained();
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
    // Without both, the checkpoints know the digest.
    std::fs::remove_file(workplace.path("run/run.lock.json")).unwrap();
    let refused = train(&workplace, &["train.seed=18"]);
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    train(&workplace, &["eval.max_new_tokens=4"]).success();
    assert_eq!(workplace.read("run/config.resolved.toml"), resolved);
}

#[test]
fn evaluation_files_may_change_by_name_and_not_by_content() {
    let workplace = trained();
    std::fs::copy(workplace.path("dev.jsonl"), workplace.path("other.jsonl")).unwrap();
    let other = "data.eval=[\"other.jsonl\"]";
    train(&workplace, &[other]).success();
    let lock = workplace.read("run/run.lock.json");
    assert!(lock.contains("other.jsonl"), "{lock}");
    with_change(&workplace, "other.jsonl", spaced, || {
        let refused = train(&workplace, &[other]);
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("other.jsonl"), "{}", refused.stderr);
    });
    // The files of training may not, and the config says which.
    std::fs::copy(workplace.path("train.jsonl"), workplace.path("more.jsonl")).unwrap();
    let refused = train(&workplace, &["data.train=[\"more.jsonl\"]"]);
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("data.train"), "{}", refused.stderr);
}

#[test]
fn a_judge_that_fails_within_a_run_costs_no_step() {
    let workplace = crate::suites::workplace();
    for (arguments, file) in [("--rows 4", "rows"), ("--split dev --rows 1", "dev")] {
        let synth = format!("data synth goat {arguments} --output {file}.jsonl");
        let synth = synth.split(' ').chain(["--documents", "goat.jsonl"]);
        workplace.run(synth).success();
    }
    let is_well = Arc::new(AtomicBool::new(true));
    let server = {
        let is_well = is_well.clone();
        TestServer::start(move |_, _| {
            if is_well.load(Ordering::SeqCst) {
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
        .replace("none.jsonl", "rows.jsonl")
        .replace("queries.json", "dev.jsonl")
        .replace("documents.jsonl", "goat.jsonl")
        .replace("max_length = 4096", "max_length = 8192")
        .replace("\"run\"", "\"run\"\nmax_steps = 3")
        .replace(
            "max_new_tokens = 64",
            "max_new_tokens = 4\nsuites = [\"goat\"]\neval_steps = 3",
        );
    workplace.write("run.toml", config);
    // The evaluation before the first step has its judge; that of the last one has none.
    let failing = std::thread::spawn({
        let (metrics, is_well) = (workplace.path("run/metrics.jsonl"), is_well.clone());
        move || {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(300);
            let begun =
                || std::fs::read_to_string(&metrics).is_ok_and(|text| text.contains("eval/"));
            while !begun() && std::time::Instant::now() < deadline {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            is_well.store(false, Ordering::SeqCst);
        }
    });
    let failed = workplace.run(["train", "run.toml"]);
    failing.join().unwrap();
    assert_eq!(failed.status, Some(1), "{}{}", failed.stdout, failed.stderr);
    let said = "saved run/checkpoint-000003; the same command resumes from there";
    assert!(failed.stderr.contains(said), "{}", failed.stderr);
    assert!(failed.stderr.contains("goat.judge"), "{}", failed.stderr);
    let before = workplace.read("run/timing.jsonl");
    is_well.store(true, Ordering::SeqCst);
    workplace.run(["train", "run.toml"]).success();
    // No step was taken again, and the evaluation was made.
    assert_eq!(workplace.read("run/timing.jsonl"), before);
    let metrics = workplace.read("run/metrics.jsonl");
    assert_eq!(metrics.matches("\"eval/goat.sr\"").count(), 2, "{metrics}");
}

#[test]
fn what_killed_commands_left_goes_with_the_next_one() {
    let workplace = trained();
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
        let left: Vec<String> = names.filter(|name| name.contains(".tmp-")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn two_evaluations_do_not_share_an_output() {
    let workplace = trained();
    let eval = "eval run --output out --max-samples 1";
    std::fs::create_dir(workplace.path("out")).unwrap();
    let first = FolderLock::take(&workplace.path("out")).unwrap();
    let refused = workplace.run(eval.split(' '));
    assert_eq!(refused.status, Some(1), "{}", refused.stderr);
    let said = "out is in use by another process";
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
    drop(first);
    workplace.run(eval.split(' ')).success();
}

/// What a shell writes to a file of a full disk.
#[test]
fn a_full_disk_under_the_output_neither_panics_nor_is_silent() {
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
        Answer::of(&mut program).status
    };
    // Errors that cannot be said leave their status, and a run needs nobody who reads its warnings.
    assert_eq!(status("plan nowhere.toml", false), Some(2));
    assert_eq!(status("score nowhere.jsonl", false), Some(1));
    assert_eq!(status("train config.toml", false), Some(0));
    // Rows that fit into a buffer are lost as well.
    assert_eq!(status("data synth slot --rows 2", true), Some(1));
    assert_eq!(status("data reduce train.jsonl", true), Some(1));
}
