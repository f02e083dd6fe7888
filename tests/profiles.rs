//! `train --profile`: the time of a run by operation.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::workplace::Workplace;

/// Rows of a table of operations: name, calls, and own and total milliseconds per step.
fn operations(page: &str) -> Vec<(String, [f64; 3])> {
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    cells
        .skip(1)
        .filter(|cells| cells[1] != "all")
        .map(|cells| {
            let number = |i: usize| cells[i].parse().unwrap_or_else(|_| panic!("{cells:?}"));
            (cells[1].to_owned(), [number(2), number(3), number(5)])
        })
        .collect()
}

#[test]
fn the_table_and_trace_of_a_profile_have_the_same_operations() {
    let workplace = Workplace::new();
    let command = "train config.toml --profile=2 --set train.output_dir=run \
                   --set eval.eval_strategy=no";
    let output = workplace.run(command.split_whitespace()).success();
    let line = "profile of steps 2 to 3: run/profile/operations.md and run/profile/trace.json";
    assert!(output.contains(line), "{output}");
    let page = workplace.read("run/profile/operations.md");
    assert!(page.starts_with("# Profile of steps 2 to 3\n"), "{page}");

    let table = operations(&page);
    let row = |name: &str| {
        let row = table.iter().find(|(operation, _)| operation == name);
        row.unwrap_or_else(|| panic!("no {name} in {page}")).1
    };
    // Two layers of the tiny model, forward and backward.
    let [steps, _, step_ms] = row("step");
    assert_eq!(steps, 1.0);
    assert_eq!(row("block backward")[0], row("attention backward")[0]);
    assert_eq!(row("rope")[0], row("attention")[0]);
    let linear: f64 = table
        .iter()
        .filter(|(name, _)| name.starts_with("lora_linear ") && !name.contains("backward"))
        .map(|(_, [calls, ..])| calls)
        .sum();
    assert_eq!(linear, 4.0 * row("block")[0], "four stacks per block");
    // A step contains all its operations, so their own times add up to its time, except for the
    // rounding to two decimals.
    let own: f64 = table.iter().map(|(_, [_, own, _])| own).sum();
    let rounding = 0.01 * (table.len() + 1) as f64;
    assert!((own - step_ms).abs() < rounding, "{own} and {step_ms}");

    let trace: Vec<Value> =
        serde_json::from_str(&workplace.read("run/profile/trace.json")).unwrap();
    let begin_events = trace.iter().filter(|event| event["ph"] == "B");
    let mut names = BTreeSet::new();
    let mut n_begins = 0;
    for event in begin_events {
        n_begins += 1;
        let name = event["name"].as_str().unwrap();
        let shape = event["args"]["shape"].as_str();
        names.insert(shape.map_or(name.to_owned(), |shape| format!("{name} {shape}")));
    }
    let table_names: BTreeSet<String> = table.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, table_names);
    let calls: f64 = table.iter().map(|(_, [calls, ..])| calls).sum();
    assert_eq!(n_begins as f64, 2.0 * calls, "events of two steps");
    let n_ends = trace.iter().filter(|event| event["ph"] == "E").count();
    assert_eq!(n_begins, n_ends);
}

#[test]
fn a_profile_does_not_change_training_and_needs_two_steps() {
    let workplace = Workplace::new();
    let train = |name: &str, more: &str| {
        let command = format!("train config.toml --set train.output_dir={name}{more}");
        workplace.run(command.split(' ')).success()
    };
    train("plain", "");
    let output = train("profiled", " --profile");
    // The run has four steps, and the first one is excluded.
    assert!(output.contains("profile of steps 2 to 4"), "{output}");
    let adapter = |run: &str| {
        let path = format!("{run}/checkpoint-000004/adapter_model.safetensors");
        std::fs::read(workplace.path(&path)).unwrap()
    };
    assert!(adapter("plain") == adapter("profiled"));
    let output = train("short", " --profile --set train.max_steps=1");
    assert!(output.contains("no profile"), "{output}");
    assert!(!workplace.path("short/profile").exists());
}

#[test]
fn an_unwritable_profile_does_not_stop_the_run() {
    let workplace = Workplace::new();
    let train = |more: &str| {
        let command = format!("train config.toml --set train.output_dir=run {more}");
        workplace.run(command.split(' ')).success()
    };
    train("--set train.max_steps=1");
    workplace.write("run/profile", "a file in the place of the folder");
    let output = train("--set train.max_steps=4 --profile");
    assert!(output.contains("4 steps done"), "{output}");
    assert!(!output.contains("profile of steps"), "{output}");
    assert!(workplace.path("run/checkpoint-000004").is_dir());
}
