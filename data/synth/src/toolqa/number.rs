//! Exact decimal numbers of a response, so that sums, means and ties do not depend on rounding.

use std::cmp::Ordering;

use serde_json::Number;
use tooltune_json::python_float_repr;

/// Maximum number of digits, with the zeros of an exponent; numbers with more are not computed with.
const MAX_DIGITS: usize = 30;

/// A decimal number: `mantissa` divided by ten to the power `scale`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExactNumber {
    mantissa: i128,
    scale: u32,
}

impl ExactNumber {
    /// The value of a number's shortest literal; `None` if it needs more than 30 digits.
    pub(super) fn new(number: &Number) -> Option<Self> {
        Self::parse(&number_text(number))
    }

    fn parse(literal: &str) -> Option<Self> {
        let (mantissa, exponent) = match literal.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (literal, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let fraction = fraction.trim_end_matches('0');
        let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        let n_digits = whole.len() + fraction.len() + exponent.unsigned_abs() as usize;
        if n_digits > MAX_DIGITS {
            return None;
        }
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
        Some(match exponent {
            0.. => Self {
                mantissa: digits.checked_mul(power)?,
                scale: 0,
            },
            _ => Self {
                mantissa: digits,
                scale: exponent.unsigned_abs(),
            },
        })
    }

    /// The sum; `None` if it does not fit.
    pub(super) fn sum(numbers: &[Self]) -> Option<Self> {
        let zero = Self {
            mantissa: 0,
            scale: 0,
        };
        numbers.iter().try_fold(zero, |sum, number| {
            let scale = sum.scale.max(number.scale);
            let mantissa = sum.at_scale(scale)?.checked_add(number.at_scale(scale)?)?;
            Some(Self { mantissa, scale })
        })
    }

    /// The mean, rounded to two decimals, half to even; `None` without numbers, or if it does not
    /// fit.
    pub(super) fn mean(numbers: &[Self]) -> Option<Self> {
        let sum = Self::sum(numbers)?;
        let hundredths = sum.mantissa.checked_mul(100)?;
        let n = i128::try_from(numbers.len()).ok().filter(|n| *n > 0)?;
        let divisor = 10_i128.checked_pow(sum.scale)?.checked_mul(n)?;
        let (floor, rest) = (
            hundredths.div_euclid(divisor),
            hundredths.rem_euclid(divisor),
        );
        let up = match rest.checked_mul(2)?.cmp(&divisor) {
            Ordering::Less => 0,
            Ordering::Equal => floor.rem_euclid(2),
            Ordering::Greater => 1,
        };
        Some(Self {
            mantissa: floor + up,
            scale: 2,
        })
    }

    fn at_scale(self, scale: u32) -> Option<i128> {
        let power = 10_i128.checked_pow(scale.checked_sub(self.scale)?)?;
        self.mantissa.checked_mul(power)
    }

    /// The decimal notation without superfluous zeros: `12.5`, `-3`.
    pub(super) fn text(self) -> String {
        let digits = format!(
            "{:0>width$}",
            self.mantissa.unsigned_abs(),
            width = self.scale as usize + 1
        );
        let (whole, fraction) = digits.split_at(digits.len() - self.scale as usize);
        let fraction = fraction.trim_end_matches('0');
        let sign = if self.mantissa < 0 { "-" } else { "" };
        if fraction.is_empty() {
            format!("{sign}{whole}")
        } else {
            format!("{sign}{whole}.{fraction}")
        }
    }
}

impl PartialEq for ExactNumber {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ExactNumber {}

impl PartialOrd for ExactNumber {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ExactNumber {
    fn cmp(&self, other: &Self) -> Ordering {
        let (whole, rest) = self.parts();
        let (other_whole, other_rest) = other.parts();
        whole.cmp(&other_whole).then(rest.cmp(&other_rest))
    }
}

impl ExactNumber {
    /// The floor, and the rest in units of 10^-30.
    fn parts(self) -> (i128, i128) {
        // A scale never exceeds MAX_DIGITS, so neither power overflows.
        let power = 10_i128.pow(self.scale);
        let unit = 10_i128.pow(MAX_DIGITS as u32 - self.scale.min(MAX_DIGITS as u32));
        (
            self.mantissa.div_euclid(power),
            self.mantissa.rem_euclid(power) * unit,
        )
    }
}

/// A number as Python writes it: `1.0`, `1e-07`, `12`.
pub(super) fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => python_float_repr(float),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn number(value: serde_json::Value) -> ExactNumber {
        ExactNumber::new(value.as_number().expect("a number")).expect("exact")
    }

    #[test]
    fn sums_and_means_are_exact() {
        let numbers = [json!(0.1), json!(0.2), json!(-3), json!(1e2)].map(number);
        assert_eq!(ExactNumber::sum(&numbers).unwrap().text(), "97.3");
        // 97.3 / 4 = 24.325 is halfway between 24.32 and 24.33: even.
        assert_eq!(ExactNumber::mean(&numbers).unwrap().text(), "24.32");
        let thirds = [json!(1), json!(1), json!(0)].map(number);
        assert_eq!(ExactNumber::mean(&thirds).unwrap().text(), "0.67");
        let negative = [json!(-1), json!(-0.03)].map(number);
        // -0.515: half to even.
        assert_eq!(ExactNumber::mean(&negative).unwrap().text(), "-0.52");
        assert_eq!(ExactNumber::sum(&[]).unwrap().text(), "0");
        assert!(ExactNumber::mean(&[]).is_none());
    }

    #[test]
    fn order_and_equality_are_numeric() {
        assert_eq!(number(json!(1.0)), number(json!(1)));
        assert_eq!(number(json!(0.1)), number(json!(1e-1)));
        assert!(number(json!(-0.5)) < number(json!(-0.25)));
        assert!(number(json!(2)) < number(json!(10)));
        assert!(number(json!(1e-20)) > number(json!(0)));
        assert!(number(json!(u64::MAX)) > number(json!(u64::MAX - 1)));
    }

    #[test]
    fn numbers_with_too_many_digits_are_refused() {
        for value in [json!(1e300), json!(5e-324), json!(1.5e31)] {
            assert!(
                ExactNumber::new(value.as_number().unwrap()).is_none(),
                "{value}"
            );
        }
        let large = vec![number(json!(9e28)); 3];
        assert_eq!(
            ExactNumber::sum(&large).unwrap().text(),
            format!("27{}", "0".repeat(28))
        );
        let many = vec![number(json!(9e28)); 10_000];
        // The sum does not overflow, the hundredths of a mean may.
        assert!(ExactNumber::sum(&many).is_some());
    }
}
