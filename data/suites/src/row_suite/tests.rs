//! Reading of rows, means of measures, and the derived operation.

use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::operations::Outside;
use crate::registry::{LineFields, higher_better, lower_better};

static LENGTHS: SuiteInfo = SuiteInfo {
    name: "lengths",
    metrics: &["right", "distance"],
    samples: &[SampleScores {
        of: "lengths",
        fields: LineFields::COMPLETION,
        kinds: &["length"],
        measures: &[
            higher_better("right"),
            lower_better("distance").weighted_by(|line| line["score"]["weight"].as_f64()),
        ],
        groups: &[],
    }],
    operations: &[score_operation::<Lengths>("lengths.length", "the scores")],
    ..SuiteInfo::EMPTY
};

/// Asks for the number of letters of a word.
#[derive(Debug)]
struct Lengths;

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Word {
    id: String,
    word: String,
}

impl RowSuite for Lengths {
    type Row = Word;
    type Gold = usize;
    type Scores = Value;
    type Error = RowError;

    const SUITE: &'static SuiteInfo = &LENGTHS;
    const LINES: &'static str = "length";
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
        match output.parse::<usize>() {
            Ok(n) => json!({"right": n == *gold, "distance": n.abs_diff(*gold), "weight": gold}),
            Err(_) => json!({"right": false}),
        }
    }
}

fn read(lines: &[Value]) -> Result<Vec<Word>, String> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(file.path(), text).expect("written");
    let rows = Lengths.read(JsonLines::open(file.path()).expect("a file"));
    let name = file.path().display().to_string();
    rows.map_err(|error| error.to_string().replace(&name, "words"))
}

#[test]
fn rows_are_read_and_errors_name_the_line_and_the_field() {
    let row = |id: &str| json!({"id": id, "word": "quay"});
    let rows = read(&[row("a"), row("b")]).expect("rows");
    assert_eq!(rows.iter().map(Lengths::id).collect::<Vec<_>>(), ["a", "b"]);
    for (second, expected) in [
        (
            json!({"id": "b"}),
            "words:2: missing field `word`; correct this row",
        ),
        (
            json!({"id": "b", "word": 4}),
            "words:2: invalid type: integer `4`, expected a string; correct this row",
        ),
        (
            json!({"id": "b", "word": "x", "wrod": 1}),
            "words:2: unknown field `wrod`, expected `id` or `word`; correct this row",
        ),
        (
            row("a"),
            "words:2: duplicate id \"a\" (first at words:1); make the ids unique",
        ),
    ] {
        assert_eq!(read(&[row("a"), second]), Err(expected.to_owned()));
    }
    let error = read(&[]).expect_err("no rows");
    assert!(
        error.starts_with("words: the file has no words;"),
        "{error}"
    );
}

#[test]
fn means_are_over_the_lines_that_have_a_measure_by_their_weight() {
    let row = Word {
        id: String::new(),
        word: "quay".to_owned(),
    };
    let lines = ["4", "6", "none"].map(|output| {
        let gold = Lengths::gold(&row);
        json!({"score": Lengths::score(&gold, output)})
    });
    let form = LENGTHS.form(Lengths::LINES).expect("lines");
    let values = |lines: &[Value]| {
        let means = form.means(lines).into_iter();
        means
            .map(|(key, estimate)| (key, estimate.value))
            .collect::<Vec<_>>()
    };
    assert_eq!(values(&lines), [("right", 1.0 / 3.0), ("distance", 1.0)]);
    assert_eq!(values(&lines[2..]), [("right", 0.0)]);
    assert_eq!(values(&[]), []);
}

#[test]
fn the_derived_operation_scores_an_output_and_names_a_wrong_field() {
    let run = |line: Value| {
        let fields = line.as_object().expect("an object");
        let outside = Outside::default();
        let operations = LENGTHS.operations.iter();
        let parsed = Request::parse(fields, "", &outside, operations);
        let (operation, request) = parsed.expect("a request");
        (operation.run)(&request).map_err(|error| error.to_string())
    };
    let line =
        |gold: Value| json!({"op": "lengths.length", "input": {"gold": gold, "output": "5"}});
    assert_eq!(
        run(line(json!(4))),
        Ok(json!({"right": false, "distance": 1, "weight": 4}))
    );
    assert_eq!(
        run(line(json!("four"))),
        Err("field `input.gold` must be an integer".to_owned())
    );
}
