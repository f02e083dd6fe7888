//! The metrics of suites, as they are written and as they might be, to the tables of the page.

use serde_json::{Value, json};
use tooltune_suites::HashEncoder;
use tooltune_suites::slot::{SlotRow, score_dataset};

use super::*;
use crate::SuiteResult;

fn words(name: &str) -> Option<&'static str> {
    (name == "slot.sa").then_some("selection accuracy")
}

fn shown(results: &[&[(&str, Value)]]) -> Value {
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
    let suites = suites(&runs, words).expect("objects");
    assert_eq!(suites.len(), 1);
    serde_json::to_value(&suites[0]).expect("serialisable")["tables"].clone()
}

/// The report of the suite slot, as it is written.
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
fn the_report_of_slot_is_a_table_of_metrics_two_of_groups_and_one_of_rules() {
    let tables = shown(&[&[("best", slot_metrics())]]);
    assert_eq!(tables.as_array().map(Vec::len), Some(4));
    let overall = &tables[0];
    assert_eq!(
        (&overall["title"], &overall["has_n"]),
        (&json!(""), &json!(true))
    );
    assert_eq!(overall["rows"].as_array().map(Vec::len), Some(7));
    let cell = &overall["rows"][0]["cells"][0];
    assert_eq!(overall["rows"][0]["name"], "slot.parse_rate");
    assert_eq!(
        (&cell["value"], &cell["interval"], &cell["n"]),
        (&json!("1.000"), &json!("1.000 to 1.000"), &json!("2"))
    );
    assert_eq!(
        cell["plot"],
        json!({"at": "100.00", "low": "100.00", "width": "0.00"})
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
    assert_eq!(schema_accuracy["interval"], "0.000 to 0.000");
    let thirds = &tables[2];
    assert_eq!(
        (&thirds["title"], &thirds["label"]),
        (&json!("by_complexity"), &json!("complexity"))
    );
    assert_eq!(thirds["metrics"].as_array().map(Vec::len), Some(7));
    // A text of one character below a key, and a number below two.
    let names = [&thirds["rows"][0]["name"], &thirds["rows"][1]["name"]];
    assert_eq!(names, [&json!("3.1 to 3.1"), &json!("5.0 to 5.0")]);
    let parse_rate = &thirds["rows"][0]["cells"][0]["values"][0];
    assert_eq!(
        (&parse_rate["value"], &parse_rate["interval"]),
        (&json!("1.000"), &json!("1.000 to 1.000"))
    );
    let rules = &tables[3];
    assert_eq!(rules["rows"][0]["name"], "additionalProperties");
    assert_eq!(rules["rows"][0]["cells"][0]["value"], "2");
    assert_eq!(rules["has_interval"], false);
}

#[test]
fn results_stand_beside_each_other_with_the_change_to_the_first() {
    let one = json!({"n": 40, "sa": {"value": 0.5, "low": 0.4, "high": 0.6}, "sr": null});
    let other = json!({"n": 50, "sa": {"value": 0.375, "low": 0.25, "high": 0.5},
                       "delta_len": {"value": 1.5, "low": 1.0, "high": 2.0, "n": 7}});
    let tables = shown(&[&[("base", one.clone()), ("best", other)], &[("best", one)]]);
    let rows = &tables[0]["rows"];
    let cells = |row: usize, field: &str| -> Vec<Value> {
        let cells = rows[row]["cells"].as_array().expect("cells");
        cells.iter().map(|cell| cell[field].clone()).collect()
    };
    assert_eq!(cells(0, "value"), ["0.500", "0.375", "0.500"]);
    assert_eq!(cells(0, "n"), ["40", "50", "40"]);
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
fn counts_are_no_metrics_and_stand_below_them() {
    let metrics = |n: u64| {
        json!({"n": 9, "loss": 0.5, "sa": {"value": 0.5}, "n_loss_rows": n,
               "n_learned_tokens": 1_200, "finish_reasons": {"stop": 8, "length": 1}})
    };
    let tables = shown(&[&[("base", metrics(3)), ("best", metrics(4))]]);
    let rows = tables[0]["rows"].as_array().expect("rows");
    let names: Vec<&Value> = rows.iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["loss", "slot.sa"]);
    assert_eq!(rows[1]["words"], "selection accuracy");
    let counts = &tables[0]["counts"];
    assert_eq!(counts[0]["text"], "n loss rows: 3, n learned tokens: 1,200");
    assert_eq!(counts[1]["source"]["label"], "best");
    // A table of counts alone is one.
    let ends = tables[1]["rows"].as_array().expect("rows");
    assert_eq!((ends.len(), &ends[0]["name"]), (2, &json!("stop")));
}

#[test]
fn groups_are_found_in_arrays_and_under_names_with_by() {
    let tables = shown(&[&[(
        "best",
        json!({
            "goat": {"n": 3, "sa": 0.5},
            "by_kind": {"string": {"n": 2, "f": {"value": 0.5, "low": 0.1, "high": 0.9}},
                        "date": {"n": 1, "scores": {"f": 1}}},
            "by_complexity": [{"n": 4, "bucket": "low", "mean": 0.25}],
            "note": "greedy", "ids": [1, 2], "ok": true, "none": {}
        }),
    )]]);
    let of = |title: &str| {
        let tables = tables.as_array().expect("tables");
        tables
            .iter()
            .find(|table| table["title"] == title)
            .expect("a table")
            .clone()
    };
    assert_eq!(of("goat")["rows"][0]["cells"][0]["value"], "0.500");
    let kinds = of("by_kind");
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
    let buckets = of("by_complexity");
    assert_eq!(
        (&buckets["label"], &buckets["rows"][0]["name"]),
        (&json!("bucket"), &json!("low"))
    );
    let outer = of("");
    let rows = outer["rows"].as_array().expect("rows");
    let texts: Vec<&Value> = rows.iter().map(|row| &row["cells"][0]["value"]).collect();
    assert_eq!(texts, ["greedy", "[1,2]", "yes", "none"]);
}

#[test]
fn rows_beyond_the_bound_are_counted() {
    let groups: Vec<Value> = (0..130).map(|n| json!({"depth": n, "f": 1.0})).collect();
    let tables = shown(&[&[("best", json!({"by_depth": groups}))]]);
    assert_eq!(tables[0]["rows"].as_array().map(Vec::len), Some(MAX_ROWS));
    assert_eq!(tables[0]["note"], "30 more rows not shown");
}

#[test]
fn metrics_that_are_no_object_are_an_error() {
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
    let error = suites(&[run], words).expect_err("an array");
    assert!(
        error
            .to_string()
            .starts_with("r: the metrics of the suite slot (best)"),
        "{error}"
    );
}

/// What the gold scores stands beside the metric that it is of, also where a suite nests, and is no
/// table of its own.
#[test]
fn a_ceiling_stands_beside_its_value() {
    let strict = json!({"value": 0.5, "low": 0.25, "high": 0.75});
    let ceilings = json!([{"metric": "strict", "value": 0.625}]);
    for metrics in [
        json!({"n": 4, "strict": strict, "ceilings": ceilings}),
        json!({"slot": {"n": 4, "strict": strict}, "ceilings": ceilings}),
    ] {
        let tables = shown(&[&[("best", metrics)]]);
        assert_eq!(tables.as_array().map(Vec::len), Some(1), "{tables}");
        let rows = &tables[0]["rows"];
        assert_eq!(rows.as_array().map(Vec::len), Some(1), "{tables}");
        assert_eq!(
            rows[0]["cells"][0]["value"], "0.500 (the gold 0.625)",
            "{tables}"
        );
    }
}
