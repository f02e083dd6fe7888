//! The trained linear layer on slices: output, and the gradients of input, weight and bias.
//!
//! The weight gradient is a product over thousands of tokens. It is computed in parts, so that both
//! operands of a part stay in cache.

use std::borrow::Cow;
use std::ops::{Deref, Range};

use super::gelu;
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;
use crate::cpu::packed::operand::Operand;
use crate::cpu::packed::panels::Panels;
use crate::cpu::packed::product::{
    Output, Panelled, RowSource, Sum, Term, for_row_blocks, rows_times_panels,
};
use crate::cpu::packed::rows::Rows;
use crate::cpu::packed::uninitialised;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::map_tasks;
use crate::cpu::scratch::with_numbers;
use crate::cpu::shared::Shared;

/// Words of tokens whose products are summed at a time.
const TOKEN_WORDS: usize = 768;

/// Tokens per task for the bias gradient.
const BIAS_TOKENS: usize = 256;

/// The input of a layer; converted elements are computed when a product needs them.
#[derive(Debug)]
pub(super) enum TransformedInput<'a, T: Operand> {
    /// Read unchanged.
    Plain(Cow<'a, [T]>),
    /// Read through GELU, from rows of this width.
    Gelu(&'a [T], usize),
}

impl<T: Operand> TransformedInput<'_, T> {
    /// The elements `run`, computed by all threads.
    fn part(&self, run: Range<usize>) -> Part<'_, T> {
        match self {
            Self::Plain(x) => Part::Borrowed(&x[run]),
            Self::Gelu(x, width) => Part::Converted(gelu::gelu(&x[run], *width)),
        }
    }
}

impl<T: Operand> RowSource<T> for TransformedInput<'_, T> {
    fn len(&self, width: usize) -> usize {
        let n = match self {
            Self::Plain(x) => x.len(),
            Self::Gelu(x, _) => x.len(),
        };
        n.checked_div(width).unwrap_or(0)
    }

    fn with_numbers<R>(&self, run: Range<usize>, work: impl FnOnce(&[T]) -> R) -> R {
        match self {
            Self::Plain(x) => work(&x[run]),
            Self::Gelu(x, _) => with_numbers(run.len(), |read| {
                gelu::gelu_to(&x[run], uninitialised(&mut *read));
                work(read)
            }),
        }
    }
}

/// Some elements of an input.
enum Part<'a, T: Operand> {
    Borrowed(&'a [T]),
    Converted(Buffer<T>),
}

impl<T: Operand> Deref for Part<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Borrowed(x) => x,
            Self::Converted(x) => x,
        }
    }
}

/// `read(x) Wᵀ + b` plus the residual `[n, out]`, with weight panels of depth `in`.
pub(super) fn output<T: Operand, O: Operand>(
    x: &TransformedInput<'_, T>,
    weight: &Panels<T>,
    bias: &[f32],
    residual: Option<&[f32]>,
) -> Buffer<O> {
    rows_times_panels(x, weight, Some(bias), residual)
}

/// `dy W`, `[n, in]`, with weight panels of depth `out`.
pub(super) fn input_gradient<T: Operand, O: Operand>(dy: &[T], weight: &Panels<T>) -> Buffer<O> {
    rows_times_panels(dy, weight, None, None)
}

/// `dyᵀ read(x)`, `[out, in]`, from rows `[n, out]` and `[n, in]`.
pub(super) fn weight_gradient<T: Operand>(
    dy: &[T],
    x: &TransformedInput<'_, T>,
    [out_features, in_features]: [usize; 2],
) -> Buffer<f32> {
    let n = dy.len().checked_div(out_features).unwrap_or(0);
    let mut sums = Buffer::repeated(0.0, out_features * in_features);
    let part = TOKEN_WORDS * T::DEPTHS;
    for start in (0..n).step_by(part) {
        let tokens = part.min(n - start);
        let x = x.part(start * in_features..(start + tokens) * in_features);
        let right = Panels::pack_matrix(&x, [tokens, in_features]);
        let dy = &dy[start * out_features..(start + tokens) * out_features];
        let dy = whole_words(dy, out_features);
        let sums = Shared::new(&mut sums);
        for_row_blocks::<T, f32>(out_features, tokens, |rows, spread| {
            // SAFETY: blocks of rows are disjoint.
            let own = unsafe { sums.slice(rows.start * in_features, rows.len() * in_features) };
            Sum {
                terms: &[Term::new(
                    Rows::from_columns(&dy, out_features, rows),
                    &right,
                )],
                panels: Panelled::All,
                bias: None,
                residual: None,
                output: Output::sums(own, in_features),
            }
            .run(spread);
        });
    }
    sums
}

/// The rows, padded with zero rows to whole words of tokens.
fn whole_words<T: Operand>(rows: &[T], width: usize) -> Cow<'_, [T]> {
    let n = rows.len() / width.max(1);
    if n.is_multiple_of(T::DEPTHS) {
        return Cow::Borrowed(rows);
    }
    let mut whole = rows.to_vec();
    whole.resize(n.next_multiple_of(T::DEPTHS) * width, T::ZERO);
    Cow::Owned(whole)
}

/// Sum over all rows of `[n, width]`, in an order that does not depend on the number of threads.
pub(super) fn bias_gradient<T: Number>(dy: &[T], width: usize) -> Buffer<f32> {
    let parts: Vec<&[T]> = dy.chunks((BIAS_TOKENS * width).max(1)).collect();
    let partial = map_tasks(&parts, |rows| {
        let mut sums = vec![0.0f32; width];
        add_rows(rows, &mut sums);
        sums
    });
    let mut sums = Buffer::repeated(0.0, width);
    for part in &partial {
        add_rows(part.as_slice(), &mut sums);
    }
    sums
}

for_each_isa! {
    fn add_rows[T: Number](rows: &[T], sums: &mut [f32]) {
        for row in rows.chunks_exact(sums.len().max(1)) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum += x.widen();
            }
        }
    }
}
