//! Classifies the errors of arguments, with calls and values compared as in the scores.

use std::collections::BTreeMap;

use super::*;
use crate::leaf_errors::{LeafErrorKind, LeafErrors};

fn errors(gold: Vec<WrittenCall>, predicted: Vec<WrittenCall>) -> LeafErrors {
    item(gold).leaf_errors(&CallsAnswer::from_calls(predicted))
}

#[test]
fn a_right_call_has_no_errors() {
    let with_default = call("tide", json!({"port": "Rye", "days": 1.0}));
    for (gold, predicted) in [
        (tide_call("Rye"), with_default.clone()),
        (with_default, tide_call("Rye")),
    ] {
        let score = score_calls(vec![gold.clone()], vec![predicted.clone()]);
        assert!(score.right);
        assert_eq!(errors(vec![gold], vec![predicted]).kinds(), BTreeMap::new());
    }
}

#[test]
fn arguments_of_paired_calls_are_compared_leaf_by_leaf() {
    let ada = json!({"ship": {"name": "Ada", "draught": 3.5}, "nights": 2});
    let gold = vec![call("berth", ada), tide_call("Rye"), tide_call("Ulm")];
    let flat = json!({"name": "Ada", "draught": 4.5, "nights": "2"});
    let errors = errors(
        gold,
        vec![tide_call("Ulm"), call("berth", flat), tide_call("Emden")],
    );
    let kinds: Vec<(&str, Option<LeafErrorKind>)> = errors
        .leaves()
        .iter()
        .map(|leaf| (leaf.path.as_str(), leaf.error))
        .collect();
    assert_eq!(
        kinds,
        [
            ("berth.ship.name", Some(LeafErrorKind::MissingWrapper)),
            ("berth.ship.draught", Some(LeafErrorKind::Missing)),
            ("berth.nights", Some(LeafErrorKind::WrongType)),
            ("berth.draught", Some(LeafErrorKind::Invented)),
            ("tide.port", Some(LeafErrorKind::WrongValue)),
            ("tide.port", None),
        ]
    );
}

#[test]
fn a_turn_that_ends_early_or_cannot_be_parsed_has_one_kind_of_error() {
    let item = item(vec![tide_call("Rye")]);
    let kinds = |answer: &CallsAnswer| item.leaf_errors(answer).kinds();
    let malformed = read_calls(
        "<tool_call>{\"name\": \"tide\", \"arguments\": {</tool_call>",
        &item.tools,
    );
    assert_eq!(
        kinds(&malformed),
        BTreeMap::from([(LeafErrorKind::Malformed, 1)])
    );
    let cut = malformed.truncate();
    assert_eq!(kinds(&cut), BTreeMap::from([(LeafErrorKind::Truncated, 1)]));
    let text = read_calls("High tide is at noon.", &item.tools);
    assert_eq!(kinds(&text), BTreeMap::from([(LeafErrorKind::Missing, 1)]));
    let unwanted = super::item(Vec::new());
    let answer = CallsAnswer::from_calls(vec![tide_call("Rye")]);
    let errors = unwanted.leaf_errors(&answer);
    assert_eq!(
        errors.kinds(),
        BTreeMap::from([(LeafErrorKind::Invented, 1)])
    );
    assert_eq!(errors.n_leaves(), 0);
}
