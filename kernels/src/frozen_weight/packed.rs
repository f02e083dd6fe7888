//! A frozen matrix as bf16 panels, for both directions of a product.

use std::sync::OnceLock;

use burn::tensor::bf16;

use crate::cpu::bf16::convert::narrowed;
use crate::cpu::bf16::panels::Panels;

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
            let values: Vec<bf16> = (0..shape[0])
                .flat_map(|row| self.forward.column(row))
                .collect();
            Panels::of_matrix(&values, shape)
        })
    }

    /// Row `row` as f32.
    pub(crate) fn row(&self, row: usize) -> impl Iterator<Item = f32> + '_ {
        self.forward.column(row).map(f32::from)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.forward.bytes() + self.backward.get().map_or(0, Panels::bytes)
    }
}
