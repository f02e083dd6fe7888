//! Tests of the comparison table, on the page and in a terminal.

use serde_json::{Value, json};

use super::*;
use crate::run::BestCheckpoint;

fn result(label: &str, step: u64, metrics: Value) -> SuiteResult {
    SuiteResult {
        suite: "slot".to_owned(),
        label: label.to_owned(),
        step: Some(step),
        metrics,
    }
}

fn slot_metrics(n: u64, mean: f64) -> Value {
    json!({"n": n, "mean": {"value": mean, "low": mean - 0.125, "high": mean + 0.125},
           "n_invalid": 3, "schema": "none"})
}

fn run(name: &str, rate: &str, best: f64) -> ReportRun {
    let settings = [
        ("lora.r", "8"),
        ("train.learning_rate", rate),
        ("train.output_dir", name),
    ];
    let settings = settings.map(|(path, value)| (path.to_owned(), value.to_owned()));
    ReportRun {
        name: name.to_owned(),
        settings: settings.into(),
        best: Some(BestCheckpoint {
            step: 1_000,
            metric: "slot.mean".to_owned(),
            value: best,
        }),
        suites: vec![
            result("step 0", 0, slot_metrics(40, 0.25)),
            result("step 500", 500, slot_metrics(40, 0.375)),
            result("step 1000, best", 1_000, slot_metrics(40, best)),
        ],
        ..ReportRun::default()
    }
}

const FACTS: MetricFacts = MetricFacts {
    plain_name,
    greater_is_better: |name| Some(name != "slot.malformed_rate"),
};

fn plain_name(name: &str) -> Option<&'static str> {
    (name == "slot.mean").then_some("mean of two")
}

#[test]
fn runs_are_tabulated_with_differing_settings_and_results() {
    let runs = [
        run("slow", "1e-5", 0.5),
        run("a|b", "1e-4", 0.75),
        run("c", "1e-4", 0.625),
    ];
    let table = compare_runs(&runs, FACTS).expect("objects");
    let lines = [
        "| setting | slow | a\\|b | c |",
        "|---|--:|--:|--:|",
        "| train.learning_rate | 1e-5 | 1e-4 | 1e-4 |",
        "",
        "| metric | at | slow | a\\|b | c |",
        "|---|---|--:|--:|--:|",
        "| best checkpoint, step |  | 1,000 | 1,000 | 1,000 |",
        "| slot: samples |  | 40 | 40 | 40 |",
        "| slot.mean | step 0 | 0.250 [0.125, 0.375] | 0.250 [0.125, 0.375] | 0.250 [0.125, 0.375] |",
        "| slot.mean | best | 0.500 [0.375, 0.625] | 0.750 [0.625, 0.875] | 0.625 [0.500, 0.750] |",
    ];
    assert_eq!(table.markdown().lines().collect::<Vec<_>>(), lines);
    assert_eq!(table.results[2].plain_name, Some("mean of two"));
    let best = |line: usize| -> Vec<bool> {
        table.results[line]
            .cells
            .iter()
            .map(|cell| cell.is_best)
            .collect()
    };
    assert_eq!(best(2), [false; 3], "no value is better than an equal one");
    assert_eq!(best(3), [false, true, false]);
    let equal_runs = [run("one", "1e-5", 0.5), run("two", "1e-5", 0.5)];
    let equal_runs = compare_runs(&equal_runs, FACTS)
        .expect("objects")
        .markdown();
    assert!(
        equal_runs.starts_with("the runs have the same settings"),
        "{equal_runs}"
    );
}

#[test]
fn runs_are_compared_on_equal_rows_if_possible() {
    let evaluated = |mut run: ReportRun, n: u64, mean: f64| {
        run.evaluations = vec![
            result("base", 0, slot_metrics(n, 0.125)),
            result("best", 1_000, slot_metrics(n, mean)),
        ];
        run
    };
    let compare = |runs: &[ReportRun]| {
        let table = compare_runs(runs, FACTS).expect("objects");
        table.markdown()
    };
    let both = compare(&[
        evaluated(run("a", "1", 0.5), 100, 0.5),
        evaluated(run("b", "1", 0.5), 100, 0.75),
    ]);
    assert!(both.contains("| slot: samples |  | 100 | 100 |"), "{both}");
    assert!(both.contains("| slot.mean | best | 0.500 [0.375, 0.625] | 0.750 ["));
    // One run was evaluated on different rows, so the evaluations within the runs are compared.
    let only_first = compare(&[
        evaluated(run("a", "1", 0.5), 100, 0.5),
        run("b", "1", 0.625),
    ]);
    assert!(
        only_first.contains("| slot: samples |  | 40 | 40 |"),
        "{only_first}"
    );
    // A run without evaluations within the run is still compared; the sample counts show the
    // difference.
    let mut without_results = evaluated(run("b", "1", 0.5), 100, 0.75);
    without_results.suites.clear();
    without_results.best = None;
    let without_results = compare(&[run("a", "1", 0.5), without_results]);
    assert!(
        without_results.contains("| slot: samples |  | 40 | 100 |"),
        "{without_results}"
    );
    assert!(
        without_results.contains("| best checkpoint, step |  | 1,000 | – |"),
        "{without_results}"
    );
}

#[test]
fn missing_suites_show_dashes_and_the_last_checkpoint_replaces_a_missing_best() {
    let mut other = run("b", "1", 0.5);
    other.best = None;
    for suite_result in &mut other.suites {
        suite_result.suite = SuiteResult::LOSS.to_owned();
        suite_result.metrics = json!({"loss": suite_result.step.unwrap_or(0) as f64 / 250.0});
    }
    let table = compare_runs(&[run("a", "1", 0.5), other], FACTS).expect("objects");
    let text = table.markdown();
    for line in [
        "| slot.mean | best | 0.500 [0.375, 0.625] | – |",
        "| loss | step 0 | – | 0.000 |",
        "| loss | best | – | 4.000 |",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.find("slot.mean") < text.find("| loss"));
}

#[test]
fn the_gold_score_is_shown_next_to_each_value() {
    let mut with_gold = run("a", "1e-4", 0.5);
    for result in &mut with_gold.suites {
        let metrics = result.metrics.as_object_mut().expect("an object");
        let ceilings = json!([{"metric": "mean", "value": 0.875}]);
        metrics.insert("ceilings".to_owned(), ceilings);
    }
    let table = compare_runs(&[with_gold], FACTS).expect("objects");
    let table_json = serde_json::to_string(&table).expect("serialisable");
    assert!(table_json.contains("0.500 (gold: 0.875)"), "{table_json}");
}
