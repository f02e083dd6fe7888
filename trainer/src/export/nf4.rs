//! The projections of a base in NF4, for merged models.

use std::collections::BTreeSet;

use tooltune_checkpoints::merged::Nf4Weights;
use tooltune_checkpoints::weights::{FloatDtype, HostTensor, Nf4Tensor};
use tooltune_kernels::ComputeDtype;

use crate::base_model::BaseModel;
use crate::models::load::{Quantization, projection_weights};
use crate::models::quantised_dtype;

/// The weights of the base that an adapter is merged onto, if it was trained with NF4 weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeBase {
    /// The values of the NF4 weights, with which the adapter was trained.
    Dequantised,
    /// The weights before quantisation.
    Original,
}

impl MergeBase {
    /// The weights that a merge of this base can use, in order of preference; empty if the base is
    /// not trained in NF4. A folder of bitsandbytes has no original weights.
    pub fn choices(base: &BaseModel) -> &'static [MergeBase] {
        match (base.quantization, base.files.weights.n_nf4()) {
            (Quantization::None, _) => &[],
            (Quantization::Nf4, 0) => &[Self::Dequantised, Self::Original],
            (Quantization::Nf4, _) => &[Self::Dequantised],
        }
    }

    /// The weights in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dequantised => "dequantised NF4 weights",
            Self::Original => "original weights",
        }
    }
}

/// The weights of a base that training in NF4 quantises.
#[derive(Debug, Clone)]
pub struct Nf4Projections {
    names: BTreeSet<String>,
    dtype: FloatDtype,
}

impl Nf4Projections {
    /// The projections of `base`, quantised for matmuls in `compute_dtype`.
    pub fn new(base: &BaseModel, compute_dtype: ComputeDtype) -> Self {
        Self {
            names: projection_weights(&base.config),
            dtype: quantised_dtype(compute_dtype),
        }
    }

    /// The names and the data type for a merge.
    pub fn weights(&self) -> Nf4Weights<'_> {
        Nf4Weights {
            names: &self.names,
            dtype: self.dtype,
        }
    }

    /// Replaces a projection of a plain base by its NF4 values. Values that are not finite have no
    /// code, and remain.
    pub fn dequantise(&self, name: &str, weight: &mut HostTensor) {
        if !self.names.contains(name) {
            return;
        }
        for value in &mut weight.values {
            *value = self.dtype.rounded(*value);
        }
        if let Ok(quantised) = Nf4Tensor::quantise(weight, self.dtype, true) {
            *weight = quantised.dequantise();
        }
    }
}
