//! Several bad rows give one error.

use tooltune_json::ReadError;
use tooltune_json::faults::collect_rows;

use super::*;

fn rows(answers: &[&str]) -> impl Iterator<Item = Result<Row, DataError>> {
    let rows: Vec<Row> = answers
        .iter()
        .enumerate()
        .map(|(row_idx, answer)| Row {
            id: format!("rows.jsonl:{}", row_idx + 1),
            ..row(turn("Hi", answer).to_vec())
        })
        .collect();
    rows.into_iter().map(Ok)
}

fn error_of(answers: &[&str]) -> String {
    let tokenizer = tokenizer();
    let options = options(&tokenizer);
    let error = prepare(rows(answers), &chatml(), &tokenizer, &options).unwrap_err();
    assert!(
        matches!(error.fault(), DataError::StopTokenInside { .. }),
        "{error:?}"
    );
    error.to_string()
}

#[test]
fn a_single_error_is_returned_unchanged() {
    let alone = error_of(&["good", "a<|im_end|>b", "good"]);
    assert!(
        alone.starts_with("rows.jsonl:2: message 1 contains"),
        "{alone}"
    );
    assert_eq!(alone.lines().count(), 1);
}

#[test]
fn several_errors_are_listed_by_line_and_repeated_ones_abbreviated() {
    let message = error_of(&["a<|im_end|>b", "good", "a<|im_end|>b", "c<|im_end|>"]);
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines[0], error_of(&["a<|im_end|>b"]));
    assert_eq!(lines[1], "rows.jsonl:3: same error");
    assert!(
        lines[2].starts_with("rows.jsonl:4: message 1 contains"),
        "{message}"
    );
    assert_eq!(lines.len(), 3);
}

#[test]
fn ten_of_many_errors_are_listed_and_the_rest_counted() {
    let answers: Vec<String> = (0..11).map(|i| format!("{i}<|im_end|>")).collect();
    let mut answers: Vec<&str> = answers.iter().map(String::as_str).collect();
    let message = error_of(&answers);
    assert_eq!(message.lines().count(), 11);
    assert_eq!(message.lines().last(), Some("and 1 more row with errors"));
    answers.extend([answers[0]; 39]);
    let message = error_of(&answers);
    assert_eq!(message.lines().last(), Some("and 40 more rows with errors"));
}

#[test]
fn unreadable_rows_and_unusable_rows_are_reported_together() {
    let unread = || {
        let needed = "a messages row needs messages";
        DataError::from(ReadError::missing("messages", needed)).at("rows.jsonl:0")
    };
    let tokenizer = tokenizer();
    let all = [Err(unread())].into_iter().chain(rows(&["a<|im_end|>"]));
    let error = prepare(all, &chatml(), &tokenizer, &options(&tokenizer)).unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("rows.jsonl:0: field \"messages\" is missing"),
        "{message}"
    );
    assert!(
        message.contains("\nrows.jsonl:1: message 1 contains"),
        "{message}"
    );
    let read = collect_rows([Ok(1), Err(unread()), Ok(2)].into_iter()).unwrap_err();
    assert_eq!(read.to_string(), unread().to_string());
    let good: [Result<i32, DataError>; 2] = [Ok(1), Ok(2)];
    assert_eq!(collect_rows(good.into_iter()).unwrap(), [1, 2]);
}
