//! Stacked LoRA linear layers on slices of bf16 or f32.
//!
//! A block of rows is processed completely while it is in cache: dropout, the low-rank values, and
//! one sum of the dense and the low-rank product. The backward pass works the same way.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::adapter::PartLayout;
use super::cpu_factors::{BackwardPanels, ForwardPanels};
use crate::cpu::packed::convert::narrow_slice;
use crate::cpu::packed::operand::Operand;
use crate::cpu::packed::panels::{COLUMNS, Panels};
use crate::cpu::packed::product::{FEW_ROWS, Output, Panelled, Spread, Sum, Term, for_row_blocks};
use crate::cpu::packed::rows::{Rows, pad_rows_to_words};
use crate::cpu::packed::transposed_gemm::{Columns, Layout, transposed_product};
use crate::cpu::packed::uninitialised;
use crate::cpu::pool::Buffer;
use crate::cpu::scratch::{with_numbers, with_scratch};
use crate::cpu::shared::Shared;
use crate::dropout::Dropout;
use crate::frozen_weight::quantised::cpu::PanelCodes;

/// The adapters of a stack, as a pass uses them.
#[derive(Debug)]
pub(crate) struct Adapter<'a, P> {
    pub(crate) parts: &'a [PartLayout],
    pub(crate) low_width: usize,
    pub(crate) panels: &'a P,
    /// Dropout of each part; empty if there is none.
    pub(crate) dropout: &'a [Option<Dropout>],
}

impl<P> Clone for Adapter<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Adapter<'_, P> {}

/// The weight of a forward pass.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ForwardWeight<'a, T> {
    Panels(&'a Panels<T>),
    /// Codes that are decoded to panels: all at once for many rows, in parts for few rows.
    Codes(&'a PanelCodes, FewRows),
}

/// What happens to codes if the rows are so few that [`PanelCodes::multiplies`] them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FewRows {
    /// They are decoded. A training step has the results of the dequantised weight, bit for bit.
    Decode,
    /// They are multiplied without decoding, which is faster.
    Multiply,
}

impl<T: Operand> ForwardWeight<'_, T> {
    fn depth(&self) -> usize {
        match self {
            Self::Panels(panels) => panels.depth(),
            Self::Codes(codes, _) => codes.depth(),
        }
    }

    fn columns(&self) -> usize {
        match self {
            Self::Panels(panels) => panels.columns(),
            Self::Codes(codes, _) => codes.columns(),
        }
    }
}

/// A forward pass over the rows of an input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forward<'a, T> {
    /// `[n, in]`.
    pub(crate) x: &'a [T],
    /// Depth `in`, columns `Σ out`.
    pub(crate) weight: ForwardWeight<'a, T>,
    pub(crate) adapter: Option<Adapter<'a, ForwardPanels<T>>>,
    pub(crate) bias: Option<&'a [f32]>,
    /// `[n, Σ out]`; the result is then f32.
    pub(crate) residual: Option<&'a [f32]>,
    /// If set, the output is not used and left zero.
    pub(crate) unread: bool,
}

/// The output: f32 with a residual, otherwise the operands' dtype.
#[derive(Debug)]
pub(crate) enum Values<T> {
    Wide(Buffer<f32>),
    Same(Buffer<T>),
}

impl<T: Operand> Forward<'_, T> {
    /// The output of the layers, and the low-rank values `[n, low_width]` for the backward pass.
    pub(crate) fn run(&self) -> (Values<T>, Buffer<T>) {
        if let ForwardWeight::Codes(codes, _) = self.weight
            && !self.unread
            && self.n_rows() > FEW_ROWS
        {
            let weight = ForwardWeight::Panels(&codes.forward());
            return Forward { weight, ..*self }.run();
        }
        if self.residual.is_some() {
            let (y, low) = self.compute::<f32>();
            (Values::Wide(y), low)
        } else {
            let (y, low) = self.compute::<T>();
            (Values::Same(y), low)
        }
    }

    fn n_rows(&self) -> usize {
        self.x.len().checked_div(self.weight.depth()).unwrap_or(0)
    }

    /// Output of dtype `O`, and low-rank values.
    fn compute<O: Operand>(&self) -> (Buffer<O>, Buffer<T>) {
        let n = self.n_rows();
        let low_width = self.adapter.map_or(0, |adapter| adapter.low_width);
        let mut y = Buffer::default();
        // SAFETY: `fill` writes every low-rank value and every output.
        let low = unsafe {
            Buffer::filled(n * low_width, |low| {
                y = Buffer::filled(n * self.weight.columns(), |y| self.fill::<O>(n, low, y));
            })
        };
        (y, low)
    }

    fn fill<O: Operand>(&self, n: usize, low: &mut [MaybeUninit<T>], y: &mut [MaybeUninit<O>]) {
        let (x, stride) = pad_rows_to_words(self.x, self.weight.depth());
        let columns = self.weight.columns();
        let low_width = self.adapter.map_or(0, |adapter| adapter.low_width);
        let (low, y) = (Shared::new(low), Shared::new(y));
        let block = |rows: Range<usize>, spread: Spread| {
            // SAFETY: blocks of rows are disjoint.
            let low = unsafe { low.slice(rows.start * low_width, rows.len() * low_width) };
            let x = &x[rows.start * stride..rows.end * stride];
            if let Some(adapter) = &self.adapter {
                adapter.low_values(x, stride, rows.start, low);
            }
            if self.unread {
                // SAFETY: blocks of rows are disjoint.
                let y = unsafe { y.slice(rows.start * columns, rows.len() * columns) };
                y.fill(MaybeUninit::new(O::narrow(0.0)));
                return;
            }
            // SAFETY: all of `low` was just written.
            let low: &[T] = unsafe { low.assume_init_ref() };
            let low_term = self.adapter.as_ref().map(|adapter| {
                let rows = Rows::new(low, low_width, 0);
                Term::new(rows, &adapter.panels.second)
            });
            // SAFETY: blocks of rows are disjoint.
            let y = unsafe { y.slice(rows.start * columns, rows.len() * columns) };
            let residual = self
                .residual
                .map(|r| &r[rows.start * columns..rows.end * columns]);
            if let ForwardWeight::Codes(codes, FewRows::Multiply) = self.weight
                && codes.multiplies::<T>(rows.len())
            {
                return with_scratch(y.len(), |sums| {
                    codes.multiply(x, spread == Spread::Panels, sums);
                    let mut residual = residual.into_iter().flatten();
                    sums.iter_mut()
                        .for_each(|sum| *sum += residual.next().unwrap_or(&0.0));
                    self.finish(sums, low_term.as_ref(), spread, y);
                });
            }
            let output = Output::new(y, columns);
            let add = |weight: &Panels<T>, panels: Panelled, first_column: usize, spread| {
                let mut terms = vec![Term::new(Rows::new(x, stride, 0), weight)];
                terms.extend(low_term.clone());
                Sum {
                    terms: &terms,
                    panels,
                    bias: self.bias.map(|bias| &bias[first_column..]),
                    residual,
                    output: output.at_column(first_column),
                }
                .run(spread);
            };
            match self.weight {
                ForwardWeight::Panels(weight) => add(weight, Panelled::All, 0, spread),
                ForwardWeight::Codes(codes, _) => {
                    codes.for_each_part(spread == Spread::Panels, |weight, panels| {
                        let first_column = panels.start * COLUMNS;
                        let panels = Panelled::Some(panels.start, panels.len());
                        add(weight, panels, first_column, Spread::OneThread);
                    });
                }
            }
        };
        for_row_blocks::<T, O>(n, self.weight.depth() + low_width, block);
    }
}

impl<T: Operand> Forward<'_, T> {
    /// Adds the low-rank product and the bias to `sums`, and rounds them to the output.
    fn finish<O: Operand>(
        &self,
        sums: &[f32],
        low_term: Option<&Term<'_, T>>,
        spread: Spread,
        y: &mut [MaybeUninit<O>],
    ) {
        let columns = self.weight.columns();
        if let Some(term) = low_term {
            return Sum {
                terms: std::slice::from_ref(term),
                panels: Panelled::All,
                bias: self.bias,
                residual: Some(sums),
                output: Output::new(y, columns),
            }
            .run(spread);
        }
        for (y, sums) in y.chunks_exact_mut(columns).zip(sums.chunks_exact(columns)) {
            let mut bias = self.bias.into_iter().flatten();
            for (y, sum) in y.iter_mut().zip(sums) {
                y.write(O::narrow(sum + bias.next().unwrap_or(&0.0)));
            }
        }
    }
}

impl<T: Operand> Adapter<'_, ForwardPanels<T>> {
    /// `s drop(x) Aᵀ` of all parts, for rows starting at `first_row`.
    fn low_values(&self, x: &[T], stride: usize, first_row: usize, low: &mut [MaybeUninit<T>]) {
        let width = self.low_width;
        if self.dropout.is_empty() {
            let (first, panels) = &self.panels.first[0];
            product(x, stride, panels, Output::new(low, width).at_column(*first));
            return;
        }
        for (part, (first, panels)) in self.panels.first.iter().enumerate() {
            let output = Output::new(low, width).at_column(*first);
            match self.dropout[part] {
                None => product(x, stride, panels, output),
                Some(dropout) => with_numbers(x.len(), |kept| {
                    keep_rows(dropout, x, stride, first_row, kept);
                    product(kept, stride, panels, output);
                }),
            }
        }
    }
}

/// Computes one product on this thread.
fn product<T: Operand>(x: &[T], stride: usize, panels: &Panels<T>, output: Output<'_>) {
    Sum {
        terms: &[Term::new(Rows::new(x, stride, 0), panels)],
        panels: Panelled::All,
        bias: None,
        residual: None,
        output,
    }
    .run(Spread::OneThread);
}

fn keep_rows<T: Operand>(dropout: Dropout, x: &[T], stride: usize, first_row: usize, to: &mut [T]) {
    for (i, (x, to)) in x
        .chunks_exact(stride)
        .zip(to.chunks_exact_mut(stride))
        .enumerate()
    {
        dropout.keep(first_row + i, 0, x, to);
    }
}

/// Gradient of the output, in the dtype of the output.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OutputGradient<'a, T> {
    /// In f32, although the operands are not.
    Wide(&'a [f32]),
    Same(&'a [T]),
}

/// A backward pass over the rows of a gradient.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backward<'a, T> {
    /// `[n, in]`.
    pub(crate) x: &'a [T],
    /// `[n, low_width]`, from the forward pass.
    pub(crate) low: &'a [T],
    /// `[n, Σ out]`.
    pub(crate) dy: OutputGradient<'a, T>,
    /// Panels of the weight: depth `Σ out`, columns `in`.
    pub(crate) weight: &'a Panels<T>,
    pub(crate) adapter: Option<Adapter<'a, BackwardPanels<T>>>,
}

impl<T: Operand> Backward<'_, T> {
    /// Gradient of the input, `[n, in]`, and of the factors in the order of their buffer.
    pub(crate) fn run(&self, wants_dx: Wants) -> (Buffer<T>, Buffer<f32>) {
        let (columns, outputs) = (self.weight.columns(), self.weight.depth());
        let n = self.x.len().checked_div(columns).unwrap_or(0);
        let even = self.row_width();
        let low_width = self.adapter.map_or(0, |adapter| adapter.low_width);
        let n_dx = if wants_dx == Wants::InputAndFactors {
            n * columns
        } else {
            0
        };
        let padded_dy = match self.dy {
            OutputGradient::Same(dy) if even == outputs => Some(dy),
            _ => None,
        };
        let mut d_low = Buffer::repeated(T::ZERO, n * low_width);
        let mut own_dy = Buffer::repeated(T::ZERO, if padded_dy.is_some() { 0 } else { n * even });
        // SAFETY: each block writes all of its rows of dx.
        let dx = unsafe {
            Buffer::filled(n_dx, |dx| {
                let (dx, d_low) = (Shared::new(dx), Shared::new(&mut d_low));
                let own_dy = Shared::new(&mut own_dy);
                for_row_blocks::<T, T>(n, even + low_width, |rows, spread| {
                    let dy = match padded_dy {
                        Some(dy) => &dy[rows.start * even..rows.end * even],
                        None => {
                            let own = own_dy.slice(rows.start * even, rows.len() * even);
                            self.narrow_rows(&rows, own);
                            &*own
                        }
                    };
                    let d_low = d_low.slice(rows.start * low_width, rows.len() * low_width);
                    let dx = match wants_dx {
                        Wants::Factors => None,
                        Wants::InputAndFactors => {
                            Some(dx.slice(rows.start * columns, rows.len() * columns))
                        }
                    };
                    self.block(dy, even, rows.start, spread, d_low, dx);
                });
            })
        };
        let dy = padded_dy.unwrap_or(&own_dy);
        let d_factors = self.adapter.as_ref().map_or(Buffer::default(), |adapter| {
            self.factor_gradients(adapter, dy, even, &d_low)
        });
        (dx, d_factors)
    }

    /// Row width of the gradient, padded so that every part has an even depth.
    fn row_width(&self) -> usize {
        let parts = self.adapter.map_or(&[][..], |adapter| adapter.parts);
        let ends = parts
            .iter()
            .map(|part| part.first_output + part.out_features.next_multiple_of(T::DEPTHS));
        ends.fold(self.weight.depth(), usize::max)
            .next_multiple_of(T::DEPTHS)
    }

    /// Rows of the gradient in the operands' dtype, zero-padded to [`Self::row_width`].
    fn narrow_rows(&self, rows: &Range<usize>, to: &mut [T]) {
        let width = self.weight.depth();
        let even = self.row_width();
        for (row, to) in rows.clone().zip(to.chunks_exact_mut(even)) {
            let (to, range) = (&mut to[..width], row * width..(row + 1) * width);
            match self.dy {
                OutputGradient::Wide(dy) => narrow_slice(&dy[range], uninitialised(to)),
                OutputGradient::Same(dy) => to.copy_from_slice(&dy[range]),
            }
        }
    }

    /// Gradients of the low-rank values and of the input for the rows of a block.
    fn block(
        &self,
        dy: &[T],
        stride: usize,
        first_row: usize,
        spread: Spread,
        d_low: &mut [T],
        dx: Option<&mut [MaybeUninit<T>]>,
    ) {
        let low_width = self.adapter.map_or(0, |adapter| adapter.low_width);
        if let Some(adapter) = &self.adapter {
            for (part, panels) in adapter.parts.iter().zip(&adapter.panels.second) {
                let to = uninitialised(&mut *d_low);
                Sum {
                    terms: &[Term::new(Rows::new(dy, stride, part.first_output), panels)],
                    panels: Panelled::All,
                    bias: None,
                    residual: None,
                    output: Output::new(to, low_width).at_column(part.first_low),
                }
                .run(Spread::OneThread);
            }
        }
        let Some(dx) = dx else { return };
        let columns = self.weight.columns();
        let dense = Term::new(Rows::new(dy, stride, 0), self.weight);
        let sum = |terms: &[Term<'_, T>], output: Output<'_>| {
            Sum {
                terms,
                panels: Panelled::All,
                bias: None,
                residual: None,
                output,
            }
            .run(spread);
        };
        match &self.adapter {
            None => sum(&[dense], Output::new(dx, columns)),
            Some(adapter) if adapter.dropout.is_empty() => {
                let low = Term::new(Rows::new(d_low, low_width, 0), &adapter.panels.first[0]);
                sum(&[dense, low], Output::new(dx, columns));
            }
            Some(adapter) => with_scratch(dx.len(), |sums| {
                sum(&[dense], Output::new(uninitialised(sums), columns));
                adapter.add_dropped(d_low, first_row, columns, sums);
                narrow_slice(sums, dx);
            }),
        }
    }

    /// Gradients of A and B of each part.
    fn factor_gradients(
        &self,
        adapter: &Adapter<'_, BackwardPanels<T>>,
        dy: &[T],
        stride: usize,
        d_low: &[T],
    ) -> Buffer<f32> {
        let in_features = self.weight.columns();
        let len = adapter
            .parts
            .last()
            .map_or(0, |part| part.b(in_features).end);
        let mut gradients = Buffer::repeated(0.0, len);
        for (i, part) in adapter.parts.iter().enumerate() {
            let low_columns = |values| Columns {
                values,
                stride: adapter.low_width,
                first: part.first_low,
                width: part.rank,
            };
            let x = Columns {
                values: self.x,
                stride: in_features,
                first: 0,
                width: in_features,
            };
            let dy = Columns {
                values: dy,
                stride,
                first: part.first_output,
                width: part.out_features,
            };
            let dropout = adapter.dropout.get(i).copied().flatten();
            let d_a = &mut gradients[part.a(in_features)];
            transposed_product(low_columns(d_low), x, dropout, Layout::Rows, d_a);
            let d_b = &mut gradients[part.b(in_features)];
            transposed_product(low_columns(self.low), dy, None, Layout::Transposed, d_b);
        }
        gradients
    }
}

impl<T: Operand> Adapter<'_, BackwardPanels<T>> {
    /// Adds `drop(d_low A)` of each part to the rows of a block.
    fn add_dropped(&self, d_low: &[T], first_row: usize, columns: usize, sums: &mut [f32]) {
        with_scratch(sums.len(), |parts| {
            for (i, part) in self.parts.iter().enumerate() {
                Sum {
                    terms: &[Term::new(
                        Rows::new(d_low, self.low_width, part.first_low),
                        &self.panels.first[i],
                    )],
                    panels: Panelled::All,
                    bias: None,
                    residual: None,
                    output: Output::new(uninitialised(parts), columns),
                }
                .run(Spread::OneThread);
                let rows = parts
                    .chunks_exact(columns)
                    .zip(sums.chunks_exact_mut(columns));
                for (row, (part, sums)) in rows.enumerate() {
                    match self.dropout[i] {
                        Some(dropout) => dropout.add_kept(first_row + row, part, sums),
                        None => sums
                            .iter_mut()
                            .zip(part)
                            .for_each(|(sum, part)| *sum += part),
                    }
                }
            }
        });
    }
}

/// The gradients that a backward pass must compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    InputAndFactors,
    Factors,
}
