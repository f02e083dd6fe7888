//! Paths that are not regular files, and folders that cannot be run directories, are refused
//! immediately. The error names the path and its kind.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::bad_input::{CONFIG, FILES, assert_refused};
use crate::workplace::{CommandOutput, Workplace, tooltune};

/// Time limit of a command. Reading a pipe would never end; everything else takes seconds.
const BOUND: Duration = Duration::from_secs(60);

fn pipe(path: &Path) {
    let status = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(status.success());
}

/// Paths that are not regular files, each with the kind that the error names.
fn non_files(workplace: &Workplace) -> (Vec<(String, &'static str)>, UnixListener) {
    pipe(&workplace.path("fifo"));
    let listener = UnixListener::bind(workplace.path("socket")).unwrap();
    let path_of = |name: &str| workplace.path(name).display().to_string();
    let kinds = vec![
        (path_of("fifo"), "a named pipe (FIFO)"),
        (path_of("socket"), "a socket"),
        ("/dev/zero".to_owned(), "a character device"),
        ("/dev/urandom".to_owned(), "a character device"),
    ];
    (kinds, listener)
}

/// Asserts that a command fails quickly. Unlike `assert_refused`, it does not compare the folder,
/// which may contain pipes.
fn assert_refused_quickly(
    workplace: &Workplace,
    arguments: &[&str],
    status: i32,
    expected: &[&str],
) {
    let started = Instant::now();
    let mut command = tooltune();
    command.current_dir(workplace.folder()).args(arguments);
    // The limit is enough for the tiny model, but not for reading a whole device.
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
    for part in expected {
        assert!(
            errors.contains(part),
            "{arguments:?}: the errors do not contain {part:?}:\n{errors}"
        );
    }
}

/// Invariant: One module opens files for reading, and it accepts only regular files.
#[test]
fn pipes_and_devices_are_refused_as_input_files() {
    let workplace = Workplace::new();
    let (kinds, _listener) = non_files(&workplace);
    let train = ["train", "config.toml"];
    for (path, kind) in &kinds {
        for setting in [
            "data.train=[\"F\"]",
            "data.eval=[\"F\"]",
            "data.chat_template=\"F\"",
        ] {
            let set = setting.replace('F', path);
            assert_refused_quickly(
                &workplace,
                &["train", "config.toml", "--set", &set],
                CONFIG,
                &[kind, path],
            );
        }
        assert_refused_quickly(&workplace, &["train", path], CONFIG, &[kind, path]);
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
            // special_tokens_map.json is used only if tokenizer_config.json has no added tokens.
            if file == "special_tokens_map.json" {
                std::fs::write(model.join("tokenizer_config.json"), "{}").unwrap();
            }
            let arguments = [&train[..], &["--set", "model.model_name_or_path=\"model\""]].concat();
            assert_refused_quickly(&workplace, &arguments, FILES, &[kind, file]);
            std::fs::remove_dir_all(model).unwrap();
        }
        assert_refused_quickly(&workplace, &["score", path], FILES, &[kind, path]);
        assert_refused_quickly(
            &workplace,
            &[
                "generate",
                "config.toml",
                "--checkpoint",
                "base",
                "--data",
                path,
            ],
            FILES,
            &[kind],
        );
        let chat = [
            "generate",
            "config.toml",
            "--checkpoint",
            "base",
            "--message",
            "Hi",
        ];
        for (arguments, file) in [
            ([&chat[..], &["--tools"]].concat(), path.as_str()),
            (vec!["data", "stats"], path),
            (vec!["data", "convert", "--output", "new.jsonl"], path),
            (vec!["data", "import", "mcp", "--output", "new.jsonl"], path),
            (
                vec!["data", "import", "webnlg", "--output", "new.jsonl"],
                path,
            ),
        ] {
            let arguments = [&arguments[..], &[file]].concat();
            assert_refused_quickly(&workplace, &arguments, FILES, &[kind]);
        }
    }
}

#[test]
fn pipes_and_devices_in_a_run_are_refused_by_every_command() {
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
        let original = std::fs::read(&path).ok();
        let _ = std::fs::remove_file(&path);
        pipe(&path);
        for verb in verbs {
            assert_refused_quickly(&workplace, verb, FILES, &["a named pipe (FIFO)", file]);
        }
        std::fs::remove_file(&path).unwrap();
        if let Some(original) = original {
            std::fs::write(&path, original).unwrap();
        }
    }
    let path = workplace.path("run/config.resolved.toml");
    std::fs::remove_file(&path).unwrap();
    pipe(&path);
    assert_refused_quickly(
        &workplace,
        report,
        CONFIG,
        &["a named pipe (FIFO)", "config.resolved.toml"],
    );
    assert_refused_quickly(
        &workplace,
        train,
        FILES,
        &["a named pipe (FIFO)", "config.resolved.toml"],
    );
}

#[test]
fn a_folder_with_other_files_is_refused_as_run_directory() {
    let workplace = Workplace::new();
    std::fs::create_dir(workplace.path("others")).unwrap();
    workplace.write("others/letter.txt", "of somebody");
    let long = format!("train.output_dir=\"{}\"", "a".repeat(5_000));
    // Other programs also create a `.lock`.
    std::fs::create_dir(workplace.path("project")).unwrap();
    workplace.write("project/.lock", "");
    workplace.write("project/main.py", "");
    let cases: [(&str, &[&str]); 6] = [
        (
            "train.output_dir=\"project\"",
            &["contains main.py, but no run", "a separate folder"],
        ),
        (
            "train.output_dir=\"/\"",
            &["names /, and that folder contains", "but no run"],
        ),
        (
            "train.output_dir=\"others\"",
            &["contains letter.txt, but no run", "a separate folder"],
        ),
        (
            "train.output_dir=\"a\\u0000b\"",
            &["a path cannot contain NUL"],
        ),
        (
            "train.output_dir=\"train.jsonl/run\"",
            &["train.jsonl is a file"],
        ),
        (&long, &["one of its names has 5000", "the limit is 255"]),
    ];
    for verb in ["train", "plan"] {
        for (set, expected) in cases {
            let arguments = [
                verb,
                "config.toml",
                "--set",
                set,
                "--set",
                "eval.eval_strategy=\"no\"",
            ];
            assert_refused(&workplace, &arguments, CONFIG, &[]);
            assert_refused_quickly(&workplace, &arguments, CONFIG, expected);
        }
    }
    // Folders that are empty, have only hidden files, or have a run are accepted.
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
fn an_evaluation_needs_its_own_output_folder() {
    let workplace = Workplace::new();
    let evaluate = |output| {
        let eval_base = ["eval", "config.toml", "--checkpoint", "base"];
        [&eval_base[..], &["--max-samples", "1", "--output", output]].concat()
    };
    // An output folder may have hidden files, and other evaluations next to it.
    std::fs::create_dir_all(workplace.path("run/eval/base")).unwrap();
    workplace.write("run/eval/base/.gitkeep", "");
    for name in ["run/eval/base", "run/eval/other"] {
        workplace.run(evaluate(name)).success();
        assert!(workplace.path(name).join("metrics.json").exists(), "{name}");
    }
    std::fs::create_dir(workplace.path("others")).unwrap();
    workplace.write("others/letter.txt", "of somebody");
    workplace.write("others/second.txt", "of somebody");
    for (name, expected) in [
        (
            "others",
            "contains letter.txt and 1 more, which does not belong to an evaluation",
        ),
        (
            "run",
            "contains eval, which does not belong to an evaluation",
        ),
        (
            "run/eval",
            "contains base and 1 more, which does not belong to an evaluation",
        ),
        ("run/eval/base", "already contains an evaluation"),
    ] {
        assert_refused(&workplace, &evaluate(name), CONFIG, &[name, expected]);
    }
}

#[test]
fn evaluations_of_the_base_may_be_in_the_future_run_directory() {
    let workplace = Workplace::new();
    std::fs::create_dir_all(workplace.path("run/eval/base")).unwrap();
    workplace.write("run/eval/base/metrics.json", "{}");
    for verb in ["plan", "train"] {
        let answer = workplace.run([verb, "config.toml"]);
        assert_eq!(answer.status, Some(0), "{verb}: {}", answer.stderr);
    }
}

#[test]
fn a_config_with_endless_unknown_keys_is_refused_with_the_first() {
    let workplace = Workplace::new();
    let keys = |n: usize| -> String { (0..n).map(|i| format!("k{i} = 1\n")).collect() };
    for (text, expected) in [
        (
            keys(100_000),
            "100004 mistakes in long.toml; the first 50 are shown",
        ),
        (
            format!("x = [\n{}", keys(100_000)),
            "the first 50 are shown",
        ),
        (keys(600_000), "more than 4194304 bytes"),
    ] {
        workplace.write("long.toml", text);
        let started = Instant::now();
        let answer = CommandOutput::from_command(
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
        assert!(words.join(" ").contains(expected), "{}", answer.stderr);
    }
}
