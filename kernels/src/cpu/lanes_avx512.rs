//! Vectors of 16 or 32 values on CPUs with AVX-512: loads and stores of f32 and bf16.
//!
//! bf16 are widened to f32 and rounded back. 32 of them are fastest to convert with the even
//! elements before the odd ones. This order is sufficient for element-wise operations.

use std::arch::x86_64::{
    __m256bh, __m256i, __m512, __m512bh, __m512i, __mmask16, _CMP_UNORD_Q, _mm256_loadu_si256,
    _mm256_mask_storeu_epi16, _mm256_maskz_loadu_epi16, _mm256_storeu_si256, _mm512_add_epi32,
    _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask,
    _mm512_cvtepi32_epi16, _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh, _mm512_cvtneps_pbh,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_or_epi32,
    _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_or_si512, _mm512_permutex2var_ps,
    _mm512_permutexvar_epi16, _mm512_reduce_add_ps, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_slli_epi32, _mm512_srli_epi32, _mm512_storeu_ps, _mm512_storeu_si512,
};

use burn::tensor::DType;

use super::number::Number;

/// Mask of the first `n` of 16 lanes.
#[inline(always)]
pub(crate) fn lanes(n: usize) -> __mmask16 {
    if n >= 16 { !0 } else { (1 << n) - 1 }
}

/// Loads the elements under the mask, and zeros elsewhere.
///
/// # Safety
///
/// The instruction set; the memory of the masked lanes is valid.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(crate) unsafe fn load<T: Number>(from: *const T, mask: __mmask16) -> __m512 {
    // SAFETY: guaranteed by the caller; the type was checked.
    unsafe {
        if T::DTYPE == DType::BF16 {
            let halves = if mask == !0 {
                _mm256_loadu_si256(from.cast())
            } else {
                _mm256_maskz_loadu_epi16(mask, from.cast())
            };
            let bits = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves));
            _mm512_castsi512_ps(bits)
        } else {
            _mm512_maskz_loadu_ps(mask, from.cast())
        }
    }
}

/// Stores the lanes of the mask, rounded as [`Number::narrow`] does.
///
/// # Safety
///
/// The instruction set; the memory of the masked lanes is valid.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(crate) unsafe fn store<T: Number>(to: *mut T, mask: __mmask16, values: __m512) {
    // SAFETY: guaranteed by the caller; the type was checked.
    unsafe {
        if T::DTYPE == DType::BF16 {
            let rounded = rounded(values);
            let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded));
            // Masked 16-bit stores are slow on some CPUs.
            if mask == !0 {
                _mm256_storeu_si256(to.cast(), halves);
            } else {
                _mm256_mask_storeu_epi16(to.cast(), mask, halves);
            }
        } else {
            _mm512_mask_storeu_ps(to.cast(), mask, values);
        }
    }
}

/// Words whose upper halves are the nearest bf16, as in [`super::number::rounded_bits`].
#[inline]
#[target_feature(enable = "avx512f")]
fn rounded(values: __m512) -> __m512i {
    let bits = _mm512_castps_si512(values);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let added = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
    let rounded = _mm512_add_epi32(bits, added);
    _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000))
}

/// The upper halves of 32-bit words.
const UPPER: i32 = 0xffff_0000_u32 as i32;

/// Like [`load_two`], but in an order that is cheaper to convert: the even elements of 32 bf16,
/// then the odd ones. All operands must use this order.
///
/// # Safety
///
/// Same as for [`load_two`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(crate) unsafe fn load_split<T: Number>(from: *const T, n: usize) -> [__m512; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if T::DTYPE != DType::BF16 || n < TWO {
            return load_two(from, n);
        }
        let pairs = _mm512_loadu_si512(from.cast());
        let (even, odd) = (
            _mm512_slli_epi32::<16>(pairs),
            _mm512_and_si512(pairs, _mm512_set1_epi32(UPPER)),
        );
        [_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd)]
    }
}

/// Loads floats in the order in which [`load_split`] returns elements of type `T`.
///
/// # Safety
///
/// Same as for [`load_two`].
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(crate) unsafe fn load_beside<T: Number>(from: *const f32, n: usize) -> [__m512; 2] {
    // SAFETY: guaranteed by the caller; every bit pattern is a valid integer.
    unsafe {
        let [a, b] = load_two(from, n);
        if T::DTYPE != DType::BF16 || n < TWO {
            return [a, b];
        }
        let every_second = |first| {
            let order: [i32; 16] = std::array::from_fn(|i| first + 2 * i as i32);
            std::mem::transmute::<[i32; 16], __m512i>(order)
        };
        [
            _mm512_permutex2var_ps(a, every_second(0), b),
            _mm512_permutex2var_ps(a, every_second(1), b),
        ]
    }
}

/// [`store_two`] for values in the order of [`load_split`].
///
/// # Safety
///
/// Same as for [`store_two`].
#[inline(always)]
pub(crate) unsafe fn store_split<T: Number, const PAIRS: bool>(
    to: *mut T,
    n: usize,
    [even, odd]: [__m512; 2],
) {
    // SAFETY: guaranteed by the caller; bf16 and integer vectors have the same bits.
    unsafe {
        if T::DTYPE != DType::BF16 || n < TWO {
            store_two::<T, PAIRS>(to, n, [even, odd]);
        } else if PAIRS {
            let halves = _mm512_cvtne2ps_pbh(odd, even);
            let halves = std::mem::transmute::<__m512bh, __m512i>(halves);
            let order = std::mem::transmute::<[u16; TWO], __m512i>(IN_TURN);
            _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi16(order, halves));
        } else {
            let lower = _mm512_srli_epi32::<16>(rounded(even));
            let upper = _mm512_and_si512(rounded(odd), _mm512_set1_epi32(UPPER));
            _mm512_storeu_si512(to.cast(), _mm512_or_si512(lower, upper));
        }
    }
}

/// Interleaves the 16-bit elements of two vectors.
pub(crate) const IN_TURN: [u16; TWO] = {
    let mut order = [0; TWO];
    let mut i = 0;
    while i < 16 {
        order[2 * i] = i as u16;
        order[2 * i + 1] = 16 + i as u16;
        i += 1;
    }
    order
};

/// Number of elements that [`load_two`] and [`store_two`] process.
pub(crate) const TWO: usize = 32;

/// Loads the first `n` of 32 elements, followed by zeros.
///
/// # Safety
///
/// The instruction set; memory for `n` elements, at least one, is valid.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(crate) unsafe fn load_two<T: Number>(from: *const T, n: usize) -> [__m512; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if n < TWO {
            let second = from.wrapping_add(16);
            return [
                load(from, lanes(n)),
                load(second, lanes(n.saturating_sub(16))),
            ];
        }
        if T::DTYPE == DType::BF16 {
            [load(from, !0), load(from.add(16), !0)]
        } else {
            let from = from.cast();
            [_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(16))]
        }
    }
}

/// Stores the first `n` of 32 values. With `PAIRS`, 32 bf16 are rounded by the instruction that
/// flushes subnormals to zero; otherwise as [`Number::narrow`] does.
///
/// # Safety
///
/// The instruction set, and AVX-512 BF16 if `PAIRS`; memory for `n` elements, at least one, is
/// valid.
#[inline(always)]
pub(crate) unsafe fn store_two<T: Number, const PAIRS: bool>(
    to: *mut T,
    n: usize,
    [first, second]: [__m512; 2],
) {
    // SAFETY: guaranteed by the caller; bf16 and integer vectors have the same bits.
    unsafe {
        if n < TWO {
            store(to, lanes(n), first);
            store(to.wrapping_add(16), lanes(n.saturating_sub(16)), second);
        } else if PAIRS && T::DTYPE == DType::BF16 {
            let halves = _mm512_cvtne2ps_pbh(second, first);
            let halves = std::mem::transmute::<__m512bh, __m512i>(halves);
            _mm512_storeu_si512(to.cast(), halves);
        } else if T::DTYPE == DType::BF16 {
            store(to, !0, first);
            store(to.add(16), !0, second);
        } else {
            let to = to.cast();
            _mm512_storeu_ps(to, first);
            _mm512_storeu_ps(to.add(16), second);
        }
    }
}

/// Dot product of two rows, in f32 with a fixed summation order.
///
/// # Safety
///
/// The instruction set; `b` is as long as `a`.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
pub(crate) unsafe fn dot<T: Number>(a: &[T], b: &[T]) -> f32 {
    let mut sums = [_mm512_setzero_ps(); 4];
    for first in (0..a.len()).step_by(2 * TWO) {
        for part in 0..2 {
            let offset = first + part * TWO;
            if offset >= a.len() {
                break;
            }
            // SAFETY: the rows have elements starting at `at`.
            unsafe {
                let n = a.len() - offset;
                let a = load_two(a.as_ptr().add(offset), n);
                let b = load_two(b.as_ptr().add(offset), n);
                for i in 0..2 {
                    sums[2 * part + i] = _mm512_fmadd_ps(a[i], b[i], sums[2 * part + i]);
                }
            }
        }
    }
    let [a, b, c, d] = sums;
    _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)))
}

/// Stores 16 values, rounded as [`store_two`] does.
///
/// # Safety
///
/// The instruction set, and AVX-512 BF16 if `PAIRS`; the memory of the elements is valid.
#[inline(always)]
pub(crate) unsafe fn store_one<T: Number, const PAIRS: bool>(to: *mut T, values: __m512) {
    // SAFETY: guaranteed by the caller; bf16 and integer vectors have the same bits.
    unsafe {
        if PAIRS && T::DTYPE == DType::BF16 {
            let halves = _mm512_cvtneps_pbh(values);
            let halves = std::mem::transmute::<__m256bh, __m256i>(halves);
            _mm256_storeu_si256(to.cast(), halves);
        } else {
            store(to, !0, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::bf16;

    use crate::cpu::isa::{Isa, has_pairs};
    use crate::cpu::number::Number;

    #[test]
    fn paired_stores_round_like_scalar_conversion_and_stay_in_bounds() {
        if !has_pairs() {
            return;
        }
        for first in (0..u32::MAX - 32 * 9973).step_by(32 * 9973 * 7) {
            let values: [f32; 32] =
                std::array::from_fn(|i| f32::from_bits(first + 9973 * i as u32));
            for n in [1, 15, 16, 17, 31, 32, 40] {
                let mut halves = [[bf16::ONE; 32]; 2];
                let mut floats = [1.0f32; 32];
                // SAFETY: the CPU feature was detected; all arrays have 32 elements.
                unsafe {
                    let x = super::load_two(values.as_ptr(), n);
                    super::store_two::<_, true>(halves[0].as_mut_ptr(), n, x);
                    super::store_two::<_, false>(halves[1].as_mut_ptr(), n, x);
                    super::store_two::<_, true>(floats.as_mut_ptr(), n, x);
                }
                for i in 0..32 {
                    let is_untouched = i >= n;
                    let (value, half) = (values[i], bf16::narrow(values[i]));
                    let is_rounded = |ours: bf16| ours.to_bits() == half.to_bits();
                    assert_eq!(halves[1][i] == bf16::ONE && is_untouched, is_untouched);
                    assert!(is_untouched || is_rounded(halves[1][i]));
                    // The instruction flushes subnormals to zero.
                    let flushed = value.is_subnormal() && halves[0][i].to_f32() == 0.0;
                    let nan = value.is_nan() && halves[0][i].is_nan();
                    assert!(
                        is_untouched || flushed || nan || is_rounded(halves[0][i]),
                        "{value}"
                    );
                    assert!(
                        floats[i].to_bits()
                            == if is_untouched {
                                1.0f32.to_bits()
                            } else {
                                value.to_bits()
                            }
                    );
                }
            }
        }
    }

    #[test]
    fn split_loads_are_stored_in_the_original_order() {
        if !has_pairs() {
            return;
        }
        let floats: [f32; 32] = std::array::from_fn(|i| i as f32 - 7.5);
        let halves = floats.map(bf16::narrow);
        for n in [1, 15, 16, 17, 31, 32, 50] {
            let mut results = [[bf16::ONE; 32]; 3];
            // SAFETY: the CPU feature was detected; all arrays have 32 elements.
            unsafe {
                let split = super::load_split(halves.as_ptr(), n);
                super::store_split::<_, true>(results[0].as_mut_ptr(), n, split);
                super::store_split::<_, false>(results[1].as_mut_ptr(), n, split);
                let loaded = super::load_beside::<bf16>(floats.as_ptr(), n);
                super::store_split::<_, true>(results[2].as_mut_ptr(), n, loaded);
            }
            for result in results {
                let used = n.min(32);
                assert_eq!(result[..used], halves[..used]);
                assert_eq!(result[used..], [bf16::ONE; 32][used..]);
            }
        }
    }

    #[test]
    fn stores_round_like_scalar_conversion() {
        if Isa::detect() != Isa::Avx512 {
            return;
        }
        for first in (0..u32::MAX - 16 * 9973).step_by(16 * 9973) {
            let values: [f32; 16] =
                std::array::from_fn(|i| f32::from_bits(first + 9973 * i as u32));
            let mut halves = [bf16::ZERO; 16];
            // SAFETY: the CPU feature was detected; both arrays have 16 elements.
            unsafe {
                let x = super::load(values.as_ptr(), !0);
                super::store(halves.as_mut_ptr(), !0, x);
            }
            for (half, value) in halves.iter().zip(values) {
                assert_eq!(half.to_bits(), bf16::narrow(value).to_bits());
            }
        }
    }
}
