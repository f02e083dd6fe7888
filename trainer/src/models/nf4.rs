//! Loads projections in NF4: with the codes of a folder that bitsandbytes quantised, or with new codes
//! for plain weights.
//!
//! As in transformers, plain weights are first rounded to the compute dtype, so the codes are those
//! of `from_pretrained` with this dtype and `bnb_4bit_use_double_quant`.

use std::cell::Cell;

use burn::tensor::DType;
use tooltune_checkpoints::error::CheckpointError;
use tooltune_checkpoints::weights::{FloatDtype, Nf4Absmax, Nf4Tensor, Weights, nf4_dynamic_map};
use tooltune_kernels::frozen_weight::quantised::Nf4;
use tooltune_kernels::{ComputeDtype, WeightSource};

/// Reads stacks of projections in NF4.
pub(super) struct Nf4Loader<'a> {
    weights: &'a Weights,
    compute_dtype: ComputeDtype,
    /// Stacks of a quantised folder in which only some projections are quantised.
    n_mixed: Cell<usize>,
}

impl<'a> Nf4Loader<'a> {
    pub(super) fn new(weights: &'a Weights, compute_dtype: ComputeDtype) -> Self {
        Self {
            weights,
            compute_dtype,
            n_mixed: Cell::new(0),
        }
    }

    /// Reads weights that share an input, stacked by rows to `shape`. Returns `None` if the folder
    /// is quantised, but not all of these weights.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or a value is NaN or infinite.
    pub(super) fn read<'s>(
        &self,
        names: &[String],
        shape: [usize; 2],
    ) -> Result<Option<WeightSource<'s, CheckpointError>>, CheckpointError> {
        let is_quantised = self.weights.n_nf4() > 0;
        let dtype = quantised_dtype(self.compute_dtype);
        let mut parts = Vec::with_capacity(names.len());
        for name in names {
            let part = match is_quantised {
                true => self.weights.read_nf4(name)?,
                false => Some(self.weights.quantise_nf4(name, dtype)?),
            };
            parts.extend(part.map(nf4_matrix));
        }
        if parts.len() < names.len() {
            let is_mixed = !parts.is_empty();
            self.n_mixed.set(self.n_mixed.get() + usize::from(is_mixed));
            return Ok(None);
        }
        let source = WeightSource::nf4(parts, shape, self.compute_dtype);
        source
            .map(Some)
            .map_err(|error| self.damaged(&names.join(", "), error.to_string()))
    }

    fn damaged(&self, tensor: &str, problem: String) -> CheckpointError {
        CheckpointError::Malformed {
            path: self.weights.origin().to_owned(),
            location: format!("tensor {tensor}"),
            problem,
        }
    }

    /// Warns if the folder quantises only some projections of a stack. Such stacks are dequantised.
    pub(super) fn warn_of_mixed_stacks(&self) {
        if self.n_mixed.get() > 0 {
            tracing::warn!(
                "{}: {} stacks of projections with a common input are only partly quantised; they are \
                 stored in {:?}",
                self.weights.origin().display(),
                self.n_mixed.get(),
                self.compute_dtype
            );
        }
    }
}

/// The dtype to which plain weights are rounded before they are quantised.
pub(crate) fn quantised_dtype(compute_dtype: ComputeDtype) -> FloatDtype {
    match compute_dtype {
        ComputeDtype::F32 => FloatDtype::F32,
        ComputeDtype::Bf16 => FloatDtype::BF16,
    }
}

/// A tensor `[out, in]` of a checkpoint as a matrix of kernels.
fn nf4_matrix(tensor: Nf4Tensor) -> Nf4 {
    let (absmax8, absmax32, offset, map) = match tensor.absmax {
        Nf4Absmax::Plain(absmax) => (Vec::new(), absmax, 0.0, Box::new(*nf4_dynamic_map())),
        Nf4Absmax::Nested {
            codes,
            scales,
            offset,
            map,
        } => (codes, scales, offset, map),
    };
    let columns = tensor.shape.last().copied().unwrap_or(0);
    let n_values: usize = tensor.shape.iter().product();
    Nf4 {
        shape: [n_values.checked_div(columns).unwrap_or(0), columns],
        codes: tensor.codes,
        absmax8,
        absmax32,
        offset,
        map,
        dtype: match tensor.dtype {
            FloatDtype::F32 => DType::F32,
            FloatDtype::F16 => DType::F16,
            FloatDtype::BF16 => DType::BF16,
        },
    }
}
