//! Formats numbers, durations and sizes for readers.

/// Maximum number of decimals.
const MAX_DECIMALS: usize = 12;

/// A count with thousands separators: `1,234,567`.
pub(super) fn group_digits(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A measured number with four significant digits: `0.6011`, `12.35`, `2e-4`, `123,457`.
pub(super) fn format_number(number: f64) -> String {
    let size = number.abs();
    match size {
        0.0 => "0".to_owned(),
        _ if !number.is_finite() => number.to_string(),
        _ if size < 1e-3 => scientific(number, 3),
        _ if size >= 1e15 => scientific(number, 3),
        _ if size >= 9999.5 => {
            let sign = if number < 0.0 { "-" } else { "" };
            sign.to_owned() + &group_digits(size.round() as u64)
        }
        _ => {
            let n_before = size.log10().floor() as i32;
            trim_zeros(format!("{number:.*}", (3 - n_before).max(0) as usize))
        }
    }
}

/// A score with three decimals, so that the numbers of a column are aligned. Larger numbers are
/// formatted like [`format_number`].
pub(super) fn estimate(number: f64) -> String {
    if number.abs() < 100.0 {
        format!("{number:.3}")
    } else {
        format_number(number)
    }
}

/// A difference with its sign: `+0.125`, `−0.125`.
pub(super) fn format_change(number: f64) -> String {
    let text = estimate(number.abs());
    if text.bytes().all(|byte| matches!(byte, b'0' | b'.')) {
        return format!("±{text}");
    }
    let sign = if number < 0.0 { '−' } else { '+' };
    format!("{sign}{text}")
}

/// Labels of ticks with a distance of `step`, all with the same unit and number of decimals.
pub(super) fn tick_labels(ticks: &[f64], step: f64) -> Vec<String> {
    let largest = ticks
        .iter()
        .fold(0.0_f64, |largest_tick, tick| largest_tick.max(tick.abs()));
    let label = |tick: &f64| match largest {
        _ if *tick == 0.0 => "0".to_owned(),
        _ if largest >= 1e9 => scientific(*tick, 3),
        _ if largest >= 1e6 => decimals(*tick / 1e6, step / 1e6) + "M",
        _ if largest >= 1e4 => decimals(*tick / 1e3, step / 1e3) + "k",
        _ if largest < 1e-2 => scientific(*tick, 3),
        _ => decimals(*tick, step),
    };
    ticks.iter().map(label).collect()
}

/// Formats a number with as many decimals as `step` has.
fn decimals(number: f64, step: f64) -> String {
    // Steps such as 0.2 are not exact in binary.
    let n = (0..MAX_DECIMALS).find(|n| {
        let scaled = step * 10_f64.powi(*n as i32);
        (scaled - scaled.round()).abs() < 1e-6 * scaled
    });
    format!("{number:.*}", n.unwrap_or(MAX_DECIMALS))
}

fn scientific(number: f64, n_decimals: usize) -> String {
    let text = format!("{number:.n_decimals$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => format!("{}e{exponent}", trim_zeros(mantissa.to_owned())),
        None => text,
    }
}

/// Removes the trailing zeros of a fraction.
fn trim_zeros(text: String) -> String {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Seconds as `2 d 3 h`, `1 h 2 min`, `35 min`, `3 min 5 s`, `7 s` or `0.25 s`.
pub(super) fn duration(secs: f64) -> String {
    if secs < 10.0 {
        return format!("{} s", trim_zeros(format!("{secs:.2}")));
    }
    let n_secs = secs.round() as u64;
    match (
        n_secs / 86_400,
        n_secs / 3600 % 24,
        n_secs / 60 % 60,
        n_secs % 60,
    ) {
        (0, 0, 0, secs) => format!("{secs} s"),
        (0, 0, minutes @ 10.., _) => format!("{minutes} min"),
        (0, 0, minutes, secs) => format!("{minutes} min {secs} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, _, _) => format!("{} d {hours} h", group_digits(days)),
    }
}

/// Bytes as `812 MiB` or `1.10 GiB`.
pub(super) fn bytes(n: u64) -> String {
    const MIB: f64 = 1024.0 * 1024.0;
    let mib = n as f64 / MIB;
    if mib < 1024.0 {
        format!("{mib:.0} MiB")
    } else {
        format!("{:.2} GiB", mib / 1024.0)
    }
}

/// A score, followed by the score of the gold answer if that is below the maximum.
pub(super) fn with_ceiling(value: f64, ceiling: Option<f64>) -> String {
    match ceiling {
        None => estimate(value),
        Some(ceiling) => format!("{} (gold: {})", estimate(value), estimate(ceiling)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_and_no_trailing_zeros() {
        for (number, text) in [
            (0.0, "0"),
            (0.6011029, "0.6011"),
            (12.345_67, "12.35"),
            (-3.0, "-3"),
            (0.000_25, "2.5e-4"),
            (9999.4, "9999"),
            (123_456.7, "123,457"),
            (-10_000.0, "-10,000"),
            (1e300, "1e300"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(format_number(number), text);
        }
        assert_eq!(group_digits(1_234_567), "1,234,567");
        assert_eq!(group_digits(999), "999");
    }

    #[test]
    fn changes_have_signs_except_zero() {
        assert_eq!(format_change(0.125), "+0.125");
        assert_eq!(format_change(-0.125), "−0.125");
        assert_eq!(format_change(-0.0001), "±0.000");
        assert_eq!(estimate(1234.6), "1235");
    }

    #[test]
    fn ticks_share_their_decimals_and_unit() {
        let labels = |ticks: &[f64], step| tick_labels(ticks, step).join(" ");
        assert_eq!(labels(&[0.0, 0.2, 0.4], 0.2), "0 0.2 0.4");
        assert_eq!(labels(&[1.0, 1.25, 1.5], 0.25), "1.00 1.25 1.50");
        assert_eq!(labels(&[0.0, 5e-5, 1e-4], 5e-5), "0 5e-5 1e-4");
        assert_eq!(labels(&[0.0, 20_000.0, 40_000.0], 20_000.0), "0 20k 40k");
        assert_eq!(labels(&[0.0, 500.0, 1000.0], 500.0), "0 500 1000");
        assert_eq!(labels(&[0.0, 5e5, 1e6], 5e5), "0 0.5M 1.0M");
    }

    #[test]
    fn durations_and_sizes_have_at_most_two_units() {
        for (secs, text) in [
            (0.254, "0.25 s"),
            (7.0, "7 s"),
            (185.2, "3 min 5 s"),
            (2119.0, "35 min"),
            (3720.0, "1 h 2 min"),
            (183_600.0, "2 d 3 h"),
        ] {
            assert_eq!(duration(secs), text);
        }
        assert_eq!(bytes(1 << 29), "512 MiB");
        assert_eq!(bytes(1_181_650_944), "1.10 GiB");
    }
}
