//! Tests of groups, denominators and the table.

use serde_json::json;

use super::*;
use AnswerStatus::{Answered, CodeError, ContextExceeded, NoCode, NoOutput};

fn answers() -> Vec<ScoredAnswer<'static>> {
    use AnswerMetric::{
        AccuracyString as Text, ApproxNumberMatch as Number, UnorderedListStrMatch as List,
    };
    let rows = [
        (
            "EXTRACTIVE",
            "Berths",
            Text,
            "quay 4",
            json!("Quay 4."),
            Answered,
        ),
        (
            "EXTRACTIVE",
            "Berths",
            Text,
            "quay 4",
            json!("at Quay 4"),
            Answered,
        ),
        (
            "AGGREGATION",
            "Tides",
            Number,
            "4",
            json!("3 or 4"),
            Answered,
        ),
        ("AGGREGATION", "Tides", Number, "4", json!(4), Answered),
        ("AGGREGATION", "Tides", Number, "4", json!(null), CodeError),
        ("FILTERING", "Tides", List, "a, b", json!(null), NoCode),
        (
            "FILTERING",
            "Berths",
            List,
            "a, b",
            json!(null),
            ContextExceeded,
        ),
        ("FILTERING", "Berths", List, "a, b", json!(null), NoOutput),
    ];
    rows.map(
        |(task_type, endpoint, metric, gold, answer, status)| ScoredAnswer {
            task_type,
            endpoint,
            metric,
            facts: AnswerFacts::default(),
            routed_as: None,
            score: ToolQaScore::from_answer(metric, gold, &answer, status),
        },
    )
    .to_vec()
}

#[test]
fn every_number_is_a_mean_over_the_samples_with_an_output() {
    let report = ToolQaReport::new(&answers()).expect("samples");
    let overall = &report.overall;
    assert_eq!((overall.n, report.n_without_output), (7, 1));
    assert_eq!(overall.exact_match.value, 2.0 / 7.0);
    assert_eq!(overall.exact_match_strict.value, 1.0 / 7.0);
    assert_eq!(overall.contains.value, 3.0 / 7.0);
    assert_eq!(overall.parse_error_rate.value, 1.0 / 7.0);
    assert_eq!(overall.judged, None);
    let counts = (
        overall.n_parse_errors,
        overall.n_code_errors,
        overall.n_context_exceeded,
    );
    assert_eq!(counts, (1, 1, 1));
    assert!(overall.exact_match.low <= overall.exact_match.value);
    assert!(overall.exact_match.high >= overall.exact_match.value);
}

#[test]
fn groups_are_counted_separately() {
    let report = ToolQaReport::new(&answers()).expect("samples");
    let values_of = |groups: &BTreeMap<String, ToolQaNumbers>| -> Vec<(String, usize, f64)> {
        let share = |(name, numbers): (&String, &ToolQaNumbers)| {
            (name.clone(), numbers.n, numbers.exact_match.value)
        };
        groups.iter().map(share).collect()
    };
    let row = |name: &str, n: usize, share: f64| (name.to_owned(), n, share);
    assert_eq!(
        values_of(&report.by_type),
        [
            row("AGGREGATION", 3, 1.0 / 3.0),
            row("EXTRACTIVE", 2, 0.5),
            row("FILTERING", 2, 0.0)
        ]
    );
    assert_eq!(
        values_of(&report.by_endpoint),
        [row("Berths", 3, 1.0 / 3.0), row("Tides", 4, 0.25)]
    );
    let numbers = &report.by_metric["approx_number_match"];
    assert_eq!(numbers.exact_match.value, 1.0 / 3.0);
    assert_eq!(numbers.exact_match_strict.value, 0.0);
}

#[test]
fn samples_without_a_verdict_are_not_in_the_judged_share() {
    let mut scored = answers();
    scored[0].score.judged = Some(true);
    scored[1].score.judged = Some(true);
    scored[2].score.judged = Some(false);
    let report = ToolQaReport::new(&scored).expect("samples");
    let judged = report.overall.value("judged").expect("judged");
    assert!((judged.value - 2.0 / 3.0).abs() < 1e-15);
    assert_eq!(report.by_type["FILTERING"].judged, None);
}

#[test]
fn a_report_without_any_output_is_an_error() {
    assert!(matches!(
        ToolQaReport::new(&[]),
        Err(ToolQaError::NoSamples)
    ));
    let without_output = &answers()[7..];
    assert!(matches!(
        ToolQaReport::new(without_output),
        Err(ToolQaError::NoSamples)
    ));
}

#[test]
fn every_metric_name_is_known_and_in_the_file() {
    let mut scored = answers();
    scored[0].score.judged = Some(true);
    let report = ToolQaReport::new(&scored).expect("samples");
    let names = ToolQaNumbers::NAMES;
    assert!(
        names
            .iter()
            .all(|name| report.overall.value(name).is_some())
    );
    assert_eq!(report.overall.value("f1"), None);
    let file = serde_json::to_value(&report).expect("written");
    assert_eq!(file["n"], json!(7));
    assert_eq!(
        file["by_type"]["EXTRACTIVE"]["contains"]["value"],
        json!(1.0)
    );
    let read_back: ToolQaReport = serde_json::from_value(file).expect("read");
    assert_eq!(read_back, report);
}

#[test]
fn the_table_has_a_line_for_each_group() {
    let report = ToolQaReport::new(&answers()[..2]).expect("samples");
    let table = toolqa_table(&report);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines[2],
        "| all | 2 | 50.0 [9.5, 90.5] | 50.0 [9.5, 90.5] | 100.0 [34.2, 100.0] | - | 0 | 0 | 0.0 [0.0, 79.3] | 0 |"
    );
    let names: Vec<&str> = lines[2..]
        .iter()
        .filter_map(|line| line.split(" | ").next())
        .collect();
    assert_eq!(
        names,
        ["| all", "| EXTRACTIVE", "| Berths", "| accuracy_string"]
    );
}
