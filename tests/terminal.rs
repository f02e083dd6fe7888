//! Output on a terminal of 80 columns, and messages of commands before and during a run.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::test_device::TestDevice;
use crate::support::{model, program};
use crate::workplace::{CommandOutput, Workplace};

/// Runs the program on a pseudo-terminal of 80 columns; returns its output.
fn on_a_terminal(workplace: &Workplace, arguments: &str) -> String {
    let command = format!(
        "stty cols 80 rows 24; exec {} {arguments}",
        program().display()
    );
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .current_dir(workplace.folder())
        .env("RAYON_NUM_THREADS", "2")
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .expect("`script` of util-linux makes the terminal");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

/// The text between two carriage returns, without colours.
fn pieces(text: &str) -> Vec<String> {
    let codes = regex::Regex::new("\x1b\\[[0-9;?]*[A-Za-z]").unwrap();
    let pieces = text.split(['\r', '\n']);
    let pieces = pieces.map(|piece| codes.replace_all(piece, "").into_owned());
    pieces.filter(|piece| !piece.trim().is_empty()).collect()
}

/// A run of 300 steps that evaluates after every 150.
const LONG: &str = "train config.toml --set train.max_steps=300 --set train.logging_steps=1000 \
                    --set eval.eval_steps=150";

/// Invariant: Output fits the terminal, and the progress bar moves from the first step.
#[test]
fn the_progress_bar_moves_from_the_first_step_and_output_fits_80_columns() {
    let workplace = Workplace::new();
    let text = on_a_terminal(&workplace, LONG);
    let pieces = pieces(&text);
    for piece in &pieces {
        let has_word_that_fits_nowhere = piece.split(' ').any(|word| word.len() > 76);
        assert!(
            piece.chars().count() <= 80 || has_word_that_fits_nowhere,
            "{piece:?}"
        );
    }
    // Step, loss and remaining time are shown first, without waiting for train.logging_steps.
    let bar = regex::Regex::new(r"^step ([0-9]+)/300  loss [0-9.]+  eta [0-9]+s").unwrap();
    let steps = pieces
        .iter()
        .filter_map(|piece| bar.captures(piece)?[1].parse::<u64>().ok());
    let first = steps
        .min()
        .unwrap_or_else(|| panic!("no bar with a loss: {text}"));
    assert!(first < 150, "the first displayed step is {first}");
    let device = format!("device {}", TestDevice::from_env());
    let is_printed = pieces.iter().any(|piece| piece.starts_with(&device));
    assert!(is_printed, "{text}");
    // An evaluation prints a table with the chosen metric first and the previous values next to it.
    let heading = pieces
        .iter()
        .rposition(|piece| piece.contains("evaluated in"))
        .expect("a table");
    let table: Vec<&str> = pieces[heading + 1..]
        .iter()
        .map(|line| line.trim_end())
        .collect();
    assert!(table[0].trim().starts_with("metric"), "{table:?}");
    assert!(
        table[0].contains("step 300") && table[0].contains("step 150"),
        "{table:?}"
    );
    assert!(table[1].ends_with("selects BEST"), "{table:?}");
    let last = pieces
        .iter()
        .position(|piece| piece.starts_with("300 steps done"));
    assert!(last.is_some(), "must be a separate line: {text}");
}

/// Starts a long run and returns its standard error, which the test reads while it runs.
fn spawn(workplace: &Workplace, arguments: &[&str]) -> std::process::Child {
    let mut command = crate::workplace::tooltune();
    command.current_dir(workplace.folder()).args(arguments);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Invariant: Ctrl-C ends a step within one micro-batch and leaves a complete run.
#[test]
fn ctrl_c_ends_a_run_within_a_micro_batch_with_exit_code_130() {
    let workplace = Workplace::new();
    let long = "train config.toml --set train.max_steps=100000 --set eval.eval_strategy=no \
                --set checkpoint.save_steps=100000";
    let arguments: Vec<&str> = long.split_whitespace().collect();
    let mut child = spawn(&workplace, &arguments);
    let timing = workplace.path("run/timing.jsonl");
    let started = Instant::now();
    while std::fs::read_to_string(&timing)
        .unwrap_or_default()
        .lines()
        .count()
        < 3
    {
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "the run ended before step 3"
        );
        assert!(started.elapsed() < Duration::from_secs(120), "no step 3");
        std::thread::sleep(Duration::from_millis(5));
    }
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    let answer = stderr
        .find("SIGINT: stopping at the next safe point")
        .expect("an answer");
    let saved = stderr
        .find("stopped; saved")
        .expect("the line about the saved checkpoint");
    assert!(answer < saved, "{stderr}");
    // The saved run can be resumed.
    let steps = std::fs::read_to_string(&timing).unwrap().lines().count() as u64;
    let latest = workplace.read("run/LATEST");
    assert!(
        latest.contains(&format!("{steps:06}")),
        "{latest}: {steps} steps"
    );
}

#[test]
fn a_plan_that_does_not_fit_exits_with_4_and_names_the_most_expensive_setting() {
    let workplace = Workplace::new();
    let plan = "plan config.toml --set lora.r=8192 --set lora.lora_alpha=8192";
    let fits = workplace.run(plan.split(' ')).success();
    for part in [
        "device",
        "time",
        "about ",
        "estimated from",
        "a short matmul benchmark",
    ] {
        assert!(fits.contains(part), "{part}: {fits}");
    }
    // No machine has enough memory for this number of rows per step.
    let large = "plan config.toml --offline --set train.per_device_train_batch_size=16000000";
    let answer = workplace.run(large.split(' '));
    assert_eq!(answer.status, Some(4), "{}", answer.stderr);
    assert!(
        answer.stderr.contains("the run does not fit"),
        "{}",
        answer.stderr
    );
    let cause = "lower train.per_device_train_batch_size (16000000)";
    assert!(answer.stderr.contains(cause), "{}", answer.stderr);
    // After some steps, the estimate uses the run's own speed.
    let train = "train config.toml --set lora.lora_alpha=8 --set train.output_dir=paced";
    workplace.run(train.split(' ')).success();
    let again = train.replace("train config", "plan config");
    let paced = workplace.run(again.split(' ')).success();
    assert!(paced.contains("the run's last steps"), "{paced}");
}

#[test]
fn unusual_settings_and_contradictions_print_one_line_each() {
    let workplace = Workplace::new();
    let answer = workplace.run([
        "plan",
        "config.toml",
        "--set",
        "train.learning_rate=0.7",
        "--set",
        "lora.lora_alpha=100000",
    ]);
    let output = answer.success();
    for line in [
        "train.learning_rate = 7e-1 is far above",
        "lora.lora_alpha = 100000 scales",
    ] {
        assert_eq!(output.matches(line).count(), 1, "{line}: {output}");
    }
    let config = workplace.read("config.toml");
    assert!(config.contains("[train]"), "{config}");
    workplace.write(
        "config.toml",
        config.replace("[train]", "[train]\nwarmup_ratio = 0.1"),
    );
    let answer = workplace.run(["inspect", "config.toml", "--set", "train.warmup_steps=1"]);
    let line = "--set train.warmup_steps=1 overrides `train.warmup_ratio` at config.toml:";
    assert!(answer.stderr.contains(line), "{}", answer.stderr);
    answer.success();
}

#[test]
fn inspect_shows_its_rows_and_then_fails_like_plan() {
    let workplace = Workplace::new();
    let set = ["--set", "lora.target_modules=[\"no_such_proj\"]"];
    let [inspect, plan] =
        ["inspect", "plan"].map(|verb| workplace.run([verb, "config.toml"].into_iter().chain(set)));
    assert_eq!(inspect.status, plan.status);
    assert_eq!(inspect.stderr.lines().last(), plan.stderr.lines().last());
    assert!(inspect.stdout.contains("supervised"), "{}", inspect.stdout);
    assert_ne!(inspect.status, Some(0));
}

#[test]
fn a_rising_loss_is_reported_while_the_run_continues() {
    let workplace = Workplace::new();
    // A single row is fitted quickly; then the rising learning rate increases the loss again. The
    // tiny model is not used, because its loss does not triple on every processor.
    workplace.write(
        "train.jsonl",
        "{\"prompt\": \"Say it:\", \"completion\": \"zebra 7 Quartz? lamp, violin 42 moss! Kiwi\"}\n",
    );
    let gguf = model("smollm2-135m-instruct.gguf");
    let model = format!("model.model_name_or_path={}", gguf.display());
    let answer: CommandOutput = CommandOutput::from_command(
        crate::workplace::tooltune()
            .env("RUST_LOG", "warn")
            .current_dir(workplace.folder())
            .args(["train", "config.toml", "--set", &model])
            .args(
                "--set data.format=prompt-completion --set data.eval=[] --set eval.suites=[] \
                 --set eval.metric_for_best_model=loss --set eval.eval_strategy=no \
                 --set train.max_steps=40 --set train.learning_rate=0.05 \
                 --set train.lr_scheduler_type=constant_with_warmup --set train.warmup_steps=40 \
                 --set train.per_device_train_batch_size=1 --set train.max_grad_norm=0 \
                 --set lora.r=8 --set lora.lora_alpha=16 --set checkpoint.save_steps=40"
                    .split_whitespace(),
            ),
    );
    assert!(
        answer.stderr.contains("the loss rises: "),
        "{}",
        answer.stderr
    );
    assert!(
        answer.stderr.contains("lower train.learning_rate"),
        "{}",
        answer.stderr
    );
}
