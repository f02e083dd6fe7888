//! GELU and its derivative on slices, accurate to f32 rounding.

use std::mem::MaybeUninit;

use crate::cpu::exp::exp;
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::{for_rows, write_rows};

/// `x Φ(x)` of each element, in rows of `width`.
pub(super) fn gelu<T: Number>(x: &[T], width: usize) -> Buffer<T> {
    let width = width.max(1);
    // SAFETY: `forward` writes all of its target.
    unsafe {
        write_rows([x.len() / width, width], |rows, y| {
            forward(&x[rows.start * width..rows.end * width], y);
        })
    }
}

/// Computes it on this thread and writes all of `y`.
pub(super) fn gelu_to<T: Number>(x: &[T], y: &mut [MaybeUninit<T>]) {
    assert_eq!(x.len(), y.len(), "x and y must have the same length");
    forward(x, y);
}

/// Replaces the gradient of `gelu(x)` by the gradient of `x`, in rows of `width`.
pub(super) fn to_input_gradient<T: Number>(x: &[T], gradient: &mut [T], width: usize) {
    assert_eq!(
        x.len(),
        gradient.len(),
        "x and its gradient must have the same length"
    );
    for_rows(gradient, width.max(1), |rows, gradient| {
        backward(&x[rows.start * width..rows.end * width], gradient);
    });
}

/// `Φ(x)` and `e^(-x²/2)`.
///
/// # Source
///
/// Abramowitz and Stegun, 7.1.26: the complementary error function with an error of 1.5e-7. For x
/// below 0 it is used directly, which keeps the precision of small values.
#[inline(always)]
fn distribution(x: f32) -> (f32, f32) {
    const P: f32 = 0.327_591_1 * std::f32::consts::FRAC_1_SQRT_2;
    let size = x.abs();
    let density = exp(-0.5 * x * x);
    let t = 1.0 / (1.0 + P * size);
    let p = 1.061_405_4;
    let p = p * t - 1.453_152;
    let p = p * t + 1.421_413_7;
    let p = p * t - 0.284_496_74;
    let p = p * t + 0.254_829_6;
    let tail = 0.5 * p * t * density;
    // Comparisons with NaN are false, so the tail is NaN.
    (if x < 0.0 { tail } else { 1.0 - tail }, density)
}

for_each_isa! {
    fn forward[T: Number](x: &[T], y: &mut [MaybeUninit<T>]) {
        for (y, x) in y.iter_mut().zip(x) {
            let x = x.widen();
            y.write(T::narrow(x * distribution(x).0));
        }
    }
}

for_each_isa! {
    fn backward[T: Number](x: &[T], gradient: &mut [T]) {
        /// `1 / √(2π)`.
        const PEAK: f32 = 0.398_942_3;
        for (gradient, x) in gradient.iter_mut().zip(x) {
            let x = x.widen();
            let (below, density) = distribution(x);
            *gradient = T::narrow(gradient.widen() * (below + PEAK * x * density));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::distribution;

    /// `Φ` by Simpson's rule over the density, in f64.
    fn expected(x: f64) -> f64 {
        const STEPS: usize = 4000;
        let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let h = x / STEPS as f64;
        let inner: f64 = (1..STEPS)
            .map(|i| density(i as f64 * h) * if i % 2 == 1 { 4.0 } else { 2.0 })
            .sum();
        0.5 + h / 3.0 * (density(0.0) + inner + density(x))
    }

    #[test]
    fn normal_cdf_has_seven_correct_digits() {
        for i in -600..=600 {
            let x = f64::from(i) / 100.0;
            let ours = f64::from(distribution(x as f32).0);
            assert!((ours - expected(x)).abs() < 3e-7, "{x}: {ours}");
        }
    }

    #[test]
    fn special_values_pass_through() {
        assert!(distribution(f32::NAN).0.is_nan());
        assert_eq!(distribution(f32::INFINITY).0, 1.0);
        assert_eq!(distribution(-40.0).0, 0.0);
    }
}
