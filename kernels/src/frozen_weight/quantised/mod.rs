//! Frozen weights in NF4: 4-bit codes with one scale per block, dequantised for each product.
//!
//! The layout is that of bitsandbytes. A weight has 4.127 bits instead of 16. On the CPU the codes
//! are reordered to panels once, and a product decodes them into panels in borrowed memory. On a GPU
//! they stay in this order, and a product dequantises them into a temporary matrix. On CPUs with
//! instructions for pairs of bf16, one to four rows are multiplied with the codes themselves.

pub(crate) mod cpu;
#[cfg(target_arch = "x86_64")]
mod cpu_vectors;
#[cfg(feature = "cube")]
pub(crate) mod cuda;
pub mod reference;

use burn::tensor::{DType, bf16};

use super::ComputeDtype;
use cpu::PanelCodes;

/// Weights per block, which share one absmax.
pub const BLOCK: usize = 64;
/// Blocks per nested block, whose absmax values share one scale.
pub const NESTED_BLOCK: usize = 256;

/// The value of each code, in units of the absmax of its block.
///
/// # Source
///
/// Dettmers et al., "QLoRA", arXiv:2305.14314, appendix E.
pub const TABLE: [f32; 16] = [
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

/// [`TABLE`] in bf16.
pub(super) const TABLE_BF16: [bf16; 16] = {
    let mut table = [bf16::ZERO; 16];
    let mut code = 0;
    while code < 16 {
        table[code] = bf16::from_f32_const(TABLE[code]);
        code += 1;
    }
    table
};

/// A matrix in NF4.
///
/// A value is `TABLE[code] · absmax` of its block, computed in f32, rounded to [`dtype`](Self::dtype)
/// and then to the dtype of the product. The absmax of block `b` is `map[absmax8[b]] ·
/// absmax32[b / 256] + offset`, product and sum rounded separately.
#[derive(Debug, Clone, PartialEq)]
pub struct Nf4 {
    /// Rows and columns, `[out, in]`.
    pub shape: [usize; 2],
    /// Codes of the row-major values, two per byte, the first in the high bits.
    pub codes: Vec<u8>,
    /// One index into the map per [`BLOCK`] values; blocks ignore rows. Empty if the absmax values
    /// are not quantised.
    pub absmax8: Vec<u8>,
    /// One scale per [`NESTED_BLOCK`] blocks; without `absmax8` the absmax of each block.
    pub absmax32: Vec<f32>,
    /// Added to each absmax with `absmax8`.
    pub offset: f32,
    /// The values of `absmax8`, in units of the scale.
    pub map: Box<[f32; 256]>,
    /// Dtype of the values before quantisation, f32, f16 or bf16.
    pub dtype: DType,
}

/// The parts of an NF4 matrix that do not fit each other, or that are not numbers.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Nf4Error {
    /// A part has the wrong length.
    #[error("an NF4 matrix of {shape:?} needs {expected} {part}, found {found}")]
    Length {
        /// Rows and columns.
        shape: [usize; 2],
        /// The part.
        part: &'static str,
        /// The length that the shape needs.
        expected: usize,
        /// The length of the part.
        found: usize,
    },
    /// A scale is NaN or infinite.
    #[error("absmax {index} of an NF4 matrix is {value}; scales must be finite")]
    NotFinite {
        /// Index of the block.
        index: usize,
        /// Its absmax.
        value: f32,
    },
    /// Values of this dtype are never quantised to NF4.
    #[error("an NF4 matrix of {0:?} is not supported; supported: F32, F16, BF16")]
    Dtype(DType),
    /// The rows or columns of the parts do not add up to the matrix.
    #[error("NF4 matrices of {parts:?} do not stack to a matrix of {shape:?}")]
    Stack {
        /// Shapes of the parts.
        parts: Vec<[usize; 2]>,
        /// Shape of the matrix.
        shape: [usize; 2],
    },
}

impl Nf4 {
    /// Checks that all parts fit the shape and that every absmax is finite.
    ///
    /// # Errors
    ///
    /// The first part that is wrong.
    pub fn validate(&self) -> Result<(), Nf4Error> {
        if !matches!(self.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(Nf4Error::Dtype(self.dtype));
        }
        let n_values = self.shape[0] * self.shape[1];
        let n_blocks = n_values.div_ceil(BLOCK);
        let n_scales = match self.absmax8.is_empty() {
            true => n_blocks,
            false => n_blocks.div_ceil(NESTED_BLOCK),
        };
        let n_nested = match self.absmax8.is_empty() {
            true => 0,
            false => n_blocks,
        };
        let lengths = [
            ("bytes of codes", n_values.div_ceil(2), self.codes.len()),
            ("absmax indices", n_nested, self.absmax8.len()),
            ("scales", n_scales, self.absmax32.len()),
        ];
        for (part, expected, found) in lengths {
            if expected != found {
                return Err(Nf4Error::Length {
                    shape: self.shape,
                    part,
                    expected,
                    found,
                });
            }
        }
        let not_finite = |&(_, absmax): &(usize, f32)| !absmax.is_finite();
        let absmax = (0..n_blocks).map(|block| (block, self.absmax(block)));
        match { absmax }.find(not_finite) {
            Some((index, value)) => Err(Nf4Error::NotFinite { index, value }),
            None => Ok(()),
        }
    }

    /// The absmax of a block.
    #[inline]
    fn absmax(&self, block: usize) -> f32 {
        match self.absmax8.get(block) {
            // Rust never fuses product and sum.
            Some(&code) => {
                self.map[usize::from(code)] * self.absmax32[block / NESTED_BLOCK] + self.offset
            }
            None => self.absmax32[block],
        }
    }

    /// Number of values.
    fn n_values(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    /// Bytes of codes and scales.
    fn bytes(&self) -> usize {
        self.codes.len() + self.absmax8.len() + 4 * self.absmax32.len()
    }
}

/// Checks matrices that are stacked to one matrix `shape`, from top to bottom.
///
/// # Errors
///
/// A matrix is invalid, or they do not stack to this shape.
pub(crate) fn validate_stack(parts: &[Nf4], shape: [usize; 2]) -> Result<(), Nf4Error> {
    parts.iter().try_for_each(Nf4::validate)?;
    let rows: usize = parts.iter().map(|part| part.shape[0]).sum();
    if rows != shape[0] || parts.iter().any(|part| part.shape[1] != shape[1]) {
        return Err(Nf4Error::Stack {
            parts: parts.iter().map(|part| part.shape).collect(),
            shape,
        });
    }
    Ok(())
}

/// A matrix `[out, in]` in NF4 for products on the CPU.
#[derive(Debug)]
pub(crate) struct Quantised {
    dtype: ComputeDtype,
    codes: PanelCodes,
}

impl Quantised {
    /// Stores stacked valid parts.
    pub(super) fn new(parts: &[Nf4], shape: [usize; 2], dtype: ComputeDtype) -> Self {
        Self {
            dtype,
            codes: PanelCodes::new(parts, shape),
        }
    }

    /// The dtype that products read.
    pub(crate) fn compute_dtype(&self) -> ComputeDtype {
        self.dtype
    }

    /// Codes in the order of panels.
    pub(crate) fn panel_codes(&self) -> &PanelCodes {
        &self.codes
    }

    /// The values in the dtype that products read, as f32, row-major `[out, in]`.
    pub(crate) fn values(&self) -> Vec<f32> {
        match self.dtype {
            ComputeDtype::F32 => self.codes.values::<f32>(),
            ComputeDtype::Bf16 => self.codes.values::<bf16>(),
        }
    }

    /// Bytes of codes and scales.
    pub(crate) fn bytes(&self) -> usize {
        self.codes.bytes()
    }
}
