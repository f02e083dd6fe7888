//! Rounds a float to a number of decimal digits, as Python's `round` does.

/// Returns the float nearest to the rounded decimal value of `float`. If the exact value is halfway
/// between two decimals, it is rounded to the even digit.
///
/// # Source
///
/// CPython `float.__round__`: the exact value is printed with that many digits and read again, so
/// `round(2.675, 2)` is 2.67.
pub fn round_to(float: f64, n_digits: usize) -> f64 {
    // No float has more decimal digits.
    const MAX_DIGITS: usize = 1074;
    if !float.is_finite() {
        return float;
    }
    let printed = format!("{float:.*}", n_digits.min(MAX_DIGITS));
    printed.parse().unwrap_or(float)
}
