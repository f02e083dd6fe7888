//! A suite of rows, evaluated from saved predictions.

use std::path::Path;

use serde::Deserialize;
use serde_json::json;
use tooltune_suites::read_rows;

use super::*;
use crate::config::Config;
use crate::eval::report_files::{METRICS_FILE, PREDICTIONS_FILE};
use crate::eval::suites::{EvalContext, Purpose};

/// Asks for the number of letters of a word. Its two metrics are borrowed from another suite.
#[derive(Debug)]
struct Lengths;

#[derive(Debug, Deserialize)]
struct Word {
    id: String,
    word: String,
}

impl RowSuite for Lengths {
    type Row = Word;
    type Gold = usize;
    type Scores = Value;
    type Error = RowError;

    const SUITE: &'static SuiteInfo = &tooltune_suites::slot::SUITE;
    const LINES: &'static str = "completion";
    const NOUN: &'static str = "words";
    const GOLD: &'static str = "an integer";

    fn read(&self, lines: JsonLines) -> Result<Vec<Word>, RowError> {
        read_rows::<Self>(lines)
    }

    fn id(row: &Word) -> &str {
        &row.id
    }

    fn gold(row: &Word) -> usize {
        row.word.len()
    }

    fn prompt(&self, row: &Word) -> Result<String, RowError> {
        Ok(format!("How long is {}?", row.word))
    }

    fn score(gold: &usize, output: &str) -> Value {
        let n = output.parse::<usize>().ok();
        json!({"parses": n.is_some(), "exact_match": n == Some(*gold)})
    }

    fn metrics() -> &'static [&'static str] {
        &["parse_rate", "exact_match"]
    }
}

struct Files(tempfile::TempDir);

impl Files {
    /// Two files with words of one to four letters.
    fn new() -> Self {
        let files = Self(tempfile::tempdir().expect("a folder"));
        let word = |n: usize| json!({"id": format!("w{n}"), "word": "x".repeat(n)});
        files.write("a.jsonl", &[word(1), word(2)]);
        files.write("b.jsonl", &[word(3), word(4)]);
        files
    }

    fn write(&self, name: &str, lines: &[Value]) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(self.0.path().join(name), text).expect("written");
    }

    fn score(&self, max_samples: Option<usize>) -> Result<SuiteResult, String> {
        let mut config = Config::default();
        config.eval.max_samples = max_samples;
        config.data.eval = vec![self.0.path().join("a.jsonl"), self.0.path().join("b.jsonl")];
        let suite_context = SuiteContext {
            config: &config,
            device: &Default::default(),
            purpose: Purpose::SavedPredictions,
            data: &[],
            rows: None,
            verdicts: None,
        };
        let context = EvalContext {
            generator: None,
            retriever: None,
            journal: None,
            keep: &mut |_| Ok(()),
            watch: &mut |_| true,
        };
        let path = self.0.path().join("saved.jsonl");
        let suite = open::<_, Prediction>(suite_context, Lengths);
        let scored = suite.and_then(|suite| suite.score_saved(Path::new(&path), context));
        let scored = scored.map_err(|error| error.to_string());
        Ok(scored?.expect("not stopped"))
    }
}

fn prediction(n: usize, output: &str, finish_reason: &str) -> Value {
    json!({"id": format!("w{n}"), "prediction": output, "finish_reason": finish_reason})
}

#[test]
fn predictions_of_rows_are_joined_scored_and_reported_by_file() {
    let files = Files::new();
    let saved = [
        prediction(4, "4", "length"),
        prediction(3, "four", "stop"),
        prediction(2, "2", "stop"),
        prediction(1, "2", "stop"),
    ];
    files.write("saved.jsonl", &saved);
    let result = files.score(None).expect("scored");
    let metrics = [("slot.exact_match", 0.25), ("slot.parse_rate", 0.5)];
    let metrics = metrics.map(|(name, value)| (name.to_owned(), value));
    assert_eq!(result.metrics, metrics.into());
    assert!(
        result
            .table
            .starts_with("slot.exact_match                 0.2500 [")
    );
    assert!(
        result
            .table
            .ends_with("]\nn                                4")
    );
    let report: Value = serde_json::from_slice(&result.files[METRICS_FILE]).expect("JSON");
    assert_eq!(
        (&report["n"], &report["suite"]),
        (&json!(4), &json!("slot"))
    );
    assert_eq!(report["exact_match"]["value"], 0.25);
    assert_eq!(report["by_file"][0]["parse_rate"]["value"], 1.0);
    assert_eq!(report["macro_mean"]["exact_match"], 0.25);
    let lines = String::from_utf8_lossy(&result.files[PREDICTIONS_FILE]).into_owned();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let expected = json!({"suite": "slot", "type": "completion", "id": "w2", "prediction": "2",
        "finish_reason": "stop", "n_tokens": 0, "prompt": "How long is xx?", "gold": 2,
        "score": {"parses": true, "exact_match": true}});
    assert_eq!(lines[1], expected);
    // An answer that was cut off is wrong.
    assert_eq!(lines[3]["prediction"], "4");
    assert_eq!(lines[3]["score"]["exact_match"], false);
}

#[test]
fn only_the_first_rows_are_scored_and_errors_name_the_row() {
    let files = Files::new();
    let saved = [3, 2, 1].map(|n| prediction(n, "2", "stop"));
    files.write("saved.jsonl", &saved);
    let result = files.score(Some(2)).expect("scored");
    assert_eq!(result.metrics["slot.exact_match"], 0.5);
    assert!(result.notes[0].starts_with("dropped 1 of 3 predictions"));
    let error = files.score(None).expect_err("a row without a prediction");
    assert!(
        error.contains("1 of 4 words have no prediction, such as \"w4\""),
        "{error}"
    );
    files.write("b.jsonl", &[json!({"id": "w3"})]);
    let error = files.score(None).expect_err("a row without a field");
    assert!(error.contains("b.jsonl:1: missing field `word`"), "{error}");
}
