//! Evaluations within runs of several processes on the CPU.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::ranks::{children_of, output_of, rank_of, send, train_with_ranks};
use crate::runs::{wait_for_step, workplace_with};
use crate::workplace::{self, CommandOutput, parse_lines};

/// Metrics, and the files of all checkpoints, by path.
fn results(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let metrics = std::fs::read(run.join("metrics.jsonl")).unwrap();
    let mut files = BTreeMap::from([("metrics.jsonl".to_owned(), metrics)]);
    for checkpoint in std::fs::read_dir(run).unwrap() {
        let checkpoint = checkpoint.unwrap();
        let name = checkpoint.file_name().into_string().unwrap();
        if !name.starts_with("checkpoint-") {
            continue;
        }
        for file in std::fs::read_dir(checkpoint.path()).unwrap() {
            let file = file.unwrap();
            let path = format!("{name}/{}", file.file_name().display());
            files.insert(path, std::fs::read(file.path()).unwrap());
        }
    }
    files
}

fn assert_same(ours: &BTreeMap<String, Vec<u8>>, expected: &BTreeMap<String, Vec<u8>>, name: &str) {
    assert!(ours.keys().eq(expected.keys()), "{name}: {:?}", ours.keys());
    let differs = |(path, bytes): &(&String, &Vec<u8>)| ours.get(*path) != Some(*bytes);
    let differing: Vec<&String> = expected
        .iter()
        .filter(differs)
        .map(|(path, _)| path)
        .collect();
    assert!(differing.is_empty(), "{name}: {differing:?}");
}

/// The held-out losses of a run, by step.
fn losses(run: &Path) -> Vec<(u64, f64)> {
    let lines = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    let lines: Vec<Value> = parse_lines(&lines);
    let loss = |line: &Value| Some((line["step"].as_u64()?, line["eval/loss"].as_f64()?));
    lines.iter().filter_map(loss).collect()
}

/// Invariant: Evaluations within a run give the same predictions and losses with any number of
/// processes.
#[test]
fn evaluations_are_the_same_for_any_number_of_ranks() {
    let workplace = workplace_with(4);
    let rows = "data synth slot --split dev --rows 11 --output more.jsonl";
    workplace.run(rows.split(' ')).success();
    let run = |name: &str, ranks: usize, constrained: &str| {
        let mut command = train_with_ranks(&workplace, name, ranks);
        command.args(["--set", "train.max_steps=10", "--set", "eval.batch_size=2"]);
        command.args(["--set", "data.eval=[\"more.jsonl\"]"]);
        command.args(["--set", "eval.temperature=0.7", "--set", constrained]);
        CommandOutput::from_command(&mut command).success();
        results(&workplace.path(name))
    };
    for (kind, constrained) in [
        ("free", "eval.constrained=false"),
        ("held", "eval.constrained=true"),
    ] {
        let alone = format!("{kind}-1");
        let expected = run(&alone, 1, constrained);
        let is_prediction = |name: &String| name.ends_with("eval.slot.predictions.jsonl");
        assert!(expected.keys().any(is_prediction), "{:?}", expected.keys());
        assert_eq!(losses(&workplace.path(&alone)).len(), 2);
        for ranks in [2, 4] {
            let name = format!("{kind}-{ranks}");
            assert_same(&run(&name, ranks, constrained), &expected, &name);
        }
    }
}

/// `train` with an evaluation after each of three steps that only measures the loss, for seconds.
fn long_losses(workplace: &workplace::Workplace, name: &str, ranks: usize) -> Command {
    let mut command = train_with_ranks(workplace, name, ranks);
    command.args(["--set", "train.max_steps=3", "--set", "eval.eval_steps=1"]);
    command.args(["--set", "data.eval=[\"many.jsonl\"]"]);
    command.args(["--set", "eval.suites=[]"]);
    command.args(["--set", "eval.metric_for_best_model=\"loss\""]);
    command
}

#[test]
fn a_rank_that_is_killed_while_losses_are_measured_ends_the_run_with_a_checkpoint() {
    let workplace = workplace_with(4);
    let rows = "data synth slot --split dev --rows 1000 --output many.jsonl";
    workplace.run(rows.split(' ')).success();
    let whole = CommandOutput::from_command(&mut long_losses(&workplace, "whole", 1));
    whole.success();
    let expected = results(&workplace.path("whole"));
    for (rank, name) in [(1, "follower"), (2, "last")] {
        let run = workplace.path(name);
        let mut parent = long_losses(&workplace, name, 3).spawn().unwrap();
        // The evaluation begins when the step is in the file.
        wait_for_step(&run, 1, &mut parent);
        std::thread::sleep(Duration::from_millis(100));
        let children = children_of(&parent);
        let process = children.iter().find(|&&child| rank_of(child) == Some(rank));
        send("-KILL", *process.expect("the rank runs"));
        let (status, stderr) = output_of(parent);
        // Rank 0 can end with 75 before the launcher sees that another rank was killed.
        assert!(matches!(status, Some(75 | 137)), "{status:?} {stderr}");
        assert!(stderr.contains(&format!("rank {rank}")), "{stderr}");
        assert!(stderr.contains("saved"), "{stderr}");
        let steps: Vec<u64> = losses(&run).iter().map(|(step, _)| *step).collect();
        assert_eq!(
            steps,
            [0],
            "the rank was killed during the evaluation of step 1"
        );
        CommandOutput::from_command(&mut long_losses(&workplace, name, 2)).success();
        assert_same(&results(&run), &expected, name);
    }
}
