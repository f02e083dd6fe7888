//! Compares a result with the gold answer, by the published rules and by strict ones.

use tooltune_json::python::{Booleans, PyValue, python_str, round_to};

use super::runner::Execution;

/// Compares by the rules of the published scorer; `None` if that scorer raises an error.
///
/// Two floats are equal if the predicted float, rounded to the number of digits after the point of
/// the printed gold value, equals the gold value. Everything else is compared with Python's `==`:
/// 20 equals 20.0 and 1 equals `True`. A tuple counts as a list if the gold value is a list. A
/// failed execution is `False`, which equals 0. Every failure therefore wins if the gold value is
/// 0, 0.0 or false.
///
/// Small gold values are printed as `1e-05` or `1.5e-07`. `1e-05` has no point, which makes the
/// published scorer fail. `1.5e-07` has five digits after the point, and rounding to five digits
/// never gives a number that small.
pub fn official_win(execution: &Execution, gold: &PyValue) -> Option<bool> {
    let value = match execution {
        Execution::Value(value) => value.clone(),
        Execution::Failed(_) => PyValue::Bool(false),
    };
    let rounded = match (&value, gold) {
        (PyValue::Float(float), PyValue::Float(_)) => {
            let printed = python_str(gold);
            let (_, digits) = printed.split_once('.')?;
            PyValue::Float(round_to(*float, digits.len()))
        }
        _ => value,
    };
    Some(is_equal(rounded, gold, Booleans::AreNumbers))
}

/// Compares strictly: a failed execution loses, booleans are not numbers, and floats are compared
/// at the number of decimals of the gold value (eight for `1.5e-07`).
pub fn strict_win(execution: &Execution, gold: &PyValue) -> bool {
    let Execution::Value(value) = execution else {
        return false;
    };
    let rounded = match (value, gold) {
        (PyValue::Float(float), PyValue::Float(gold)) => {
            PyValue::Float(round_to(*float, n_decimals(*gold)))
        }
        _ => value.clone(),
    };
    is_equal(rounded, gold, Booleans::AreApart)
}

fn is_equal(value: PyValue, gold: &PyValue, booleans: Booleans) -> bool {
    let value = match (value, gold) {
        (tuple @ PyValue::Tuple(_), PyValue::List(_)) => as_lists(tuple),
        (other, _) => other,
    };
    value.equals(gold, booleans)
}

fn as_lists(value: PyValue) -> PyValue {
    match value {
        PyValue::Tuple(items) | PyValue::List(items) => {
            PyValue::List(items.into_iter().map(as_lists).collect())
        }
        other => other,
    }
}

/// Number of digits after the point in the shortest decimal without an exponent, at least one.
fn n_decimals(gold: f64) -> usize {
    // Rust prints floats without an exponent.
    let printed = format!("{gold}");
    let digits = printed
        .split_once('.')
        .map_or(0, |(_, digits)| digits.len());
    digits.max(1)
}
