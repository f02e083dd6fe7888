//! The dropout mask of a projection's input, derived from a number: the same number gives the same
//! mask.
//!
//! The mask is not stored, but the backward pass needs it again, and a resumed run repeats it. It
//! is therefore a pure function of the number, the row and the column, from our own generator that
//! no dependency can change. Kept elements are not scaled here: `1 / (1 - p)` is part of the
//! adapter's scaling, so that bf16 inputs are not rounded again.

#[cfg(target_arch = "x86_64")]
mod cpu_avx2;
#[cfg(target_arch = "x86_64")]
mod cpu_avx512;
#[cfg(feature = "cube")]
pub(crate) mod cuda;

#[cfg(any(test, feature = "cube"))]
use burn::backend::{Backend, backend_extension, tensor::FloatTensor};
#[cfg(test)]
use burn::backend::{Flex, flex::FlexTensor};
use burn::tensor::{Device, Tensor, TensorData};

#[cfg(test)]
use crate::cpu::buffer::{contiguous, dims, numbers, tensor};

use crate::cpu::isa::{Isa, for_each_isa};
use crate::cpu::number::Number;
#[cfg(test)]
use crate::cpu::pool::Buffer;

/// The mask of one projection's input in one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropout {
    /// The seed of the mask.
    pub state: u64,
    /// Probability of dropping an element, in units of 1/65536.
    pub threshold: u16,
}

impl Dropout {
    /// Scale of kept elements: the inverse of the keep probability after rounding, so that the
    /// expectation is unchanged.
    pub fn scale(self) -> f32 {
        65536.0 / (65536.0 - f32::from(self.threshold))
    }

    /// 1 for kept elements, 0 for dropped ones: `[n, in]`, f32.
    pub fn mask(self, [rows, width]: [usize; 2], device: &Device) -> Tensor<2> {
        let ones = vec![1.0f32; width];
        let mut dropped = vec![0.0; width];
        let mut values = Vec::with_capacity(rows * width);
        for row in 0..rows {
            self.keep(row, 0, &ones, &mut dropped);
            values.extend_from_slice(&dropped);
        }
        Tensor::from_data(TensorData::new(values, [rows, width]), device)
    }

    /// Copies part of row `row`, starting at column `first`, with dropped elements set to zero.
    ///
    /// # Panics
    ///
    /// If `first` is not a multiple of 4, because one random word covers four columns.
    pub(crate) fn keep<T: Number>(self, row: usize, first: usize, from: &[T], to: &mut [T]) {
        assert!(
            first.is_multiple_of(4),
            "one random word covers four columns"
        );
        assert_eq!(
            from.len(),
            to.len(),
            "from and to must have the same length"
        );
        let word = mix(self.state ^ mix(row as u64)).wrapping_add(first as u64 / 4);
        // SAFETY: the CPU feature was detected; the lengths were compared above.
        let n_done = match Isa::detect() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => return unsafe { cpu_avx512::keep(word, self.threshold, from, to) },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { cpu_avx2::keep(word, self.threshold, from, to) },
            Isa::Portable => 0,
        };
        let word = word.wrapping_add(n_done as u64 / 4);
        keep(word, self.threshold, &from[n_done..], &mut to[n_done..]);
    }

    /// Adds the kept elements of a row of f32.
    pub(crate) fn add_kept(self, row: usize, from: &[f32], to: &mut [f32]) {
        assert_eq!(
            from.len(),
            to.len(),
            "from and to must have the same length"
        );
        let word = mix(self.state ^ mix(row as u64));
        // SAFETY: the CPU feature was detected; the lengths were compared above.
        let n_done = match Isa::detect() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => return unsafe { cpu_avx512::add_kept(word, self.threshold, from, to) },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { cpu_avx2::add_kept(word, self.threshold, from, to) },
            Isa::Portable => 0,
        };
        let word = word.wrapping_add(n_done as u64 / 4);
        add_kept(word, self.threshold, &from[n_done..], &mut to[n_done..]);
    }
}

/// Dropout on tensors that are not part of an autodiff graph.
#[cfg(any(test, feature = "cube"))]
#[backend_extension(
    Flex: cfg(test),
    Cube: cfg(feature = "cube"),
)]
pub(crate) trait KeepElements: Backend {
    /// `x`, `[n, in]`, with dropped elements set to zero.
    fn keep(x: FloatTensor<Self>, dropout: Dropout) -> FloatTensor<Self>;
}

#[cfg(test)]
impl KeepElements for Flex {
    /// Only for f32: bf16 products apply dropout while they read.
    fn keep(x: FlexTensor, dropout: Dropout) -> FlexTensor {
        let x = contiguous(x);
        let [n, width] = dims(&x);
        let mut dropped = Buffer::repeated(0.0f32, n * width);
        let rows = numbers(&x).chunks_exact(width.max(1));
        for (row, (x, dropped)) in rows.zip(dropped.chunks_exact_mut(width.max(1))).enumerate() {
            dropout.keep(row, 0, x, dropped);
        }
        tensor(dropped, [n, width])
    }
}

/// Constants of [`mix`].
const ADDED: u64 = 0x9E37_79B9_7F4A_7C15;
const FIRST_FACTOR: u64 = 0xBF58_476D_1CE4_E5B9;
const SECOND_FACTOR: u64 = 0x94D0_49BB_1331_11EB;

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014) after one step of its counter.
#[inline(always)]
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(ADDED);
    let x = (x ^ (x >> 30)).wrapping_mul(FIRST_FACTOR);
    let x = (x ^ (x >> 27)).wrapping_mul(SECOND_FACTOR);
    x ^ (x >> 31)
}

/// Random words for 32 columns.
#[inline(always)]
fn draws(word: u64) -> [u16; 32] {
    let words: [u64; 8] = std::array::from_fn(|i| mix(word.wrapping_add(i as u64)));
    let mut draws = [0; 32];
    for (draws, word) in draws.chunks_exact_mut(4).zip(words) {
        for (i, draw) in draws.iter_mut().enumerate() {
            *draw = (word >> (16 * i)) as u16;
        }
    }
    draws
}

for_each_isa! {
    fn keep[T: Number](word: u64, threshold: u16, from: &[T], to: &mut [T]) {
        let zero = T::narrow(0.0);
        for (i, (from, to)) in from.chunks(32).zip(to.chunks_mut(32)).enumerate() {
            let draws = draws(word.wrapping_add(8 * i as u64));
            for ((to, &from), draw) in to.iter_mut().zip(from).zip(draws) {
                *to = if draw < threshold { zero } else { from };
            }
        }
    }
}

for_each_isa! {
    fn add_kept(word: u64, threshold: u16, from: &[f32], to: &mut [f32]) {
        for (i, (from, to)) in from.chunks(32).zip(to.chunks_mut(32)).enumerate() {
            let draws = draws(word.wrapping_add(8 * i as u64));
            for ((to, &from), draw) in to.iter_mut().zip(from).zip(draws) {
                *to += if draw < threshold { 0.0 } else { from };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::bf16;

    use super::*;

    fn values(dropout: Dropout, shape: [usize; 2]) -> Vec<f32> {
        let mask = dropout.mask(shape, &Device::flex());
        mask.into_data().iter::<f32>().collect()
    }

    #[test]
    fn equal_keys_give_equal_masks() {
        let dropout = Dropout {
            state: 17,
            threshold: 3277,
        };
        assert_eq!(values(dropout, [9, 577]), values(dropout, [9, 577]));
        let other = Dropout {
            state: 18,
            ..dropout
        };
        assert_ne!(values(dropout, [9, 577]), values(other, [9, 577]));
    }

    #[test]
    fn the_expectation_of_a_multiplier_is_one() {
        let dropout = Dropout {
            state: 1,
            threshold: (0.3 * 65536.0) as u16,
        };
        let values = values(dropout, [2000, 577]);
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
        // 1.15 million draws with standard deviation 0.46: 6 sigma are 0.0026.
        assert!((mean - 0.7).abs() < 0.0026, "{mean}");
        assert!((mean * f64::from(dropout.scale()) - 1.0).abs() < 0.0037);
    }

    #[test]
    fn each_word_decides_its_four_columns() {
        let dropout = Dropout {
            state: 23,
            threshold: 30_000,
        };
        for width in [1, 3, 15, 16, 17, 31, 32, 33, 64, 75, 100] {
            let values = values(dropout, [2, width]);
            for (i, value) in values.into_iter().enumerate() {
                let (row, column) = (i / width, i % width);
                let word = mix(dropout.state ^ mix(row as u64)).wrapping_add(column as u64 / 4);
                let draw = (mix(word) >> (16 * (column % 4))) & 0xffff;
                let is_kept = draw >= u64::from(dropout.threshold);
                assert_eq!(
                    value != 0.0,
                    is_kept,
                    "row {row}, column {column} of {width}"
                );
            }
        }
    }

    #[test]
    fn row_parts_and_f32_use_the_same_mask() {
        let dropout = Dropout {
            state: 5,
            threshold: 20_000,
        };
        let whole = values(dropout, [3, 75]);
        let from: Vec<bf16> = vec![bf16::ONE; 75];
        let mut part = vec![bf16::ZERO; 43];
        dropout.keep(2, 32, &from[32..], &mut part);
        let part: Vec<f32> = part.into_iter().map(f32::from).collect();
        assert_eq!(part, whole[2 * 75 + 32..]);
        let mut row = vec![0.0; 75];
        dropout.keep(2, 0, &[1.0f32; 75], &mut row);
        assert_eq!(row, whole[150..]);
        dropout.add_kept(2, &[1.0; 75], &mut row);
        assert_eq!(
            row,
            whole[150..].iter().map(|v| 2.0 * v).collect::<Vec<_>>()
        );
    }
}
