//! Data types for writing the matrices of GGUF models.

use std::borrow::Cow;
use std::path::Path;

use half::f16;
use tooltune_disk::atomic::NewFile;

use super::encoding::Format;
use super::float::{NewTensor, check_values, write_values};
use super::{CHUNK_BYTES, FloatDtype, HostTensor};
use crate::error::CheckpointError;
use crate::families::CONVOLUTION;

/// Values and bytes of a Q8_0 block: an f16 scale, and eight bits per value.
const BLOCK: (usize, usize) = (32, 34);

/// A data type for the matrices of a GGUF model; vectors are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufDtype {
    /// Floating-point numbers.
    Float(FloatDtype),
    /// Eight bits per value, with one scale per 32 values of a row.
    Q8_0,
}

/// How one tensor of a GGUF model is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewGgufTensor {
    /// GGUF name, dimensions, and data type (f32 if it is Q8_0).
    new: NewTensor,
    is_q8_0: bool,
}

impl GgufDtype {
    /// The value of `general.file_type`.
    ///
    /// # Source
    ///
    /// ggml-org/llama.cpp, `include/llama.h`, `llama_ftype`.
    pub(crate) fn file_type(self) -> u32 {
        match self {
            Self::Float(FloatDtype::F32) => 0,
            Self::Float(FloatDtype::F16) => 1,
            Self::Float(FloatDtype::BF16) => 32,
            Self::Q8_0 => 7,
        }
    }

    /// The data type of a tensor with this GGUF name and these dimensions. As in llama.cpp's
    /// converter, vectors and convolutions are f32, and matrices whose rows do not divide into
    /// blocks are f16.
    pub(crate) fn tensor(self, name: &str, shape: &[usize]) -> NewGgufTensor {
        let row_len = shape.last().copied().unwrap_or(0);
        let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
        let is_f32 = shape.len() <= 1 || module.ends_with(CONVOLUTION);
        let is_q8_0 = self == Self::Q8_0 && !is_f32 && row_len.is_multiple_of(BLOCK.0);
        let dtype = match self {
            _ if is_f32 || is_q8_0 => FloatDtype::F32,
            Self::Float(dtype) => dtype,
            Self::Q8_0 => FloatDtype::F16,
        };
        NewGgufTensor {
            new: NewTensor {
                name: name.to_owned(),
                shape: shape.to_vec(),
                dtype,
            },
            is_q8_0,
        }
    }
}

impl NewGgufTensor {
    pub(crate) fn name(&self) -> &str {
        &self.new.name
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.new.shape
    }

    /// Type number in GGUF tensor infos.
    pub(crate) fn gguf_type(&self) -> u32 {
        let format = if self.is_q8_0 {
            Format::Q8_0
        } else {
            self.new.dtype.format()
        };
        format.gguf_type()
    }

    /// Bytes of the values; `None` on overflow of `usize`.
    pub(crate) fn n_bytes(&self) -> Option<u64> {
        let n_bytes = self.new.n_bytes()?;
        let n_bytes = match self.is_q8_0 {
            true => n_bytes / 4 / BLOCK.0 * BLOCK.1,
            false => n_bytes,
        };
        u64::try_from(n_bytes).ok()
    }

    /// Appends the values in this data type.
    ///
    /// # Errors
    ///
    /// A value is not finite or out of range, the shape differs, or the file cannot be written.
    pub(crate) fn write(
        &self,
        file: &mut NewFile,
        tensor: HostTensor,
    ) -> Result<(), CheckpointError> {
        if !self.is_q8_0 {
            return write_values(file, &self.new, Cow::Owned(tensor));
        }
        check_values(file.path(), &self.new, &tensor)?;
        let mut bytes = Vec::with_capacity(CHUNK_BYTES);
        for blocks in tensor.values.chunks(CHUNK_BYTES / BLOCK.1 * BLOCK.0) {
            bytes.clear();
            for (idx, block) in blocks.chunks(BLOCK.0).enumerate() {
                encode_q8_0(block, &mut bytes)
                    .ok_or_else(|| self.too_large(file.path(), block, idx))?;
            }
            file.write(&bytes)?;
        }
        Ok(())
    }

    fn too_large(&self, path: &Path, block: &[f32], element_idx: usize) -> CheckpointError {
        let largest = block
            .iter()
            .copied()
            .max_by(|a, b| a.abs().total_cmp(&b.abs()));
        CheckpointError::OutOfRange {
            path: path.to_owned(),
            tensor: self.new.name.clone(),
            element_idx: element_idx * BLOCK.0,
            value: largest.unwrap_or_default(),
            dtype: "Q8_0",
        }
    }
}

/// Appends one block; `None` if its scale exceeds the range of f16.
///
/// # Source
///
/// ggml-org/llama.cpp, `ggml/src/ggml-quants.c`, `quantize_row_q8_0_ref`.
fn encode_q8_0(values: &[f32], bytes: &mut Vec<u8>) -> Option<()> {
    let largest = values.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let half = f16::from_f32(scale);
    if !half.is_finite() {
        return None;
    }
    bytes.extend(half.to_le_bytes());
    let rounded = |x: &f32| (x * inverse).round() as i8;
    bytes.extend(values.iter().map(|x| rounded(x).to_le_bytes()[0]));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::blocks;

    #[test]
    fn a_quantised_block_decodes_within_half_of_its_scale() {
        let values: Vec<f32> = (0..32)
            .map(|i| ((i * 37 % 32) as f32 - 15.0) * 0.37)
            .collect();
        let mut bytes = Vec::new();
        encode_q8_0(&values, &mut bytes).unwrap();
        assert_eq!(bytes.len(), BLOCK.1);
        let mut back = Vec::new();
        blocks::q8_0(&bytes, &mut back);
        let scale = 16.0 * 0.37 / 127.0;
        for (value, back) in values.iter().zip(&back) {
            // The tolerance is half a step, plus the rounding of the scale to eleven bits.
            assert!((value - back).abs() <= scale * 0.5 + value.abs() / 2048.0);
        }
        // Encoding decoded values again changes nothing.
        let mut again = Vec::new();
        encode_q8_0(&back, &mut again).unwrap();
        let mut twice = Vec::new();
        blocks::q8_0(&again, &mut twice);
        for (once, twice) in back.iter().zip(&twice) {
            assert!(
                (once - twice).abs() <= once.abs() / 1024.0,
                "{once} {twice}"
            );
        }
        assert_eq!(encode_q8_0(&[1e30; 32], &mut Vec::new()), None);
        let mut zeros = Vec::new();
        encode_q8_0(&[0.0; 32], &mut zeros).unwrap();
        assert_eq!(zeros, [0; 34]);
    }
}
