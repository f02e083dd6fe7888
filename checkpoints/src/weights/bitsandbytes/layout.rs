//! The values and blocks of NF4: tables, quantisation and dequantisation without files.

use std::path::Path;
use std::sync::LazyLock;

use rayon::prelude::*;

use crate::error::CheckpointError;
use crate::weights::{FloatDtype, HostTensor};

/// Weights per block, which share one absmax.
pub const NF4_BLOCK: usize = 64;
/// Blocks per nested block, whose absmax values share one f32 scale.
pub const NF4_NESTED_BLOCK: usize = 256;

/// Weights per nested block.
pub(super) const NESTED_VALUES: usize = NF4_BLOCK * NF4_NESTED_BLOCK;

/// The value of each code, in units of the absmax of its block: quantiles of a normal distribution.
///
/// # Source
///
/// Dettmers et al., "QLoRA", arXiv:2305.14314, appendix E; bitsandbytes 0.50.2, `functional.py`,
/// `get_4bit_type`.
pub const NF4_TABLE: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The value halfway between each code and the next one. A value on it gets the lower code.
const MIDPOINTS: [f32; 15] = {
    let mut midpoints = [0.0; 15];
    let mut code = 0;
    while code < 15 {
        midpoints[code] = (NF4_TABLE[code] + NF4_TABLE[code + 1]) / 2.0;
        code += 1;
    }
    midpoints
};

/// Smallest divisor of a block, so that a block of zeros has no division by 0.
const SMALLEST_DIVISOR: f32 = 1e-38;

/// The 256 values of a quantised absmax, in units of the scale of its nested block, sorted.
///
/// There are seven decades on each side of 0, from `[1e-7, 1e-6]` to `[0.1, 1]`. Each decade is
/// divided into twice as many equal parts as the one below it, and a value is the middle of a part.
/// 0 and 1 complete the map.
///
/// # Source
///
/// Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861; bitsandbytes
/// 0.50.2, `functional.py`, `create_dynamic_map`. The bits are those of torch on a CPU with FMA;
/// without, 42 values differ by at most two units in the last place.
pub fn nf4_dynamic_map() -> &'static [f32; 256] {
    static MAP: LazyLock<[f32; 256]> = LazyLock::new(dynamic_map);
    &MAP
}

fn dynamic_map() -> [f32; 256] {
    const SCALES: [f32; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];
    let mut values = vec![0.0, 1.0];
    for (decade, scale) in SCALES.into_iter().enumerate() {
        let n_parts = 1 << decade;
        let boundary = |index: usize| linspace(0.1, 1.0, n_parts + 1, index);
        for part in 0..n_parts {
            let mean = (boundary(part) + boundary(part + 1)) / 2.0;
            values.extend([scale * mean, -(scale * mean)]);
        }
    }
    values.sort_by(f32::total_cmp);
    let mut map = [0.0; 256];
    map.copy_from_slice(&values);
    map
}

/// Item `index` of `torch.linspace(start, end, n)` in f32, which counts from the nearer end. Product
/// and sum are rounded once, as by torch's compiled code.
fn linspace(start: f32, end: f32, n: usize, index: usize) -> f32 {
    let step = (end - start) / (n - 1) as f32;
    if index < n / 2 {
        step.mul_add(index as f32, start)
    } else {
        (-step).mul_add((n - 1 - index) as f32, end)
    }
}

/// A tensor in bitsandbytes' NF4 layout.
///
/// Each value is `table[code] · absmax`, computed in f32 and rounded to [`dtype`](Self::dtype).
#[derive(Debug, Clone, PartialEq)]
pub struct Nf4Tensor {
    /// Dimensions of the values, outermost first.
    pub shape: Vec<usize>,
    /// 4-bit codes of the row-major values, two per byte, the first in the high bits. If the number
    /// of values is odd, the last four bits are padding.
    pub codes: Vec<u8>,
    /// One absmax per [`NF4_BLOCK`] values, in the order of the values. Blocks ignore rows.
    pub absmax: Nf4Absmax,
    /// Data type of the values before quantisation, to which dequantised values are rounded.
    pub dtype: FloatDtype,
}

/// The absmax of each block.
#[derive(Debug, Clone, PartialEq)]
pub enum Nf4Absmax {
    /// As f32.
    Plain(Vec<f32>),
    /// With 8 bits each ("double quantisation"): `map[code] · scale + offset`. Product and sum are
    /// rounded separately.
    Nested {
        /// Indices into the map.
        codes: Vec<u8>,
        /// One scale per [`NF4_NESTED_BLOCK`] codes.
        scales: Vec<f32>,
        /// The mean of the absmax values.
        offset: f32,
        /// The values of the codes, usually [`nf4_dynamic_map`].
        map: Box<[f32; 256]>,
    },
}

impl Nf4Absmax {
    /// Number of blocks.
    pub fn len(&self) -> usize {
        match self {
            Self::Plain(absmax) => absmax.len(),
            Self::Nested { codes, .. } => codes.len(),
        }
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The absmax of a block.
    ///
    /// # Panics
    ///
    /// Panics if there is no such block.
    pub fn of_block(&self, block: usize) -> f32 {
        match self {
            Self::Plain(absmax) => absmax[block],
            Self::Nested {
                codes,
                scales,
                offset,
                map,
            } => {
                let scale = scales[block / NF4_NESTED_BLOCK];
                unnested(map, codes[block], scale, *offset)
            }
        }
    }

    /// Quantises absmax values to 8 bits. `offset` is their mean, see [`mean`](Self::mean).
    ///
    /// As in bitsandbytes' CUDA kernel, each value gets the code of the nearest value of the map, and
    /// a nested block of zeros gets code 0. Its CPU kernel first rounds to one of 65,535 steps in
    /// `[-1, 1]`. A value within a step of the middle between two values of the map can therefore
    /// have the neighbouring code there.
    pub fn nested(absmax: &[f32], offset: f32) -> Nf4Absmax {
        let map = nf4_dynamic_map();
        let (mut codes, mut scales) = (Vec::with_capacity(absmax.len()), Vec::new());
        for block in absmax.chunks(NF4_NESTED_BLOCK) {
            let differences: Vec<f32> = block.iter().map(|absmax| absmax - offset).collect();
            let scale = largest(&differences);
            let inverse = 1.0 / scale;
            codes.extend(differences.iter().map(|difference| {
                if scale == 0.0 {
                    return 0;
                }
                let value = (difference * inverse).clamp(-1.0, 1.0);
                let below = |pair: &&[f32]| (pair[0] + pair[1]) / 2.0 < value;
                map.windows(2).filter(below).count() as u8
            }));
            scales.push(scale);
        }
        Nf4Absmax::Nested {
            codes,
            scales,
            offset,
            map: Box::new(*map),
        }
    }

    /// The mean of absmax values, summed in f64; 0 if there are none. bitsandbytes sums in f32, so
    /// the last bit may differ.
    pub fn mean(absmax: &[f32]) -> f32 {
        let sum: f64 = absmax.iter().map(|absmax| f64::from(*absmax)).sum();
        (sum / absmax.len().max(1) as f64) as f32
    }
}

/// The absmax with this 8-bit code. Rust never fuses product and sum, as bitsandbytes does not.
pub(super) fn unnested(map: &[f32; 256], code: u8, scale: f32, offset: f32) -> f32 {
    map[usize::from(code)] * scale + offset
}

impl Nf4Tensor {
    /// Quantises the values of `tensor`, which were stored as `dtype`. With `nested`, absmax values
    /// are quantised to 8 bits.
    ///
    /// # Errors
    ///
    /// The index of the first value that is NaN or infinite.
    pub fn quantise(
        tensor: &HostTensor,
        dtype: FloatDtype,
        nested: bool,
    ) -> Result<Nf4Tensor, usize> {
        let values = &tensor.values;
        if let Some(element) = values.iter().position(|value| !value.is_finite()) {
            return Err(element);
        }
        let mut codes = vec![0; values.len().div_ceil(2)];
        let mut absmax = vec![0.0; values.len().div_ceil(NF4_BLOCK)];
        let blocks = codes.par_chunks_mut(NF4_BLOCK / 2).zip(&mut absmax);
        blocks
            .zip(values.par_chunks(NF4_BLOCK))
            .with_min_len(NF4_NESTED_BLOCK)
            .for_each(|((codes, absmax), values)| *absmax = quantise_block(values, codes));
        let absmax = match nested {
            true => Nf4Absmax::nested(&absmax, Nf4Absmax::mean(&absmax)),
            false => Nf4Absmax::Plain(absmax),
        };
        Ok(Nf4Tensor {
            shape: tensor.shape.clone(),
            codes,
            absmax,
            dtype,
        })
    }

    /// Rounds the values of `weight` to `dtype` and quantises them with nested absmax values.
    ///
    /// # Errors
    ///
    /// A value is NaN or infinite. The error names `path` and the tensor `name`.
    pub(crate) fn quantise_rounded(
        mut weight: HostTensor,
        dtype: FloatDtype,
        path: &Path,
        name: &str,
    ) -> Result<Nf4Tensor, CheckpointError> {
        for value in &mut weight.values {
            *value = dtype.rounded(*value);
        }
        Nf4Tensor::quantise(&weight, dtype, true).map_err(|element| {
            let value = weight.values[element];
            let problem = format!("its value {element} is {value}, which has no NF4 code");
            CheckpointError::malformed(path, format!("tensor {name}"), problem)
        })
    }

    /// The values, rounded to [`dtype`](Self::dtype).
    ///
    /// # Panics
    ///
    /// Panics if there are fewer codes or absmax values than the shape needs.
    pub fn dequantise(&self) -> HostTensor {
        let mut values = vec![0.0; self.shape.iter().product()];
        let blocks = values.par_chunks_mut(NF4_BLOCK).enumerate();
        blocks
            .with_min_len(NF4_NESTED_BLOCK)
            .for_each(|(block, values)| {
                let table = block_table(self.absmax.of_block(block), self.dtype);
                decode(&self.codes[block * NF4_BLOCK / 2..], 0, &table, values);
            });
        HostTensor {
            shape: self.shape.clone(),
            values,
        }
    }
}

/// Quantises one block and returns its absmax.
///
/// As in bitsandbytes' reference, a whole block is multiplied by the reciprocal of its absmax, and a
/// shorter last block is divided by it.
fn quantise_block(values: &[f32], codes: &mut [u8]) -> f32 {
    let is_whole = values.len() == NF4_BLOCK;
    let (absmax, inverse) = match (is_whole, largest(values)) {
        (true, absmax) => (absmax, 1.0 / absmax.max(SMALLEST_DIVISOR)),
        (false, absmax) => (absmax.max(SMALLEST_DIVISOR), 0.0),
    };
    let code = |value: f32| {
        let scaled = if is_whole {
            value * inverse
        } else {
            value / absmax
        };
        let scaled = scaled.clamp(-1.0, 1.0);
        MIDPOINTS
            .iter()
            .map(|mid| u8::from(*mid < scaled))
            .sum::<u8>()
    };
    for (byte, pair) in codes.iter_mut().zip(values.chunks(2)) {
        // The padding is the code of 0.
        let second = pair.get(1).copied().unwrap_or(0.0);
        *byte = code(pair[0]) << 4 | code(second);
    }
    absmax
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// The value of each code in a block with this absmax, rounded to `dtype`.
pub(super) fn block_table(absmax: f32, dtype: FloatDtype) -> [f32; 16] {
    NF4_TABLE.map(|value| dtype.rounded(value * absmax))
}

/// Decodes `values.len()` codes from index `first` of `codes`.
pub(super) fn decode<T: Copy>(codes: &[u8], first: usize, table: &[T; 16], values: &mut [T]) {
    let (high, low) = (|byte: u8| byte >> 4, |byte: u8| byte & 15);
    let codes = &codes[first / 2..];
    // A range may begin in the middle of a byte.
    let (head, values) = values.split_at_mut(values.len().min(first % 2));
    for value in &mut *head {
        *value = table[usize::from(low(codes[0]))];
    }
    let codes = &codes[head.len()..];
    let (pairs, last) = values.as_chunks_mut::<2>();
    for ([first, second], byte) in pairs.iter_mut().zip(codes) {
        *first = table[usize::from(high(*byte))];
        *second = table[usize::from(low(*byte))];
    }
    if let [value] = last {
        *value = table[usize::from(high(codes[pairs.len()]))];
    }
}
