//! Tests of binding, running, comparing, replaying and reporting.

use super::*;

fn run_one(call: &str) -> String {
    format!("[{call}]")
}

fn divide(arg_0: &str, arg_1: &str) -> String {
    let arguments = format!(r#"{{"arg_0": {arg_0}, "arg_1": {arg_1}}}"#);
    run_one(&format!(
        r#"{{"name": "divide", "label": "$var_1", "arguments": {arguments}}}"#
    ))
}

fn failure(text: &str, binding: Binding) -> String {
    let row = berths_row();
    Sequence::bind(&calls(text), &row.tools, binding)
        .map(|_| ())
        .expect_err("unbound")
        .to_string()
}

#[test]
fn the_gold_calls_win_and_so_do_other_calls_with_the_same_result() {
    assert_eq!(score_wins(&berths_row(), BERTHS), (Some(true), true));
    let other = r#"[{"name": "subtract", "label": "x", "arguments": {"arg_0": 30, "arg_1": 3.0}}]"#;
    assert_eq!(score_wins(&berths_row(), other), (Some(true), true));
    assert_eq!(
        score_wins(&berths_row(), &BERTHS.replace("12", "13")),
        (Some(false), false)
    );
}

#[test]
fn an_unbindable_call_is_an_error_with_the_reason() {
    let add = |label: &str, arg_0: &str| {
        format!(r#"{{"name": "add", {label}"arguments": {{"arg_0": {arg_0}, "arg_1": 1}}}}"#)
    };
    let labelled = |arg_0: &str| add("\"label\": \"$var_1\", ", arg_0);
    let second = |reference: &str| format!("[{}, {}]", labelled("1"), labelled(reference));
    let rows = [
        ("[]".to_owned(), "call 0: there are no calls"),
        (run_one(&add("", "1")), "call 0: it has no label"),
        (run_one("5"), "call 0: it has no label"),
        (
            run_one(&labelled("1").replace("add", "cos")),
            "call 0: no tool \"cos\" is on offer",
        ),
        (
            run_one(&labelled("1").replace("add", "sqrt")),
            "call 0: sqrt has 2 outputs, not one",
        ),
        (
            run_one(&labelled("1").replace("arguments", "parameters")),
            "call 0: it has no object of arguments",
        ),
        (
            second("\"$var_7.result$\""),
            "call 1: no earlier call has the label \"var_7\"",
        ),
        (
            second("\"$\""),
            "call 1: the reference \"\" names no output",
        ),
        (
            second("\"$var_1$\""),
            "call 1: the reference \"var_1\" names no output",
        ),
        (
            second("\"$var_1.sum$\""),
            "call 1: var_1 has no output \"sum\", but \"result\"",
        ),
        (
            run_one(&labelled("\"$var_1.result$\"")),
            "call 0: no earlier call has the label \"var_1\"",
        ),
    ];
    for (text, expected) in rows {
        assert_eq!(failure(&text, Binding::Position), expected, "{text}");
    }
    let gap = r#"[{"name": "add", "label": "l", "arguments": {"arg_0": 1, "arg_2": 1}}]"#;
    assert_eq!(
        failure(gap, Binding::Name),
        "call 0: add has no argument arg_1"
    );
}

#[test]
fn references_are_whole_arguments_and_may_lack_the_final_marker() {
    for (reference, is_win) in [
        ("\"$var_1.result$\"", true),
        ("\"$var_1.result\"", true),
        ("\"var_1.result\"", false),
        ("[\"$var_1.result$\"]", false),
        ("{\"r\": \"$var_1.result$\"}", false),
    ] {
        let completion = BERTHS.replace("\"$var_1.result$\"", reference);
        assert_eq!(
            score_wins(&berths_row(), &completion),
            (Some(is_win), is_win),
            "{reference}"
        );
    }
    // If two calls have the same label, the last call is used. Other labels need both dollar signs.
    let with_duplicate = BERTHS.replace(
        "[\n",
        "[{\"name\": \"add\", \"label\": \"var_1\", \
        \"arguments\": {\"arg_0\": 0, \"arg_1\": 0}},\n",
    );
    assert_eq!(
        score_wins(&berths_row(), &with_duplicate),
        (Some(true), true)
    );
    let renamed = BERTHS.replace("var_1", "quay");
    assert_eq!(score_wins(&berths_row(), &renamed), (Some(true), true));
    assert_eq!(
        score_wins(&berths_row(), &renamed.replace("result$", "result")),
        (Some(false), false)
    );
}

#[test]
fn arguments_are_bound_by_position_or_by_name() {
    let row = row(&divide("30", "4"), "7.5");
    let with = |arguments: &str| {
        run_one(&format!(
            r#"{{"name": "divide", "label": "$v", "arguments": {arguments}}}"#
        ))
    };
    let rows = [
        (r#"{"arg_0": 30, "arg_1": 4}"#, true, true),
        (r#"{"arg_1": 4, "arg_0": 30}"#, false, true),
        (r#"{"dividend": 30, "divisor": 4}"#, true, false),
        (r#"{"arg_1": 30, "arg_2": 4}"#, true, false),
        (r#"{"arg_0": 30}"#, false, false),
        (r#"{"arg_0": 30, "arg_1": 4, "arg_2": 1}"#, false, false),
    ];
    for (arguments, official, strict) in rows {
        assert_eq!(
            score_wins(&row, &with(arguments)),
            (Some(official), strict),
            "{arguments}"
        );
    }
    let power = |arguments: &str| {
        run_one(&format!(
            r#"{{"name": "power", "label": "$v", "arguments": {arguments}}}"#
        ))
    };
    let row = super::row(&power(r#"{"arg_0": 2, "arg_1": 3}"#), "8");
    for (arguments, strict) in [
        (r#"{"base": 2, "exponent": 3}"#, true),
        (r#"{"exponent": 3, "base": 2}"#, true),
        (r#"{"exponent": 3, "arg_0": 2}"#, true),
        (r#"{"exponent": 3}"#, false),
        (r#"{"arg_0": 2, "base": 2}"#, false),
        (r#"{"arg_0": 2, "e": 3}"#, false),
    ] {
        assert_eq!(score_wins(&row, &power(arguments)).1, strict, "{arguments}");
    }
}

#[test]
fn a_failed_execution_counts_as_zero_officially_and_as_a_loss_strictly() {
    let failing = divide("7", "0");
    for (gold_answer, official) in [
        ("0", true),
        ("0.0", true),
        ("false", true),
        ("1", false),
        ("null", false),
    ] {
        let row = row(BERTHS, gold_answer);
        assert_eq!(
            score_wins(&row, &failing),
            (Some(official), false),
            "{gold_answer}"
        );
        assert_eq!(
            score_wins(&row, "[]"),
            (Some(false), false),
            "no calls never win"
        );
        assert_eq!(
            score_wins(&row, "nothing"),
            (Some(false), false),
            "text that is not a list never wins"
        );
    }
}

#[test]
fn golds_with_an_exponent_crash_the_published_scorer_or_cannot_be_matched() {
    let tiny = row(&divide("1", "100000"), "1e-05");
    assert_eq!(score_wins(&tiny, &divide("1", "100000")), (None, true));
    assert_eq!(
        score_wins(&tiny, &divide("1.4", "100000")),
        (None, true),
        "1.4e-05 at five decimals"
    );
    assert_eq!(
        score_wins(&tiny, &divide("1", "0")),
        (Some(false), false),
        "false is not a float"
    );
    let small = row(&divide("1.5", "10000000"), "1.5e-07");
    assert_eq!(
        score_wins(&small, &divide("1.5", "10000000")),
        (Some(false), true)
    );
    let large = row(BERTHS, "1e+22");
    let power = r#"[{"name": "power", "label": "v", "arguments": {"arg_0": 10.0, "arg_1": 22}}]"#;
    assert_eq!(score_wins(&large, power), (None, true));
}

#[test]
fn only_floats_are_rounded_to_the_decimals_of_the_gold() {
    let third = row(&divide("1", "3"), "0.33");
    assert_eq!(score_wins(&third, &divide("1", "3")), (Some(true), true));
    assert_eq!(score_wins(&third, &divide("1", "4")), (Some(false), false));
    let two = row(&divide("4", "2"), "2");
    assert_eq!(
        score_wins(&two, &divide("4", "2")),
        (Some(true), true),
        "2.0 is 2"
    );
    assert_eq!(score_wins(&two, &divide("4.01", "2")), (Some(false), false));
    let text = row(&divide("4", "2"), "\"2\"");
    assert_eq!(score_wins(&text, &divide("4", "2")), (Some(false), false));
}

#[test]
fn booleans_lists_and_tuples_are_compared_as_in_python_or_strictly() {
    let value = |text: &str| Execution::Value(value(text));
    let compare = |execution: &Execution, gold: &str| {
        let gold = super::value(gold);
        (official_win(execution, &gold), strict_win(execution, &gold))
    };
    assert_eq!(compare(&value("true"), "1"), (Some(true), false));
    assert_eq!(compare(&value("true"), "true"), (Some(true), true));
    assert_eq!(
        compare(&value("[1, true]"), "[1.0, 1]"),
        (Some(true), false)
    );
    assert_eq!(compare(&value("[0.333]"), "[0.33]"), (Some(false), false));
    let tuple = |items: Vec<PyValue>| PyValue::Tuple(items);
    let nested = tuple(vec![super::value("1"), tuple(vec![super::value("2")])]);
    assert_eq!(
        compare(&Execution::Value(nested.clone()), "[1, [2]]"),
        (Some(true), true)
    );
    let within = Execution::Value(PyValue::List(vec![nested]));
    assert_eq!(
        compare(&within, "[[1, [2]]]"),
        (Some(false), false),
        "a list is not searched"
    );
    assert_eq!(compare(&value("NaN"), "NaN"), (None, false));
    assert_eq!(compare(&value("null"), "null"), (Some(true), true));
}

/// A row whose tools need Python.
fn words() -> NestfulRow {
    let line = r#"{"sample_id": "w", "input": "Join.", "gold_answer": "a b", "tools": [
        {"name": "join", "parameters": {"parts": {}}, "output_parameters": {"output_0": {}}}],
        "output": [{"name": "join", "arguments": {"parts": ["a", "b"]}, "label": "$var1"}]}"#;
    NestfulRow::new(&value(line)).expect("a row")
}

#[test]
fn rows_that_need_python_have_no_win_and_are_counted() {
    let words_row = words();
    assert!(!words_row.is_runnable(&MathRunner));
    assert_eq!(
        replay_gold(&words_row, &MathRunner).expect("ran"),
        GoldReplay::NeedsTools
    );
    let score = score_sample(&words_row, "oops", Parser::JsonList, &MathRunner).expect("a score");
    assert_eq!(score.win, Win::NeedsTools, "whatever the prediction is");
    let failing = row(BERTHS, "28");
    let GoldReplay::Fails { reason } = replay_gold(&failing, &MathRunner).expect("ran") else {
        panic!("28 was computed");
    };
    assert_eq!(reason, "the gold calls compute 27");
    let rows = [berths_row(), words_row, failing, berths_row()];
    let completions = [BERTHS, "[]", BERTHS, "no"];
    let (report, scores) =
        score_rows(&rows, &completions, Parser::JsonList, &MathRunner).expect("a report");
    assert_eq!(scores[2].win, Win::GoldFails);
    assert_eq!((report.n_need_tools, report.n_failed_golds), (1, 1));
    assert_eq!((report.overall.n, report.overall.n_run), (4, 2));
    let value = |name: &str| report.value(name).map(|estimate| estimate.value);
    assert_eq!(value("win_official"), Some(0.5));
    assert_eq!(value("win_strict"), Some(0.5));
    assert_eq!(value("partial"), Some(0.5));
    assert_eq!(value("full"), Some(0.5));
    assert_eq!(value("parse_error_rate"), Some(0.25));
    assert_eq!(value("alternate_trajectory"), Some(0.0));
    assert_eq!(value("f1"), None);
    assert!(
        NestfulReport::NAMES
            .iter()
            .all(|name| value(name).is_some())
    );
}

#[test]
fn a_report_has_groups_and_a_table() {
    let flat = row(&divide("4", "2"), "2");
    let rows = [berths_row(), flat.clone(), flat];
    let alternative = divide("8", "4");
    let completions = [BERTHS, &divide("4", "2"), &alternative];
    let (report, _) =
        score_rows(&rows, &completions, Parser::JsonList, &MathRunner).expect("a report");
    let groups = |groups: &[NestfulGroup]| -> Vec<(String, usize, f64)> {
        let line = |group: &NestfulGroup| {
            (
                group.group.clone(),
                group.metrics.n,
                group.metrics.full.value,
            )
        };
        groups.iter().map(line).collect()
    };
    let expected =
        |name: &str, other: &str| vec![(name.to_owned(), 2, 0.5), (other.to_owned(), 1, 1.0)];
    assert_eq!(groups(&report.by_depth), expected("0", "1"));
    assert_eq!(groups(&report.by_dependencies), expected("0", "1"));
    assert_eq!(groups(&report.by_pattern), expected("none", "chain"));
    let alternate = report.overall.alternate_trajectory.expect("all were run");
    assert_eq!(alternate.value, 1.0 / 3.0);
    let table = nestful_table(&[("base", &report)]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 7);
    let [function, parameter] =
        [report.f1_function, report.f1_parameter].map(|means| 100.0 * means.f1);
    assert!(function > 0.0 && parameter > 0.0);
    let start = format!("| base | 3 | {function:.1} | {parameter:.1} | 66.7 [");
    assert!(lines[2].starts_with(&start), "{}", lines[2]);
    assert!(
        lines[4].starts_with("| base, depth 1 | 1 | - | - | 100.0 [20.7, 100.0] |"),
        "{}",
        lines[4]
    );
    let report_file = serde_json::to_value(&report).expect("serialisable");
    assert_eq!(report_file["by_pattern"][1]["group"], "chain");
    assert_eq!(
        serde_json::from_value::<NestfulReport>(report_file).expect("read"),
        report
    );
}

#[test]
fn scoring_no_rows_or_unmatched_rows_is_an_error() {
    let no_rows = score_rows(&[], &[], Parser::JsonList, &MathRunner).expect_err("no rows");
    assert!(matches!(no_rows, NestfulError::NoSamples));
    let unpaired = score_rows(&[berths_row()], &[], Parser::JsonList, &MathRunner);
    let message = unpaired.expect_err("no completion").to_string();
    assert!(message.starts_with("0 predictions for 1 rows"), "{message}");
    let mut empty = berths_row();
    empty.output.clear();
    let error = score_sample(&empty, "[]", Parser::JsonList, &MathRunner).expect_err("no gold");
    assert!(matches!(error, NestfulError::EmptyGold));
}
