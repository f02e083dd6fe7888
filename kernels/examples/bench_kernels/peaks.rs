//! What the processor can do at most: multiply-adds from registers, bytes from memory.
//!
//! Each thread of rayon's pool runs the same loop, and the work of all is counted.

use std::hint::black_box;

use rayon::prelude::*;

use crate::inputs::{Precision, floats, shape};
use crate::{Prepare, Run};

pub(crate) const OPERATIONS: &[(&str, Prepare)] =
    &[("peak", multiply_adds), ("copy", copy), ("read", read)];

/// Rounds of a call: a few hundred microseconds.
const ROUNDS: usize = 1 << 16;
/// Independent sums: more than a multiply-add takes cycles, times the two that start in each.
#[cfg(target_arch = "x86_64")]
const SUMS: usize = 24;

/// `peak DTYPE`: as many multiply-adds as registers and ports allow.
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
        // SAFETY: detected.
        return (ROUNDS * SUMS * 16 * 2, || unsafe { x86::fma_avx512() });
    }
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: detected.
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
        // SAFETY: detected.
        return Ok((ROUNDS * SUMS * 32 * 2, || unsafe { x86::dot_avx512() }));
    }
    Err("this processor does not multiply bf16".to_owned())
}

#[cfg(not(target_arch = "x86_64"))]
fn bf16_dot_product() -> Result<(usize, fn()), String> {
    Err("no bf16 instruction is known for this processor".to_owned())
}

/// What the compiler makes of a loop over the vectors that the target always has.
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

    /// Of 16 registers, two hold the factors.
    pub(super) const SUMS_AVX2: usize = 12;

    #[target_feature(enable = "avx512f")]
    pub(super) fn fma_avx512() {
        let (factor, term) = (
            _mm512_set1_ps(black_box(0.5)),
            _mm512_set1_ps(black_box(1.0)),
        );
        // Sums that the compiler cannot know to be equal.
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
        // Pairs of 1.0 and pairs of 0.5.
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
        // SAFETY: both are 64 bytes, and any bits are bf16 numbers.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(bits)) }
    }
}

/// `copy f32 BYTES`: an array of that size to another; both count.
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

/// `read f32 BYTES`: an array of that size.
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

/// Integers, because their sums may be taken in any order.
fn sum_of_lines(lines: &[[u64; 32]]) -> u64 {
    let mut sums = [0u64; 32];
    for line in lines {
        for (sum, value) in sums.iter_mut().zip(line) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.iter().fold(0, |sum, part| sum.wrapping_add(*part))
}
