//! Floating-point data types for writing: f32 values to bytes, rounded once.

use std::borrow::Cow;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::Dtype;
use tooltune_disk::atomic::NewFile;

use super::encoding::Format;
use super::{CHUNK_BYTES, HostTensor};
use crate::error::CheckpointError;

/// A floating-point data type for writing tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatDtype {
    /// 32 bits; adapters are trained in this type.
    F32,
    /// 16 bits with 11 bits of precision; values beyond 65504 are errors.
    F16,
    /// 16 bits with 8 bits of precision and the range of f32.
    BF16,
}

impl FloatDtype {
    /// Parses a name such as "bf16", "BF16" or "bfloat16".
    pub fn parse(name: &str) -> Option<FloatDtype> {
        match name.to_ascii_lowercase().as_str() {
            "f32" | "float32" => Some(FloatDtype::F32),
            "f16" | "float16" => Some(FloatDtype::F16),
            "bf16" | "bfloat16" => Some(FloatDtype::BF16),
            _ => None,
        }
    }

    /// The name in safetensors files and in messages.
    pub fn name(self) -> &'static str {
        match self {
            FloatDtype::F32 => "F32",
            FloatDtype::F16 => "F16",
            FloatDtype::BF16 => "BF16",
        }
    }

    /// The name in `config.json`.
    pub(crate) fn torch_name(self) -> &'static str {
        match self {
            FloatDtype::F32 => "float32",
            FloatDtype::F16 => "float16",
            FloatDtype::BF16 => "bfloat16",
        }
    }

    /// Bytes of one value.
    pub(crate) fn n_bytes(self) -> usize {
        match self {
            FloatDtype::F32 => 4,
            FloatDtype::F16 | FloatDtype::BF16 => 2,
        }
    }

    pub(super) fn safetensors(self) -> Dtype {
        match self {
            FloatDtype::F32 => Dtype::F32,
            FloatDtype::F16 => Dtype::F16,
            FloatDtype::BF16 => Dtype::BF16,
        }
    }

    pub(super) fn format(self) -> Format {
        match self {
            FloatDtype::F32 => Format::F32,
            FloatDtype::F16 => Format::F16,
            FloatDtype::BF16 => Format::BF16,
        }
    }

    /// Rounds to the nearest value, ties to even; infinite if `value` is out of range.
    pub fn rounded(self, value: f32) -> f32 {
        match self {
            FloatDtype::F32 => value,
            FloatDtype::F16 => f16::from_f32(value).to_f32(),
            FloatDtype::BF16 => bf16::from_f32(value).to_f32(),
        }
    }

    fn encode(self, values: &[f32], bytes: &mut Vec<u8>) {
        let halves = |bits: fn(f32) -> u16, bytes: &mut Vec<u8>| {
            bytes.extend(values.iter().flat_map(|&value| bits(value).to_le_bytes()));
        };
        match self {
            FloatDtype::F32 => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            FloatDtype::F16 => halves(|value| f16::from_f32(value).to_bits(), bytes),
            FloatDtype::BF16 => halves(|value| bf16::from_f32(value).to_bits(), bytes),
        }
    }
}

/// The header fields of a tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: FloatDtype,
}

impl NewTensor {
    /// Bytes of the values; `None` on overflow of `usize`.
    pub(crate) fn n_bytes(&self) -> Option<usize> {
        let n_values = self
            .shape
            .iter()
            .try_fold(1_usize, |n, &d| n.checked_mul(d));
        n_values?.checked_mul(self.dtype.n_bytes())
    }
}

/// Checks that the values fill the shape and that each is finite in the data type.
///
/// # Errors
///
/// A value is NaN or infinite, also after rounding. `path` is the file named in the error.
pub(crate) fn check_values(
    path: &Path,
    new: &NewTensor,
    tensor: &HostTensor,
) -> Result<(), CheckpointError> {
    if new.shape != tensor.shape || tensor.shape.iter().product::<usize>() != tensor.values.len() {
        return Err(CheckpointError::ShapeMismatch {
            tensor: new.name.clone(),
            shape: new.shape.clone(),
            n_values: tensor.values.len(),
        });
    }
    let is_not_finite = |value: &f32| !new.dtype.rounded(*value).is_finite();
    let Some(element_idx) = tensor.values.iter().position(is_not_finite) else {
        return Ok(());
    };
    let value = tensor.values[element_idx];
    let (path, tensor) = (path.to_owned(), new.name.clone());
    Err(if value.is_finite() {
        CheckpointError::OutOfRange {
            path,
            tensor,
            element_idx,
            value,
            dtype: new.dtype.name(),
        }
    } else {
        CheckpointError::NonFinite {
            path,
            tensor,
            element_idx,
            value,
        }
    })
}

/// Appends the values in the data type of `new`, in chunks of limited size.
///
/// # Errors
///
/// As for [`check_values`], or the file cannot be written.
pub(crate) fn write_values(
    file: &mut NewFile,
    new: &NewTensor,
    tensor: Cow<'_, HostTensor>,
) -> Result<(), CheckpointError> {
    check_values(file.path(), new, &tensor)?;
    let mut bytes = Vec::with_capacity(CHUNK_BYTES.min(tensor.values.len() * new.dtype.n_bytes()));
    for values in tensor.values.chunks(CHUNK_BYTES / new.dtype.n_bytes()) {
        bytes.clear();
        new.dtype.encode(values, &mut bytes);
        file.write(&bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_tensors_decode_to_the_rounded_values() {
        let values = [
            0.0,
            -0.0,
            1.0,
            1.0 + 1.0 / 256.0,
            1.0 + 3.0 / 256.0,
            65504.0,
            -3e-8,
            0.1,
        ];
        for dtype in [FloatDtype::F32, FloatDtype::F16, FloatDtype::BF16] {
            let mut bytes = Vec::new();
            dtype.encode(&values, &mut bytes);
            assert_eq!(bytes.len(), values.len() * dtype.n_bytes());
            let mut decoded = Vec::new();
            dtype.format().decode(&bytes, &mut decoded);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let rounded: Vec<f32> = values.iter().map(|&value| dtype.rounded(value)).collect();
            assert_eq!(bits(&decoded), bits(&rounded), "{dtype:?}");
            assert_eq!(FloatDtype::parse(dtype.name()), Some(dtype));
            assert_eq!(FloatDtype::parse(dtype.torch_name()), Some(dtype));
        }
        // Ties round to even: 1 + 1/256 is between 1 and 1 + 1/128.
        assert_eq!(FloatDtype::BF16.rounded(values[3]), 1.0);
        assert_eq!(FloatDtype::BF16.rounded(values[4]), 1.0 + 4.0 / 256.0);
        assert_eq!(FloatDtype::parse("q8_0"), None);
    }

    #[test]
    fn an_out_of_range_value_is_an_error_that_names_it() {
        let tensor = HostTensor {
            shape: vec![2],
            values: vec![1.0, 70_000.0],
        };
        let new = |dtype| NewTensor {
            name: "w".to_owned(),
            shape: vec![2],
            dtype,
        };
        let path = Path::new("out.gguf");
        check_values(path, &new(FloatDtype::BF16), &tensor).unwrap();
        let error = check_values(path, &new(FloatDtype::F16), &tensor).unwrap_err();
        let expected = "element 1 of tensor w is 70000, beyond the range of F16; write it as bf16";
        assert!(error.to_string().contains(expected), "{error}");
    }
}
