//! A frozen matrix as bf16 panels, for both directions of a product.

use std::sync::OnceLock;

use burn::tensor::bf16;
use rayon::prelude::*;

use crate::cpu::bf16::convert::narrowed;
use crate::cpu::bf16::panels::Panels;
use crate::cpu::number::Number;

/// A packed matrix `[out, in]`.
#[derive(Debug)]
pub(crate) struct Packed {
    /// For `x Wᵀ`.
    forward: Panels,
    /// For `dy W`.
    backward: OnceLock<Panels>,
}

impl Packed {
    pub(crate) fn new(values: &[f32], shape: [usize; 2]) -> Self {
        Self {
            forward: Panels::of_rows(&narrowed(values), shape),
            backward: OnceLock::new(),
        }
    }

    /// Panels for `x Wᵀ`: depth `in`, columns `out`.
    pub(crate) fn forward(&self) -> &Panels {
        &self.forward
    }

    /// Panels for `dy W`: depth `out`, columns `in`.
    pub(crate) fn backward(&self) -> &Panels {
        self.backward.get_or_init(|| {
            let shape = [self.forward.columns(), self.forward.depth()];
            let mut values = vec![bf16::ZERO; shape[0] * shape[1]];
            values
                .par_chunks_mut(shape[1].max(1))
                .enumerate()
                .for_each(|(row, values)| self.forward.read_column(row, values));
            Panels::of_matrix(&values, shape)
        })
    }

    /// Rows `rows` as f32, one after the other.
    pub(crate) fn rows(&self, rows: impl Iterator<Item = usize>) -> Vec<f32> {
        let mut row = vec![bf16::ZERO; self.forward.depth()];
        let mut values = Vec::new();
        for i in rows {
            self.forward.read_column(i, &mut row);
            values.extend(row.iter().map(|value| value.widen()));
        }
        values
    }

    pub(crate) fn bytes(&self) -> usize {
        self.forward.bytes() + self.backward.get().map_or(0, Panels::bytes)
    }
}
