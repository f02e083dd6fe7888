//! Writes a 64-bit float as Python's `repr` does.
//!
//! Both languages print the shortest digits that parse to the same float. They differ in layout,
//! and in their choice between two equally near literals. Python always shows a fraction or an
//! exponent, and uses an exponent for numbers outside 1e-4 to 1e16.

/// Renders a finite float as Python's `repr` does: `1.0`, `1e+22`, `1e-07`, `0.0001`.
///
/// A non-finite float is rendered as in Rust (`NaN`, `inf`).
///
/// # Source
///
/// CPython `float_repr_style` "short": `PyOS_double_to_string` with format code `r`. It uses
/// exponent notation if the decimal point is at or before digit -4 or after digit 16.
pub fn python_float_repr(float: f64) -> String {
    let shortest = format!("{float:e}");
    let Some((mantissa, _)) = shortest.split_once('e') else {
        return shortest;
    };
    // If two shortest literals are equally near, Python chooses the literal with the even last
    // digit, as rounding to that many digits does. Rust chooses the larger literal.
    let n_decimals = mantissa
        .split_once('.')
        .map_or(0, |(_, digits)| digits.len());
    let rounded = format!("{float:.n_decimals$e}");
    let scientific = if rounded.parse() == Ok(float) {
        rounded
    } else {
        shortest
    };
    let parts = scientific.split_once('e');
    let parts = parts.and_then(|(mantissa, exponent)| Some((mantissa, exponent.parse().ok()?)));
    match parts {
        None => scientific,
        Some((mantissa, exponent @ -4..16)) => positional(mantissa, exponent),
        Some((mantissa, exponent)) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
    }
}

/// Converts scientific notation with a small exponent to plain decimal notation.
fn positional(mantissa: &str, exponent: i32) -> String {
    let (sign, unsigned) = match mantissa.strip_prefix('-') {
        Some(unsigned) => ("-", unsigned),
        None => ("", mantissa),
    };
    let digits = unsigned.replace('.', "");
    let Ok(n_whole) = usize::try_from(exponent + 1) else {
        let zeros = "0".repeat(usize::try_from(-1 - exponent).unwrap_or_default());
        return format!("{sign}0.{zeros}{digits}");
    };
    match digits.split_at_checked(n_whole) {
        _ if n_whole == 0 => format!("{sign}0.{digits}"),
        Some((whole, fraction)) if !fraction.is_empty() => format!("{sign}{whole}.{fraction}"),
        _ => format!("{sign}{digits:0<n_whole$}.0"),
    }
}

#[cfg(test)]
mod tests {
    use super::python_float_repr;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_float_is_read_back_from_its_text(bits in any::<u64>(), quarters in any::<i64>()) {
            for float in [f64::from_bits(bits), quarters as f64 / 4.0] {
                prop_assume!(float.is_finite());
                let text = python_float_repr(float);
                prop_assert_eq!(text.parse::<f64>().map(f64::to_bits), Ok(float.to_bits()));
                let n_digits = |text: &str| {
                    let mantissa = text.split('e').next().unwrap_or_default();
                    mantissa.replace(['-', '.'], "").trim_matches('0').len()
                };
                prop_assert_eq!(n_digits(&text), n_digits(&format!("{:e}", float)), "{}", text);
            }
        }
    }

    #[test]
    fn floats_have_the_layout_of_python_repr() {
        let rows = [
            (1.0, "1.0"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e22, "1e+22"),
            (1e16, "1e+16"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (1e-4, "0.0001"),
            (0.00012, "0.00012"),
            (1e-5, "1e-05"),
            (-1.5e-7, "-1.5e-07"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (1e15, "1000000000000000.0"),
            (-0.05, "-0.05"),
            (-739_857_734_535_330.0 - 0.25, "-739857734535330.2"),
            (771_733_331_511_143.0 + 0.25, "771733331511143.2"),
            (674_332_158_311_453.0 + 0.75, "674332158311453.8"),
            (9_007_199_254_740_993_000.0, "9.007199254740993e+18"),
            (2.0_f64.powi(-1022), "2.2250738585072014e-308"),
        ];
        for (float, expected) in rows {
            assert_eq!(python_float_repr(float), expected);
        }
    }
}
