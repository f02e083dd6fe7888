//! Signals that end a command at once or after saving, and runs whose files are removed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bad_input::row;
use crate::runs::{signal, wait_for_step};
use crate::support::fixture;
use crate::workplace::{Workplace, tooltune};

/// Time limit of a command; all of them are much faster.
const BOUND: Duration = Duration::from_secs(120);

fn spawn(workplace: &Workplace, arguments: &[&str]) -> Child {
    let mut command = tooltune();
    command.current_dir(workplace.folder()).args(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Waits until `is_there` is true while the command runs.
fn wait_until(child: &mut Child, what: &str, is_there: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_there() {
        let ended = child.try_wait().unwrap();
        assert!(
            ended.is_none(),
            "the program ended before {what}: {ended:?}"
        );
        assert!(started.elapsed() < BOUND, "no {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The exit status after one signal.
fn status_after(mut child: Child, name: &str) -> Option<i32> {
    signal(&child, name);
    child.wait().unwrap().code()
}

fn many_rows(workplace: &Workplace, n: usize) {
    let line = row(workplace, |_| {});
    workplace.write("many.jsonl", format!("{line}\n").repeat(n));
}

/// Invariant: One signal ends the program at once if there is nothing to save.
#[test]
fn before_the_first_step_one_signal_ends_the_program_at_once() {
    let workplace = Workplace::new();
    many_rows(&workplace, 100_000);
    let rows = "data.train=[\"many.jsonl\"]";
    for verb in ["train", "plan", "inspect"] {
        for (name, status) in [("-TERM", 143), ("-INT", 130)] {
            let mut child = spawn(&workplace, &[verb, "config.toml", "--set", rows]);
            let id = child.id();
            let reading = || {
                let io = std::fs::read_to_string(format!("/proc/{id}/io")).unwrap_or_default();
                let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
                read.is_some_and(|bytes| bytes.parse::<u64>().unwrap() > 4 << 20)
            };
            wait_until(&mut child, "rows that are read", reading);
            assert_eq!(status_after(child, name), Some(status), "{verb} {name}");
        }
    }
    assert!(!workplace.path("run").exists());
}

#[test]
fn a_signal_during_the_evaluation_before_the_first_step_leaves_a_run_that_can_begin() {
    let workplace = Workplace::new();
    let rows = workplace.read("dev.jsonl");
    workplace.write("dev.jsonl", rows.repeat(200));
    // The ids of slot rows are their lines, so repeated rows are accepted.
    let long = [
        "--set",
        "eval.max_new_tokens=200",
        "--set",
        "train.output_dir=\"run\"",
    ];
    let arguments = [&["train", "config.toml"], &long[..]].concat();
    let mut child = spawn(&workplace, &arguments);
    let lock = workplace.path("run/run.lock.json");
    wait_until(&mut child, "the run's files", || lock.exists());
    assert_eq!(status_after(child, "-TERM"), Some(143));
    assert!(!workplace.path("run/checkpoint-000000").exists());
    assert!(!workplace.path("run/checkpoint-000001").exists());
    let short = ["--set", "eval.max_samples=3"];
    let arguments = [&arguments[..], &short].concat();
    let answer = workplace.run(arguments);
    // The same command continues. With another setting, the error names it.
    assert!(matches!(answer.status, Some(0 | 2)), "{}", answer.stderr);
}

/// Invariant: One signal ends the program at once if there is nothing to save.
#[test]
fn a_signal_ends_an_evaluation_gracefully_only_if_its_completions_are_saved() {
    let workplace = Workplace::new();
    let rows = workplace.read("dev.jsonl");
    workplace.write("dev.jsonl", rows.repeat(100));
    let eval = "eval config.toml --checkpoint base --set eval.max_new_tokens=100";
    let eval: Vec<&str> = eval.split(' ').collect();
    let with_output = [&eval[..], &["--output", "out"]].concat();
    let mut child = spawn(&workplace, &with_output);
    let texts = workplace.path("out/texts.partial.jsonl");
    let lines = |path: &Path| {
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .lines()
            .count()
    };
    wait_until(&mut child, "texts", || lines(&texts) > 2);
    assert_eq!(status_after(child, "-TERM"), Some(75));
    assert!(lines(&texts) > 2);
    workplace.run(with_output).success();
    assert!(!texts.exists());

    for (name, status) in [("-TERM", 143), ("-INT", 130)] {
        let mut child = spawn(&workplace, &eval);
        let id = child.id();
        // The command is computing and has saved nothing.
        let ticks = || {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            let fields = stat.rsplit(')').next().unwrap_or_default().to_owned();
            fields
                .split_whitespace()
                .nth(11)
                .and_then(|ticks| ticks.parse::<u64>().ok())
        };
        wait_until(&mut child, "work", || {
            ticks().is_some_and(|ticks| ticks > 20)
        });
        assert_eq!(status_after(child, name), Some(status));
    }
}

/// Invariant: Writing to a removed run directory is an error.
#[test]
fn a_run_whose_directory_is_removed_fails_with_a_message() {
    let workplace = Workplace::new();
    let long = [
        "train",
        "config.toml",
        "--set",
        "train.max_steps=100000",
        "--set",
        "eval.eval_strategy=\"no\"",
        "--set",
        "checkpoint.save_steps=100",
    ];
    for comes_back in [false, true] {
        let run = workplace.path("run");
        let mut command: Command = tooltune();
        command.current_dir(workplace.folder()).args(long);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for_step(&run, 3, &mut child);
        let aside = workplace.path("aside");
        std::fs::rename(&run, &aside).unwrap();
        if comes_back {
            std::fs::create_dir(&run).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(
            errors.contains("run: the run directory was removed or replaced"),
            "{errors}"
        );
        std::fs::remove_dir_all(&aside).unwrap();
        let _ = std::fs::remove_dir_all(&run);
    }
}

/// Invariant: A metrics file that is removed during a run is written again.
#[test]
fn a_run_whose_metrics_file_is_removed_writes_it_again() {
    let workplace = Workplace::new();
    let arguments = "train config.toml --set train.max_steps=200 --set train.logging_steps=1 --set \
                     eval.eval_strategy=\"no\" --set checkpoint.save_steps=200";
    let mut command: Command = tooltune();
    command
        .current_dir(workplace.folder())
        .env("RUST_LOG", "warn");
    command.args(arguments.split(' '));
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_step(&workplace.path("run"), 3, &mut child);
    std::fs::remove_file(workplace.path("run/metrics.jsonl")).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let warning = "metrics.jsonl: the file was removed during the run";
    assert_eq!(errors.matches(warning).count(), 1, "{errors}");
    let n_lines = workplace.read("run/metrics.jsonl").lines().count();
    assert_eq!(n_lines, 200);
}

/// Starts `chat` with questions that take minutes, and waits for the first answer.
fn conversation(workplace: &Workplace) -> (Child, BufReader<ChildStdout>) {
    workplace.write("questions", "hello there\n".repeat(20_000));
    let questions = std::fs::File::open(workplace.path("questions")).unwrap();
    let model = fixture("tiny_chat_model").display().to_string();
    let mut command = tooltune();
    command.current_dir(workplace.folder());
    command.args(["chat", &model, "--set", "eval.max_new_tokens=8"]);
    command.stdin(questions).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    answers.read_line(&mut first).unwrap();
    assert!(first.starts_with("model> "), "{first}");
    (child, answers)
}

#[test]
fn a_chat_from_a_file_ends_when_its_reader_closes_or_at_the_first_signal() {
    let workplace = Workplace::new();
    for (name, status) in [("-INT", 130), ("-TERM", 143)] {
        let (child, answers) = conversation(&workplace);
        assert_eq!(status_after(child, name), Some(status), "{name}");
        drop(answers);
    }
    let (mut child, answers) = conversation(&workplace);
    drop(answers);
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(
            started.elapsed() < BOUND,
            "the program must end when its output is closed"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(child.wait().unwrap().success());
}
