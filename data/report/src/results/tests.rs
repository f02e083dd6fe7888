//! Tests of the result tables, with metrics as suites write them and with unusual nesting.

use serde_json::{Value, json};
use tooltune_suites::HashEncoder;
use tooltune_suites::slot::{SlotRow, score_dataset};

use super::*;
use crate::SuiteResult;

const FACTS: MetricFacts = MetricFacts {
    plain_name,
    greater_is_better: |name| Some(name != "slot.malformed_rate"),
};

fn plain_name(name: &str) -> Option<&'static str> {
    (name == "slot.sa").then_some("selection accuracy")
}

fn tables_json(results: &[&[(&str, Value)]]) -> Value {
    let run = |results: &&[(&str, Value)]| ReportRun {
        name: "r".to_owned(),
        suites: results
            .iter()
            .map(|(label, metrics)| SuiteResult {
                suite: "slot".to_owned(),
                label: (*label).to_owned(),
                step: None,
                metrics: metrics.clone(),
            })
            .collect(),
        ..ReportRun::default()
    };
    let runs: Vec<ReportRun> = results.iter().map(run).collect();
    let suites = suites(&runs, FACTS).expect("objects");
    assert_eq!(suites.len(), 1);
    serde_json::to_value(&suites[0]).expect("serialisable")["tables"].clone()
}

/// Metrics as the slot suite writes them.
fn slot_metrics() -> Value {
    let schema = json!({"type": "object", "additionalProperties": false,
                        "properties": {"a": {}}});
    let golds = [json!({"a": "x"}), json!({"a": {"b": 1}})];
    let rows: Vec<SlotRow<'_>> = golds
        .iter()
        .map(|gold| SlotRow {
            raw: r#"{"a": "x", "c": 0}"#,
            schema: &schema,
            gold,
        })
        .collect();
    let (score, _) = score_dataset(&rows, &HashEncoder).expect("usable rows");
    serde_json::to_value(score).expect("serialisable")
}

#[test]
fn slot_metrics_become_metric_group_and_rule_tables() {
    let tables = tables_json(&[&[("best", slot_metrics())]]);
    assert_eq!(tables.as_array().map(Vec::len), Some(4));
    let overall = &tables[0];
    assert_eq!(
        (&overall["title"], &overall["n"]),
        (&json!(""), &json!("2"))
    );
    let n_rows = |key: &str| overall[key].as_array().map_or(0, Vec::len);
    assert_eq!(n_rows("rows") + n_rows("zeros"), 7);
    let zeros: Vec<&Value> = overall["zeros"].as_array().expect("rows").iter().collect();
    let zeros: Vec<&str> = zeros
        .iter()
        .filter_map(|row| row["name"].as_str())
        .collect();
    assert_eq!(
        zeros,
        [
            "slot.schema_accuracy",
            "slot.strict_keys_accuracy",
            "slot.exact_match"
        ]
    );
    let cell = &overall["rows"][0]["cells"][0];
    assert_eq!(overall["rows"][0]["name"], "slot.parse_rate");
    assert_eq!(
        (&cell["value"], &cell["interval"], &cell["n"]),
        (&json!("1.000"), &json!("0.342 to 1.000"), &json!("2"))
    );
    assert_eq!(
        cell["plot"],
        json!({"at": "100.00", "low": "34.24", "width": "65.76"})
    );
    let depths = &tables[1];
    assert_eq!(
        (&depths["title"], &depths["label"]),
        (&json!("by_depth"), &json!("depth"))
    );
    assert_eq!(depths["metrics"].as_array().map(Vec::len), Some(7));
    assert_eq!(depths["rows"][1]["name"], "2");
    assert_eq!(depths["rows"][1]["cells"][0]["n"], "1");
    let schema_accuracy = &depths["rows"][1]["cells"][0]["values"][1];
    assert_eq!(schema_accuracy["interval"], "0.000 to 0.793");
    let thirds = &tables[2];
    assert_eq!(
        (&thirds["title"], &thirds["label"]),
        (&json!("by_complexity"), &json!("complexity"))
    );
    assert_eq!(thirds["metrics"].as_array().map(Vec::len), Some(7));
    // A string of one character with one key, and a number with two keys.
    let names = [&thirds["rows"][0]["name"], &thirds["rows"][1]["name"]];
    assert_eq!(names, [&json!("3.1 to 3.1"), &json!("5.0 to 5.0")]);
    let parse_rate = &thirds["rows"][0]["cells"][0]["values"][0];
    assert_eq!(
        (&parse_rate["value"], &parse_rate["interval"]),
        (&json!("1.000"), &json!("0.207 to 1.000"))
    );
    let rules = &tables[3];
    assert_eq!(rules["rows"][0]["name"], "additionalProperties");
    assert_eq!(rules["rows"][0]["cells"][0]["value"], "2");
    assert_eq!(rules["has_interval"], false);
}

#[test]
fn results_are_side_by_side_with_the_change_from_the_first() {
    let first_metrics = json!({"n": 40, "sa": {"value": 0.5, "low": 0.4, "high": 0.6}, "sr": null});
    let other = json!({"n": 50, "sa": {"value": 0.375, "low": 0.25, "high": 0.5},
                       "delta_len": {"value": 1.5, "low": 1.0, "high": 2.0, "n": 7}});
    let tables = tables_json(&[
        &[("base", first_metrics.clone()), ("best", other)],
        &[("best", first_metrics)],
    ]);
    let rows = &tables[0]["rows"];
    let cells = |row: usize, field: &str| -> Vec<Value> {
        let cells = rows[row]["cells"].as_array().expect("cells");
        cells.iter().map(|cell| cell[field].clone()).collect()
    };
    assert_eq!(cells(0, "value"), ["0.500", "0.375", "0.500"]);
    assert_eq!(cells(0, "n"), ["40", "50", "40"]);
    assert_eq!(tables[0]["n"], Value::Null, "no one number of samples");
    // Two values share the best score, and the third is worse.
    assert_eq!(cells(0, "is_best"), [true, false, true]);
    assert_eq!(
        cells(0, "change"),
        [Value::Null, json!("−0.125"), json!("±0.000")]
    );
    assert_eq!(cells(1, "value"), ["none", "–", "none"]);
    assert_eq!(cells(1, "n"), ["–", "–", "–"]);
    assert_eq!(
        (&rows[2]["name"], cells(2, "n")),
        (
            &json!("slot.delta_len"),
            vec![json!("–"), json!("7"), json!("–")],
        )
    );
    assert!(rows[2]["cells"][1]["plot"].is_null(), "no fraction");
    assert_eq!(
        rows[0]["cells"][2]["source"],
        json!({"run": 1, "label": "best"})
    );
}

#[test]
fn counts_are_listed_below_the_metrics() {
    let metrics = |n: u64| {
        json!({"n": 9, "loss": 0.5, "sa": {"value": 0.5}, "n_loss_rows": n,
               "n_trained_tokens": 1_200, "finish_reasons": {"stop": 8, "length": 1}})
    };
    let tables = tables_json(&[&[("base", metrics(3)), ("best", metrics(4))]]);
    let rows = tables[0]["rows"].as_array().expect("rows");
    let names: Vec<&Value> = rows.iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["loss", "slot.sa"]);
    assert_eq!(rows[1]["plain_name"], "selection accuracy");
    let counts = &tables[0]["counts"];
    assert_eq!(counts[0]["text"], "n loss rows: 3, n trained tokens: 1,200");
    assert_eq!(counts[1]["source"]["label"], "best");
    // A table that has only counts is kept.
    let count_rows = tables[1]["rows"].as_array().expect("rows");
    assert_eq!(
        (count_rows.len(), &count_rows[0]["name"]),
        (2, &json!("stop"))
    );
}

#[test]
fn groups_are_found_in_arrays_and_by_keys() {
    let tables = tables_json(&[&[(
        "best",
        json!({
            "goat": {"n": 3, "sa": 0.5},
            "by_kind": {"string": {"n": 2, "f": {"value": 0.5, "low": 0.1, "high": 0.9}},
                        "date": {"n": 1, "scores": {"f": 1}}},
            "by_complexity": [{"n": 4, "bucket": "low", "mean": 0.25}],
            "note": "greedy", "ids": [1, 2], "ok": true, "none": {}
        }),
    )]]);
    let titled = |title: &str| {
        let tables = tables.as_array().expect("tables");
        tables
            .iter()
            .find(|table| table["title"] == title)
            .expect("a table")
            .clone()
    };
    assert_eq!(titled("goat")["rows"][0]["cells"][0]["value"], "0.500");
    let kinds = titled("by_kind");
    let names: Value = kinds["metrics"]
        .as_array()
        .expect("metrics")
        .iter()
        .map(|metric| metric["name"].clone())
        .collect();
    assert_eq!(
        (&kinds["label"], &names),
        (&json!("kind"), &json!(["slot.f", "scores.f"]))
    );
    let values = &kinds["rows"][0]["cells"][0]["values"];
    assert_eq!(
        values[0],
        json!({"value": "0.500", "interval": "0.100 to 0.900"})
    );
    assert_eq!(values[1]["value"], "–");
    let buckets = titled("by_complexity");
    assert_eq!(
        (&buckets["label"], &buckets["rows"][0]["name"]),
        (&json!("bucket"), &json!("low"))
    );
    let outer = titled("");
    let rows = outer["rows"].as_array().expect("rows");
    let texts: Vec<&Value> = rows.iter().map(|row| &row["cells"][0]["value"]).collect();
    assert_eq!(texts, ["greedy", "[1,2]", "yes", "none"]);
}

#[test]
fn rows_over_the_limit_are_counted() {
    let groups: Vec<Value> = (0..130).map(|n| json!({"depth": n, "f": 1.0})).collect();
    let tables = tables_json(&[&[("best", json!({"by_depth": groups}))]]);
    assert_eq!(tables[0]["rows"].as_array().map(Vec::len), Some(MAX_ROWS));
    assert_eq!(tables[0]["note"], "30 more rows not shown");
}

#[test]
fn non_object_metrics_are_an_error() {
    let run = ReportRun {
        name: "r".to_owned(),
        suites: vec![SuiteResult {
            suite: "slot".to_owned(),
            label: "best".to_owned(),
            step: None,
            metrics: json!([1]),
        }],
        ..ReportRun::default()
    };
    let error = suites(&[run], FACTS).expect_err("an array");
    assert!(
        error
            .to_string()
            .starts_with("r: the metrics of suite slot (best)"),
        "{error}"
    );
}

/// A ceiling is shown next to its metric at any nesting depth, and not in a table of its own.
#[test]
fn a_ceiling_is_shown_next_to_its_value() {
    let strict = json!({"value": 0.5, "low": 0.25, "high": 0.75});
    let ceilings = json!([{"metric": "strict", "value": 0.625}]);
    for metrics in [
        json!({"n": 4, "strict": strict, "ceilings": ceilings}),
        json!({"slot": {"n": 4, "strict": strict}, "ceilings": ceilings}),
    ] {
        let tables = tables_json(&[&[("best", metrics)]]);
        assert_eq!(tables.as_array().map(Vec::len), Some(1), "{tables}");
        let rows = &tables[0]["rows"];
        assert_eq!(rows.as_array().map(Vec::len), Some(1), "{tables}");
        assert_eq!(
            rows[0]["cells"][0]["value"], "0.500 (gold: 0.625)",
            "{tables}"
        );
    }
}
