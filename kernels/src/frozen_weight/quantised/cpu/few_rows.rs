//! Products of a few rows with codes that are not decoded to panels, for generating tokens.
//!
//! A weight is `bf16(TABLE[code]) · absmax`, whereas a decoded weight is `bf16(TABLE[code] · absmax)`.
//! Both differ from the exact product by at most half a unit in the last place of bf16. A code is
//! therefore one lookup, and the absmax multiplies the f32 sum of a block.

use burn::tensor::DType;
use rayon::prelude::*;

use super::{BLOCK, CodeLine, LINE_PAIRS, Order, Ordered, PAIRS, PanelCodes, code_bit};
use crate::cpu::isa::has_pairs;
use crate::cpu::packed::operand::Operand;
use crate::cpu::packed::panels::COLUMNS;
use crate::cpu::packed::product::SERIAL_WORK;
use crate::cpu::shared::Shared;
use crate::frozen_weight::quantised::TABLE_BF16;
#[cfg(target_arch = "x86_64")]
use crate::frozen_weight::quantised::cpu_vectors as vectors;

/// Maximum number of rows. More rows share the work of decoding a panel.
const MOST_ROWS: usize = 4;

/// Minimum number of panels per task of a thread.
const TASK_PANELS: usize = 4;

impl PanelCodes {
    /// Whether [`multiply`](Self::multiply) supports `n` rows: one to four, in bf16, on a CPU with
    /// instructions for pairs of bf16.
    pub(crate) fn multiplies<T: Operand>(&self, n: usize) -> bool {
        let is_few = (1..=MOST_ROWS).contains(&n);
        is_few && T::DTYPE == DType::BF16 && has_pairs() && matches!(self.order, Order::Panels(_))
    }

    /// The product `x Wᵀ` of a few rows, `[n, columns]`. All threads share the panels if `spread` is
    /// set.
    ///
    /// # Panics
    ///
    /// If [`multiplies`](Self::multiplies) is false, or `x` or `sums` has another size.
    pub(crate) fn multiply<T: Operand>(&self, x: &[T], spread: bool, sums: &mut [f32]) {
        let [depth, columns] = self.shape;
        let n = x.len() / depth.max(1);
        let Order::Panels(ordered) = &self.order else {
            panic!("codes are in the order of panels");
        };
        let is_supported = self.multiplies::<T>(n);
        assert!(
            is_supported && x.len() == n * depth && sums.len() == n * columns,
            "the shapes of a product with codes do not match"
        );
        let to = Shared::new(sums);
        let multiply = |panel: usize| {
            let mut tile = [[0.0; COLUMNS]; MOST_ROWS];
            ordered.multiply(panel, x, &mut tile[..n]);
            let first = panel * COLUMNS;
            let width = COLUMNS.min(columns - first);
            for (row, tile) in tile[..n].iter().enumerate() {
                // SAFETY: panels have different columns.
                let to = unsafe { to.slice(row * columns + first, width) };
                to.copy_from_slice(&tile[..width]);
            }
        };
        let panels = 0..columns.div_ceil(COLUMNS);
        if spread && n * depth * columns >= SERIAL_WORK {
            let panels = panels.into_par_iter().with_min_len(TASK_PANELS);
            panels.for_each(multiply);
        } else {
            panels.for_each(multiply);
        }
    }
}

impl Ordered {
    /// Adds the product of rows of x, of which each has all depths, with a panel to `to`.
    fn multiply<T: Operand>(&self, panel: usize, x: &[T], to: &mut [[f32; COLUMNS]]) {
        let depth = 2 * self.pairs;
        let blocks = self.lines(panel).chunks_exact(PAIRS / LINE_PAIRS);
        for (block, lines) in blocks.enumerate() {
            let absmax = self.absmax(panel, block);
            let x = &x[block * BLOCK..];
            #[cfg(target_arch = "x86_64")]
            if T::DTYPE == DType::BF16 && has_pairs() {
                let x = x.as_ptr().cast::<burn::tensor::bf16>();
                // SAFETY: the CPU feature was detected; x is bf16, and its rows have the depths of
                // the block.
                unsafe { vectors::multiply(lines, &absmax, x, depth, to) };
                continue;
            }
            multiply_portable(lines, &absmax, x, depth, to);
        }
    }
}

/// Adds the products of rows of x, `stride` apart, with the lines of a block to `to`.
fn multiply_portable<T: Operand>(
    lines: &[CodeLine],
    absmax: &[f32; COLUMNS],
    x: &[T],
    stride: usize,
    to: &mut [[f32; COLUMNS]],
) {
    for (row, to) in to.iter_mut().enumerate() {
        let x = &x[row * stride..row * stride + 2 * LINE_PAIRS * lines.len()];
        for ((column, to), absmax) in to.iter_mut().enumerate().zip(absmax) {
            let mut sum = 0.0;
            for (line, x) in lines.iter().zip(x.chunks_exact(2 * LINE_PAIRS)) {
                for (depth, x) in x.iter().enumerate() {
                    let code = line.0[column] >> code_bit(depth) & 15;
                    sum += x.widen() * TABLE_BF16[code as usize].to_f32();
                }
            }
            *to += sum * absmax;
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use burn::tensor::bf16;

    use super::*;

    /// Some numbers between -1 and 1.
    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// Products of blocks with vector instructions differ from the portable loop only in the order
    /// of f32 sums: by at most 64 roundings of 2⁻²⁴ of the sum of absolute products.
    #[test]
    fn vector_instructions_multiply_as_the_portable_loop() {
        if !has_pairs() {
            return;
        }
        let n_lines = PAIRS / LINE_PAIRS;
        let lines = |i: usize| {
            CodeLine(std::array::from_fn(|column| {
                (0x9e37_79b9_u32).wrapping_mul((i * COLUMNS + column + 1) as u32)
            }))
        };
        let lines: Vec<CodeLine> = (0..n_lines).map(lines).collect();
        let absmax: [f32; COLUMNS] = std::array::from_fn(|column| 0.01 * (column + 1) as f32);
        let stride = 3 * BLOCK;
        for n in 1..=MOST_ROWS {
            let x: Vec<bf16> = numbers(n * stride, n as u32)
                .iter()
                .map(|x| bf16::from_f32(*x))
                .collect();
            let start = [[0.5; COLUMNS]; MOST_ROWS];
            let (mut ours, mut expected) = (start, start);
            // SAFETY: the CPU feature was detected; rows have more depths than the block.
            unsafe { vectors::multiply(&lines, &absmax, x.as_ptr(), stride, &mut ours[..n]) };
            multiply_portable(&lines, &absmax, &x, stride, &mut expected[..n]);
            assert_eq!(ours[n..], start[n..]);
            for (row, (ours, expected)) in ours.iter().zip(&expected).enumerate().take(n) {
                let sum: f32 = x[row * stride..][..BLOCK]
                    .iter()
                    .map(|x| x.to_f32().abs())
                    .sum();
                for ((ours, expected), absmax) in ours.iter().zip(expected).zip(absmax) {
                    let limit = 64.0 * 2.0_f32.powi(-24) * (0.5 + sum * absmax);
                    assert!((ours - expected).abs() <= limit, "{ours} {expected}");
                    assert_ne!(*ours, 0.5);
                }
            }
        }
    }
}
