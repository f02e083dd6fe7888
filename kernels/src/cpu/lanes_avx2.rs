//! Eight values per register on CPUs with AVX2: transposition, and conversion between bf16 and f32.

use std::arch::x86_64::{
    __m128, __m256, __m256i, _CMP_UNORD_Q, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_loadu_ps,
    _mm_loadu_si128, _mm_max_ps, _mm_max_ss, _mm_movehl_ps, _mm_movelh_ps, _mm_shuffle_ps,
    _mm_storeu_si128, _mm_unpackhi_ps, _mm_unpacklo_ps, _mm256_add_epi32, _mm256_and_si256,
    _mm256_blendv_epi8, _mm256_castpd_ps, _mm256_castps_pd, _mm256_castps_si256,
    _mm256_castps128_ps256, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cmp_ps, _mm256_cvtepu16_epi32, _mm256_extractf128_ps, _mm256_insertf128_ps,
    _mm256_loadu_ps, _mm256_or_si256, _mm256_packus_epi32, _mm256_permute4x64_epi64,
    _mm256_set1_epi32, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_unpackhi_pd,
    _mm256_unpackhi_ps, _mm256_unpacklo_pd, _mm256_unpacklo_ps,
};

use burn::tensor::DType;

use super::number::Number;

/// Values per register.
pub(crate) const LANES: usize = 8;

/// Words of a row that are transposed at a time.
pub(crate) const WORDS: usize = 4;

/// Mask of the upper halves of 32-bit words.
const UPPER: i32 = 0xffff_0000_u32 as i32;

/// Loads eight values.
///
/// # Safety
///
/// AVX2; the pointer is valid for eight values.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) unsafe fn load<T: Number>(from: *const T) -> __m256 {
    // SAFETY: guaranteed by the caller; the type was checked.
    unsafe {
        if T::DTYPE == DType::BF16 {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        } else {
            _mm256_loadu_ps(from.cast())
        }
    }
}

/// Stores eight values, rounded as [`Number::narrow`] does.
///
/// # Safety
///
/// AVX2; the pointer is valid for eight values.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) unsafe fn store<T: Number>(to: *mut T, values: __m256) {
    // SAFETY: guaranteed by the caller; the type was checked.
    unsafe {
        if T::DTYPE == DType::BF16 {
            let halves = _mm256_srli_epi32::<16>(rounded(values));
            // Packing works within 128-bit lanes: the words are in quads 0 and 2.
            let packed = _mm256_packus_epi32(halves, halves);
            let packed = _mm256_permute4x64_epi64::<0b1000>(packed);
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
        } else {
            _mm256_storeu_ps(to.cast(), values);
        }
    }
}

/// The sum of eight values.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) fn sum(values: __m256) -> f32 {
    let [a, b] = [
        _mm256_castps256_ps128(values),
        _mm256_extractf128_ps::<1>(values),
    ];
    let four = _mm_add_ps(a, b);
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// The largest of eight values, none of them NaN.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) fn maximum(values: __m256) -> f32 {
    let [a, b] = [
        _mm256_castps256_ps128(values),
        _mm256_extractf128_ps::<1>(values),
    ];
    let four = _mm_max_ps(a, b);
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// Words whose upper halves are the nearest bf16, as in [`super::number::rounded_bits`].
#[target_feature(enable = "avx2,fma")]
#[inline]
fn rounded(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(values);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let added = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    let rounded = _mm256_add_epi32(bits, added);
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
    let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values);
    _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan))
}

/// The lower bf16 of each word, as f32.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) fn lower(words: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
}

/// The upper bf16 of each word, as f32.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) fn upper(words: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(UPPER)))
}

/// Loads four words of eight rows: one register per word, one lane per row.
///
/// # Safety
///
/// AVX2; each pointer is valid for four words.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) unsafe fn four_of_eight(
    [r0, r1, r2, r3, r4, r5, r6, r7]: [*const f32; 8],
) -> [__m256; 4] {
    // SAFETY: guaranteed by the caller. Rows are written out, because a closure would not be
    // inlined.
    unsafe {
        transposed_quads([
            join_halves(r0, r4),
            join_halves(r1, r5),
            join_halves(r2, r6),
            join_halves(r3, r7),
        ])
    }
}

/// Loads four words of one row, then four of another.
///
/// # Safety
///
/// Same as [`four_of_eight`].
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn join_halves(low: *const f32, high: *const f32) -> __m256 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let low = _mm256_castps128_ps256(_mm_loadu_ps(low));
        _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(high))
    }
}

/// Loads four words of four rows: one register per word, one lane per row.
///
/// # Safety
///
/// Same as [`four_of_eight`].
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) unsafe fn four_of_four([r0, r1, r2, r3]: [*const f32; 4]) -> [__m128; 4] {
    // SAFETY: guaranteed by the caller.
    let [r0, r1, r2, r3] = unsafe {
        [
            _mm_loadu_ps(r0),
            _mm_loadu_ps(r1),
            _mm_loadu_ps(r2),
            _mm_loadu_ps(r3),
        ]
    };
    let (low01, high01) = (_mm_unpacklo_ps(r0, r1), _mm_unpackhi_ps(r0, r1));
    let (low23, high23) = (_mm_unpacklo_ps(r2, r3), _mm_unpackhi_ps(r2, r3));
    [
        _mm_movelh_ps(low01, low23),
        _mm_movehl_ps(low23, low01),
        _mm_movelh_ps(high01, high23),
        _mm_movehl_ps(high23, high01),
    ]
}

/// Transposes the 4 × 4 blocks in each 128-bit lane of four registers.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) fn transposed_quads([r0, r1, r2, r3]: [__m256; 4]) -> [__m256; 4] {
    let low01 = _mm256_castps_pd(_mm256_unpacklo_ps(r0, r1));
    let high01 = _mm256_castps_pd(_mm256_unpackhi_ps(r0, r1));
    let low23 = _mm256_castps_pd(_mm256_unpacklo_ps(r2, r3));
    let high23 = _mm256_castps_pd(_mm256_unpackhi_ps(r2, r3));
    [
        _mm256_castpd_ps(_mm256_unpacklo_pd(low01, low23)),
        _mm256_castpd_ps(_mm256_unpackhi_pd(low01, low23)),
        _mm256_castpd_ps(_mm256_unpacklo_pd(high01, high23)),
        _mm256_castpd_ps(_mm256_unpackhi_pd(high01, high23)),
    ]
}

/// Eight rows of words, `stride` bytes apart.
#[inline(always)]
pub(crate) fn eight_rows(first: *const f32, stride: usize) -> [*const f32; 8] {
    std::array::from_fn(|i| first.wrapping_byte_add(i * stride))
}

/// Transposes rows of words in groups of eight into lines. Returns the number of rows processed,
/// and leaves the rest.
///
/// # Safety
///
/// AVX2; every row has all the words, and there is a line per word with space for the rows.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn transpose(
    from: *const f32,
    stride: usize,
    [rows, words]: [usize; 2],
    to: *mut f32,
    line_stride: usize,
) -> usize {
    let rows = rows / LANES * LANES;
    let whole = words / WORDS * WORDS;
    for first in (0..rows).step_by(LANES) {
        let from = from.wrapping_byte_add(first * stride);
        let to = to.wrapping_add(first);
        for p in (0..whole).step_by(WORDS) {
            // SAFETY: eight rows have all the words, and each word has a line.
            unsafe {
                let block = four_of_eight(eight_rows(from.wrapping_add(p), stride));
                for (i, column) in block.into_iter().enumerate() {
                    _mm256_storeu_ps(to.add((p + i) * line_stride), column);
                }
            }
        }
        for p in whole..words {
            for (i, row) in eight_rows(from.wrapping_add(p), stride)
                .into_iter()
                .enumerate()
            {
                // SAFETY: as above.
                unsafe { *to.add(p * line_stride + i) = row.read_unaligned() };
            }
        }
    }
    rows
}
