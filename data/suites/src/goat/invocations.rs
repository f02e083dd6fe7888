//! Scores selection and invocation accuracy of two lists of calls.
//!
//! Both are set similarities: order, repetition and success of calls are ignored, and a call that
//! is not in the gold answer enlarges the union. Unparsable arguments equal nothing, not even each
//! other, so a pair of unparsable calls enlarges the union by two.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use tooltune_agents::AttemptedCall;
use tooltune_apis::TrajectoryCall;
use tooltune_json::{Decimal, ExactJson, parse_exact};
use unicode_normalization::UnicodeNormalization;

use super::endpoints::collapse_blanks;

/// A call with the parts that the metrics compare.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Name of the function; calls with a blank name are ignored.
    pub name: String,
    /// The arguments.
    pub arguments: Arguments,
}

impl Call {
    /// A call with arguments from parsed JSON.
    pub fn new(name: impl Into<String>, arguments: &Value) -> Self {
        Self {
            name: name.into(),
            arguments: Arguments::from(&ExactJson::from(arguments)),
        }
    }
}

impl From<&TrajectoryCall> for Call {
    fn from(call: &TrajectoryCall) -> Self {
        Self {
            name: call.name.clone(),
            arguments: Arguments::from(&call.arguments),
        }
    }
}

impl From<&AttemptedCall> for Call {
    fn from(call: &AttemptedCall) -> Self {
        Self {
            name: call.name.clone().unwrap_or_default(),
            arguments: Arguments::from(call),
        }
    }
}

/// The arguments of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Arguments {
    /// Values by name.
    Parsed(BTreeMap<String, ExactJson>),
    /// Neither an object nor JSON text of an object.
    Unparsed,
}

impl Arguments {
    /// Parses the text of a JSON object, or of `null` for no arguments, with exact numbers.
    pub fn parse(text: &str) -> Self {
        match parse_exact(text) {
            Ok(ExactJson::Object(fields)) => Self::Parsed(fields),
            Ok(ExactJson::Null) => Self::Parsed(BTreeMap::new()),
            _ => Self::Unparsed,
        }
    }
}

impl From<&AttemptedCall> for Arguments {
    fn from(call: &AttemptedCall) -> Self {
        let parsed = call.arguments.as_ref();
        parsed.map_or(Self::Unparsed, Self::from)
    }
}

impl From<&Map<String, Value>> for Arguments {
    fn from(fields: &Map<String, Value>) -> Self {
        let exact_arguments = |(name, value): (&String, &Value)| (name.clone(), value.into());
        Self::Parsed(fields.iter().map(exact_arguments).collect())
    }
}

impl From<&ExactJson> for Arguments {
    /// Accepts an object, `null` for no arguments, or a string with JSON text.
    fn from(value: &ExactJson) -> Self {
        match value {
            ExactJson::Object(fields) => Self::Parsed(fields.clone()),
            ExactJson::Null => Self::Parsed(BTreeMap::new()),
            ExactJson::Text(text) => Self::parse(text),
            _ => Self::Unparsed,
        }
    }
}

/// The rule by which two arguments are equal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ArgumentEquality {
    /// By meaning. Numbers are compared by exact value, also if they are JSON numbers in strings.
    /// The strings `true` and `false` equal booleans, also in Python's spelling. Other strings are
    /// compared in NFC with collapsed whitespace. A null argument equals a missing argument. Case
    /// and list order matter, and a string `null` or `None` is a string.
    #[default]
    Normalized,
    /// Plain JSON equality, in which 1 equals only 1.0.
    Strict,
}

impl ArgumentEquality {
    /// The canonical form, identical for equal arguments; `None` for arguments that equal nothing.
    fn canonical(self, arguments: &Arguments) -> Option<BTreeMap<String, ExactJson>> {
        let Arguments::Parsed(fields) = arguments else {
            return None;
        };
        let is_normalized = self == Self::Normalized;
        let canonical_fields = fields
            .iter()
            .filter(|(_, value)| !(is_normalized && **value == ExactJson::Null));
        Some(
            canonical_fields
                .map(|(name, value)| match self {
                    Self::Normalized => (name.clone(), normalized(value)),
                    Self::Strict => (name.clone(), value.clone()),
                })
                .collect(),
        )
    }
}

fn normalized(value: &ExactJson) -> ExactJson {
    match value {
        ExactJson::Text(text) => normalized_text(text),
        ExactJson::List(items) => ExactJson::List(items.iter().map(normalized).collect()),
        ExactJson::Object(fields) => ExactJson::Object(
            fields
                .iter()
                .map(|(key, field)| (key.clone(), normalized(field)))
                .collect(),
        ),
        scalar => scalar.clone(),
    }
}

/// Arguments in which equal values by [`ArgumentEquality::Normalized`] are equal as JSON, and null
/// arguments are missing.
pub(super) fn normalized_arguments(fields: &Map<String, Value>) -> Map<String, Value> {
    let fields = fields.iter().filter(|(_, value)| !value.is_null());
    fields
        .map(|(name, value)| (name.clone(), normalized_value(value)))
        .collect()
}

fn normalized_value(value: &Value) -> Value {
    match value {
        Value::String(text) => match normalized_text(text) {
            ExactJson::Bool(boolean) => Value::Bool(boolean),
            ExactJson::Text(text) => Value::String(text),
            // A number that is too large for a float stays text.
            _ => tooltune_json::parse(text.trim()).unwrap_or_else(|_| value.clone()),
        },
        Value::Array(items) => items.iter().map(normalized_value).collect(),
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(key, field)| (key.clone(), normalized_value(field)))
                .collect(),
        ),
        scalar => scalar.clone(),
    }
}

fn normalized_text(text: &str) -> ExactJson {
    let composed: String = text.nfc().collect();
    let text = collapse_blanks(&composed);
    match text.as_str() {
        "true" | "True" => ExactJson::Bool(true),
        "false" | "False" => ExactJson::Bool(false),
        _ => Decimal::parse(&text).map_or(ExactJson::Text(text), ExactJson::Number),
    }
}

/// Whether two calls of one function have the same arguments; false if either cannot be parsed.
pub fn args_equal(left: &Arguments, right: &Arguments, equality: ArgumentEquality) -> bool {
    let left = equality.canonical(left);
    left.is_some() && left == equality.canonical(right)
}

/// Selection accuracy, 0 to 1: Jaccard similarity of the two sets of function names.
///
/// Names are compared exactly except for whitespace; for endpoints, use
/// [`Endpoints::normalize`](super::Endpoints::normalize) first. The similarity of two empty sets is
/// 1.
///
/// # Source
///
/// GOAT, section 4.2 (API Selection Accuracy).
pub fn selection_accuracy(pred: &[Call], gold: &[Call]) -> f64 {
    let names = |calls: &[Call]| -> BTreeSet<String> {
        with_normalized_names(calls).map(|(name, _)| name).collect()
    };
    jaccard(&names(pred), &names(gold), 0)
}

/// Invocation accuracy, 0 to 1: Jaccard similarity of the two sets of names with arguments.
///
/// # Source
///
/// GOAT, section 4.2 (API Invocation Accuracy).
pub fn invocation_accuracy(pred: &[Call], gold: &[Call], equality: ArgumentEquality) -> f64 {
    let mut n_unparsed = 0;
    let mut invocations = |calls: &[Call]| -> BTreeSet<(String, BTreeMap<String, ExactJson>)> {
        let canonical_calls = with_normalized_names(calls).filter_map(|(name, call)| {
            let arguments = equality.canonical(&call.arguments);
            n_unparsed += usize::from(arguments.is_none());
            Some((name, arguments?))
        });
        canonical_calls.collect()
    };
    let (pred, gold) = (invocations(pred), invocations(gold));
    jaccard(&pred, &gold, n_unparsed)
}

fn with_normalized_names(calls: &[Call]) -> impl Iterator<Item = (String, &Call)> {
    calls
        .iter()
        .map(|call| (collapse_blanks(&call.name), call))
        .filter(|(name, _)| !name.is_empty())
}

/// Jaccard similarity. `n_unmatchable` is the number of additional elements that equal nothing.
fn jaccard<T: Ord>(left: &BTreeSet<T>, right: &BTreeSet<T>, n_unmatchable: usize) -> f64 {
    let n_union = left.union(right).count() + n_unmatchable;
    if n_union == 0 {
        return 1.0;
    }
    left.intersection(right).count() as f64 / n_union as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn calls(items: &[(&str, Value)]) -> Vec<Call> {
        items
            .iter()
            .map(|(name, arguments)| Call::new(*name, arguments))
            .collect()
    }

    fn calls_named(names: &[&str]) -> Vec<Call> {
        names
            .iter()
            .map(|name| Call::new(*name, &json!({})))
            .collect()
    }

    fn are_equal(left: Value, right: Value, equality: ArgumentEquality) -> bool {
        let arguments = |value: &Value| Arguments::from(&ExactJson::from(value));
        args_equal(&arguments(&left), &arguments(&right), equality)
    }

    #[test]
    fn selection_compares_sets_of_names() {
        let sa = |pred: &[&str], gold: &[&str]| {
            selection_accuracy(&calls_named(pred), &calls_named(gold))
        };
        assert_eq!(sa(&["tide", "berth", "tide"], &["berth", "tide"]), 1.0);
        assert_eq!(sa(&["tide", "invented"], &["tide", "berth"]), 1.0 / 3.0);
        assert_eq!(sa(&[], &["tide"]), 0.0);
        assert_eq!(sa(&["tide"], &[]), 0.0);
        assert_eq!(sa(&[], &[]), 1.0);
        assert_eq!(sa(&["Tide"], &["tide"]), 0.0);
        assert_eq!(sa(&[" Tide   Table\n"], &["Tide Table"]), 1.0);
        assert_eq!(sa(&["  ", "tide"], &["tide"]), 1.0);
    }

    #[test]
    fn an_invocation_is_right_only_with_every_argument() {
        let gold = calls(&[
            ("tide", json!({"port": "Emden", "day": 3})),
            ("berth", json!({})),
        ]);
        let ia = |pred: &[(&str, Value)]| {
            invocation_accuracy(&calls(pred), &gold, ArgumentEquality::Normalized)
        };
        let berth = || ("berth", Value::Null);
        assert_eq!(
            ia(&[berth(), ("tide", json!({"day": 3, "port": "Emden"}))]),
            1.0
        );
        assert_eq!(
            ia(&[berth(), ("tide", json!({"port": "Emden"}))]),
            1.0 / 3.0
        );
        let extra = json!({"port": "Emden", "day": 3, "unit": "m"});
        assert_eq!(ia(&[berth(), ("tide", extra)]), 1.0 / 3.0);
        let with_text = ("tide", json!({"port": "Emden", "day": "3.0"}));
        assert_eq!(ia(&[with_text.clone(), with_text, berth()]), 1.0);
    }

    #[test]
    fn unparsable_arguments_equal_nothing() {
        let unparsable = calls(&[("tide", json!("{port")), ("tide", json!("{port"))]);
        assert_eq!(
            invocation_accuracy(&unparsable, &unparsable, ArgumentEquality::Normalized),
            0.0
        );
        assert_eq!(selection_accuracy(&unparsable, &unparsable), 1.0);
        let list_arguments = calls(&[("tide", json!([1])), ("berth", json!({}))]);
        let gold = calls(&[("berth", json!({}))]);
        assert_eq!(
            invocation_accuracy(&list_arguments, &gold, ArgumentEquality::Strict),
            0.5
        );
    }

    #[test]
    fn an_object_written_as_a_string_equals_the_object() {
        let text = calls(&[("tide", json!("{\"day\": 3, \"berths\": [1, 2]}"))]);
        let object = calls(&[("tide", json!({"berths": [1, 2], "day": 3}))]);
        for equality in [ArgumentEquality::Normalized, ArgumentEquality::Strict] {
            assert_eq!(invocation_accuracy(&text, &object, equality), 1.0);
        }
    }

    #[test]
    fn normalized_equality_ignores_spelling_and_strict_equality_compares_json() {
        let rows = [
            (json!({"n": 1}), json!({"n": 1.0}), true, true),
            (json!({"n": "1"}), json!({"n": 1}), true, false),
            (json!({"n": " 12 "}), json!({"n": "12.0"}), true, false),
            (json!({"n": "007"}), json!({"n": 7}), false, false),
            (json!({"n": "+5"}), json!({"n": 5}), false, false),
            (json!({"b": "false"}), json!({"b": false}), true, false),
            (json!({"b": true}), json!({"b": 1}), false, false),
            (json!({"b": "True"}), json!({"b": true}), true, false),
            (json!({"b": " False"}), json!({"b": "false"}), true, false),
            (json!({"b": "TRUE"}), json!({"b": true}), false, false),
            (json!({"b": "True"}), json!({"b": 1}), false, false),
            (json!({"s": "None"}), json!({}), false, false),
            (json!({"s": "None"}), json!({"s": null}), false, false),
            (json!({"s": "null"}), json!({"s": "None"}), false, false),
            (
                json!({"l": ["True", {"b": "False"}]}),
                json!({"l": [true, {"b": false}]}),
                true,
                false,
            ),
            (
                json!({"s": "a\u{a0} b"}),
                json!({"s": " a b\n"}),
                true,
                false,
            ),
            (json!({"s": "e\u{301}"}), json!({"s": "é"}), true, false),
            (json!({"s": "Ulm"}), json!({"s": "ulm"}), false, false),
            (json!({"s": ""}), json!({}), false, false),
            (json!({"s": null}), json!({}), true, false),
            (json!({"o": {"s": null}}), json!({"o": {}}), false, false),
            (
                json!({"o": {"a": "1", "b": 2}}),
                json!({"o": {"b": 2, "a": 1}}),
                true,
                false,
            ),
            (json!({"l": [1, 2]}), json!({"l": [2, 1]}), false, false),
            (json!({"l": ["1"]}), json!({"l": [1.0]}), true, false),
            (json!({"l": 1}), json!({"l": [1]}), false, false),
        ];
        for (left, right, normalized, strict) in rows {
            let equalities = [ArgumentEquality::Normalized, ArgumentEquality::Strict]
                .map(|equality| are_equal(left.clone(), right.clone(), equality));
            assert_eq!(equalities, [normalized, strict], "{left} and {right}");
        }
    }

    #[test]
    fn calls_of_trajectories_and_attempts_are_compared_by_the_same_rules() {
        let gold = json!({"sub_query": "", "name": "tide", "arguments": {"day": 3}, "output": 1});
        let gold: TrajectoryCall = serde_json::from_value(gold).expect("a call");
        let attempt = |name: Value, arguments: Value| -> Call {
            let call =
                json!({"name": name, "arguments": arguments, "output": null, "exception": null});
            let call: AttemptedCall = serde_json::from_value(call).expect("an attempt");
            Call::from(&call)
        };
        let gold = [Call::from(&gold)];
        let scores = |call: Call| {
            let pred = [call];
            let equality = ArgumentEquality::Normalized;
            (
                selection_accuracy(&pred, &gold),
                invocation_accuracy(&pred, &gold, equality),
            )
        };
        assert_eq!(
            scores(attempt(json!("tide"), json!({"day": "3"}))),
            (1.0, 1.0)
        );
        assert_eq!(scores(attempt(json!("tide"), Value::Null)), (1.0, 0.0));
        assert_eq!(scores(attempt(Value::Null, json!({"day": 3}))), (0.0, 0.0));
    }

    #[test]
    fn numbers_beyond_the_precision_of_a_float_differ() {
        let arguments = |number: &str| Arguments::parse(&format!("{{\"wei\": {number}}}"));
        let differ = [
            ("9007199254740993", "9007199254740992.0"),
            (
                "340282366920938463463374607431768211456",
                "340282366920938463463374607431768211457",
            ),
            ("0.1000000000000000000001", "0.1"),
        ];
        for (left, right) in differ {
            for equality in [ArgumentEquality::Normalized, ArgumentEquality::Strict] {
                assert!(
                    !args_equal(&arguments(left), &arguments(right), equality),
                    "{left}"
                );
                assert!(
                    args_equal(&arguments(left), &arguments(left), equality),
                    "{left}"
                );
            }
        }
    }
}
