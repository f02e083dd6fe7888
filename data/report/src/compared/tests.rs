//! Several runs in one table, on the page and on a terminal.

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

fn slot(n: u64, mean: f64) -> Value {
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
            result("step 0", 0, slot(40, 0.25)),
            result("step 500", 500, slot(40, 0.375)),
            result("step 1000, best", 1_000, slot(40, best)),
        ],
        ..ReportRun::default()
    }
}

fn words(name: &str) -> Option<&'static str> {
    (name == "slot.mean").then_some("mean of two")
}

#[test]
fn runs_stand_beside_each_other_with_what_differs_and_what_they_came_to() {
    let runs = [
        run("slow", "1e-5", 0.5),
        run("a|b", "1e-4", 0.75),
        run("c", "1e-4", 0.625),
    ];
    let table = compare_runs(&runs, words).expect("objects");
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
    assert_eq!(table.results[2].words, Some("mean of two"));
    let same = [run("one", "1e-5", 0.5), run("two", "1e-5", 0.5)];
    let same = compare_runs(&same, words).expect("objects").markdown();
    assert!(same.starts_with("the runs do not differ"), "{same}");
}

#[test]
fn runs_are_compared_by_rows_of_one_kind_where_they_have_some() {
    let evaluated = |mut of: ReportRun, n: u64, mean: f64| {
        of.evaluations = vec![
            result("base", 0, slot(n, 0.125)),
            result("best", 1_000, slot(n, mean)),
        ];
        of
    };
    let of = |runs: &[ReportRun]| {
        let table = compare_runs(runs, words).expect("objects");
        table.markdown()
    };
    let both = of(&[
        evaluated(run("a", "1", 0.5), 100, 0.5),
        evaluated(run("b", "1", 0.5), 100, 0.75),
    ]);
    assert!(both.contains("| slot: samples |  | 100 | 100 |"), "{both}");
    assert!(both.contains("| slot.mean | best | 0.500 [0.375, 0.625] | 0.750 ["));
    // One of them was evaluated on other rows: what both measured within the run is compared.
    let one = of(&[
        evaluated(run("a", "1", 0.5), 100, 0.5),
        run("b", "1", 0.625),
    ]);
    assert!(one.contains("| slot: samples |  | 40 | 40 |"), "{one}");
    // A run without any evaluation of its own is still compared, and the numbers say by what.
    let mut bare = evaluated(run("b", "1", 0.5), 100, 0.75);
    bare.suites.clear();
    bare.best = None;
    let bare = of(&[run("a", "1", 0.5), bare]);
    assert!(bare.contains("| slot: samples |  | 40 | 100 |"), "{bare}");
    assert!(
        bare.contains("| best checkpoint, step |  | 1,000 | – |"),
        "{bare}"
    );
}

#[test]
fn a_run_that_lacks_a_suite_has_dashes_and_its_last_checkpoint_stands_for_none_selected() {
    let mut other = run("b", "1", 0.5);
    other.best = None;
    for one in &mut other.suites {
        one.suite = SuiteResult::LOSS.to_owned();
        one.metrics = json!({"loss": one.step.unwrap_or(0) as f64 / 250.0});
    }
    let table = compare_runs(&[run("a", "1", 0.5), other], words).expect("objects");
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
fn what_the_gold_scores_stands_beside_the_value_of_each_run() {
    let mut one = run("a", "1e-4", 0.5);
    for result in &mut one.suites {
        let metrics = result.metrics.as_object_mut().expect("an object");
        let ceilings = json!([{"metric": "mean", "value": 0.875}]);
        metrics.insert("ceilings".to_owned(), ceilings);
    }
    let table = compare_runs(&[one], words).expect("objects");
    let shown = serde_json::to_string(&table).expect("serialisable");
    assert!(shown.contains("0.500 (the gold 0.875)"), "{shown}");
}
