//! What has the name of a file and is none, and folders that are no place for a run: refused at
//! once, with the name and what is there.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::bad_input::{CONFIG, FILES, ROWS, assert_refused};
use crate::workplace::{Answer, Workplace, tooltune};

/// Waiting for a pipe never ends; a loaded machine may need some seconds for the rest.
const BOUND: Duration = Duration::from_secs(60);

fn pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

/// The kinds of what is no file: a name in the workplace and what is said of it.
fn others(workplace: &Workplace) -> (Vec<(String, &'static str)>, UnixListener) {
    pipe(&workplace.path("fifo"));
    let listener = UnixListener::bind(workplace.path("socket")).unwrap();
    let at = |name: &str| workplace.path(name).display().to_string();
    let kinds = vec![
        (at("fifo"), "a named pipe (FIFO)"),
        (at("socket"), "a socket"),
        ("/dev/zero".to_owned(), "a character device"),
        ("/dev/urandom".to_owned(), "a character device"),
    ];
    (kinds, listener)
}

/// Runs without a snapshot of the folder, whose pipes nobody could read.
fn refused(workplace: &Workplace, arguments: &[&str], status: i32, said: &[&str]) {
    let started = Instant::now();
    let mut command = tooltune();
    command.current_dir(workplace.folder()).args(arguments);
    // Enough for the tiny model, too little for a device read whole.
    let limited = Command::new("sh")
        .args(["-c", "ulimit -v 8000000; exec \"$0\" \"$@\""])
        .arg(command.get_program())
        .args(command.get_args())
        .envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .current_dir(workplace.folder())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&limited.stderr);
    assert!(
        started.elapsed() < BOUND,
        "{arguments:?} took {:?}",
        started.elapsed()
    );
    assert_eq!(
        limited.status.code(),
        Some(status),
        "{arguments:?}: {errors}"
    );
    let words: Vec<&str> = errors
        .split_whitespace()
        .filter(|word| *word != "│")
        .collect();
    let errors = words.join(" ");
    for part in said {
        assert!(
            errors.contains(part),
            "{arguments:?}: {part:?} is not said:\n{errors}"
        );
    }
}

#[test]
fn what_is_no_file_is_refused_wherever_it_is_read() {
    let workplace = Workplace::new();
    let (kinds, _listener) = others(&workplace);
    let train = ["train", "config.toml"];
    for (path, kind) in &kinds {
        for setting in [
            "data.train=[\"F\"]",
            "data.eval=[\"F\"]",
            "data.chat_template=\"F\"",
        ] {
            let set = setting.replace('F', path);
            refused(
                &workplace,
                &["train", "config.toml", "--set", &set],
                CONFIG,
                &[kind, path],
            );
        }
        refused(&workplace, &["train", path], CONFIG, &[kind, path]);
        for file in [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "generation_config.json",
            "chat_template.jinja",
            "special_tokens_map.json",
        ] {
            let model = workplace.copy_model("model");
            let _ = std::fs::remove_file(model.join(file));
            symlink(path, model.join(file)).unwrap();
            // The map counts only beside a tokenizer_config.json without added tokens.
            if file == "special_tokens_map.json" {
                std::fs::write(model.join("tokenizer_config.json"), "{}").unwrap();
            }
            let arguments = [&train[..], &["--set", "model.model_name_or_path=\"model\""]].concat();
            refused(&workplace, &arguments, FILES, &[kind, file]);
            std::fs::remove_dir_all(model).unwrap();
        }
        refused(&workplace, &["score", path], FILES, &[kind, path]);
        refused(
            &workplace,
            &[
                "generate",
                "config.toml",
                "--checkpoint",
                "base",
                "--data",
                path,
            ],
            ROWS,
            &[kind],
        );
    }
}

#[test]
fn what_is_no_file_in_a_run_is_refused_by_every_verb_that_reads_it() {
    let workplace = Workplace::new();
    workplace.run(["train", "config.toml"]).success();
    let report = ["report", "run"].as_slice();
    let select = ["select", "run", "--metric", "slot.mean"].as_slice();
    let train = ["train", "config.toml"].as_slice();
    for (file, verbs) in [
        ("BEST", [report, select, train].as_slice()),
        ("metrics.jsonl", &[report, train]),
        ("timing.jsonl", &[report, train]),
        ("run.lock.json", &[report, train]),
        (".lock", &[train]),
    ] {
        let path = workplace.path("run").join(file);
        let kept = std::fs::read(&path).ok();
        let _ = std::fs::remove_file(&path);
        pipe(&path);
        for verb in verbs {
            refused(&workplace, verb, FILES, &["a named pipe (FIFO)", file]);
        }
        std::fs::remove_file(&path).unwrap();
        if let Some(kept) = kept {
            std::fs::write(&path, kept).unwrap();
        }
    }
    let path = workplace.path("run/config.resolved.toml");
    std::fs::remove_file(&path).unwrap();
    pipe(&path);
    refused(
        &workplace,
        report,
        CONFIG,
        &["a named pipe (FIFO)", "config.resolved.toml"],
    );
    refused(
        &workplace,
        train,
        FILES,
        &["a named pipe (FIFO)", "config.resolved.toml"],
    );
}

#[test]
fn a_folder_that_holds_no_run_is_no_place_for_one() {
    let workplace = Workplace::new();
    std::fs::create_dir(workplace.path("others")).unwrap();
    workplace.write("others/letter.txt", "of somebody");
    let long = format!("train.output_dir=\"{}\"", "a".repeat(5_000));
    // Other programs have a `.lock`, too.
    std::fs::create_dir(workplace.path("project")).unwrap();
    workplace.write("project/.lock", "");
    workplace.write("project/main.py", "");
    let cases: [(&str, &[&str]); 6] = [
        (
            "train.output_dir=\"project\"",
            &["holds main.py, and no run", "a folder of its own"],
        ),
        (
            "train.output_dir=\"/\"",
            &["names /, and that folder holds", "and no run"],
        ),
        (
            "train.output_dir=\"others\"",
            &["holds letter.txt, and no run", "a folder of its own"],
        ),
        ("train.output_dir=\"a\\u0000b\"", &["no name can hold NUL"]),
        (
            "train.output_dir=\"train.jsonl/run\"",
            &["train.jsonl is a file"],
        ),
        (&long, &["one of its names has 5000", "255 are the most"]),
    ];
    for verb in ["train", "plan"] {
        for (set, said) in cases {
            let arguments = [
                verb,
                "config.toml",
                "--set",
                set,
                "--set",
                "eval.eval_strategy=\"no\"",
            ];
            assert_refused(&workplace, &arguments, CONFIG, &[]);
            refused(&workplace, &arguments, CONFIG, said);
        }
    }
    // An empty folder, one with hidden files alone, and that of a run are places for one.
    std::fs::create_dir(workplace.path("empty")).unwrap();
    workplace.write("empty/.gitkeep", "");
    for _ in 0..2 {
        let set = [
            "--set",
            "train.output_dir=\"empty\"",
            "--set",
            "eval.eval_strategy=\"no\"",
        ];
        workplace
            .run(["train", "config.toml"].into_iter().chain(set))
            .success();
    }
}

#[test]
fn an_evaluation_is_written_to_a_folder_of_its_own() {
    let workplace = Workplace::new();
    let evaluate = |output| {
        let of_base = ["eval", "config.toml", "--checkpoint", "base"];
        [&of_base[..], &["--max-samples", "1", "--output", output]].concat()
    };
    // Beside other evaluations, and beside what is hidden.
    std::fs::create_dir_all(workplace.path("run/eval/base")).unwrap();
    workplace.write("run/eval/base/.gitkeep", "");
    for name in ["run/eval/base", "run/eval/other"] {
        workplace.run(evaluate(name)).success();
        assert!(workplace.path(name).join("metrics.json").exists(), "{name}");
    }
    std::fs::create_dir(workplace.path("others")).unwrap();
    workplace.write("others/letter.txt", "of somebody");
    workplace.write("others/second.txt", "of somebody");
    for (name, said) in [
        (
            "others",
            "holds letter.txt and 1 more, which is of no evaluation",
        ),
        ("run", "holds eval, which is of no evaluation"),
        (
            "run/eval",
            "holds base and 1 more, which is of no evaluation",
        ),
        ("run/eval/base", "holds an evaluation"),
    ] {
        assert_refused(&workplace, &evaluate(name), CONFIG, &[name, said]);
    }
}

#[test]
fn evaluations_of_the_base_may_lie_where_the_run_will_be() {
    let workplace = Workplace::new();
    std::fs::create_dir_all(workplace.path("run/eval/base")).unwrap();
    workplace.write("run/eval/base/metrics.json", "{}");
    for verb in ["plan", "train"] {
        let answer = workplace.run([verb, "config.toml"]);
        assert_eq!(answer.status, Some(0), "{verb}: {}", answer.stderr);
    }
}

#[test]
fn a_config_of_unknown_keys_without_end_is_refused_with_the_first_of_them() {
    let workplace = Workplace::new();
    let keys = |n: usize| -> String { (0..n).map(|i| format!("k{i} = 1\n")).collect() };
    for (text, said) in [
        (
            keys(100_000),
            "100004 mistakes in long.toml, of which the first 50 are shown",
        ),
        (
            format!("x = [\n{}", keys(100_000)),
            "of which the first 50 are shown",
        ),
        (keys(600_000), "more than 4194304 bytes"),
    ] {
        workplace.write("long.toml", text);
        let started = Instant::now();
        let answer = Answer::of(
            tooltune()
                .current_dir(workplace.folder())
                .args(["plan", "long.toml"]),
        );
        assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
        assert_eq!(answer.status, Some(CONFIG), "{}", answer.stderr);
        let words: Vec<&str> = answer
            .stderr
            .split_whitespace()
            .filter(|word| *word != "│")
            .collect();
        assert!(words.join(" ").contains(said), "{}", answer.stderr);
    }
}
