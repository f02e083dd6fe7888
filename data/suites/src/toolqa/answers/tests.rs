//! Tests of each metric, and of the score of the gold answer itself.

use proptest::prelude::*;

use super::*;

use AnswerMetric::{
    AccuracyString as Text, ApproxNumberMatch as Number, UnorderedListStrMatch as List,
};

fn check(metric: AnswerMetric, rows: &[(&str, &str, bool)]) {
    for (gold, pred, expected) in rows {
        assert_eq!(
            exact_match(metric, gold, pred),
            *expected,
            "{gold:?} {pred:?}"
        );
    }
}

#[test]
fn texts_are_compared_without_case_blanks_and_a_final_stop_in_the_prediction() {
    check(
        Text,
        &[
            ("Emden", "EMDEN", true),
            ("Quay 4", "\t Quay 4\n", true),
            ("Quay 4", "\u{a0}Quay 4\u{1f}", true),
            ("Quay 4", "quay 4.", true),
            ("Quay 4", "quay 4..", false),
            ("Quay 4", "quay 4 .", false),
            ("Quay  4", "quay 4", false),
            ("Quay 4.", "Quay 4.", false),
            ("Quay 4.", "Quay 4..", true),
            ("ÄÖ", "äö", true),
            ("", ".", true),
        ],
    );
}

#[test]
fn any_number_within_one_matches_and_signs_and_exponents_of_predictions_are_dropped() {
    check(
        Number,
        &[
            ("4", "4.9", true),
            ("4", "5", false),
            ("4", "3.01", true),
            ("17.5", "between 2 and 18.2 knots", true),
            ("1.5e3", "1500", true),
            ("1500", "1.5e3", false),
            ("23288.56", "23,288.56", false),
            ("288", "23,288.56", true),
            ("-3", "-3", false),
            ("3", "-3", true),
            ("7", "7.", true),
            (".5", ".5", true),
            ("4 of 9", "9", false),
            ("771", "berth A771", true),
            ("none", "none", false),
            ("none", "4", false),
            ("4", "four", false),
            ("4", "٤", false),
            ("1e999", "1e999", false),
        ],
    );
    let huge = "9".repeat(400);
    assert!(!exact_match(Number, &huge, &huge));
}

#[test]
fn lists_are_compared_as_sets_of_comma_separated_texts() {
    check(
        List,
        &[
            ("a, b, c", "C,a ,B", true),
            ("a, b", "a, b, a", true),
            ("a, b, c", "a, b", false),
            ("a, b", "a, b.", true),
            ("a, b", "a., b.", true),
            ("a., b", "a, b", true),
            ("a, b", "a, b..", true),
            ("a, b", "a, b...", false),
            ("a, b", "a, b.. ", false),
            ("a, b", "a, b,", false),
            ("a, b", "[a, b]", false),
            ("a, b", "a\nb", false),
            ("a, b", "a and b", false),
            ("a, b", "\"a\", \"b\"", false),
            ("Emden, Germany", "Germany, Emden", true),
        ],
    );
}

#[test]
fn contains_is_true_if_the_prediction_contains_the_gold() {
    for (metric, gold, pred, expected) in [
        (Text, "quay 4", "It lies at Quay 4.", true),
        (Text, "quay 4.", "It lies at Quay 4.", false),
        (Number, "4", "14", true),
        (Number, "4", "3.2", true),
        (Number, "4", "three", false),
        (List, "a, b", "They are: a, b", true),
        (List, "a, b", "They are: b, a", false),
        (List, "a, b", "b, a", true),
    ] {
        assert_eq!(contains(metric, gold, pred), expected, "{gold:?} {pred:?}");
    }
}

#[test]
fn a_strict_answer_has_exactly_one_number_equal_to_the_gold() {
    for (gold, pred, expected) in [
        ("4", "There are 4 berths.", true),
        ("4", "4.0", true),
        ("4", "4.01", false),
        ("4", "4 of 9", false),
        ("4", "4, 4", false),
        ("4", "four", false),
        ("none", "none", false),
        ("-3", "-3", true),
        ("-3", "3", false),
        ("3", "-3", false),
        ("1500", "1.5e3", true),
        ("23288.56", "USD 23,288.56", true),
        ("1234567", "1,234,567", true),
        ("23,288.56", "23288.56", true),
        ("12345", "12,345,", true),
        ("12345", "1,2345", false),
        ("1234", "12,34", false),
        ("464.746", "465", true),
        ("464.746", "467.07", false),
        ("464.746", "480", false),
        ("0.125", "0.1349", true),
        ("0.125", "0.136", false),
    ] {
        assert_eq!(number_strict(gold, pred), expected, "{gold:?} {pred:?}");
    }
}

#[test]
fn a_list_of_many_numbers_is_right_by_the_published_rule_and_wrong_by_the_strict_one() {
    let all_numbers: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let all_numbers = all_numbers.join(", ");
    for gold in ["0", "17", "199.6"] {
        assert!(exact_match(Number, gold, &all_numbers));
        assert!(!number_strict(gold, &all_numbers));
    }
    assert!(!exact_match(Number, "201", &all_numbers));
}

#[test]
fn every_metric_has_its_name() {
    for metric in AnswerMetric::ALL {
        assert_eq!(AnswerMetric::from_name(metric.name()), Some(metric));
        let json_name = serde_json::to_value(metric).expect("written");
        assert_eq!(json_name, serde_json::json!(metric.name()));
    }
    assert_eq!(AnswerMetric::from_name("rouge"), None);
}

proptest! {
    #[test]
    fn a_copy_of_a_text_or_list_is_right(gold in "[a-zA-Z0-9é日'\"-]([a-zA-Z0-9é日 ,]{0,20}[a-zA-Z0-9])?") {
        for metric in [Text, List] {
            prop_assert!(exact_match(metric, &gold, &gold));
            let stopped = gold.clone() + ".";
            prop_assert!(exact_match(metric, &gold, &stopped));
            prop_assert!(contains(metric, &gold, &("it is ".to_owned() + &stopped)));
        }
    }

    #[test]
    fn a_copy_of_a_number_is_right(gold in 0.0..1e12_f64, n in 0..1_000_000_u32) {
        for gold in [gold.to_string(), format!("{gold:.2}"), n.to_string()] {
            prop_assert!(exact_match(Number, &gold, &gold));
            prop_assert!(number_strict(&gold, &gold));
        }
    }

    #[test]
    fn contains_is_never_below_exact_match(gold in r"[a-c0-9., -]{0,6}", pred in r"[a-c0-9., -]{0,9}") {
        for metric in AnswerMetric::ALL {
            prop_assert!(contains(metric, &gold, &pred) || !exact_match(metric, &gold, &pred));
        }
    }

    #[test]
    fn no_text_makes_a_metric_panic(gold in any::<String>(), pred in any::<String>()) {
        for metric in AnswerMetric::ALL {
            contains(metric, &gold, &pred);
        }
        number_strict(&gold, &pred);
    }
}
