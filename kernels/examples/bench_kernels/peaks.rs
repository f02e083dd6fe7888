//! Peak rates of the processor: multiply-adds on registers, and memory bandwidth.
//!
//! Each thread of rayon's pool runs the same loop; the result is the total over all threads.

use std::hint::black_box;

use rayon::prelude::*;

use crate::inputs::{Precision, floats, shape};
use crate::{Prepare, Run};

pub(crate) const OPERATIONS: &[(&str, Prepare)] =
    &[("peak", multiply_adds), ("copy", copy), ("read", read)];

/// Iterations per call: a few hundred microseconds.
const ROUNDS: usize = 1 << 16;
/// Independent accumulators: more than the latency of a multiply-add in cycles times the two issued
/// per cycle.
#[cfg(target_arch = "x86_64")]
const SUMS: usize = 24;

/// `peak DTYPE`: the maximum rate of multiply-adds on registers.
fn multiply_adds(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    let [] = shape(numbers)?;
    let (flops, kernel): (usize, fn()) = match precision {
        Precision::F32 => fused_multiply_add(),
        Precision::Bf16 => bf16_dot_product()?,
    };
    let work = (flops * rayon::current_num_threads()) as f64;
    Ok(Run::with_work(work, move || {
        rayon::broadcast(|_| kernel());
    }))
}

#[cfg(target_arch = "x86_64")]
fn fused_multiply_add() -> (usize, fn()) {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the CPU feature was detected.
        return (ROUNDS * SUMS * 16 * 2, || unsafe { x86::fma_avx512() });
    }
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the CPU feature was detected.
        return (ROUNDS * x86::SUMS_AVX2 * 8 * 2, || unsafe {
            x86::fma_avx2()
        });
    }
    portable_multiply_add()
}

#[cfg(not(target_arch = "x86_64"))]
fn fused_multiply_add() -> (usize, fn()) {
    portable_multiply_add()
}

#[cfg(target_arch = "x86_64")]
fn bf16_dot_product() -> Result<(usize, fn()), String> {
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16") {
        // SAFETY: the CPU feature was detected.
        return Ok((ROUNDS * SUMS * 32 * 2, || unsafe { x86::dot_avx512() }));
    }
    Err("this processor has no bf16 multiply instructions".to_owned())
}

#[cfg(not(target_arch = "x86_64"))]
fn bf16_dot_product() -> Result<(usize, fn()), String> {
    Err("bf16 is not implemented for this processor architecture".to_owned())
}

/// Loop that the compiler vectorises for the target's baseline features.
fn portable_multiply_add() -> (usize, fn()) {
    const LANES: usize = 64;
    fn kernel() {
        let (factor, term) = (black_box(0.5f32), black_box(1.0f32));
        let mut sums: [f32; LANES] = std::array::from_fn(|i| black_box(i as f32));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = *sum * factor + term;
            }
        }
        black_box(sums);
    }
    (ROUNDS * LANES * 2, kernel)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m512bh, __m512i, _mm256_fmadd_ps, _mm256_set1_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps,
        _mm512_set1_epi32, _mm512_set1_ps,
    };
    use std::hint::black_box;

    use super::{ROUNDS, SUMS};

    /// Two of the 16 registers hold the factors.
    pub(super) const SUMS_AVX2: usize = 12;

    #[target_feature(enable = "avx512f")]
    pub(super) fn fma_avx512() {
        let (factor, term) = (
            _mm512_set1_ps(black_box(0.5)),
            _mm512_set1_ps(black_box(1.0)),
        );
        // Different start values, so that the compiler cannot merge the accumulators.
        let mut sums = [_mm512_set1_ps(0.0); SUMS];
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_set1_ps(black_box(i as f32));
        }
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, factor, term);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn fma_avx2() {
        let (factor, term) = (
            _mm256_set1_ps(black_box(0.5)),
            _mm256_set1_ps(black_box(1.0)),
        );
        let mut sums = [_mm256_set1_ps(0.0); SUMS_AVX2];
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = _mm256_set1_ps(black_box(i as f32));
        }
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, term);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn dot_avx512() {
        // Pairs of 1.0 and of 0.5.
        let (a, b) = (pairs(black_box(0x3f80_3f80)), pairs(black_box(0x3f00_3f00)));
        let mut sums = [_mm512_set1_ps(0.0); SUMS];
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_set1_ps(black_box(i as f32));
        }
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, a, b);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f")]
    fn pairs(bits: i32) -> __m512bh {
        // SAFETY: both types are 64 bytes, and every bit pattern is a valid bf16.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(bits)) }
    }
}

/// `copy f32 BYTES`: copies an array of that size; reads and writes both count.
fn copy(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [bytes] = shape(numbers)?;
    let from = floats(bytes / 4);
    let mut to = vec![1.0f32; from.len()];
    let part = from.len().div_ceil(rayon::current_num_threads());
    Ok(Run::with_work(2.0 * bytes as f64, move || {
        to.par_chunks_mut(part)
            .zip(from.par_chunks(part))
            .for_each(|(to, from)| to.copy_from_slice(from));
        black_box(&mut to);
    }))
}

/// `read f32 BYTES`: reads an array of that size.
fn read(precision: Precision, numbers: &[usize]) -> Result<Run, String> {
    precision.f32_only()?;
    let [bytes] = shape(numbers)?;
    let from: Vec<[u64; 32]> = (0..bytes as u64 / 256).map(|i| [i; 32]).collect();
    let part = from.len().div_ceil(rayon::current_num_threads());
    Ok(Run::with_work(bytes as f64, move || {
        let sums = from.par_chunks(part).map(sum_of_lines);
        black_box(sums.reduce(|| 0, u64::wrapping_add));
    }))
}

/// Integers, because integer sums may be reordered.
fn sum_of_lines(lines: &[[u64; 32]]) -> u64 {
    let mut sums = [0u64; 32];
    for line in lines {
        for (sum, value) in sums.iter_mut().zip(line) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.iter().fold(0, |sum, part| sum.wrapping_add(*part))
}
