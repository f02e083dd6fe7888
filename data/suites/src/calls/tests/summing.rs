//! Aggregates of turns, by groups.

use super::*;

fn summary() -> CallsSummary {
    let broken_call = call("berth", json!({"ship": {"name": "Ada"}, "nights": "2"}));
    let expected_call = call("berth", json!({"ship": {"name": "Ada"}, "nights": 2}));
    CallsSummary::new(&[
        score_calls(vec![tide_call("Rye")], vec![tide_call("Rye")]),
        score_calls(
            vec![tide_call("Rye"), expected_call],
            vec![broken_call, tide_call("Hull")],
        ),
        score_calls(vec![tide_call("Rye")], vec![]),
        score_calls(vec![], vec![]),
        score_calls(vec![], vec![call("boat", json!({}))]),
        score_text(vec![tide_call("Rye")], "<tool_call>{</tool_call>"),
    ])
}

#[test]
fn shares_of_turns_calls_and_arguments_equal_a_manual_count() {
    let summary = summary();
    for (name, expected) in [
        ("right", 2.0 / 6.0),
        ("exact", 1.0 / 4.0),
        ("name", 3.0 / 5.0),
        ("arguments", 2.0 / 6.0),
        ("call_exact", 1.0 / 5.0),
        ("valid", 2.0 / 4.0),
        ("malformed_rate", 1.0 / 6.0),
        ("invented_rate", 1.0 / 6.0),
        ("unwanted_rate", 1.0 / 2.0),
        ("missed_rate", 1.0 / 4.0),
        ("extra_rate", 0.0),
    ] {
        let estimate = summary.value(name).expect("a number");
        assert_eq!(estimate.value, expected, "{name}");
        assert!(
            estimate.low <= expected && expected <= estimate.high,
            "{name}"
        );
    }
    assert_eq!(summary.value("speed"), None);
    let empty = CallsSummary::new(&[]);
    assert!(
        CallsSummary::NAMES
            .iter()
            .all(|name| empty.value(name).is_none())
    );
}

#[test]
fn groups_are_formed_by_number_of_calls_schema_depth_and_tool() {
    let summary = summary();
    let turns: Vec<(&str, usize)> = summary
        .by_n_calls
        .iter()
        .map(|group| (group.group.as_str(), group.metrics.n))
        .collect();
    assert_eq!(turns, [("0", 2), ("1", 3), ("2", 1)]);
    let calls = |groups: &[CallGroup]| {
        let group_lines = groups.iter().map(|group| {
            (
                group.group.clone(),
                group.n,
                group.exact.map(|exact| exact.value),
            )
        });
        group_lines.collect::<Vec<_>>()
    };
    let expected = [
        ("1".to_owned(), 4, Some(0.25)),
        ("2".to_owned(), 1, Some(0.0)),
    ];
    assert_eq!(calls(&summary.by_schema_depth), expected);
    let expected = [
        ("tide".to_owned(), 4, Some(0.25)),
        ("berth".to_owned(), 1, Some(0.0)),
    ];
    assert_eq!(calls(&summary.by_tool), expected);
    assert_eq!(summary.faults[&Rule::Value], 2);
    assert_eq!(summary.dialects["hermes"], 1);
}

#[test]
fn a_table_has_one_line_for_the_run_and_one_per_group() {
    let table = calls_table("this run", &summary());
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[2].starts_with("| this run | 6 | 33.3 ["), "{table}");
    assert!(
        lines[3].starts_with("| turns with 0 calls | 2 | 50.0 ["),
        "{table}"
    );
    assert!(lines[3].contains("| - | - |"), "{table}");
    assert!(
        table.contains("| schema depth 2 | 1 | 100.0 [20.7, 100.0] | 50.0 ["),
        "{table}"
    );
    assert!(table.contains("| tide | 4 | "), "{table}");
}

#[test]
fn a_score_survives_writing_and_reading() {
    let score = score_calls(vec![tide_call("Rye")], vec![tide_call("Hull")]);
    let text = serde_json::to_string(&score).expect("JSON");
    assert_eq!(
        serde_json::from_str::<TurnScore>(&text).expect("a score"),
        score
    );
}
