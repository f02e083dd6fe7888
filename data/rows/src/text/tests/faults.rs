//! Many rows at fault are one error.

use super::*;
use crate::read_error::ReadError;

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

fn said(answers: &[&str]) -> String {
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
fn one_fault_is_told_as_it_is() {
    let alone = said(&["good", "a<|im_end|>b", "good"]);
    assert!(
        alone.starts_with("rows.jsonl:2: message 1 holds"),
        "{alone}"
    );
    assert_eq!(alone.lines().count(), 1);
}

#[test]
fn several_faults_are_told_by_line_and_the_same_one_once() {
    let told = said(&["a<|im_end|>b", "good", "a<|im_end|>b", "c<|im_end|>"]);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], said(&["a<|im_end|>b"]));
    assert_eq!(lines[1], "rows.jsonl:3: the same");
    assert!(
        lines[2].starts_with("rows.jsonl:4: message 1 holds"),
        "{told}"
    );
    assert_eq!(lines.len(), 3);
}

#[test]
fn of_many_faults_ten_are_told_and_the_others_counted() {
    let answers: Vec<String> = (0..11).map(|i| format!("{i}<|im_end|>")).collect();
    let mut answers: Vec<&str> = answers.iter().map(String::as_str).collect();
    let told = said(&answers);
    assert_eq!(told.lines().count(), 11);
    assert_eq!(told.lines().last(), Some("and 1 more row at fault"));
    answers.extend([answers[0]; 39]);
    let told = said(&answers);
    assert_eq!(told.lines().last(), Some("and 40 more rows at fault"));
}

#[test]
fn rows_that_cannot_be_read_are_told_together_with_those_that_cannot_be_learned() {
    let unread = || {
        let needed = "a messages row needs messages";
        DataError::from(ReadError::missing("messages", needed)).at("rows.jsonl:0")
    };
    let tokenizer = tokenizer();
    let all = [Err(unread())].into_iter().chain(rows(&["a<|im_end|>"]));
    let error = prepare(all, &chatml(), &tokenizer, &options(&tokenizer)).unwrap_err();
    let told = error.to_string();
    assert!(
        told.starts_with("rows.jsonl:0: field \"messages\" is missing"),
        "{told}"
    );
    assert!(told.contains("\nrows.jsonl:1: message 1 holds"), "{told}");
    let read = all_rows([Ok(1), Err(unread()), Ok(2)].into_iter()).unwrap_err();
    assert_eq!(read.to_string(), unread().to_string());
    let good: [Result<i32, DataError>; 2] = [Ok(1), Ok(2)];
    assert_eq!(all_rows(good.into_iter()).unwrap(), [1, 2]);
}
