//! Runs of the program: an interrupted run that is resumed writes the same bytes as an
//! uninterrupted run.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_rows::batches::SeededRandom;

use crate::support::{fixture, model};
use crate::workplace::{
    CommandOutput, SLOT_DATA, Workplace, parse_lines, tiny_model_lora, tooltune,
};

/// Optimizer steps of a run. It evaluates every ten steps and saves every six.
const STEPS: u64 = 30;

/// A workplace with a config and rows, for any number of run directories.
fn workplace() -> Workplace {
    let workplace = Workplace::with_rows("40");
    let config = format!(
        r#"{lora}lora_dropout = 0.1
target_modules = "all-linear"
{SLOT_DATA}[mask]
train_on = "completion"
[train]
output_dir = "run"
max_steps = {STEPS}
per_device_train_batch_size = 2
gradient_accumulation_steps = 2
learning_rate = 1e-2
logging_steps = 4
[eval]
eval_strategy = "steps"
eval_steps = 10
suites = ["slot"]
max_new_tokens = 12
metric_for_best_model = "slot.mean"
encoder = "{encoder}"
[checkpoint]
save_steps = 6
save_total_limit = 3
"#,
        lora = tiny_model_lora(),
        encoder = model("all-minilm-l6-v2").display(),
    );
    workplace.write("config.toml", config);
    workplace
}

/// `tooltune train` into the run directory `name`.
fn train(workplace: &Workplace, name: &str) -> Command {
    let mut command = tooltune();
    command
        .current_dir(workplace.folder())
        .args(["train", "config.toml", "--set"])
        .arg(format!("train.output_dir=\"{name}\""))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

fn finish(workplace: &Workplace, name: &str) {
    CommandOutput::from_command(&mut train(workplace, name)).success();
}

/// The results that two runs must share: every metrics line, and the last adapter and optimizer
/// state.
fn outcome(run: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let last = format!("checkpoint-{STEPS:06}");
    let read = |path: PathBuf| {
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    vec![
        ("metrics.jsonl", read(run.join("metrics.jsonl"))),
        (
            "adapter",
            read(run.join(&last).join("adapter_model.safetensors")),
        ),
        (
            "moments",
            read(run.join(&last).join("optimizer.safetensors")),
        ),
        ("state", read(run.join(&last).join("trainer_state.json"))),
    ]
}

fn assert_same_outcome(run: &Path, expected: &[(&'static str, Vec<u8>)]) {
    for ((name, ours), (_, theirs)) in outcome(run).iter().zip(expected) {
        if ours != theirs {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().take(4000).collect();
            let (ours, theirs): (String, String) = (text(ours), text(theirs));
            panic!(
                "{name} differs in {}:\n{ours}\n---\n{theirs}",
                run.display()
            );
        }
    }
}

/// Waits until the run has taken `step` steps.
pub(crate) fn wait_for_step(run: &Path, step: usize, child: &mut Child) {
    let started = Instant::now();
    loop {
        let timing = std::fs::read_to_string(run.join("timing.jsonl")).unwrap_or_default();
        if timing.lines().count() >= step {
            return;
        }
        let ended = child.try_wait().unwrap();
        assert!(
            ended.is_none(),
            "the run ended before step {step}: {ended:?}"
        );
        assert!(
            started.elapsed() < Duration::from_secs(300),
            "no step {step} in five minutes"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

/// Invariant: A resumed run writes the same files as an uninterrupted run, except for timing.
#[test]
fn a_run_resumed_after_a_signal_equals_the_uninterrupted_run() {
    let workplace = workplace();
    finish(&workplace, "whole");
    let expected = outcome(&workplace.path("whole"));

    let run = workplace.path("terminated");
    let mut child = train(&workplace, "terminated").spawn().unwrap();
    wait_for_step(&run, 8, &mut child);
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(75));
    assert!(
        !run.join(format!("checkpoint-{STEPS:06}")).exists(),
        "the run was not interrupted"
    );
    let output = CommandOutput::from_command(&mut train(&workplace, "terminated"));
    let from = "resuming from terminated/checkpoint-";
    assert!(output.stderr.contains(from), "{}", output.stderr);
    assert!(output.stderr.contains(" of 30)"), "{}", output.stderr);
    assert_same_outcome(&run, &expected);

    let run = workplace.path("killed");
    let mut child = train(&workplace, "killed").spawn().unwrap();
    wait_for_step(&run, 14, &mut child);
    signal(&child, "-KILL");
    assert_eq!(child.wait().unwrap().code(), None);
    finish(&workplace, "killed");
    assert_same_outcome(&run, &expected);
    // A finished run reports that there is nothing to do.
    let output = CommandOutput::from_command(&mut train(&workplace, "killed"));
    let done = "nothing to do: all 30 steps are done";
    assert!(output.stderr.contains(done), "{}", output.stderr);
    assert_same_outcome(&run, &expected);
}

/// Invariant: A resumed run writes the same files as an uninterrupted run, except for timing.
#[test]
fn killing_at_random_moments_never_leaves_a_run_that_cannot_be_resumed() {
    let workplace = workplace();
    let started = Instant::now();
    finish(&workplace, "whole");
    let run_time = started.elapsed();
    let expected = outcome(&workplace.path("whole"));
    let mut random = SeededRandom::new(5, 0);
    let mut name = String::new();
    for kill in 0..20 {
        // Each run is killed seven times, so that the kills spread over its whole length.
        if kill % 7 == 0 {
            name = format!("killed-{kill}");
        }
        let mut child = train(&workplace, &name).spawn().unwrap();
        std::thread::sleep(run_time.mul_f64(random.uniform_f64() * 0.5));
        // The run may already have ended.
        let _ = child.kill();
        child.wait().unwrap();
        let run = RunDir::create_or_open(&workplace.path(&name)).unwrap();
        let latest = run.latest_valid().unwrap();
        assert!(
            latest.rejected.is_empty(),
            "kill {kill} left {:?}",
            latest.rejected
        );
        drop(run);
        if kill % 7 == 6 || kill == 19 {
            finish(&workplace, &name);
            assert_same_outcome(&workplace.path(&name), &expected);
        }
    }
}

/// Invariant: A loss that is not finite changes no weight and ends the run with its last good
/// checkpoint.
#[test]
fn repeated_non_finite_losses_stop_the_run_and_keep_checkpoints() {
    let workplace = workplace();
    let output = train(&workplace, "overflow")
        .args([
            "--set",
            "lora.lora_alpha=1e38",
            "--set",
            "train.max_nonfinite=2",
        ])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{errors}");
    assert!(
        errors.contains("2 steps in a row") && errors.contains("train.jsonl:"),
        "{errors}"
    );
    let run = RunDir::open_to_read(&workplace.path("overflow")).unwrap();
    let steps = run
        .latest_valid()
        .unwrap()
        .checkpoint
        .expect("the evaluation of step 0");
    assert_eq!(steps.step, 0);
}

#[test]
fn a_run_without_improvement_stops_early_and_continues_with_more_patience() {
    let workplace = workplace();
    finish(&workplace, "whole");
    let run = workplace.path("stopped");
    let stop_after = |patience: u64| {
        let mut command = train(&workplace, "stopped");
        // No score improves by 2.
        command.args(["--set", "eval.early_stopping_threshold=2", "--set"]);
        command.arg(format!("eval.early_stopping_patience={patience}"));
        CommandOutput::from_command(command.stdout(Stdio::piped()))
    };
    // The first evaluation is at step 0. If the patience is exhausted, the same command does
    // nothing.
    let again = "nothing to do: the run stopped early at step 10 of 30";
    let more = "resuming from stopped/checkpoint-000010 (step 10 of 30)";
    for (patience, steps, start) in [(1, 10, ""), (1, 10, again), (2, 20, more)] {
        let answer = stop_after(patience);
        assert!(answer.stderr.contains(start), "{}", answer.stderr);
        let output = answer.success();
        assert!(output.contains(&format!("{steps} steps done")), "{output}");
        let stopped = format!("stopped early: {patience} evaluations in a row");
        assert!(output.contains(&stopped), "{output}");
        let latest = RunDir::create_or_open(&run)
            .unwrap()
            .latest_valid()
            .unwrap();
        assert_eq!(
            latest
                .checkpoint
                .expect("the evaluation of the last step")
                .step,
            steps
        );
    }
    assert!(!stop_after(9).success().contains("stopped early"));
    assert_same_outcome(&run, &outcome(&workplace.path("whole")));
}

#[test]
fn a_run_directory_of_another_config_is_refused_and_unchanged() {
    let workplace = workplace();
    finish(&workplace, "run");
    let expected = outcome(&workplace.path("run"));
    let output = train(&workplace, "run")
        .args(["--set", "train.learning_rate=5e-4"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("train.learning_rate: 0.01 -> 0.0005"),
        "{errors}"
    );
    assert_same_outcome(&workplace.path("run"), &expected);
}

/// Invariant: A run produces the same tokens on any day.
#[test]
fn a_run_keeps_its_start_date() {
    let workplace = workplace();
    let template = fixture("tiny_chat_model").join("chat_template.jinja");
    let template = std::fs::read_to_string(template).unwrap();
    let dated = format!("{{{{ strftime_now('%d %b %Y') }}}}{template}");
    workplace.write("dated.jinja", dated);
    let run = |name: &str, day: Option<&str>| {
        let mut command = train(&workplace, name);
        command.args(["--set", "data.chat_template=dated.jinja"]);
        if let Some(day) = day {
            command.args(["--set", &format!("data.template_date={day}")]);
        }
        CommandOutput::from_command(&mut command)
    };
    let day = "2019-03-04";
    for name in ["whole", "later"] {
        run(name, Some(day)).success();
    }
    let expected = outcome(&workplace.path("whole"));
    let last = RunDir::create_or_open(&workplace.path("later"))
        .unwrap()
        .list()
        .unwrap()
        .pop()
        .expect("a checkpoint");
    std::fs::remove_dir_all(&last.path).unwrap();
    // Without the recorded date, a run without the setting would use today's date.
    run("later", None).success();
    assert_same_outcome(&workplace.path("later"), &expected);
    let other = run("later", Some("2019-03-05"));
    assert_eq!(other.status, Some(2));
    let change = "data.template_date: \"2019-03-04\" -> \"2019-03-05\"";
    assert!(other.stderr.contains(change), "{}", other.stderr);
    // The date is part of the rendered text.
    let texts = [day, "2019-03-05"].map(|day| {
        let date = format!("data.template_date={day}");
        let arguments = "inspect config.toml --rows 1 --format json --set".split(' ');
        let template = ["data.chat_template=dated.jinja", "--set", &date];
        workplace.run(arguments.chain(template)).success()
    });
    assert_ne!(texts[0], texts[1]);
    assert!(texts[0].contains("04"), "{}", texts[0]);
    // A run without the setting records the current date.
    let mut start = train(&workplace, "begun");
    CommandOutput::from_command(start.args(["--set", "train.max_steps=1"])).success();
    let config = workplace.read("begun/config.resolved.toml");
    assert!(config.contains("\ntemplate_date = \"20"), "{config}");
}

/// A longer run continues from its current step, prints the effect on its schedule, and updates its
/// lock; a shorter one is rejected.
#[test]
fn a_run_can_be_extended_but_not_shortened() {
    let workplace = Workplace::new();
    workplace.run(["train", "config.toml"]).success();
    let train = |setting: &str| {
        let words = ["train", "config.toml", "--set", setting];
        let mut command = tooltune();
        command.current_dir(workplace.folder()).args(words);
        CommandOutput::from_command(command.env("RUST_LOG", "warn"))
    };
    let longer = train("train.max_steps=6");
    for expected in [
        "run is extended at step 4 of 6",
        "train.max_steps: 4 -> 6",
        "jumps back up",
    ] {
        assert!(longer.stderr.contains(expected), "{}", longer.stderr);
    }
    longer.success();
    let lock: Value = serde_json::from_str(&workplace.read("run/run.lock.json")).unwrap();
    assert_eq!(
        lock["extended"],
        json!([{"at_step": 4, "changes": ["train.max_steps: 4 -> 6"]}])
    );
    let metrics = parse_lines(&workplace.read("run/metrics.jsonl"));
    let steps: Vec<u64> = metrics
        .iter()
        .filter(|line| line["loss"].is_number())
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
    let again = train("train.max_steps=6");
    assert!(!again.stderr.contains("is extended"), "{}", again.stderr);
    let shorter = train("train.max_steps=5");
    assert_eq!(shorter.status, Some(2));
    assert!(
        shorter.stderr.contains("train.max_steps: 6 -> 5")
            && shorter.stderr.contains("can be extended but not shortened")
            && !shorter.stderr.contains("a different config"),
        "{}",
        shorter.stderr
    );
    // Only the number of steps is compared, also between max_steps and num_train_epochs.
    let config = workplace.read("config.toml");
    let in_epochs = config.replace("max_steps = 4", "num_train_epochs = 4");
    assert_ne!(in_epochs, config);
    workplace.write("epochs.toml", in_epochs.replace("\"run\"", "\"epochs\""));
    workplace.run(["train", "epochs.toml"]).success();
    let shorter = workplace.run("train epochs.toml --set train.max_steps=5".split(' '));
    assert_eq!(shorter.status, Some(2), "{}", shorter.stderr);
    for expected in [
        "contains a longer run of ",
        "train.num_train_epochs: 4.0 -> (not set)",
        "it would have 5",
    ] {
        assert!(
            shorter.stderr.contains(expected),
            "{expected}: {}",
            shorter.stderr
        );
    }
}
