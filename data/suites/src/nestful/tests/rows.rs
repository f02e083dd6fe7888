//! Tests of reading rows from files and writing them back.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use proptest::prelude::*;
use serde_json::Value;
use tooltune_apis::TextLines;
use tooltune_files::{FileFormat, convert};
use tooltune_json::python::{Booleans, dumps};

use super::*;

fn read(text: &str) -> Vec<Result<NestfulRow, NestfulError>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.jsonl");
    fs::write(&path, text).expect("written");
    read_nestful_rows(TextLines::open(&path).expect("opens")).collect()
}

fn message(text: &str) -> String {
    let mut rows = read(text);
    assert_eq!(rows.len(), 1, "{rows:?}");
    let message = rows.remove(0).expect_err("refused").to_string();
    let (_, after_name) = message.split_once("rows.jsonl").expect("the file is named");
    after_name.to_owned()
}

fn are_equal(left: &PyValue, right: &PyValue) -> bool {
    left.equals(right, Booleans::AreApart)
}

#[test]
fn both_field_spellings_and_nested_json_strings_are_read() {
    let plain = berths_row();
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
    assert!(are_equal(&PyValue::List(rows[0].output.clone()), &output));
    assert_eq!(dumps(&rows[0].gold_answer), "[1, NaN, 2.0]");
    assert_eq!(dumps(&rows[1].gold_answer), "\"27\"");
    // Unless the file stores JSON strings, a string is a string.
    assert_eq!(dumps(&row(BERTHS, "\"27\"").gold_answer), "\"27\"");
}

/// The rows of a file in any format that evaluations read.
fn read_file(path: &Path) -> Vec<Result<NestfulRow, NestfulError>> {
    let records = tooltune_files::open(path).expect("opens");
    read_nestful_rows(TextLines::from_records(records)).collect()
}

/// Writes `text` to a new file with the suffix `.json.gz`.
fn gzipped(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(format!("{name}.json.gz"));
    let file = fs::File::create(&path).expect("a file");
    let mut encoder = GzEncoder::new(file, flate2::Compression::default());
    encoder.write_all(text.as_bytes()).expect("written");
    encoder.finish().expect("written");
    path
}

#[test]
fn rows_are_read_from_gzipped_arrays_and_parquet() {
    let folder = tempfile::tempdir().expect("a folder");
    let expected = [berths_row(), row(BERTHS, "[1, 2.5, null]")];
    let lines: Vec<String> = expected.iter().map(NestfulRow::line).collect();
    // One array over many lines, with `output` and `tools` as values, as the benchmark publishes
    // `executable-data.json.gz`.
    let rows: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let array = serde_json::to_string_pretty(&rows).expect("JSON");
    let array = gzipped(folder.path(), "executable-data", &array);
    // Parquet on the Hugging Face Hub stores these fields as JSON strings.
    let texts = rows.iter().map(|row| {
        let mut row = row.clone();
        for field in ["output", "tools", "gold_answer"] {
            row[field] = row[field].to_string().into();
        }
        format!("{row}\n")
    });
    let source = folder.path().join("rows.jsonl");
    fs::write(&source, texts.collect::<String>()).expect("written");
    let parquet = folder.path().join("train.parquet");
    let form = FileFormat::from_path(&parquet).expect("a format");
    let out = fs::File::create(&parquet).expect("a file");
    convert(&[source], form, out, &mut || ()).expect("converted");
    for path in [array, parquet] {
        let read: Vec<String> = read_file(&path)
            .into_iter()
            .map(|row| row.expect("a row").line())
            .collect();
        assert_eq!(read, lines, "{}", path.display());
    }
    // The first published version has only questions and calls.
    let first_version = r#"[
      {
        "input": "How deep is the harbour?",
        "output": [{"name": "Depth", "arguments": {"port": "Rye"}, "label": "var1"}]
      }
    ]"#;
    let path = gzipped(folder.path(), "first-version", first_version);
    let mut rows = read_file(&path);
    assert_eq!(rows.len(), 1, "{rows:?}");
    let message = rows.remove(0).expect_err("no tools").to_string();
    assert!(message.contains("first-version.json.gz:1: "), "{message}");
    assert!(message.contains("tools"), "{message}");
}

#[test]
fn large_integers_and_key_orders_survive() {
    let gold = r#"[{"name": "add", "arguments": {"b": 123456789012345678901234567890, "a": 1e-05}, "label": "$var1"}]"#;
    let row_back = read(&row(gold, "1.0").line()).remove(0).expect("a row");
    assert_eq!(row_back.completion(), gold);
}

#[test]
fn an_error_names_file_line_and_field_and_the_next_row_is_read() {
    let valid_line = berths_row().line();
    let rows = read(&format!(
        "{valid_line}\n{{\"sample_id\": \n\n{valid_line}\n"
    ));
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
            ":1: field `sample_id` is missing; a row needs",
        ),
        (
            "\"s\"",
            "7",
            ":1: field `sample_id` is int; it must be a string",
        ),
        (
            "\"output\": [{",
            "\"output\": [5, {",
            ":1: field `output[0]` is int; it must be an object",
        ),
        (
            "\"name\": \"multiply\", \"label\"",
            "\"label\"",
            ":1: field `output[0].name` is missing",
        ),
        (
            "\"$var_1\"",
            "null",
            ":1: field `output[0].label` is NoneType; it must be a string",
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
        assert!(valid_line.contains(from), "{from}");
        let error_text = message(&valid_line.replacen(from, to, 1));
        assert!(error_text.starts_with(expected), "{error_text}");
    }
    let no_calls =
        r#"{"sample_id": "s", "input": "q", "output": [], "tools": [], "gold_answer": 1}"#;
    assert_eq!(
        message(no_calls),
        ":1: `output` has no calls; add at least one gold call"
    );
    assert!(message("\n").starts_with(": the file has no NESTFUL rows"));
    assert!(message("[1]").starts_with(":1: field `the line` is list; it must be an object"));
}

proptest! {
    #[test]
    fn written_rows_are_read_back_equal(
        id in ".*", input in ".*", first in any::<i128>(), second in prop::num::f64::NORMAL,
        text in ".*", holds in any::<bool>(),
    ) {
        let text = dumps(&PyValue::Text(text));
        let gold = format!(
            r#"[{{"name": "add", "label": "$var_1", "arguments": {{"x": {first}, "y": [{second:?}, {text}]}}}}]"#
        );
        let mut original = row(&gold, &format!("{{\"k\": [{text}, {holds}]}}"));
        original.sample_id = id;
        original.input = input;
        let read_back = read(&format!("{0}\n{0}\n", original.line()));
        prop_assert_eq!(read_back.len(), 2);
        for row in read_back {
            let row = row.expect("a row");
            prop_assert_eq!((&row.sample_id, &row.input), (&original.sample_id, &original.input));
            prop_assert!(are_equal(&row.gold_answer, &original.gold_answer));
            prop_assert_eq!(row.completion(), original.completion());
            prop_assert_eq!(row.line(), original.line());
        }
    }
}
