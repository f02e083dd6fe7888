//! Compares a predicted answer with the gold answer, by the metric of the question.
//!
//! The three published metrics are kept with their weaknesses, so that results are comparable with
//! the paper's tables: any number of the answer may match within 1, and signs and thousands
//! separators are not parsed. An answer that lists the integers from 0 to 199 therefore scores 0.88
//! on aggregation. For that reason [`number_strict`] is also reported. Callers treat an answer that
//! is not a string as wrong.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};
use tooltune_json::blank::is_blank;

/// Absolute tolerance of [`number_strict`] for gold answers that are not integers.
const ABSOLUTE_TOLERANCE: f64 = 0.01;

/// Relative tolerance of [`number_strict`].
const RELATIVE_TOLERANCE: f64 = 0.005;

/// A number with sign and exponent.
static NUMBER: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?"));

/// A number without sign and exponent, in group 1.
static BARE_NUMBER: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"[-+]?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a fixed pattern")
}

/// The metric of an answer; each question template has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerMetric {
    /// Case-insensitive string equality.
    AccuracyString,
    /// A number in the answer is within 1 of the gold number.
    ApproxNumberMatch,
    /// Equality of the sets of comma-separated strings.
    UnorderedListStrMatch,
}

impl AnswerMetric {
    /// All metrics, in name order.
    pub const ALL: [Self; 3] = [
        Self::AccuracyString,
        Self::ApproxNumberMatch,
        Self::UnorderedListStrMatch,
    ];

    /// The name used in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::AccuracyString => "accuracy_string",
            Self::ApproxNumberMatch => "approx_number_match",
            Self::UnorderedListStrMatch => "unordered_list_str_match",
        }
    }

    /// Looks a metric up by name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }
}

/// Whether the answer is right by its metric.
///
/// - `accuracy_string`: equal after stripping whitespace and lower-casing. A final full stop is
///   ignored in the prediction, but not in the gold answer.
/// - `approx_number_match`: the first number of the gold answer, with sign and exponent, differs by
///   less than 1 from any number of the prediction, without sign and exponent. A gold answer
///   without a number is never matched. Only ASCII digits count.
/// - `unordered_list_str_match`: equal sets of comma-separated strings. Each string is stripped,
///   lower-cased and without a final full stop. A second full stop at the end of the prediction is
///   also ignored.
///
/// # Source
///
/// "How Good Are LLMs at Processing Tool Outputs?", section 3.1, and the published evaluation.
pub fn exact_match(metric: AnswerMetric, gold: &str, pred: &str) -> bool {
    match metric {
        AnswerMetric::AccuracyString => normalize(gold) == strip_final_stop(&normalize(pred)),
        AnswerMetric::ApproxNumberMatch => has_number_near(gold, pred),
        AnswerMetric::UnorderedListStrMatch => elements(gold) == elements(strip_final_stop(pred)),
    }
}

/// Whether the answer is right by its metric or contains the gold answer.
///
/// This is an upper bound, because a wrong `14` contains `4`.
///
/// # Source
///
/// As for [`exact_match`].
pub fn contains(metric: AnswerMetric, gold: &str, pred: &str) -> bool {
    exact_match(metric, gold, pred) || strip_final_stop(&normalize(pred)).contains(&normalize(gold))
}

/// Whether the answer contains exactly one number, which equals the gold number (our own metric).
///
/// Thousands separators are removed first. If the gold number has no fraction, the number in the
/// answer must be equal to it. Otherwise it may differ by 0.01 or 0.5 %, whichever is larger. A gold
/// answer without a number is never matched.
pub fn number_strict(gold: &str, pred: &str) -> bool {
    let (gold, pred) = (
        remove_thousands_separators(gold),
        remove_thousands_separators(pred),
    );
    let Some(gold) = numbers(&gold).next() else {
        return false;
    };
    let mut all_numbers = numbers(&pred);
    match (all_numbers.next(), all_numbers.next()) {
        (Some(pred), None) if gold.fract() == 0.0 => pred == gold,
        (Some(pred), None) => {
            (pred - gold).abs() <= f64::max(ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE * gold.abs())
        }
        _ => false,
    }
}

fn normalize(text: &str) -> String {
    text.trim_matches(is_blank).to_lowercase()
}

fn strip_final_stop(text: &str) -> &str {
    text.strip_suffix('.').unwrap_or(text)
}

fn has_number_near(gold: &str, pred: &str) -> bool {
    let Some(gold) = numbers(gold).next() else {
        return false;
    };
    let matches = BARE_NUMBER.captures_iter(pred);
    let mut values =
        matches.filter_map(|number_match| number_match.get(1)?.as_str().parse::<f64>().ok());
    values.any(|value| (value - gold).abs() < 1.0)
}

fn numbers(text: &str) -> impl Iterator<Item = f64> {
    let matches = NUMBER.find_iter(text);
    matches.filter_map(|number| number.as_str().parse().ok())
}

fn elements(list: &str) -> BTreeSet<String> {
    let list = normalize(list);
    let elements = list
        .split(',')
        .map(|element| element.trim_matches(is_blank));
    elements.map(strip_final_stop).map(str::to_owned).collect()
}

/// Removes commas between a digit and a group of exactly three digits.
fn remove_thousands_separators(text: &str) -> String {
    let bytes = text.as_bytes();
    let is_digit = |idx: usize| bytes.get(idx).is_some_and(u8::is_ascii_digit);
    let is_between_thousands = |idx: usize| {
        idx > 0
            && is_digit(idx - 1)
            && (1..=3).all(|step| is_digit(idx + step))
            && !is_digit(idx + 4)
    };
    text.char_indices()
        .filter(|(idx, character)| *character != ',' || !is_between_thousands(*idx))
        .map(|(_, character)| character)
        .collect()
}

#[cfg(test)]
mod tests;
