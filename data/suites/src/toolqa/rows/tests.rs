//! Valid files, and invalid files with the location of the error.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::*;

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn write(&self, name: &str, lines: &[Value]) -> PathBuf {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    }
}

fn open_lines(path: &Path) -> JsonLines {
    JsonLines::open(path).expect("a file")
}

fn response(id: &str) -> Value {
    json!({
        "response_id": id, "endpoint": "Berths", "split": "paper", "chars": 31,
        "response": {"berths": [{"id": 1, "free": true}]},
    })
}

fn question(uid: &str) -> Value {
    json!({
        "uid": uid, "response_id": "b-1", "endpoint": "Berths", "task": "CountFree",
        "task_type": "AGGREGATION", "metric": "approx_number_match",
        "question": "How many berths are free?", "gold_answer": "1",
    })
}

fn read(questions: &[Value]) -> Result<Vec<ToolQaRow>, ToolQaError> {
    let files = Files::new();
    let responses = files.write("responses.jsonl", &[response("b-1"), response("b-2")]);
    let responses = ToolResponses::read(open_lines(&responses)).expect("responses");
    assert_eq!((responses.len(), responses.is_empty()), (2, false));
    read_questions(
        open_lines(&files.write("questions.jsonl", questions)),
        &responses,
    )
}

#[test]
fn questions_share_their_response() {
    let rows = read(&[question("q1"), question("q2")]).expect("rows");
    assert_eq!(rows.len(), 2);
    let row = &rows[0];
    assert_eq!((row.uid.as_str(), row.task.as_str()), ("q1", "CountFree"));
    assert_eq!(row.task_type, TaskType::Aggregation);
    assert_eq!(row.metric, AnswerMetric::ApproxNumberMatch);
    assert_eq!(row.gold_answer, "1");
    assert!(Arc::ptr_eq(&row.response, &rows[1].response));
    assert_eq!(row.response.split, "paper");
    // {'berths': [{'id': 1, 'free': True}]}
    assert_eq!(row.response.n_characters(), 37);
}

#[test]
fn compressed_files_are_read() {
    let files = Files::new();
    let path = files.folder.path().join("responses.jsonl.gz");
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    writeln!(encoder, "{}", response("b-1")).expect("memory");
    std::fs::write(&path, encoder.finish().expect("memory")).expect("written");
    let responses = ToolResponses::read(open_lines(&path)).expect("responses");
    assert!(responses.get("b-1").is_some() && responses.get("b-2").is_none());
}

#[test]
fn faults_name_file_line_and_field() {
    let with = |field: &str, value: Value| {
        let mut line = question("q2");
        line[field] = value;
        line
    };
    let rows = [
        (
            with("task_type", json!("Aggregate")),
            "task_type is \"Aggregate\"",
        ),
        (
            with("metric", json!("approx_number")),
            "did you mean \"approx_number_match\"?",
        ),
        (with("gold_answer", json!(1)), "gold_answer is a number"),
        (
            with("question", Value::Null),
            "field \"question\" is missing",
        ),
        (
            with("response_id", json!("b-9")),
            "no response has the response_id \"b-9\"",
        ),
        (
            with("endpoint", json!("Tides")),
            "endpoint is \"Tides\", but its response \"b-1\" has \"Berths\"",
        ),
        (
            with("gold_answers", json!("1")),
            "unknown field \"gold_answers\"",
        ),
        (question("q1"), "duplicate uid \"q1\" (first at"),
        (json!([1]), "the row is a list"),
    ];
    for (line, part) in rows {
        let message = read(&[question("q1"), line]).expect_err(part).to_string();
        assert!(message.contains("questions.jsonl:2: "), "{message}");
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn empty_files_and_duplicate_responses_are_refused() {
    let message = read(&[]).expect_err("empty").to_string();
    assert!(message.contains("has no questions"), "{message}");
    let files = Files::new();
    let duplicate = files.write("twice.jsonl", &[response("b-1"), response("b-1")]);
    let message = ToolResponses::read(open_lines(&duplicate))
        .expect_err("twice")
        .to_string();
    assert!(
        message.contains("twice.jsonl:2: duplicate response_id \"b-1\" (first at"),
        "{message}"
    );
    let message =
        ToolResponses::read(open_lines(&files.write("none.jsonl", &[]))).expect_err("empty");
    assert!(
        message.to_string().contains("has no responses"),
        "{message}"
    );
    let mut minimal = response("b-1");
    minimal
        .as_object_mut()
        .expect("an object")
        .remove("response");
    let message =
        ToolResponses::read(open_lines(&files.write("bare.jsonl", &[minimal]))).expect_err("bare");
    assert!(
        message
            .to_string()
            .contains("bare.jsonl:1: field \"response\" is missing"),
        "{message}"
    );
}
