//! Tests of worked examples, and of invalid lines.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use serde_json::{Value, json};
use tooltune_suites::{EncoderError, HashEncoder, SUITES};

use super::*;
use tooltune_suites::operations::Encoders;

use crate::operations;

/// The folder of worked examples, one file per suite.
const EXAMPLES: &str = "tests/fixtures/score";

/// Worked examples: `{id, op, input, options?, expected}`; `expected` may be `{"error": kind}`.
fn examples() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(EXAMPLES);
    let entries = fs::read_dir(folder).expect("the folder of worked examples");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let texts = files
        .iter()
        .map(|file| fs::read_to_string(file).expect("UTF-8"));
    texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

fn assert_agrees(actual: &Value, expected: &Value, id: &Value) {
    match (actual, expected) {
        (Value::Number(actual), Value::Number(expected)) => {
            let (actual, expected) = (actual.as_f64().unwrap(), expected.as_f64().unwrap());
            assert!(
                (actual - expected).abs() <= 1e-9,
                "{id}: {actual} for {expected}"
            );
        }
        (Value::Array(actual), Value::Array(expected)) => {
            assert_eq!(actual.len(), expected.len(), "{id}");
            actual
                .iter()
                .zip(expected)
                .for_each(|(f, e)| assert_agrees(f, e, id));
        }
        (Value::Object(actual), Value::Object(expected)) => {
            assert!(
                actual.keys().eq(expected.keys()),
                "{id}: {actual:?} for {expected:?}"
            );
            actual
                .values()
                .zip(expected.values())
                .for_each(|(f, e)| assert_agrees(f, e, id));
        }
        _ => assert_eq!(actual, expected, "{id}"),
    }
}

/// Invariant: Every metric operation agrees with worked examples.
#[test]
fn every_worked_example_agrees() {
    let outside = Outside::default();
    for (line_idx, line) in examples().iter().enumerate() {
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

/// The parsed worked examples of a suite, in the file with its name.
fn examples_of(suite: &str) -> Vec<Value> {
    let path = format!("{EXAMPLES}/{suite}.jsonl");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(&path);
    let text = fs::read_to_string(file);
    let text = text.unwrap_or_else(|_| {
        panic!("the suite {suite} has no worked examples: write data/score/{path}")
    });
    let lines = text.lines();
    lines
        .map(|line| json::parse(line).expect("an example is JSON"))
        .collect()
}

/// Invariant: Every metric operation agrees with worked examples.
#[test]
fn the_worked_examples_cover_every_operation() {
    let lines = examples();
    let parsed = lines
        .iter()
        .map(|line| json::parse(line).expect("an example is JSON"));
    let covered: BTreeSet<String> = parsed
        .filter_map(|example| Some(example["op"].as_str()?.to_owned()))
        .collect();
    for suite in SUITES {
        let needs_operations = suite.needs.generator && !suite.needs.agents;
        assert!(
            !needs_operations || !suite.operations.is_empty(),
            "the suite {} has no operations",
            suite.name
        );
        if !suite.operations.is_empty() {
            examples_of(suite.name);
        }
    }
    for operation in operations() {
        assert!(
            covered.contains(operation.name),
            "{} has no worked example: add one to a file in data/score/{EXAMPLES}",
            operation.name
        );
    }
}

#[test]
fn the_operation_of_a_line_returns_the_scores_that_its_measures_read() {
    let mut n_checked = 0;
    for suite in SUITES {
        for form in suite.samples {
            let names = form
                .kinds
                .iter()
                .map(|kind| format!("{}.{kind}", suite.name));
            let names: Vec<String> = names.collect();
            let is_of_line = |name: &str| names.iter().any(|known| known == name);
            if !suite.operations.iter().any(|one| is_of_line(one.name)) {
                continue;
            }
            let examples = examples_of(suite.name).into_iter();
            let examples = examples.filter(|one| one["op"].as_str().is_some_and(is_of_line));
            let lines: Vec<Value> = examples
                .map(|example| json!({"score": example["expected"]}))
                .collect();
            let read = form
                .measures
                .iter()
                .filter(|one| one.score_field().is_some());
            for measure in read {
                let has_value = lines.iter().any(|line| measure.value(line).is_some());
                assert!(has_value, "no example of {names:?} has {}", measure.key);
                n_checked += 1;
            }
        }
    }
    assert!(n_checked > 5, "{n_checked}");
}

#[test]
fn operation_names_are_unique_and_inputs_are_documented() {
    let names: Vec<&str> = operations().map(|operation| operation.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    for operation in operations() {
        assert!(!operation.fields.is_empty() && !operation.definition.contains('\n'));
    }
}

#[test]
fn an_invalid_line_gets_an_error_and_later_lines_are_scored() {
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
        (
            "missing_field",
            "field `input.raw` is missing; add it".into()
        )
    );
    assert_eq!(
        message(r#"{"op": "slot.parse"}"#).1,
        "field `input` is missing; add it"
    );
    assert_eq!(
        message(r#"{"input": {}}"#).1,
        "field `op` is missing; add it"
    );
    assert_eq!(
        message(r#"{"op": "slot.prase", "input": {}}"#).0,
        "unknown_op"
    );
    let error_line = score_line("[1]", 7, &Outside::default()).to_string();
    assert!(
        error_line.contains("\"message\": \"line 7: the line is JSON but not an object;"),
        "{error_line}"
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
fn a_missing_or_broken_encoder_is_an_error_of_the_line() {
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
fn a_read_error_is_reported_with_its_line() {
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _buffer: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("unplugged"))
        }
    }
    let valid_line = r#"{"op": "slot.parse", "input": {"raw": "1"}}"#.to_owned() + "\n";
    let reader = std::io::BufReader::new(std::io::Read::chain(valid_line.as_bytes(), Broken));
    let error = score_stream(reader, Vec::new(), &Outside::default()).expect_err("broken");
    assert_eq!(
        error.to_string(),
        "line 2: the input cannot be read: unplugged"
    );
}

#[test]
fn an_overlong_line_gets_an_error_and_later_lines_are_scored() {
    let valid_line = r#"{"op": "slot.parse", "input": {"raw": "1"}}"#;
    // One byte over the limit (the line feed), and far over the limit.
    let lines = [
        valid_line.to_owned(),
        " ".repeat(100),
        "[".repeat(1_000_000),
        valid_line.to_owned(),
    ];
    let mut output = Vec::new();
    let input = lines.join("\n");
    let outside = Outside::default();
    let limit = SKIPPED_LINE_BYTES;
    let summary = score_lines(input.as_bytes(), &mut output, &outside, 100, limit).unwrap();
    assert_eq!((summary.n_lines, summary.n_malformed), (4, 2));
    let output = String::from_utf8(output).unwrap();
    let answers: Vec<Value> = output.lines().map(|l| json::parse(l).unwrap()).collect();
    for answer in [0, 3].map(|idx| &answers[idx]) {
        assert_eq!(answer["value"], json!(true));
    }
    for (idx, line_no) in [(1, 2), (2, 3)] {
        let error = &answers[idx]["error"];
        assert_eq!(error["kind"], "malformed_line");
        let expected_message =
            format!("line {line_no}: the line has more than 100 bytes, the limit");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&expected_message), "{message}");
    }
}

#[test]
fn a_line_without_end_is_an_error_after_the_earlier_scores() {
    let good = "{\"op\": \"slot.parse\", \"input\": {\"raw\": \"1\"}}\n";
    let mut output = Vec::new();
    let input = good.as_bytes().chain(io::repeat(0));
    let input = io::BufReader::new(input);
    let error = score_lines(input, &mut output, &Outside::default(), 100, 10_000).unwrap_err();
    let expected = "line 2 has more than 10000 bytes, the limit for a line that is skipped \
                    (SKIPPED_LINE_BYTES in docs/limits.md)";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(output.iter().filter(|byte| **byte == b'\n').count(), 1);
    // A line of exactly this length is still skipped.
    let lines = format!("{}\n{good}", "x".repeat(10_000));
    let mut output = Vec::new();
    let outside = Outside::default();
    let summary = score_lines(lines.as_bytes(), &mut output, &outside, 100, 10_000).unwrap();
    assert_eq!((summary.n_lines, summary.n_malformed), (2, 1));
}
