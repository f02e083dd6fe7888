//! Stacked adapted maps on slices of f32: low-rank products are summed in the same pass as the
//! dense ones.

use rayon::prelude::*;

use super::adapter::{AdapterLayout, PartLayout};
use super::cpu_bf16::Wants;
use crate::cpu::gemm::gemm;
use crate::cpu::matrix::{Matrix, MatrixMut};
use crate::cpu::pool::Buffer;
use crate::cpu::product::product;
use crate::dropout::Dropout;

/// The maps of a stack and their input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Maps<'a> {
    /// `[n, in]`.
    pub(crate) x: &'a [f32],
    /// `[Σ out, in]`.
    pub(crate) weight: Matrix<'a>,
    pub(crate) out_features: &'a [usize],
    pub(crate) adapter: Option<Adapter<'a>>,
}

/// The adapters of a stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Adapter<'a> {
    pub(crate) factors: &'a [f32],
    pub(crate) layout: &'a AdapterLayout,
    /// Dropout of each part; empty for none.
    pub(crate) dropout: &'a [Option<Dropout>],
}

impl<'a> Adapter<'a> {
    fn a(&self, part: &PartLayout) -> Matrix<'a> {
        let width = self.layout.in_features;
        Matrix::of_rows(&self.factors[part.a(width)], width)
    }

    fn b(&self, part: &PartLayout) -> Matrix<'a> {
        let b = part.b(self.layout.in_features);
        Matrix::of_rows(&self.factors[b], part.rank)
    }

    fn dropout(&self, part: usize) -> Option<Dropout> {
        self.dropout.get(part).copied().flatten()
    }

    /// What a part's low-rank values are multiplied with.
    fn scale(&self, part: usize) -> f32 {
        let dropped = self.dropout(part).map_or(1.0, Dropout::scale);
        self.layout.parts[part].scaling * dropped
    }

    /// Low-rank values of a part as a matrix `[n, r]`.
    fn low<'b>(&self, low: &'b [f32], part: &PartLayout) -> Matrix<'b> {
        let width = self.layout.low_width;
        let n = low.len() / width;
        Matrix::strided(&low[part.first_low..], [n, part.rank], width)
    }

    /// A part's input: `x`, or a copy of it less what is dropped.
    fn with_input<R>(&self, part: usize, x: &[f32], work: impl FnOnce(Matrix<'_>) -> R) -> R {
        let width = self.layout.in_features;
        let Some(dropout) = self.dropout(part) else {
            return work(Matrix::of_rows(x, width));
        };
        let mut kept = Buffer::repeated(0.0, x.len());
        let rows = x
            .par_chunks_exact(width)
            .zip(kept.par_chunks_exact_mut(width));
        rows.enumerate()
            .for_each(|(row, (x, kept))| dropout.keep_f32(row, x, kept));
        work(Matrix::of_rows(&kept, width))
    }
}

impl Maps<'_> {
    fn n(&self) -> usize {
        self.x.len().checked_div(self.weight.columns()).unwrap_or(0)
    }

    fn outputs(&self) -> usize {
        self.weight.rows()
    }

    /// `bias + residual + x Wᵀ + low Bᵀ`, and the low-rank values `[n, low_width]`.
    pub(crate) fn forward(
        &self,
        bias: Option<&[f32]>,
        residual: Option<&[f32]>,
    ) -> (Buffer<f32>, Buffer<f32>) {
        let (n, outputs) = (self.n(), self.outputs());
        let x = Matrix::of_rows(self.x, self.weight.columns());
        let low = self
            .adapter
            .map_or(Buffer::default(), |adapter| self.low_values(&adapter));
        let mut y = match residual {
            Some(residual) => Buffer::copy_of(residual),
            // SAFETY: nothing is initialised yet, and below every map replaces its columns.
            None => unsafe { Buffer::filled(n * outputs, |_| ()) },
        };
        let mut first = 0;
        for (map, &width) in self.out_features.iter().enumerate() {
            let weight = self.weight.part(first..first + width);
            let mut products = vec![(x, weight.transposed())];
            if let Some(adapter) = &self.adapter {
                let part = adapter.layout.parts.iter().find(|part| part.map == map);
                products.extend(part.map(|p| (adapter.low(&low, p), adapter.b(p).transposed())));
            }
            let columns = y.get_mut(first..).unwrap_or_default();
            let target = match residual {
                Some(_) => MatrixMut::add(columns, [n, width], outputs),
                None => MatrixMut::replace(columns, [n, width], outputs),
            };
            gemm(target, &products);
            first += width;
        }
        if let Some(bias) = bias {
            for row in y.chunks_exact_mut(outputs) {
                row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
            }
        }
        (y, low)
    }

    /// `s drop(x) Aᵀ` of every part.
    fn low_values(&self, adapter: &Adapter<'_>) -> Buffer<f32> {
        let width = adapter.layout.low_width;
        let n = self.n();
        let mut low = Buffer::repeated(0.0, n * width);
        for (i, part) in adapter.layout.parts.iter().enumerate() {
            adapter.with_input(i, self.x, |x| {
                let target = MatrixMut::replace(&mut low[part.first_low..], [n, part.rank], width);
                gemm(target, &[(x, adapter.a(part).transposed())]);
            });
            scale_columns(&mut low, width, part, adapter.scale(i));
        }
        low
    }

    /// Gradient of the input, `[n, in]`, and of the factors in the order of their buffer.
    pub(crate) fn backward(
        &self,
        low: &[f32],
        dy: &[f32],
        wants: Wants,
    ) -> (Buffer<f32>, Buffer<f32>) {
        let (n, outputs, inputs) = (self.n(), self.outputs(), self.weight.columns());
        let dy_all = Matrix::of_rows(dy, outputs);
        let Some(adapter) = &self.adapter else {
            return (product(&[(dy_all, self.weight)]), Buffer::default());
        };
        let layout = adapter.layout;
        let mut d_low = Buffer::repeated(0.0, n * layout.low_width);
        let mut d_factors = Buffer::repeated(0.0, layout.len());
        for (i, part) in layout.parts.iter().enumerate() {
            let dy = Matrix::strided(&dy[part.first_output..], [n, part.out_features], outputs);
            let shape = [n, part.rank];
            let target = MatrixMut::replace(&mut d_low[part.first_low..], shape, layout.low_width);
            gemm(target, &[(dy, adapter.b(part))]);
            scale_columns(&mut d_low, layout.low_width, part, adapter.scale(i));
            let (d_a, d_b) =
                d_factors[part.offset..part.b(inputs).end].split_at_mut(part.rank * inputs);
            let d_b = MatrixMut::replace(d_b, [part.out_features, part.rank], part.rank);
            gemm(d_b, &[(dy.transposed(), adapter.low(low, part))]);
            adapter.with_input(i, self.x, |x| {
                let d_a = MatrixMut::replace(d_a, [part.rank, inputs], inputs);
                gemm(d_a, &[(adapter.low(&d_low, part).transposed(), x)]);
            });
        }
        if wants == Wants::Factors {
            return (Buffer::default(), d_factors);
        }
        let mut products = vec![(dy_all, self.weight)];
        let in_pass = layout
            .parts
            .iter()
            .enumerate()
            .filter(|(i, _)| adapter.dropout(*i).is_none());
        products.extend(in_pass.map(|(_, part)| (adapter.low(&d_low, part), adapter.a(part))));
        let mut dx = product(&products);
        for (i, part) in layout.parts.iter().enumerate() {
            if let Some(dropout) = adapter.dropout(i) {
                let own = product(&[(adapter.low(&d_low, part), adapter.a(part))]);
                let rows = own
                    .par_chunks_exact(inputs)
                    .zip(dx.par_chunks_exact_mut(inputs));
                rows.enumerate()
                    .for_each(|(row, (own, dx))| dropout.add_kept(row, own, dx));
            }
        }
        (dx, d_factors)
    }
}

/// Multiplies a part's columns of low-rank values.
fn scale_columns(low: &mut [f32], width: usize, part: &PartLayout, factor: f32) {
    for row in low.chunks_exact_mut(width) {
        let columns = &mut row[part.first_low..part.first_low + part.rank];
        columns.iter_mut().for_each(|value| *value *= factor);
    }
}
