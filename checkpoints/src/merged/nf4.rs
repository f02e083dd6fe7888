//! Merged models and weights in NF4: which weights are quantised, and their tensors in a file.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::error::CheckpointError;
use crate::weights::{
    FileTensor, FloatDtype, HostTensor, NF4_BLOCK, NewTensor, Nf4Part, Nf4Tensor, Weights,
};

/// Weights of a plain base that are quantised to NF4.
#[derive(Debug, Clone, Copy)]
pub struct Nf4Weights<'a> {
    /// Names of the weights.
    pub names: &'a BTreeSet<String>,
    /// Data type to which they are rounded before quantisation, and after dequantisation.
    pub dtype: FloatDtype,
}

impl Nf4Weights<'_> {
    /// Whether a weight is in NF4: in a folder of bitsandbytes, the weights that it quantises.
    pub(super) fn contains(&self, weights: &Weights, name: &str) -> bool {
        match weights.n_nf4() {
            0 => self.names.contains(name),
            _ => weights.stored_as(name) == Some("NF4"),
        }
    }

    /// The `quantization_config` with which transformers, PEFT and vLLM read these weights from a
    /// folder.
    ///
    /// # Source
    ///
    /// huggingface/transformers 5.23, `utils/quantization_config.py`, `BitsAndBytesConfig`.
    pub(super) fn quantization_config(&self, weights: &Weights) -> Value {
        let is_plain = |name: &&str| {
            let is_matrix = weights.shape(name).is_some_and(|shape| shape.len() == 2);
            is_matrix && *name != EMBEDDING && *name != HEAD && !self.contains(weights, name)
        };
        let plain = weights.names().filter(is_plain);
        let plain = plain.map(|name| name.trim_end_matches(".weight"));
        // The programs do not skip the head by default if a list is given.
        let skipped: Vec<&str> = std::iter::once("lm_head").chain(plain).collect();
        json!({
            "_load_in_4bit": true,
            "_load_in_8bit": false,
            "bnb_4bit_compute_dtype": self.dtype.torch_name(),
            "bnb_4bit_quant_storage": "uint8",
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": true,
            "llm_int8_enable_fp32_cpu_offload": false,
            "llm_int8_has_fp16_weight": false,
            "llm_int8_skip_modules": skipped,
            "llm_int8_threshold": 6.0,
            "load_in_4bit": true,
            "load_in_8bit": false,
            "quant_method": "bitsandbytes",
        })
    }
}

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// The values of a weight that a merge starts from: its NF4 values if it is in `dequantised`.
pub(super) fn base_values(
    weights: &Weights,
    name: &str,
    dequantised: Option<Nf4Weights<'_>>,
) -> Result<HostTensor, CheckpointError> {
    match dequantised {
        Some(nf4) if nf4.contains(weights, name) => {
            Ok(weights.quantise_nf4(name, nf4.dtype)?.dequantise())
        }
        _ => weights.read_f32(name),
    }
}

/// Bytes of the tensors that store a weight, rounded up.
pub(super) fn byte_size(new: &NewTensor) -> u64 {
    // Scales of nested blocks, and two maps with a quantisation state.
    const MAPS: usize = 2048;
    let n_values = new.shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(d));
    n_values.map_or(u64::MAX, |n| (n / 2 + n / (NF4_BLOCK / 2) + MAPS) as u64)
}

/// The tensors of a file that store weights in NF4.
///
/// The header of a file must be complete before its first tensor, and contains the lengths of
/// quantisation states. A weight is therefore quantised twice: for its small tensors, which stay in
/// memory, and again when its large tensors are written.
pub(super) struct Parts<Q> {
    quantise: Q,
    /// Bytes of the small tensors by name.
    small: BTreeMap<String, Vec<u8>>,
    /// The weights of the large tensors by name.
    large: BTreeMap<String, String>,
    /// The large tensors of the weight that was quantised last, by name.
    current: BTreeMap<String, Vec<u8>>,
}

impl<Q: Fn(&str) -> Result<Nf4Tensor, CheckpointError>> Parts<Q> {
    /// `quantise` returns the codes of a weight.
    pub(super) fn new(quantise: Q) -> Self {
        Self {
            quantise,
            small: BTreeMap::new(),
            large: BTreeMap::new(),
            current: BTreeMap::new(),
        }
    }

    /// The tensors of a weight.
    pub(super) fn plan(&mut self, weight: &str) -> Result<Vec<FileTensor>, CheckpointError> {
        let parts = self.parts(weight)?.into_iter();
        let planned = parts.map(|part| {
            let name = part.tensor.name().to_owned();
            if part.is_large {
                self.large.insert(name, weight.to_owned());
            } else {
                self.small.insert(name, part.bytes);
            }
            part.tensor
        });
        Ok(planned.collect())
    }

    /// The bytes of a planned tensor, which is asked for once; `None` for other tensors.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        if let Some(bytes) = self.small.remove(name) {
            return Ok(Some(bytes));
        }
        let Some(weight) = self.large.get(name) else {
            return Ok(None);
        };
        if !self.current.contains_key(name) {
            let parts = self.parts(weight)?.into_iter();
            let large = parts.filter(|part| part.is_large);
            self.current = large
                .map(|part| (part.tensor.name().to_owned(), part.bytes))
                .collect();
        }
        Ok(self.current.remove(name))
    }

    fn parts(&self, weight: &str) -> Result<Vec<Nf4Part>, CheckpointError> {
        Ok((self.quantise)(weight)?.into_parts(weight))
    }
}
