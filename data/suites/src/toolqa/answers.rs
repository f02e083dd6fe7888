//! Says whether a predicted answer matches the gold one, by the metric of the question.
//!
//! The three published metrics are kept with their weaknesses, since the tables of the paper were
//! made with them: any number of the answer may match, within one, and signs and thousands commas
//! are not understood. So an answer that lists the integers from 0 to 199 scores 0.88 on
//! aggregation; [`number_strict`] is reported beside them for that reason.
//! An answer that is no text is wrong whatever it says, which is left to the caller's types.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};
use tooltune_rows::python::is_blank;

/// Largest difference that [`number_strict`] allows beside a gold that is no integer.
const ABSOLUTE_TOLERANCE: f64 = 0.01;

/// The same as a share of the gold.
const RELATIVE_TOLERANCE: f64 = 0.005;

/// A number with its sign and exponent.
static NUMBER: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?"));

/// A number of which only the digits and the fraction count, in group 1.
static BARE_NUMBER: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"[-+]?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a fixed pattern")
}

/// How the answer to a question is compared; each question template has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerMetric {
    /// The same text, whatever its case.
    AccuracyString,
    /// Some number of the answer is within one of the gold.
    ApproxNumberMatch,
    /// The same set of texts between commas.
    UnorderedListStrMatch,
}

impl AnswerMetric {
    /// Every metric, in the order of their names.
    pub const ALL: [Self; 3] = [
        Self::AccuracyString,
        Self::ApproxNumberMatch,
        Self::UnorderedListStrMatch,
    ];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::AccuracyString => "accuracy_string",
            Self::ApproxNumberMatch => "approx_number_match",
            Self::UnorderedListStrMatch => "unordered_list_str_match",
        }
    }

    /// The metric of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }
}

/// Whether the answer is right by its metric.
///
/// - `accuracy_string`: equal after stripping blanks and lower-casing both; one final full stop of
///   the prediction does not count, one of the gold does.
/// - `approx_number_match`: the first number of the gold, with sign and exponent, differs by less
///   than 1 from any number of the prediction, of which signs and exponents are dropped. A gold
///   without a number is never matched. Digits are those of ASCII.
/// - `unordered_list_str_match`: equal sets of the texts between commas, each stripped and
///   lower-cased, without one final full stop each; one more at the very end of the prediction.
///
/// # Source
///
/// "How Good Are LLMs at Processing Tool Outputs?", section 3.1, and the published evaluation.
pub fn exact_match(metric: AnswerMetric, gold: &str, pred: &str) -> bool {
    match metric {
        AnswerMetric::AccuracyString => normal(gold) == without_stop(&normal(pred)),
        AnswerMetric::ApproxNumberMatch => has_number_near(gold, pred),
        AnswerMetric::UnorderedListStrMatch => elements(gold) == elements(without_stop(pred)),
    }
}

/// Whether the answer is right by its metric or holds the gold's text.
///
/// An upper bound: `4` is found in `14`.
///
/// # Source
///
/// As [`exact_match`].
pub fn contains(metric: AnswerMetric, gold: &str, pred: &str) -> bool {
    exact_match(metric, gold, pred) || without_stop(&normal(pred)).contains(&normal(gold))
}

/// Whether the answer holds exactly one number and that is the gold's: our own rule.
///
/// Commas between thousands are taken out first. A gold without a fraction must be met exactly,
/// any other within 0.01 or 0.5 %, whichever is more. A gold without a number is never matched.
pub fn number_strict(gold: &str, pred: &str) -> bool {
    let (gold, pred) = (without_thousands(gold), without_thousands(pred));
    let Some(gold) = numbers(&gold).next() else {
        return false;
    };
    let mut found = numbers(&pred);
    match (found.next(), found.next()) {
        (Some(pred), None) if gold.fract() == 0.0 => pred == gold,
        (Some(pred), None) => {
            (pred - gold).abs() <= f64::max(ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE * gold.abs())
        }
        _ => false,
    }
}

fn normal(text: &str) -> String {
    text.trim_matches(is_blank).to_lowercase()
}

fn without_stop(text: &str) -> &str {
    text.strip_suffix('.').unwrap_or(text)
}

fn has_number_near(gold: &str, pred: &str) -> bool {
    let Some(gold) = numbers(gold).next() else {
        return false;
    };
    let bare = BARE_NUMBER.captures_iter(pred);
    let mut values = bare.filter_map(|found| found.get(1)?.as_str().parse::<f64>().ok());
    values.any(|value| (value - gold).abs() < 1.0)
}

fn numbers(text: &str) -> impl Iterator<Item = f64> {
    let found = NUMBER.find_iter(text);
    found.filter_map(|number| number.as_str().parse().ok())
}

fn elements(list: &str) -> BTreeSet<String> {
    let list = normal(list);
    let elements = list
        .split(',')
        .map(|element| element.trim_matches(is_blank));
    elements.map(without_stop).map(str::to_owned).collect()
}

/// Takes out the commas that stand between a digit and a group of exactly three.
fn without_thousands(text: &str) -> String {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let is_between_thousands = |at: usize| {
        at > 0 && is_digit(at - 1) && (1..=3).all(|step| is_digit(at + step)) && !is_digit(at + 4)
    };
    text.char_indices()
        .filter(|(at, character)| *character != ',' || !is_between_thousands(*at))
        .map(|(_, character)| character)
        .collect()
}

#[cfg(test)]
mod tests;
