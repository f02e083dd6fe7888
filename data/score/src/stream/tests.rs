//! The worked examples, and lines that cannot be read.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use serde_json::{Value, json};
use tooltune_suites::{EncoderError, HashEncoder};

use super::*;
use tooltune_suites::operations::Encoders;

use crate::operations;

/// Worked examples: `{id, op, input, options?, expected}`; `expected` may be `{"error": kind}`.
const SUITES: [&str; 7] = [
    include_str!("../../tests/fixtures/score/slot.jsonl"),
    include_str!("../../tests/fixtures/score/goat.jsonl"),
    include_str!("../../tests/fixtures/score/toolqa.jsonl"),
    include_str!("../../tests/fixtures/score/flat.jsonl"),
    include_str!("../../tests/fixtures/score/data.jsonl"),
    include_str!("../../tests/fixtures/score/nestful.jsonl"),
    include_str!("../../tests/fixtures/score/calls.jsonl"),
];

fn examples() -> impl Iterator<Item = &'static str> {
    SUITES.iter().flat_map(|suite| suite.lines())
}

fn assert_agrees(found: &Value, expected: &Value, id: &Value) {
    match (found, expected) {
        (Value::Number(found), Value::Number(expected)) => {
            let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
            assert!(
                (found - expected).abs() <= 1e-9,
                "{id}: {found} for {expected}"
            );
        }
        (Value::Array(found), Value::Array(expected)) => {
            assert_eq!(found.len(), expected.len(), "{id}");
            found
                .iter()
                .zip(expected)
                .for_each(|(f, e)| assert_agrees(f, e, id));
        }
        (Value::Object(found), Value::Object(expected)) => {
            assert!(
                found.keys().eq(expected.keys()),
                "{id}: {found:?} for {expected:?}"
            );
            found
                .values()
                .zip(expected.values())
                .for_each(|(f, e)| assert_agrees(f, e, id));
        }
        _ => assert_eq!(found, expected, "{id}"),
    }
}

#[test]
fn every_worked_example_agrees() {
    let outside = Outside::default();
    for (line_idx, line) in examples().enumerate() {
        let example = json::parse(line).expect("an example is JSON");
        let (id, expected) = (&example["id"], &example["expected"]);
        let scored = score_line(line, line_idx + 1, &outside);
        assert_eq!(&scored.id, id);
        match &scored.outcome {
            Ok(value) => assert_agrees(value, expected, id),
            Err(error) => assert_eq!(&json!({"error": error.kind()}), expected, "{id}: {error}"),
        }
    }
}

#[test]
fn the_worked_examples_cover_every_operation() {
    let parsed = examples().map(|line| json::parse(line).expect("an example is JSON"));
    let shown: BTreeSet<String> = parsed
        .filter_map(|example| Some(example["op"].as_str()?.to_owned()))
        .collect();
    for operation in operations() {
        assert!(
            shown.contains(operation.name),
            "{} has no example",
            operation.name
        );
    }
}

#[test]
fn names_of_operations_are_unique_and_each_says_what_it_reads() {
    let names: Vec<&str> = operations().map(|operation| operation.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    for operation in operations() {
        assert!(!operation.fields.is_empty() && !operation.definition.contains('\n'));
    }
}

#[test]
fn a_bad_line_is_answered_in_its_place_and_the_later_ones_are_scored() {
    let input = b"{\"id\": 1, \"op\": \"slot.parse\", \"input\": {\"raw\": \"[]\"}}\r\n\
        not json\n\
        \xff\xfe\n\
        \n\
        {\"id\": \"e\", \"op\": \"slot.dataset\", \"input\": {\"rows\": []}, \
         \"options\": {\"encoder\": \"hash\"}}\n\
        {\"id\": [2], \"op\": \"slot.parse\", \"input\": {\"raw\": \"[\"}}";
    let mut output = Vec::new();
    let summary = score_stream(&input[..], &mut output, &Outside::default()).expect("in memory");
    assert_eq!(
        summary,
        Summary {
            n_lines: 6,
            n_malformed: 3,
            n_without_value: 1
        }
    );
    let output = String::from_utf8(output).expect("UTF-8");
    let answers: Vec<Value> = output
        .lines()
        .map(|line| json::parse(line).expect("an answer is JSON"))
        .collect();
    assert_eq!(answers[0], json!({"id": 1, "value": true}));
    for (line_no, answer) in (2..=4).zip(&answers[1..4]) {
        assert_eq!(answer["id"], Value::Null);
        assert_eq!(answer["error"]["kind"], json!("malformed_line"));
        assert_eq!(answer["error"]["line"], json!(line_no));
    }
    assert_eq!(answers[4]["error"]["kind"], json!("empty_dataset"));
    assert_eq!(answers[5], json!({"id": [2], "value": false}));
}

#[test]
fn an_error_names_the_line_and_the_field() {
    let message = |line: &str| match score_line(line, 7, &Outside::default()).outcome {
        Ok(value) => panic!("scored as {value}"),
        Err(error) => (error.kind(), error.to_string()),
    };
    let row = r#"{"op":"slot.dataset","input":{"rows":[{"raw":"","json_schema":{},"gold":1},{"raw":1}]}}"#;
    assert_eq!(
        message(row),
        (
            "wrong_type",
            "field `input.rows[1].raw` must be a string".into()
        )
    );
    assert_eq!(
        message(r#"{"op": "slot.parse", "input": {}}"#),
        ("missing_field", "field `input.raw` is missing".into())
    );
    assert_eq!(
        message(r#"{"op": "slot.parse"}"#).1,
        "field `input` is missing"
    );
    assert_eq!(message(r#"{"input": {}}"#).1, "field `op` is missing");
    assert_eq!(
        message(r#"{"op": "slot.prase", "input": {}}"#).0,
        "unknown_op"
    );
    let written = score_line("[1]", 7, &Outside::default()).to_string();
    assert!(
        written.contains("\"message\": \"line 7: the line is JSON but no object;"),
        "{written}"
    );
}

const SIMILARITY: &str = r#"{"op": "slot.value_sim", "input": {"a": "old town", "b": "new town"}}"#;

#[test]
fn minilm_is_the_default_encoder_and_is_loaded_once_and_only_when_needed() {
    let n_loads = Rc::new(Cell::new(0));
    let counter = Rc::clone(&n_loads);
    let encoders = Encoders::with_minilm(Box::new(move || {
        counter.set(counter.get() + 1);
        Ok(Box::new(HashEncoder))
    }));
    let outside = Outside::from(encoders);
    let hashed = SIMILARITY.replace("}}", "}, \"options\": {\"encoder\": \"hash\"}}");
    let by_hash = score_line(&hashed, 1, &outside).outcome;
    assert_eq!(n_loads.get(), 0);
    assert_eq!(score_line(SIMILARITY, 2, &outside).outcome, by_hash);
    assert_eq!(score_line(SIMILARITY, 3, &outside).outcome, by_hash);
    assert_eq!(n_loads.get(), 1);
    assert!(by_hash.is_ok());
}

#[test]
fn an_encoder_that_is_absent_or_fails_to_load_is_an_error_of_the_line() {
    let failing = Encoders::with_minilm(Box::new(|| {
        Err(EncoderError::Failed(Box::from(
            "models/minilm/model.safetensors is absent",
        )))
    }));
    for outside in [Outside::default(), failing.into()] {
        let error = score_line(SIMILARITY, 1, &outside)
            .outcome
            .expect_err("no weights");
        assert_eq!(error.kind(), "encoder_unavailable");
        assert!(!error.is_malformed());
    }
    let unknown = SIMILARITY.replace("}}", "}, \"options\": {\"encoder\": \"bert\"}}");
    let error = score_line(&unknown, 1, &Outside::default())
        .outcome
        .expect_err("unknown");
    assert_eq!(
        error.to_string(),
        "field `options.encoder` must be \"minilm\" or \"hash\""
    );
}

#[test]
fn a_reader_that_breaks_off_is_an_error_with_its_line() {
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _buffer: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("unplugged"))
        }
    }
    let good = r#"{"op": "slot.parse", "input": {"raw": "1"}}"#.to_owned() + "\n";
    let reader = std::io::BufReader::new(std::io::Read::chain(good.as_bytes(), Broken));
    let error = score_stream(reader, Vec::new(), &Outside::default()).expect_err("broken");
    assert_eq!(
        error.to_string(),
        "line 2: the input cannot be read: unplugged"
    );
}

#[test]
fn a_line_without_end_is_answered_in_its_place_and_the_next_ones_are_scored() {
    let good = r#"{"op": "slot.parse", "input": {"raw": "1"}}"#;
    // One byte beyond the limit, which is the line's end, and then far beyond it.
    let lines = [
        good.to_owned(),
        " ".repeat(100),
        "[".repeat(1_000_000),
        good.to_owned(),
    ];
    let mut output = Vec::new();
    let input = lines.join("\n");
    let summary = score_lines(input.as_bytes(), &mut output, &Outside::default(), 100).unwrap();
    assert_eq!((summary.n_lines, summary.n_malformed), (4, 2));
    let output = String::from_utf8(output).unwrap();
    let answers: Vec<Value> = output.lines().map(|l| json::parse(l).unwrap()).collect();
    for answer in [0, 3].map(|place| &answers[place]) {
        assert_eq!(answer["value"], json!(true));
    }
    for (place, line_no) in [(1, 2), (2, 3)] {
        let error = &answers[place]["error"];
        assert_eq!(error["kind"], "malformed_line");
        let said = format!("line {line_no}: the line has more than 100 bytes, the most that");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&said), "{message}");
    }
}
