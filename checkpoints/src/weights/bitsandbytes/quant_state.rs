//! The JSON that describes one quantised tensor.

use std::path::Path;

use serde::Deserialize;

use super::layout::{NF4_BLOCK, NF4_NESTED_BLOCK};
use crate::budgets::TENSOR_DIMENSIONS;
use crate::error::CheckpointError;
use crate::weights::FloatDtype;
use crate::weights::safetensors_header::truncate_text;

/// What to do with a layout that is not read.
pub(super) const REQUANTISE: &str = "quantise the model with load_in_4bit, bnb_4bit_quant_type = \"nf4\" and the default block \
     sizes (64, nested 256), or use the model before quantisation";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    quant_type: String,
    blocksize: u64,
    dtype: String,
    shape: Vec<u64>,
    nested_blocksize: Option<u64>,
    nested_dtype: Option<String>,
    nested_offset: Option<f64>,
}

/// The checked fields of a quantisation state.
#[derive(Debug, PartialEq)]
pub(super) struct QuantState {
    /// Data type of the dequantised values.
    pub(super) dtype: FloatDtype,
    /// Dimensions of the dequantised values, outermost first.
    pub(super) shape: Vec<usize>,
    /// Number of values.
    pub(super) n_values: usize,
    /// The offset of nested absmax values, if they are nested.
    pub(super) nested_offset: Option<f32>,
}

impl QuantState {
    /// Parses the JSON `text` of the tensor `name` in the file `path`.
    ///
    /// # Errors
    ///
    /// It is not such JSON, a field has an impossible value, or the layout is not supported.
    pub(super) fn parse(
        path: &Path,
        name: &str,
        text: &[u8],
    ) -> Result<QuantState, CheckpointError> {
        let malformed =
            |problem: String| CheckpointError::malformed(path, format!("tensor {name}"), problem);
        let unsupported = |feature: String| CheckpointError::Unsupported {
            path: path.to_owned(),
            feature: format!("{feature} of tensor {name}"),
            fix: REQUANTISE,
        };
        let fields: Fields = serde_json::from_slice(text)
            .map_err(|error| malformed(truncate_text(&error.to_string())))?;
        if fields.quant_type != "nf4" {
            return Err(malformed(format!(
                "its quant_type is {:?}, but its name says nf4",
                truncate_text(&fields.quant_type)
            )));
        }
        if fields.blocksize != NF4_BLOCK as u64 {
            return Err(unsupported(format!("blocksize {}", fields.blocksize)));
        }
        let dtype = float_dtype(&fields.dtype)
            .ok_or_else(|| unsupported(format!("dtype {:?}", truncate_text(&fields.dtype))))?;
        let (shape, n_values) = sizes(&fields.shape).ok_or_else(|| {
            let shape = truncate_text(&format!("{:?}", fields.shape));
            malformed(format!(
                "its shape {shape} has more than {TENSOR_DIMENSIONS} dimensions \
                 (TENSOR_DIMENSIONS in docs/limits.md) or overflows"
            ))
        })?;
        let nested = (
            fields.nested_blocksize,
            fields.nested_dtype,
            fields.nested_offset,
        );
        let nested_offset = match nested {
            (None, None, None) => None,
            (Some(blocksize), _, _) if blocksize != NF4_NESTED_BLOCK as u64 => {
                return Err(unsupported(format!("nested_blocksize {blocksize}")));
            }
            (_, Some(dtype), _) if dtype != "float32" => {
                let dtype = truncate_text(&dtype);
                return Err(unsupported(format!("nested_dtype {dtype:?}")));
            }
            (Some(_), Some(_), Some(offset)) => Some(
                Some(offset as f32)
                    .filter(|offset| offset.is_finite())
                    .ok_or_else(|| {
                        malformed(format!("its nested_offset {offset} is not an f32"))
                    })?,
            ),
            _ => {
                return Err(malformed(
                    "it has only some of nested_blocksize, nested_dtype and nested_offset"
                        .to_owned(),
                ));
            }
        };
        Ok(QuantState {
            dtype,
            shape,
            n_values,
            nested_offset,
        })
    }
}

/// The data type with this name in torch.
fn float_dtype(name: &str) -> Option<FloatDtype> {
    let dtypes = [FloatDtype::F32, FloatDtype::F16, FloatDtype::BF16];
    dtypes.into_iter().find(|dtype| dtype.torch_name() == name)
}

/// The dimensions and their product, if both fit.
fn sizes(shape: &[u64]) -> Option<(Vec<usize>, usize)> {
    if shape.len() > TENSOR_DIMENSIONS {
        return None;
    }
    let sizes: Option<Vec<usize>> = shape.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    let sizes = sizes?;
    let n_values = sizes
        .iter()
        .try_fold(1_usize, |n, &dim| n.checked_mul(dim))?;
    Some((sizes, n_values))
}
