//! A frozen weight as panels, for both directions of a product.

use std::sync::{Arc, OnceLock};

use burn::tensor::{DType, bf16};

use super::ComputeDtype;
use crate::cpu::packed::convert::narrowed;
use crate::cpu::packed::operand::Operand;
use crate::cpu::packed::panels::Panels;

/// A packed matrix `[out, in]` in the dtype that products read.
#[derive(Debug, Clone)]
pub(crate) enum Packed {
    F32(Arc<PackedMatrix<f32>>),
    Bf16(Arc<PackedMatrix<bf16>>),
}

/// Evaluates an expression with `$name` bound to the matrix, for any dtype.
macro_rules! with_matrix {
    ($packed:expr, $matrix:ident => $work:expr) => {
        match $packed {
            $crate::frozen_weight::Packed::F32($matrix) => $work,
            $crate::frozen_weight::Packed::Bf16($matrix) => $work,
        }
    };
}

pub(crate) use with_matrix;

impl Packed {
    pub(crate) fn new(values: &[f32], shape: [usize; 2], dtype: ComputeDtype) -> Self {
        match dtype {
            ComputeDtype::F32 => Self::F32(Arc::new(PackedMatrix::new(values, shape))),
            ComputeDtype::Bf16 => Self::from_bf16(&narrowed(values), shape),
        }
    }

    pub(crate) fn from_bf16(values: &[bf16], shape: [usize; 2]) -> Self {
        Self::Bf16(Arc::new(PackedMatrix::new(values, shape)))
    }

    /// The dtype that products read.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::Bf16(_) => DType::BF16,
        }
    }

    /// Rows `rows` as f32, consecutively.
    pub(crate) fn rows(&self, rows: impl Iterator<Item = usize>) -> Vec<f32> {
        with_matrix!(self, matrix => matrix.rows(rows))
    }

    pub(super) fn bytes(&self) -> usize {
        with_matrix!(self, matrix => matrix.bytes())
    }
}

/// A packed matrix `[out, in]`.
#[derive(Debug)]
pub(crate) struct PackedMatrix<T> {
    /// For `x Wᵀ`.
    forward: Panels<T>,
    /// For `dy W`, if cached.
    backward: OnceLock<Panels<T>>,
}

impl<T: Operand> PackedMatrix<T> {
    fn new(values: &[T], shape: [usize; 2]) -> Self {
        Self {
            forward: Panels::pack_rows(values, shape),
            backward: OnceLock::new(),
        }
    }

    /// Panels for `x Wᵀ`: depth `in`, columns `out`.
    pub(crate) fn forward(&self) -> &Panels<T> {
        &self.forward
    }

    /// Panels for `dy W`, built for one product: depth `out`, columns `in`.
    pub(crate) fn backward(&self) -> Panels<T> {
        self.forward.transposed()
    }

    /// Panels for `dy W`, built once and cached: for the LM head, which every chunk of the loss
    /// needs and whose panels exceed every CPU cache.
    pub(crate) fn kept_backward(&self) -> &Panels<T> {
        self.backward.get_or_init(|| self.forward.transposed())
    }

    fn rows(&self, rows: impl Iterator<Item = usize>) -> Vec<f32> {
        let mut row = vec![T::ZERO; self.forward.depth()];
        let mut values = Vec::new();
        for i in rows {
            self.forward.read_column(i, &mut row);
            values.extend(row.iter().map(|value| value.widen()));
        }
        values
    }

    fn bytes(&self) -> usize {
        self.forward.bytes() + self.backward.get().map_or(0, Panels::bytes)
    }
}
