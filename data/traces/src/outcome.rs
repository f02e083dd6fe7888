//! The outcome of a trace, and the weight that follows from it.
//!
//! An outcome is a number: a score, 1 for a good label or `true`, 0 for a bad label or `false`.
//! An outcome in (0, 1] is the `weight` of every assistant message, which multiplies the loss
//! weights of the turn. A trace with an outcome of at most 0 is dropped, because a weight of 0
//! would leave nothing to train on. Larger outcomes have no scale, so they only count for
//! `--min-outcome`.

use serde_json::{Map, Value};

use crate::error::TraceError;
use crate::trace::Problem;

pub(crate) const BAD_OUTCOME: Problem = "the outcome is 0 or less";
pub(crate) const LOW_OUTCOME: Problem = "the outcome is below --min-outcome";
pub(crate) const NO_OUTCOME: Problem = "there is no outcome, and --min-outcome is set";
pub(crate) const LARGE_OUTCOME: Problem = "the outcome is above 1, so it is not used as a weight";

/// Fields with the outcome of a logged request, in the request or in its `metadata`.
const FIELDS: [&str; 7] = [
    "outcome", "score", "reward", "rating", "feedback", "success", "passed",
];

/// Words for a good outcome, in lower case.
const GOOD: [&str; 17] = [
    "pass",
    "passed",
    "success",
    "succeeded",
    "successful",
    "good",
    "positive",
    "up",
    "thumbs_up",
    "correct",
    "yes",
    "true",
    "like",
    "liked",
    "resolved",
    "ok",
    "accepted",
];

/// Words for a bad outcome, in lower case.
const BAD: [&str; 17] = [
    "fail",
    "failed",
    "failure",
    "error",
    "bad",
    "negative",
    "down",
    "thumbs_down",
    "incorrect",
    "no",
    "false",
    "dislike",
    "disliked",
    "unresolved",
    "rejected",
    "wrong",
    "not_ok",
];

/// Where outcomes are, and which are good enough.
#[derive(Debug, Clone, Default)]
pub(crate) struct OutcomeRule {
    pub(crate) pointer: Option<String>,
    pub(crate) min: Option<f64>,
}

/// What an outcome means for a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    Drop(Problem),
    /// The weight of its answers; `None` is 1.
    Keep(Option<f64>),
    /// As `Keep(None)`, because the outcome has no scale.
    KeepUnweighted,
}

impl OutcomeRule {
    /// # Errors
    ///
    /// - the pointer is not a JSON pointer
    pub(crate) fn new(pointer: Option<&str>, min: Option<f64>) -> Result<Self, TraceError> {
        match pointer {
            Some(pointer) if !pointer.starts_with('/') => Err(TraceError::Pointer {
                pointer: pointer.to_owned(),
            }),
            pointer => Ok(Self {
                pointer: pointer.map(str::to_owned),
                min,
            }),
        }
    }

    /// The outcome of an entry: the value of the pointer, or of a known field.
    pub(crate) fn of_entry(&self, entry: &Value) -> Option<f64> {
        if self.pointer.is_some() {
            return self.at_pointer(entry);
        }
        let from =
            |fields: &Map<String, Value>| FIELDS.iter().find_map(|name| read(fields.get(*name)?));
        let fields = entry.as_object()?;
        let metadata = fields.get("metadata").and_then(Value::as_object);
        from(fields).or_else(|| from(metadata?))
    }

    /// The value of the pointer.
    pub(crate) fn at_pointer(&self, entry: &Value) -> Option<f64> {
        read(entry.pointer(self.pointer.as_deref()?)?)
    }

    pub(crate) fn verdict(&self, outcome: Option<f64>) -> Verdict {
        match (outcome, self.min) {
            (None, Some(_)) => Verdict::Drop(NO_OUTCOME),
            (None, None) => Verdict::Keep(None),
            (Some(outcome), Some(min)) if outcome < min => Verdict::Drop(LOW_OUTCOME),
            (Some(outcome), _) if outcome <= 0.0 => Verdict::Drop(BAD_OUTCOME),
            (Some(outcome), _) if outcome < 1.0 => Verdict::Keep(Some(outcome)),
            (Some(1.0), _) => Verdict::Keep(None),
            (Some(_), _) => Verdict::KeepUnweighted,
        }
    }
}

/// Reads a score, a label, or an object with one.
pub(crate) fn read(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::Bool(is_good) => Some(f64::from(u8::from(*is_good))),
        Value::String(label) => read_label(label),
        Value::Object(fields) => {
            let names = ["score", "value", "rating", "outcome", "label"];
            names.iter().find_map(|name| match fields.get(*name)? {
                Value::Object(_) => None,
                scalar => read(scalar),
            })
        }
        _ => None,
    }
}

fn read_label(label: &str) -> Option<f64> {
    let word = label.trim().to_lowercase().replace([' ', '-'], "_");
    if GOOD.contains(&word.as_str()) || word == "👍" {
        return Some(1.0);
    }
    if BAD.contains(&word.as_str()) || word == "👎" {
        return Some(0.0);
    }
    word.parse().ok().filter(|score: &f64| score.is_finite())
}
