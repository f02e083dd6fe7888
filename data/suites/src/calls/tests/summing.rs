//! Sums of turns, by groups.

use super::*;

fn summary() -> CallsSummary {
    let broken = call("berth", json!({"ship": {"name": "Ada"}, "nights": "2"}));
    let wanted = call("berth", json!({"ship": {"name": "Ada"}, "nights": 2}));
    CallsSummary::new(&[
        made(vec![tide("Rye")], vec![tide("Rye")]),
        made(vec![tide("Rye"), wanted], vec![broken, tide("Hull")]),
        made(vec![tide("Rye")], vec![]),
        made(vec![], vec![]),
        made(vec![], vec![call("boat", json!({}))]),
        written(vec![tide("Rye")], "<tool_call>{</tool_call>"),
    ])
}

#[test]
fn shares_of_turns_calls_and_arguments_are_those_counted_by_hand() {
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
fn groups_are_by_number_of_calls_depth_of_schema_and_tool() {
    let summary = summary();
    let turns: Vec<(&str, usize)> = summary
        .by_n_calls
        .iter()
        .map(|group| (group.group.as_str(), group.metrics.n))
        .collect();
    assert_eq!(turns, [("0", 2), ("1", 3), ("2", 1)]);
    let calls = |groups: &[CallGroup]| {
        let shown = groups.iter().map(|group| {
            (
                group.group.clone(),
                group.n,
                group.exact.map(|exact| exact.value),
            )
        });
        shown.collect::<Vec<_>>()
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
fn a_table_has_a_line_for_the_run_and_for_each_group() {
    let table = calls_table("this run", &summary());
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[2].starts_with("| this run | 6 | 33.3 ["), "{table}");
    assert!(
        lines[3].starts_with("| turns of 0 calls | 2 | 50.0 ["),
        "{table}"
    );
    assert!(lines[3].contains("| - | - |"), "{table}");
    assert!(
        table.contains("| schema depth 2 | 1 | 100.0 [100.0, 100.0] | 50.0 ["),
        "{table}"
    );
    assert!(table.contains("| tide | 4 | "), "{table}");
}

#[test]
fn a_score_is_read_again_as_it_was_written() {
    let score = made(vec![tide("Rye")], vec![tide("Hull")]);
    let text = serde_json::to_string(&score).expect("JSON");
    assert_eq!(
        serde_json::from_str::<TurnScore>(&text).expect("a score"),
        score
    );
}
