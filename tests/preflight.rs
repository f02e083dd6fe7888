//! `doctor` with several processes: it times their connections, and a missing or unprepared process is
//! an error.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::ranks::{free_port, torchrun};
use crate::workplace::{self, CommandOutput, SLOT_DATA, tiny_model_lora, tooltune};

/// A workplace whose run may have two processes.
fn workplace() -> workplace::Workplace {
    let workplace = workplace::Workplace::with_rows("4");
    let config = format!(
        r#"{lora}target_modules = "all-linear"
{SLOT_DATA}[train]
output_dir = "run"
max_steps = 4
gradient_accumulation_steps = 2
"#,
        lora = tiny_model_lora(),
    );
    workplace.write("config.toml", config);
    workplace
}

fn doctor(workplace: &workplace::Workplace, arguments: &str) -> Command {
    let mut command = tooltune();
    command
        .current_dir(workplace.folder())
        .arg("doctor")
        .args(arguments.split_whitespace());
    command
}

/// The lines of a table that begin with this subject, as words after it.
fn rows<'a>(printed: &'a str, subject: &str) -> Vec<Vec<&'a str>> {
    let lines = printed.lines().map(str::trim);
    lines
        .filter_map(|line| line.strip_prefix(subject))
        .filter(|rest| rest.starts_with(' '))
        .map(|rest| rest.split_whitespace().collect())
        .collect()
}

/// Checks a number with a unit, such as `12.5 ms`: a test machine is neither infinitely fast nor
/// slower than ten minutes.
fn assert_plausible(number: &str, unit: &str) {
    let seconds = match unit.trim_end_matches(',') {
        "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "GB/s" => {
            let rate: f64 = number.parse().expect("a number");
            assert!((0.0..10_000.0).contains(&rate), "{number} {unit}");
            return;
        }
        _ => panic!("{number} {unit}"),
    };
    let time = number.parse::<f64>().expect("a number") * seconds;
    assert!(time > 0.0 && time < 600.0, "{number} {unit}");
}

#[test]
fn doctor_times_the_connections_of_two_ranks() {
    let workplace = workplace();
    let printed = CommandOutput::from_command(&mut doctor(
        &workplace,
        "config.toml --ranks 2 --megabytes 3",
    ))
    .success();
    assert!(printed.contains("2 ranks on 1 host"), "{printed}");
    assert!(printed.ends_with("the ranks are ready\n"), "{printed}");
    // Only rank 0 prints its machine.
    assert_eq!(printed.matches(" processor ").count(), 1, "{printed}");
    for subject in ["round trip", "order and replies"] {
        let rows = rows(&printed, subject);
        let [row] = &rows[..] else {
            panic!("{subject}: {printed}");
        };
        assert_plausible(row[0], row[1]);
    }
    let slowest = printed
        .lines()
        .find(|line| line.starts_with("slowest rank:"));
    let words: Vec<&str> = slowest.expect("a line").split_whitespace().collect();
    let rates = words.windows(2).filter(|pair| pair[1] == "GB/s");
    let rates: Vec<&str> = rates.map(|pair| pair[0]).collect();
    assert_eq!(rates.len(), 2, "{printed}");
    rates.iter().for_each(|rate| assert_plausible(rate, "GB/s"));
    // The run's own gradients have 8 bytes per trained value.
    let plan = workplace.run(["plan", "config.toml", "--format", "json"]);
    let plan: Value = serde_json::from_str(&plan.success()).unwrap();
    let n_trained = plan["trained_weights"].as_u64().expect("a number");
    let own = format!("{:.3}", 8.0 * n_trained as f64 / 1e6);
    for subject in ["sums", "messages"] {
        let rows = rows(&printed, subject);
        let sizes: Vec<&str> = rows.iter().map(|row| row[0]).collect();
        assert_eq!(sizes.len(), 4, "{subject}: {printed}");
        assert_eq!(sizes[1..], ["1.0", "3.0", "64.0"], "{subject}: {printed}");
        assert!(subject != "sums" || sizes[0] == own, "{own}: {printed}");
        for row in rows {
            let [_, "MB", time, unit, rate, "GB/s"] = row[..] else {
                panic!("{row:?}");
            };
            assert_plausible(time, unit);
            assert_plausible(rate, "GB/s");
        }
    }
    assert!(printed.contains("each step of this run adds"), "{printed}");
    // The printed command predicts the run.
    let (_, command) = printed.split_once("`tooltune plan ").expect("a command");
    let (options, _) = command.split_once('`').expect("its end");
    let plan = format!("plan config.toml {options} --format json");
    let plan: Value = serde_json::from_str(&workplace.run(plan.split(' ')).success()).unwrap();
    assert!(
        plan["ranks"]["seconds_per_step"].as_f64() > Some(0.0),
        "{plan}"
    );

    // Without a config, and with more ranks.
    let printed = CommandOutput::from_command(&mut doctor(&workplace, "--ranks 3")).success();
    assert!(printed.contains("3 ranks on 1 host"), "{printed}");
    assert_eq!(rows(&printed, "sums").len(), 2, "{printed}");
    assert!(!printed.contains("each step"), "{printed}");
}

#[test]
fn a_rank_that_does_not_come_is_an_error() {
    let workplace = workplace();
    let mut command = doctor(&workplace, "--wait 3");
    let output = CommandOutput::from_command(command.envs(torchrun(free_port())(0)));
    assert_eq!(output.status, Some(1), "{}", output.stderr);
    let expected = "after 3 s, rank 1 did not connect";
    assert!(output.stderr.contains(expected), "{}", output.stderr);
    let mut command = doctor(&workplace, "--wait 3");
    let output = CommandOutput::from_command(command.envs(torchrun(free_port())(1)));
    assert_ne!(output.status, Some(0), "{}", output.stdout);
    assert!(output.stderr.contains("no leader"), "{}", output.stderr);
}

#[test]
fn the_problems_of_all_ranks_are_reported_by_the_first() {
    let workplaces = [workplace(), workplace()];
    std::fs::remove_file(workplaces[1].path("dev.jsonl")).unwrap();
    let variables = torchrun(free_port());
    let ranks = [0, 1].map(|rank| {
        let mut command = doctor(&workplaces[rank], "config.toml --wait 120");
        command.envs(variables(rank));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    });
    let [leader, follower] = ranks.map(|rank| rank.wait_with_output().unwrap());
    let stderr = String::from_utf8(leader.stderr).unwrap();
    assert_eq!(leader.status.code(), Some(2), "{stderr}");
    for expected in ["not ready", "rank 1 on ", "dev.jsonl", "data.eval"] {
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
    // The connections are measured even so.
    let printed = String::from_utf8(leader.stdout).unwrap();
    assert!(printed.contains("2 ranks on 1 host"), "{printed}");
    assert_eq!(follower.status.code(), Some(0));
    assert!(follower.stdout.is_empty());
}

#[test]
fn options_for_several_processes_need_them() {
    let workplace = workplace();
    for option in ["--wait 3", "--megabytes 3"] {
        let output = CommandOutput::from_command(&mut doctor(&workplace, option));
        assert_eq!(output.status, Some(2), "{}", output.stdout);
        assert!(output.stderr.contains("--ranks 2"), "{}", output.stderr);
    }
    // The config allows two micro-batches per step.
    let output = CommandOutput::from_command(&mut doctor(&workplace, "config.toml --ranks 3"));
    assert_eq!(output.status, Some(2), "{}", output.stdout);
    let setting = "train.gradient_accumulation_steps = 2";
    assert!(output.stderr.contains(setting), "{}", output.stderr);
}
