//! The tensors in which bitsandbytes stores an NF4 weight.

use std::borrow::Cow;

use safetensors::tensor::Dtype;

use super::layout::{NF4_BLOCK, NF4_NESTED_BLOCK, NF4_TABLE, Nf4Absmax, Nf4Tensor};
use super::parts::{ABSMAX, NESTED_ABSMAX, NESTED_QUANT_MAP, QUANT_MAP, STATE};
use crate::weights::FileTensor;

/// One of the tensors that store an NF4 weight.
#[derive(Debug, PartialEq)]
pub(crate) struct Nf4Part {
    pub(crate) tensor: FileTensor,
    pub(crate) bytes: Vec<u8>,
    /// Whether the part grows with each block of the weight, unlike maps, scales of nested blocks
    /// and the quantisation state.
    pub(crate) is_large: bool,
}

impl Nf4Tensor {
    /// The tensors that store this weight as `name`, with the names, shapes and data types of
    /// `QuantState.as_dict(packed=True)`.
    ///
    /// # Source
    ///
    /// bitsandbytes 0.50.2, `functional.py`, `QuantState.as_dict`.
    pub(crate) fn into_parts(self, name: &str) -> Vec<Nf4Part> {
        let part = |suffix: &str, dtype: Dtype, bytes: Vec<u8>, is_large: bool| Nf4Part {
            tensor: FileTensor::Bytes {
                name: format!("{name}{suffix}"),
                dtype,
                shape: vec![bytes.len() * 8 / dtype.bitsize()],
            },
            bytes,
            is_large,
        };
        let state = self.quant_state().into_bytes();
        let n_codes = self.codes.len();
        let codes = Nf4Part {
            tensor: FileTensor::Bytes {
                name: name.to_owned(),
                dtype: Dtype::U8,
                shape: vec![n_codes, 1],
            },
            bytes: self.codes,
            is_large: true,
        };
        let mut parts = vec![
            codes,
            part(QUANT_MAP, Dtype::F32, little_endian(&NF4_TABLE), false),
            part(&format!("{STATE}nf4"), Dtype::U8, state, false),
        ];
        match self.absmax {
            Nf4Absmax::Plain(absmax) => {
                parts.push(part(ABSMAX, Dtype::F32, little_endian(&absmax), true));
            }
            Nf4Absmax::Nested {
                codes, scales, map, ..
            } => {
                parts.push(part(ABSMAX, Dtype::U8, codes, true));
                let scales = little_endian(&scales);
                parts.push(part(NESTED_ABSMAX, Dtype::F32, scales, false));
                let map = little_endian(&map[..]);
                parts.push(part(NESTED_QUANT_MAP, Dtype::F32, map, false));
            }
        }
        parts
    }

    /// The JSON of the quantisation state, with the spaces of Python's `json.dumps`.
    fn quant_state(&self) -> String {
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let nested = match self.absmax {
            Nf4Absmax::Plain(_) => Cow::Borrowed(""),
            Nf4Absmax::Nested { offset, .. } => Cow::Owned(format!(
                ", \"nested_blocksize\": {NF4_NESTED_BLOCK}, \"nested_dtype\": \"float32\", \
                 \"nested_offset\": {}",
                // As in Python, a tie between two shortest decimals goes to the even digit.
                serde_json::json!(f64::from(offset))
            )),
        };
        format!(
            "{{\"quant_type\": \"nf4\", \"blocksize\": {NF4_BLOCK}, \"dtype\": \"{}\", \"shape\": \
             [{}]{nested}}}",
            self.dtype.torch_name(),
            shape.join(", ")
        )
    }
}

fn little_endian(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}
