//! LoRA factors of stacked adapters as panels, packed when a pass first needs them.
//!
//! They are small and change with every step; within one step, all micro-batches and both passes
//! share them. Scalings are folded in before rounding, into A for the forward pass and into B for
//! the backward pass, so that low-rank values and their gradients need no separate scaling pass.

use std::sync::{Arc, OnceLock};

use super::adapter::{AdapterLayout, PartLayout};
use crate::cpu::packed::operand::Operand;
use crate::cpu::packed::panels::Panels;
use crate::dropout::Dropout;

/// Panels of one adapter, with and without dropout.
#[derive(Debug)]
pub(crate) struct PackedFactors<T> {
    plain: Passes<T>,
    dropped: Passes<T>,
}

#[derive(Debug)]
struct Passes<T> {
    forward: OnceLock<(Vec<f32>, Arc<ForwardPanels<T>>)>,
    backward: OnceLock<(Vec<f32>, Arc<BackwardPanels<T>>)>,
}

impl<T> Default for PackedFactors<T> {
    fn default() -> Self {
        let [plain, dropped] = std::array::from_fn(|_| Passes {
            forward: OnceLock::new(),
            backward: OnceLock::new(),
        });
        Self { plain, dropped }
    }
}

/// Operands of the forward pass.
#[derive(Debug)]
pub(crate) struct ForwardPanels<T> {
    /// First low-rank column and `s Aᵀ`: of all parts together without dropout, otherwise per part.
    pub(crate) first: Vec<(usize, Panels<T>)>,
    /// `Bᵀ` of all parts, block-diagonal.
    pub(crate) second: Panels<T>,
}

/// Operands of the backward pass.
#[derive(Debug)]
pub(crate) struct BackwardPanels<T> {
    /// `s B` of each part.
    pub(crate) second: Vec<Panels<T>>,
    /// `A`: of all parts together without dropout, otherwise per part.
    pub(crate) first: Vec<Panels<T>>,
}

/// The factors of a stack and their scalings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) layout: &'a AdapterLayout,
    /// Dropout of each part; empty if there is none.
    pub(crate) dropout: &'a [Option<Dropout>],
}

impl<T: Operand> PackedFactors<T> {
    pub(crate) fn forward(&self, factors: Factors<'_>) -> Arc<ForwardPanels<T>> {
        let pack = || (factors.scales(), Arc::new(factors.forward()));
        let cached = self.passes(factors).forward.get_or_init(pack);
        // If the dropout rate differs from the first pass, its panels cannot be shared.
        if cached.0 == factors.scales() {
            cached.1.clone()
        } else {
            pack().1
        }
    }

    pub(crate) fn backward(&self, factors: Factors<'_>) -> Arc<BackwardPanels<T>> {
        let pack = || (factors.scales(), Arc::new(factors.backward()));
        let cached = self.passes(factors).backward.get_or_init(pack);
        // If the dropout rate differs from the first pass, its panels cannot be shared.
        if cached.0 == factors.scales() {
            cached.1.clone()
        } else {
            pack().1
        }
    }

    fn passes(&self, factors: Factors<'_>) -> &Passes<T> {
        if factors.dropout.is_empty() {
            &self.plain
        } else {
            &self.dropped
        }
    }
}

impl Factors<'_> {
    /// Scale of the low-rank values of each part.
    fn scales(&self) -> Vec<f32> {
        let parts = self.layout.parts.iter().enumerate();
        parts
            .map(|(i, part)| {
                let dropout = self.dropout.get(i).copied().flatten();
                part.scaling * dropout.map_or(1.0, Dropout::scale)
            })
            .collect()
    }

    fn forward<T: Operand>(&self) -> ForwardPanels<T> {
        let AdapterLayout {
            in_features,
            parts,
            low_width,
            ..
        } = self.layout;
        let scales = self.scales();
        let scaled_a = |i: usize, row: usize, p: usize| {
            let part = &parts[i];
            if row < part.rank {
                T::narrow(self.values[part.offset + row * in_features + p] * scales[i])
            } else {
                T::ZERO
            }
        };
        let first = if !self.dropout.is_empty() {
            let each = parts.iter().enumerate().map(|(i, part)| {
                let shape = [*in_features, part.rank.next_multiple_of(2)];
                let panels = Panels::from_elements(shape, |p, row| scaled_a(i, row, p));
                (part.first_low, panels)
            });
            each.collect()
        } else {
            let panels = Panels::from_elements([*in_features, *low_width], |p, low| {
                let i = self.part_of_low(low);
                scaled_a(i, low - parts[i].first_low, p)
            });
            vec![(0, panels)]
        };
        ForwardPanels {
            first,
            second: self.block_diagonal(),
        }
    }

    /// `Bᵀ`, `[low_width, Σ out]`.
    fn block_diagonal<T: Operand>(&self) -> Panels<T> {
        let layout = self.layout;
        let part_of = |column: usize| {
            let mut parts = layout.parts.iter();
            parts.find(|part| {
                (part.first_output..part.first_output + part.out_features).contains(&column)
            })
        };
        Panels::pack_blocks(
            [layout.low_width, layout.outputs],
            |column| {
                part_of(column).map_or(0..0, |part| part.first_low..part.first_low + part.rank)
            },
            |low, column| match part_of(column) {
                Some(part) if (part.first_low..part.first_low + part.rank).contains(&low) => {
                    let b = &self.values[part.b(layout.in_features)];
                    T::narrow(b[(column - part.first_output) * part.rank + low - part.first_low])
                }
                _ => T::ZERO,
            },
        )
    }

    fn backward<T: Operand>(&self) -> BackwardPanels<T> {
        let AdapterLayout {
            in_features,
            parts,
            low_width,
            ..
        } = self.layout;
        let second = parts.iter().zip(self.scales()).map(|(part, scale)| {
            let b = &self.values[part.b(*in_features)];
            let shape = [part.out_features, part.rank.next_multiple_of(2)];
            Panels::from_elements(shape, |p, row| {
                if row < part.rank {
                    T::narrow(b[p * part.rank + row] * scale)
                } else {
                    T::ZERO
                }
            })
        });
        let a = |part: &PartLayout, row: usize, column: usize| {
            if row < part.rank {
                T::narrow(self.values[part.offset + row * in_features + column])
            } else {
                T::ZERO
            }
        };
        let first = if !self.dropout.is_empty() {
            let each = parts.iter().map(|part| {
                let shape = [part.rank.next_multiple_of(2), *in_features];
                Panels::from_elements(shape, |row, column| a(part, row, column))
            });
            each.collect()
        } else {
            vec![Panels::from_elements(
                [*low_width, *in_features],
                |low, column| {
                    let part = &parts[self.part_of_low(low)];
                    a(part, low - part.first_low, column)
                },
            )]
        };
        BackwardPanels {
            second: second.collect(),
            first,
        }
    }

    /// The part that a column of low-rank values belongs to.
    fn part_of_low(&self, low: usize) -> usize {
        let parts = &self.layout.parts;
        parts.partition_point(|part| part.first_low <= low) - 1
    }
}
