//! A 64-bit float to the literal that Python's `repr` writes.
//!
//! Both languages print the shortest digits that read back to the same float; they differ only
//! in layout. Python always shows a fraction or an exponent, and switches to the exponent form
//! outside 1e-4 to 1e16.

/// Renders a finite float as Python's `repr` does: `1.0`, `1e+22`, `1e-07`, `0.0001`.
///
/// A float that JSON cannot hold is rendered as Rust writes it (`NaN`, `inf`).
///
/// # Source
///
/// CPython `float_repr_style` "short": `PyOS_double_to_string` with format code `r`, exponent
/// form when the decimal point falls at or before digit -4 or after digit 16.
pub fn python_float_repr(float: f64) -> String {
    let scientific = format!("{float:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let Ok(exponent) = exponent.parse::<i32>() else {
        return scientific;
    };
    if (-4..16).contains(&exponent) {
        let plain = format!("{float}");
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::python_float_repr;

    #[test]
    fn floats_are_laid_out_as_python_repr_does() {
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
        ];
        for (float, expected) in rows {
            assert_eq!(python_float_repr(float), expected);
        }
    }
}
