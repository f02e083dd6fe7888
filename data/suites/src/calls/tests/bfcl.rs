//! Verdicts on 430 answers of our own beside those of BFCL's published checker.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::*;

/// An answer with the checker's verdict.
#[derive(Deserialize)]
struct Answer {
    kind: String,
    gold: Vec<WrittenCall>,
    made: Vec<WrittenCall>,
    right: bool,
}

/// Kinds of answers on which the two differ, with BFCL's verdict and the reason.
const DIFFERENCES: [(&str, bool, &str); 7] = [
    (
        "boolean_as_number_within",
        true,
        "Python's 1 == True within objects; here a type is a type",
    ),
    ("case_in_a_list", true, "BFCL compares texts in lower case"),
    ("case_of_a_text", true, "BFCL compares texts in lower case"),
    ("case_within", true, "BFCL compares texts in lower case"),
    (
        "float_for_a_whole_number",
        false,
        "5.0 is an integer in JSON Schema, and no int in Python",
    ),
    (
        "punctuation_of_a_text",
        true,
        "BFCL drops blanks and ,./-_*^ from texts",
    ),
    (
        "whole_numbers_in_a_list_of_floats",
        false,
        "BFCL takes an int for a float outside of lists alone",
    ),
];

#[test]
fn verdicts_are_those_of_bfcls_checker_but_for_seven_kinds_with_their_reasons() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bfcl_calls");
    let tools = fs::read_to_string(folder.join("tools.json")).expect("the tools");
    let tools: Vec<Value> = serde_json::from_str(&tools).expect("a list");
    let tools = Arc::new(ToolSet::new(&tools));
    let answers = fs::read_to_string(folder.join("answers.jsonl")).expect("the answers");
    let mut scorer = CallsScorer::default();
    let (mut n_answers, mut n_same, mut n_right_there) = (0, 0, 0);
    let mut differing: BTreeMap<(String, bool), usize> = BTreeMap::new();
    for line in answers.lines() {
        let answer: Answer = serde_json::from_str(line).expect("an answer");
        let item = CallsItem {
            id: String::new(),
            message: 0,
            gold: answer.gold,
            tools: Arc::clone(&tools),
        };
        let score = scorer.score_turn(&item, &CallsAnswer::of_calls(answer.made));
        assert_eq!(score.right, score.faults.is_empty(), "{line}");
        n_answers += 1;
        n_right_there += usize::from(answer.right);
        if score.right == answer.right {
            n_same += 1;
        } else {
            *differing.entry((answer.kind, answer.right)).or_default() += 1;
        }
    }
    assert_eq!((n_answers, n_same, n_right_there), (430, 360, 130));
    let expected = DIFFERENCES.map(|(kind, right, reason)| {
        assert!(!reason.is_empty());
        ((kind.to_owned(), right), 10)
    });
    assert_eq!(differing, BTreeMap::from(expected));
}
