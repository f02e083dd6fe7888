//! The exponential function, written so that compilers vectorise it at any width.

/// `eˣ` with a relative error below 2e-7; 0 below the smallest normal number, infinite on overflow.
///
/// Subnormal results would be useless and slow: multiplications with them take a hundred times as
/// long on some processors, including Intel's.
///
/// # Source
///
/// Cephes, `expf`: Cody and Waite's reduction by `ln 2` in two parts, then a polynomial.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding this rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // Comparisons preserve NaN; `clamp` by minimum and maximum would not.
    let x = if x > 89.0 { 89.0 } else { x };
    let vanishes = x < LEAST;
    let x = if vanishes { LEAST } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * (355.0 / 512.0);
    let r = r + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_5e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let y = p * (r * r) + r + 1.0;
    // Two factors, because a single one would overflow before the largest result is reached.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    let y = y * power_of_two(half) * power_of_two(n.wrapping_sub(half));
    if vanishes { 0.0 } else { y }
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Logarithm of the smallest normal number, rounded up.
const LEAST: f32 = -87.336_54;

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::{LEAST, exp};

    #[test]
    fn exp_matches_the_standard_library_over_the_whole_range() {
        for i in -1_050_000..900_000 {
            let x = i as f32 * 1e-4;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs();
            let allowed = expected * 2e-7;
            if x < LEAST {
                assert_eq!(exp(x), 0.0, "{x}");
            } else if expected < f64::from(f32::MAX) {
                assert!(error <= allowed, "{x}: {} against {expected}", exp(x));
            } else {
                assert_eq!(exp(x), f32::INFINITY, "{x}");
            }
        }
    }

    #[test]
    fn no_result_is_subnormal() {
        let mut x = LEAST;
        for _ in 0..100 {
            assert!(exp(x).is_normal(), "{x}");
            x = x.next_up();
        }
        assert_eq!(exp(LEAST.next_down()), 0.0);
    }

    #[test]
    fn special_values_pass_through() {
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
    }
}
