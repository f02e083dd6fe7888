//! Compares our verdicts on 430 hand-written answers with the verdicts of BFCL's published checker.

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

/// Kinds of answers for which the two verdicts differ, with BFCL's verdict and the reason.
const DIFFERENCES: [(&str, bool, &str); 7] = [
    (
        "boolean_as_number_within",
        true,
        "in Python 1 == True within objects; here types differ",
    ),
    (
        "case_in_a_list",
        true,
        "BFCL compares strings in lower case",
    ),
    (
        "case_of_a_text",
        true,
        "BFCL compares strings in lower case",
    ),
    ("case_within", true, "BFCL compares strings in lower case"),
    (
        "float_for_a_whole_number",
        false,
        "5.0 is an integer in JSON Schema, but not an int in Python",
    ),
    (
        "punctuation_of_a_text",
        true,
        "BFCL removes blanks and ,./-_*^ from strings",
    ),
    (
        "whole_numbers_in_a_list_of_floats",
        false,
        "BFCL accepts an int for a float only outside of lists",
    ),
];

#[test]
fn verdicts_equal_bfcls_checker_except_for_seven_kinds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bfcl_calls");
    let tools = fs::read_to_string(folder.join("tools.json")).expect("the tools");
    let tools: Vec<Value> = serde_json::from_str(&tools).expect("a list");
    let tools = Arc::new(ToolSet::new(&tools));
    let answers = fs::read_to_string(folder.join("answers.jsonl")).expect("the answers");
    let mut scorer = CallsScorer::default();
    let (mut n_answers, mut n_same, mut n_right_there) = (0, 0, 0);
    let mut n_by_kind: BTreeMap<(String, bool), usize> = BTreeMap::new();
    for line in answers.lines() {
        let answer: Answer = serde_json::from_str(line).expect("an answer");
        let item = CallsItem {
            id: String::new(),
            message: 0,
            gold: answer.gold,
            tools: Arc::clone(&tools),
        };
        let score = scorer.score_turn(&item, &CallsAnswer::from_calls(answer.made));
        assert_eq!(score.right, score.faults.is_empty(), "{line}");
        n_answers += 1;
        n_right_there += usize::from(answer.right);
        if score.right == answer.right {
            n_same += 1;
        } else {
            *n_by_kind.entry((answer.kind, answer.right)).or_default() += 1;
        }
    }
    assert_eq!((n_answers, n_same, n_right_there), (430, 360, 130));
    let expected = DIFFERENCES.map(|(kind, right, reason)| {
        assert!(!reason.is_empty());
        ((kind.to_owned(), right), 10)
    });
    assert_eq!(n_by_kind, BTreeMap::from(expected));
}
