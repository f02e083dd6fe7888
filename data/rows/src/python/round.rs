//! Rounds a float to so many digits after the point, as Python's `round` does.

/// The float nearest to the decimal that `float` is nearest to, ties of the exact value to even.
///
/// # Source
///
/// CPython `float.__round__`: the exact value is printed with so many digits and read again, which
/// is why `round(2.675, 2)` is 2.67.
pub fn round_to(float: f64, n_digits: usize) -> f64 {
    // Beyond this no float has a digit.
    const MAX_DIGITS: usize = 1074;
    if !float.is_finite() {
        return float;
    }
    let printed = format!("{float:.*}", n_digits.min(MAX_DIGITS));
    printed.parse().unwrap_or(float)
}
