//! A result beside the gold answer: whether it wins, under the published rules and under strict ones.

use tooltune_rows::python::{Booleans, PyValue, python_str, round_to};

use super::runner::Execution;

/// Compares as the published scorer does; none where that scorer stops with an error.
///
/// Two floats are equal if the predicted one, rounded to as many digits as stand after the point of
/// the printed gold, is the gold; all else is equal as Python's `==` says: 20 is 20.0 and 1 is
/// `True`. A tuple is a list where the gold is one. A failed execution is `False`, which is 0: every
/// failure wins where the gold is 0, 0.0 or false.
///
/// What is printed is `1e-05` or `1.5e-07` for small golds: the first has no point, which stops the
/// published scorer, the second has five digits, to which nothing so small can be rounded.
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

/// Compares strictly: a failed execution loses, booleans are no numbers, and two floats are compared
/// at the decimals of the gold, of which `1.5e-07` has eight.
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

/// Digits after the point of the shortest decimal without an exponent, at least one.
fn n_decimals(gold: f64) -> usize {
    // Rust prints floats without an exponent.
    let printed = format!("{gold}");
    let digits = printed
        .split_once('.')
        .map_or(0, |(_, digits)| digits.len());
    digits.max(1)
}
