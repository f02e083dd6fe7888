//! The numbers of a problem, and the constants of formulas.

use std::f64::consts::PI;

use num_bigint::BigInt;
use tooltune_json::python::PyValue;

/// Digits of the longest number in a problem or a formula.
const MAX_DIGITS: usize = 100;

/// The numbers of a problem in order: `n0` is the first.
///
/// All commas are removed first, and a number is then a sequence of digits, optionally followed by
/// a point and more digits. Signs, percent signs and words are not part of it, and a fraction is two
/// numbers. A point without a digit before it does not begin a number.
///
/// # Source
///
/// `extract_numbers_from_problem` of github.com/shaigue/mathqa. With these numbers, 7,364 of the
/// 7,460 `linear_formula`s of MathQA's dev and test files equal their `annotated_formula`s; with
/// commas kept between groups of three digits only, and with the signed numbers of trax's
/// `compute_nums`, 7,351 do.
pub(super) fn problem_numbers(problem: &str) -> Vec<PyValue> {
    let text: String = problem.chars().filter(|&c| c != ',').collect();
    let mut numbers = Vec::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        rest = &rest[start..];
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let mut end = digits(rest);
        if rest[end..].starts_with('.') {
            end += 1 + digits(&rest[end + 1..]);
        }
        // A number of more digits keeps its position, so that later numbers keep theirs.
        numbers.push(number(&rest[..end]).unwrap_or_default());
        rest = &rest[end..];
    }
    numbers
}

/// A decimal number, optionally negative and with commas between digits: an integer, or a float if
/// it has decimal places.
pub(super) fn number(text: &str) -> Option<PyValue> {
    let text = text.replace(',', "");
    let unsigned = text.strip_prefix('-').unwrap_or(&text);
    let (whole, decimals) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let is_decimal = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    let n_digits = whole.len() + decimals.len();
    if !(1..=MAX_DIGITS).contains(&n_digits) || !is_decimal(whole) || !is_decimal(decimals) {
        return None;
    }
    if decimals.is_empty() {
        let text = text.trim_end_matches('.');
        return text.parse::<BigInt>().ok().map(PyValue::Int);
    }
    text.parse().ok().map(PyValue::Float)
}

/// The value of a constant. `const_3_6` is 3.6. `const_100.0` is a number of the problem that is
/// also a constant, and is an integer.
pub(super) fn constant(name: &str) -> Option<PyValue> {
    const PREFIX: &str = "const_";
    let (prefix, value) = name.split_at_checked(PREFIX.len())?;
    if !prefix.eq_ignore_ascii_case(PREFIX) {
        return None;
    }
    match value.to_ascii_lowercase().as_str() {
        "pi" => Some(PyValue::Float(PI)),
        "deg_to_rad" => Some(PyValue::Float(PI / 180.0)),
        value => {
            let value = value.replacen('_', ".", 1);
            let whole = value
                .split_once('.')
                .filter(|(_, decimals)| decimals.bytes().all(|digit| digit == b'0'));
            number(whole.map_or(value.as_str(), |(whole, _)| whole))
        }
    }
}
