//! Rows read from files and written back.

use std::fs;

use proptest::prelude::*;
use tooltune_rows::python::{Booleans, dumps};

use super::*;

fn read(text: &str) -> Vec<Result<NestfulRow, NestfulError>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.jsonl");
    fs::write(&path, text).expect("written");
    read_nestful_rows(&path).expect("opens").collect()
}

fn message(text: &str) -> String {
    let mut rows = read(text);
    assert_eq!(rows.len(), 1, "{rows:?}");
    let message = rows.remove(0).expect_err("refused").to_string();
    let (_, rest) = message.split_once("rows.jsonl").expect("the file is named");
    rest.to_owned()
}

fn same(left: &PyValue, right: &PyValue) -> bool {
    left.equals(right, Booleans::AreApart)
}

#[test]
fn both_spellings_and_both_layers_are_read() {
    let plain = berths();
    assert_eq!(plain.tools.len(), 7);
    assert_eq!(plain.tools[2].outputs, ["result"]);
    assert_eq!(plain.tools[0].parameters, ["arg_0", "arg_1"]);
    let text = |value: &PyValue| PyValue::Text(dumps(value));
    let specs = PyValue::List(plain.tools.iter().map(|tool| tool.spec.clone()).collect());
    let output = PyValue::List(plain.output.clone());
    let layered = |answer: &str| {
        format!(
            "{{\"sample_id\": \"s\", \"input\": \"q\", \"output\": {}, \"tools\": {}, \"gold_answer\": {}}}\n",
            dumps(&text(&output)),
            dumps(&text(&specs)),
            dumps(&PyValue::Text(answer.to_owned())),
        )
    };
    let rows = read(&format!(
        "{}{}",
        layered("[1, NaN, 2.0]"),
        layered("\"27\"")
    ));
    let rows: Vec<NestfulRow> = rows.into_iter().map(|row| row.expect("a row")).collect();
    assert!(same(&PyValue::List(rows[0].output.clone()), &output));
    assert_eq!(dumps(&rows[0].gold_answer), "[1, NaN, 2.0]");
    assert_eq!(dumps(&rows[1].gold_answer), "\"27\"");
    // Without the layer a text is a text.
    assert_eq!(dumps(&row(BERTHS, "\"27\"").gold_answer), "\"27\"");
}

#[test]
fn large_integers_and_orders_of_keys_survive() {
    let gold = r#"[{"name": "add", "arguments": {"b": 123456789012345678901234567890, "a": 1e-05}, "label": "$var1"}]"#;
    let read = read(&row(gold, "1.0").line()).remove(0).expect("a row");
    assert_eq!(read.completion(), gold);
}

#[test]
fn a_fault_names_file_line_and_field_and_the_next_row_is_read() {
    let good = berths().line();
    let rows = read(&format!("{good}\n{{\"sample_id\": \n\n{good}\n"));
    assert!(rows[0].is_ok() && rows[2].is_ok());
    let text = rows[1].as_ref().expect_err("broken").to_string();
    assert!(
        text.contains("rows.jsonl:2: the line is not valid JSON: byte 14"),
        "{text}"
    );
    for (from, to, expected) in [
        (
            "\"sample_id\"",
            "\"id\"",
            ":1: field `sample_id` is missing; a row has",
        ),
        (
            "\"s\"",
            "7",
            ":1: field `sample_id` is int, but must be a text",
        ),
        (
            "\"output\": [{",
            "\"output\": [5, {",
            ":1: field `output[0]` is int, but must be an object",
        ),
        (
            "\"name\": \"multiply\", \"label\"",
            "\"label\"",
            ":1: field `output[0].name` is missing",
        ),
        (
            "\"$var_1\"",
            "null",
            ":1: field `output[0].label` is NoneType, but must be a text",
        ),
        (
            "{\"arg_0\": 2, \"arg_1\": 12}",
            "[2]",
            ":1: field `output[0].arguments` is list",
        ),
        (
            "\"output_parameter\"",
            "\"outputs\"",
            ":1: field `tools[2].output_parameters` is missing",
        ),
        (
            "\"tools\": [",
            "\"tools\": \"[\", \"x\": [",
            ":1: tools is not valid JSON: byte 1",
        ),
        (
            "\"gold_answer\"",
            "\"answer\"",
            ":1: field `gold_answer` is missing",
        ),
    ] {
        assert!(good.contains(from), "{from}");
        let found = message(&good.replacen(from, to, 1));
        assert!(found.starts_with(expected), "{found}");
    }
    let no_calls =
        r#"{"sample_id": "s", "input": "q", "output": [], "tools": [], "gold_answer": 1}"#;
    assert_eq!(
        message(no_calls),
        ":1: the gold has no calls; a row's output needs at least one"
    );
    assert!(message("\n").starts_with(": the file holds no rows of NESTFUL"));
    assert!(message("[1]").starts_with(":1: field `the line` is list, but must be an object"));
    assert!(read_nestful_rows(std::path::Path::new("nowhere.jsonl")).is_err());
}

proptest! {
    #[test]
    fn rows_that_are_written_are_read_back(
        id in ".*", input in ".*", first in any::<i128>(), second in prop::num::f64::NORMAL,
        text in ".*", holds in any::<bool>(),
    ) {
        let text = dumps(&PyValue::Text(text));
        let gold = format!(
            r#"[{{"name": "add", "label": "$var_1", "arguments": {{"x": {first}, "y": [{second:?}, {text}]}}}}]"#
        );
        let mut written = row(&gold, &format!("{{\"k\": [{text}, {holds}]}}"));
        written.sample_id = id;
        written.input = input;
        let again = read(&nestful_lines(&[written.clone(), written.clone()]));
        prop_assert_eq!(again.len(), 2);
        for row in again {
            let row = row.expect("a row");
            prop_assert_eq!((&row.sample_id, &row.input), (&written.sample_id, &written.input));
            prop_assert!(same(&row.gold_answer, &written.gold_answer));
            prop_assert_eq!(row.completion(), written.completion());
            prop_assert_eq!(row.line(), written.line());
        }
    }
}
