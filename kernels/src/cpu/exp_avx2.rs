//! Powers of two and the logistic function on CPUs with AVX2, eight values per vector.
//!
//! As with AVX-512, multiplications and additions are fused, so the last bits differ from the loops
//! for other CPUs.

use std::arch::x86_64::{
    __m256, _CMP_NLT_UQ, _mm256_add_epi32, _mm256_add_ps, _mm256_and_ps, _mm256_castps_si256,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtps_epi32, _mm256_div_ps, _mm256_floor_ps,
    _mm256_fmadd_ps, _mm256_fmsub_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_set1_ps,
    _mm256_slli_epi32, _mm256_sub_ps,
};
use std::f32::consts::LOG2_E;

/// Rounding error of log₂ e in f32.
const LOG2_E_BELOW: f32 = (std::f64::consts::LOG2_E - LOG2_E as f64) as f32;

/// Above this, the logistic function is 1; below its negative, the result is not a normal number.
const SIGMOID_END: f32 = 87.3;

/// `2ˣ` with a relative error below 2e-7. NaN stays NaN; results outside the range of normal
/// numbers become 0 or infinite; 0 gives exactly 1.
///
/// # Source
///
/// A minimax polynomial of `2ˣ` on 0..1 with the constant 1, by Lawson's iteration.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) fn power_of_two(x: __m256) -> __m256 {
    let is_normal = _mm256_cmp_ps::<_CMP_NLT_UQ>(x, _mm256_set1_ps(-126.0));
    // If an operand is NaN, the result is the second one. Two to the 128th is infinite.
    let x = _mm256_min_ps(_mm256_set1_ps(128.0), x);
    let whole = _mm256_floor_ps(x);
    let power = scale_by_power(polynomial(_mm256_sub_ps(x, whole)), whole);
    _mm256_and_ps(power, is_normal)
}

/// `2ˣ` for x in 0..1; rounding may put x outside by one last bit.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn polynomial(x: __m256) -> __m256 {
    let mut p = _mm256_set1_ps(1.867_130_2e-3);
    for factor in [9.017_03e-3, 5.579_991e-2, 2.401_644_4e-1, 6.931_513e-1, 1.0] {
        p = _mm256_fmadd_ps(p, x, _mm256_set1_ps(factor));
    }
    p
}

/// A number in 1..2 times two to an integer power of at most 128; NaN stays NaN. Below power -126
/// the result is arbitrary.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn scale_by_power(x: __m256, whole: __m256) -> __m256 {
    let exponent = _mm256_slli_epi32::<23>(_mm256_cvtps_epi32(whole));
    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent))
}

/// `1 / (1 + e⁻ˣ)`, 0 if the exponential overflows; NaN stays NaN.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) fn sigmoid(x: __m256) -> __m256 {
    let one = _mm256_set1_ps(1.0);
    let (log, below) = (_mm256_set1_ps(-LOG2_E), _mm256_set1_ps(-LOG2_E_BELOW));
    // Results below the smallest normal number are 0, as for powers.
    let is_normal = _mm256_cmp_ps::<_CMP_NLT_UQ>(x, _mm256_set1_ps(-SIGMOID_END));
    // If an operand is NaN, the result is the second one.
    let x = _mm256_min_ps(_mm256_set1_ps(SIGMOID_END), x);
    let exponent = _mm256_mul_ps(x, log);
    let lost = _mm256_fmadd_ps(x, below, _mm256_fmsub_ps(x, log, exponent));
    let whole = _mm256_floor_ps(exponent);
    let fraction = _mm256_add_ps(_mm256_sub_ps(exponent, whole), lost);
    let power = scale_by_power(polynomial(fraction), whole);
    _mm256_and_ps(_mm256_div_ps(one, _mm256_add_ps(one, power)), is_normal)
}

#[cfg(test)]
mod tests {
    use crate::cpu::isa::Isa;
    use crate::cpu::lanes_avx2::{LANES, load, store};

    /// `2ˣ` and the logistic function of each value.
    fn each(values: &[f32], f: impl Fn(f32, f32, f32)) {
        if Isa::detect() < Isa::Avx2 {
            return;
        }
        for values in values.chunks(LANES) {
            let (mut held, mut results) = ([0.0f32; LANES], [[0.0f32; LANES]; 2]);
            held[..values.len()].copy_from_slice(values);
            // SAFETY: the CPU feature was detected; the pointers have eight values.
            unsafe {
                let x = load(held.as_ptr());
                store(results[0].as_mut_ptr(), super::power_of_two(x));
                store(results[1].as_mut_ptr(), super::sigmoid(x));
            }
            for (i, &x) in values.iter().enumerate() {
                f(x, results[0][i], results[1][i]);
            }
        }
    }

    #[test]
    fn exp_avx2_matches_the_standard_library_over_the_whole_range() {
        let values: Vec<f32> = (-155_000..130_000).map(|i| i as f32 * 1e-3).collect();
        each(&values, |x, power, sigmoid| {
            let expected = f64::from(x).exp2();
            if x < -126.0 {
                assert_eq!(power, 0.0, "{x}");
            } else if expected < f64::from(f32::MAX) {
                let error = (f64::from(power) - expected).abs();
                assert!(error <= expected * 2e-7, "{x}: {power}");
            } else {
                assert_eq!(power, f32::INFINITY, "{x}");
            }
            let expected = 1.0 / (1.0 + (-f64::from(x)).exp());
            let error = (f64::from(sigmoid) - expected).abs();
            assert!(
                error <= expected * 4e-7 || expected < 1.3e-38 && sigmoid < 1.3e-38,
                "{x}: {sigmoid}"
            );
        });
    }

    #[test]
    fn special_values_pass_through() {
        let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -1e30, 1e30];
        each(&values, |x, power, sigmoid| match x {
            x if x.is_nan() => assert!(power.is_nan() && sigmoid.is_nan()),
            0.0 => assert!(power == 1.0 && sigmoid == 0.5),
            x if x > 0.0 => assert!(power == f32::INFINITY && sigmoid == 1.0),
            _ => assert!(power == 0.0 && sigmoid == 0.0),
        });
    }
}
