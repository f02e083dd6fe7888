//! Powers of two and the logistic function on CPUs with AVX-512, 16 values per vector.
//!
//! Multiplications and additions are fused, so the last bits differ from the loops for other CPUs.
//! If results are rounded to bf16 anyway, shorter polynomials are used: these operations are
//! limited by arithmetic, not by the caches.

use std::arch::x86_64::{
    __m512, _CMP_NLT_UQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEG_INF, _mm512_add_ps,
    _mm512_cmp_ps_mask, _mm512_fmadd_ps, _mm512_fmsub_ps, _mm512_fnmadd_ps, _mm512_maskz_mul_ps,
    _mm512_maskz_scalef_ps, _mm512_min_ps, _mm512_mul_ps, _mm512_rcp14_ps, _mm512_reduce_ps,
    _mm512_scalef_ps, _mm512_set1_ps,
};
use std::f32::consts::LOG2_E;

use burn::tensor::DType;

use super::number::Number;

/// Rounding error of log₂ e in f32.
const LOG2_E_BELOW: f32 = (std::f64::consts::LOG2_E - LOG2_E as f64) as f32;

/// Above this, the logistic function is 1; below its negative, the result is not a normal number.
const SIGMOID_END: f32 = 87.3;

/// `2ˣ` with a relative error below 2e-7, or below 4e-6 if the result type `T` is bf16. NaN stays
/// NaN; results outside the range of normal numbers become 0 or infinite; 0 gives exactly 1.
///
/// Several vectors are computed together to hide instruction latency.
///
/// # Source
///
/// Minimax polynomials of `2ˣ` on 0..1 with the constant 1, by Lawson's iteration.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(crate) fn powers_of_two<T: Number, const N: usize>(x: [__m512; N]) -> [__m512; N] {
    let mut p = powers_of_fractions::<T, N>(x);
    for (p, exponent) in p.iter_mut().zip(x) {
        let is_normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(exponent, _mm512_set1_ps(-126.0));
        *p = _mm512_maskz_scalef_ps(is_normal, *p, exponent);
    }
    p
}

/// `2ˣ` of the fractional part; the instruction that scales by a power of two rounds the exponent
/// down.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
fn powers_of_fractions<T: Number, const N: usize>(mut x: [__m512; N]) -> [__m512; N] {
    for x in &mut x {
        *x = fraction(*x);
    }
    polynomials::<T, N>(x)
}

/// Fractional part, `x - floor(x)`; 0 for infinities.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
fn fraction(x: __m512) -> __m512 {
    const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    _mm512_reduce_ps::<DOWN>(x)
}

/// `2ˣ` for x in 0..1; rounding may put x outside by one last bit.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
fn polynomials<T: Number, const N: usize>(x: [__m512; N]) -> [__m512; N] {
    let factors: &[f32] = if T::DTYPE == DType::BF16 {
        &[5.224_247_3e-2, 2.412_802_1e-1, 6.930_448_4e-1, 1.0]
    } else {
        &[9.017_03e-3, 5.579_991e-2, 2.401_644_4e-1, 6.931_513e-1, 1.0]
    };
    let first = if T::DTYPE == DType::BF16 {
        1.342_668_6e-2
    } else {
        1.867_130_2e-3
    };
    let mut p = [_mm512_set1_ps(first); N];
    for &factor in factors {
        for i in 0..N {
            p[i] = _mm512_fmadd_ps(p[i], x[i], _mm512_set1_ps(factor));
        }
    }
    p
}

/// A single vector of [`powers_of_two`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(crate) fn power_of_two<T: Number>(x: __m512) -> __m512 {
    let [y] = powers_of_two::<T, 1>([x]);
    y
}

/// `1 / (1 + e⁻ˣ)`, 0 if the exponential overflows; NaN stays NaN. If the result is bf16, the
/// relative error is below 1e-4.
///
/// Several vectors are computed together, as in [`powers_of_two`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(crate) fn sigmoids<T: Number, const N: usize>(mut x: [__m512; N]) -> [__m512; N] {
    let one = _mm512_set1_ps(1.0);
    if T::DTYPE == DType::BF16 {
        for x in &mut x {
            *x = _mm512_mul_ps(*x, _mm512_set1_ps(-LOG2_E));
        }
        let mut y = powers_of_fractions::<T, N>(x);
        for (y, exponent) in y.iter_mut().zip(x) {
            *y = _mm512_add_ps(_mm512_scalef_ps(*y, exponent), one);
        }
        for y in &mut y {
            *y = _mm512_rcp14_ps(*y);
        }
        return y;
    }
    let (log, below) = (_mm512_set1_ps(-LOG2_E), _mm512_set1_ps(-LOG2_E_BELOW));
    let (mut exponents, mut fractions) = (x, x);
    for i in 0..N {
        // If an operand is NaN, the result is the second one.
        let x = _mm512_min_ps(_mm512_set1_ps(SIGMOID_END), x[i]);
        exponents[i] = _mm512_mul_ps(x, log);
        let lost = _mm512_fmadd_ps(x, below, _mm512_fmsub_ps(x, log, exponents[i]));
        fractions[i] = _mm512_add_ps(fraction(exponents[i]), lost);
    }
    let powers = polynomials::<T, N>(fractions);
    for i in 0..N {
        let divisor = _mm512_add_ps(_mm512_scalef_ps(powers[i], exponents[i]), one);
        // One Newton step doubles the estimate's 14 bits.
        let estimate = _mm512_rcp14_ps(divisor);
        let correction = _mm512_fnmadd_ps(divisor, estimate, _mm512_set1_ps(2.0));
        // Results below the smallest normal number are 0, as for powers.
        let is_normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x[i], _mm512_set1_ps(-SIGMOID_END));
        x[i] = _mm512_maskz_mul_ps(is_normal, estimate, correction);
    }
    x
}

#[cfg(test)]
mod tests {
    use burn::tensor::bf16;

    use crate::cpu::isa::Isa;
    use crate::cpu::lanes_avx512;

    /// Powers of two and the logistic function, each for f32 and for bf16.
    fn each_in_both_types(values: &[f32], f: impl Fn(f32, [f32; 2], [f32; 2])) {
        if Isa::detect() != Isa::Avx512 {
            return;
        }
        for values in values.chunks(16) {
            let mut results = [[0.0f32; 16]; 4];
            let mask = lanes_avx512::lanes(values.len());
            // SAFETY: the CPU feature was detected; the mask has one lane per value.
            unsafe {
                let x = lanes_avx512::load(values.as_ptr(), mask);
                for (i, y) in [
                    super::power_of_two::<f32>(x),
                    super::power_of_two::<bf16>(x),
                    super::sigmoids::<f32, 1>([x])[0],
                    super::sigmoids::<bf16, 1>([x])[0],
                ]
                .into_iter()
                .enumerate()
                {
                    lanes_avx512::store(results[i].as_mut_ptr(), mask, y);
                }
            }
            for (i, &x) in values.iter().enumerate() {
                let [a, b, c, d] = results.map(|result| result[i]);
                f(x, [a, b], [c, d]);
            }
        }
    }

    #[test]
    fn exp2_matches_the_standard_library_over_the_whole_range() {
        let values: Vec<f32> = (-155_000..130_000).map(|i| i as f32 * 1e-3).collect();
        each_in_both_types(&values, |x, powers, sigmoids| {
            let expected = f64::from(x).exp2();
            for (power, bound) in powers.into_iter().zip([2e-7, 4e-6]) {
                if x < -126.0 {
                    assert_eq!(power, 0.0, "{x}");
                } else if expected < f64::from(f32::MAX) {
                    let error = (f64::from(power) - expected).abs();
                    assert!(error <= expected * bound, "{x}: {power}");
                } else {
                    assert_eq!(power, f32::INFINITY, "{x}");
                }
            }
            let expected = 1.0 / (1.0 + (-f64::from(x)).exp());
            for (sigmoid, bound) in sigmoids.into_iter().zip([4e-7, 1e-4]) {
                let error = (f64::from(sigmoid) - expected).abs();
                assert!(
                    error <= expected * bound || expected < 1.3e-38 && sigmoid < 1.3e-38,
                    "{x}: {sigmoid}"
                );
            }
        });
    }

    #[test]
    fn exp2_handles_special_values() {
        let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -1e30, 1e30];
        each_in_both_types(&values, |x, powers, sigmoids| match x {
            x if x.is_nan() => assert!([powers, sigmoids].iter().flatten().all(|y| y.is_nan())),
            0.0 => {
                assert!(powers == [1.0; 2] && sigmoids[0] == 0.5);
                assert!((sigmoids[1] - 0.5).abs() < 1e-4);
            }
            x if x > 0.0 => {
                assert!(powers == [f32::INFINITY; 2] && sigmoids[0] == 1.0);
                assert!((sigmoids[1] - 1.0).abs() < 1e-4);
            }
            _ => assert!(powers == [0.0; 2] && sigmoids == [0.0; 2]),
        });
    }
}
