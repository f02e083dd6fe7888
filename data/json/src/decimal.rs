//! Reads a JSON number literal of any length as its exact decimal value.
//!
//! Two literals are equal here if and only if they are the same number: `1`, `1.0` and `10e-1` are
//! equal; `9007199254740992` and `9007199254740993` are not, although both are the same 64-bit
//! float.

use serde_json::Number;

use super::float::python_float_repr;

/// A decimal number, `digits` times a power of ten, normalized so that equal numbers compare equal.
///
/// The order is total, for use in sets and maps; it is not the numeric order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decimal {
    is_negative: bool,
    /// Without leading or trailing zeros; empty for zero.
    digits: String,
    /// Power of ten of the last digit; 0 for zero.
    exponent: i64,
}

impl Decimal {
    /// Reads a literal of RFC 8259's grammar; returns `None` for `+5`, `5.`, `.5`, `007` and
    /// blanks.
    ///
    /// An exponent beyond 64 bits is clamped to the nearest 64-bit value.
    pub fn parse(literal: &str) -> Option<Self> {
        let unsigned = literal.strip_prefix('-').unwrap_or(literal);
        let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
            Some(at) => (&unsigned[..at], parse_exponent(&unsigned[at + 1..])?),
            None => (unsigned, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (mantissa, ""),
        };
        let is_valid_integer = is_digits(whole) && (whole == "0" || !whole.starts_with('0'));
        if !is_valid_integer || !(fraction.is_empty() || is_digits(fraction)) {
            return None;
        }
        let exponent = exponent.saturating_sub(fraction.len() as i64);
        Some(Self::normalize(
            literal.starts_with('-'),
            &format!("{whole}{fraction}"),
            exponent,
        ))
    }

    /// The value of a number's shortest literal. For example, the float nearest to `0.1` becomes
    /// 0.1.
    pub fn from_number(number: &Number) -> Self {
        let literal = match number.as_f64() {
            Some(float) if number.is_f64() => python_float_repr(float),
            _ => number.to_string(),
        };
        Self::parse(&literal).unwrap_or_else(|| Self::normalize(false, "", 0))
    }

    fn normalize(is_negative: bool, digits: &str, exponent: i64) -> Self {
        let significant = digits.trim_start_matches('0');
        let trimmed = significant.trim_end_matches('0');
        if trimmed.is_empty() {
            return Self {
                is_negative: false,
                digits: String::new(),
                exponent: 0,
            };
        }
        let n_zeros = (significant.len() - trimmed.len()) as i64;
        Self {
            is_negative,
            digits: trimmed.to_owned(),
            exponent: exponent.saturating_add(n_zeros),
        }
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn parse_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !is_digits(digits) {
        return None;
    }
    let size = digits.parse().unwrap_or(i64::MAX);
    Some(if text.starts_with('-') { -size } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(literal: &str) -> Decimal {
        Decimal::parse(literal).expect(literal)
    }

    #[test]
    fn equal_numbers_are_equal_in_any_notation() {
        let groups: [&[&str]; 6] = [
            &["0", "-0", "0.000", "0e99", "-0.0E-7"],
            &["1", "1.0", "10e-1", "0.1E+1", "1e0"],
            &["-120", "-1.2e2", "-120.00", "-12000e-2"],
            &["9007199254740993", "9007199254740993.0"],
            &["9007199254740992"],
            &["0.1", "0.10", "1e-1"],
        ];
        for (group_idx, group) in groups.iter().enumerate() {
            for (other_idx, other) in groups.iter().enumerate() {
                let is_same = decimal(group[0]) == decimal(other[other.len() - 1]);
                assert_eq!(is_same, group_idx == other_idx, "{group:?} {other:?}");
            }
        }
    }

    #[test]
    fn literals_outside_the_json_grammar_are_not_numbers() {
        let texts = [
            "", "-", "+5", "5.", ".5", "007", "-01", "1e", "1e+", "1.e3", "0x1", "1_000", " 1",
            "1,000", "NaN", "Infinity", "--1", "1.2.3", "٣",
        ];
        for text in texts {
            assert_eq!(Decimal::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_huge_exponent_neither_panics_nor_wraps_around() {
        let huge = decimal("1e99999999999999999999999");
        assert_ne!(huge, decimal("1"));
        assert_eq!(huge, decimal("1e88888888888888888888888"));
        assert_ne!(decimal("1.5e-99999999999999999999"), decimal("0"));
        assert_ne!(decimal("10e9223372036854775807"), decimal("10"));
    }

    #[test]
    fn a_float_has_the_value_of_its_shortest_literal() {
        let number = |text: &str| match super::super::parse(text) {
            Ok(serde_json::Value::Number(number)) => Decimal::from_number(&number),
            other => panic!("{text} is {other:?}"),
        };
        for text in [
            "0.1",
            "1e22",
            "-7",
            "18446744073709551615",
            "1.5e-7",
            "5e-324",
        ] {
            assert_eq!(number(text), decimal(text));
        }
    }
}
