//! Query gates on slices; the backward pass recomputes sigmoids instead of storing them.

use std::mem::MaybeUninit;

use super::GatedHeads;
use crate::cpu::exp::sigmoid;
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::write_rows;

/// Copies rows of all heads without the gates.
pub(super) fn without_gates<T: Number>(x: &[T], heads: GatedHeads) -> Buffer<T> {
    let (n, kept) = (
        rows(x, heads),
        (heads.queries + heads.key_values) * heads.dim,
    );
    // SAFETY: each row is written: its queries, then the other heads.
    unsafe {
        write_rows([n, kept], |rows, to| {
            for (row, to) in rows.zip(to.chunks_exact_mut(kept)) {
                let x = &x[row * heads.width()..][..heads.width()];
                let (queries, key_values) = to.split_at_mut(heads.queries * heads.dim);
                for (i, query) in queries.chunks_exact_mut(heads.dim).enumerate() {
                    query.write_copy_of_slice(&x[2 * i * heads.dim..][..heads.dim]);
                }
                key_values.write_copy_of_slice(&x[2 * heads.queries * heads.dim..]);
            }
        })
    }
}

/// The gradient of all heads from the gradient of the rows without gates; zeros for the gates.
pub(super) fn gradient_without_gates<T: Number>(dy: &[T], heads: GatedHeads) -> Buffer<T> {
    let width = (heads.queries + heads.key_values) * heads.dim;
    let n = dy.len() / width.max(1);
    // SAFETY: each row is written: its queries and their gates, then the other heads.
    unsafe {
        write_rows([n, heads.width()], |rows, to| {
            for (row, to) in rows.zip(to.chunks_exact_mut(heads.width())) {
                let dy = &dy[row * width..][..width];
                let (d_queries, d_others) = dy.split_at(heads.queries * heads.dim);
                let (pairs, key_values) = to.split_at_mut(2 * heads.queries * heads.dim);
                let pairs = pairs.chunks_exact_mut(2 * heads.dim);
                for (pair, d_query) in pairs.zip(d_queries.chunks_exact(heads.dim)) {
                    let (query, gate) = pair.split_at_mut(heads.dim);
                    query.write_copy_of_slice(d_query);
                    gate.fill(MaybeUninit::new(T::narrow(0.0)));
                }
                key_values.write_copy_of_slice(d_others);
            }
        })
    }
}

/// The attention output multiplied by the sigmoids of its gates.
pub(super) fn gated<T: Number>(attended: &[T], x: &[T], heads: GatedHeads) -> Buffer<T> {
    let (n, width) = (rows(x, heads), heads.queries * heads.dim);
    // SAFETY: `gate_heads` writes every element of its target.
    unsafe {
        write_rows([n, width], |rows, y| {
            for (row, y) in rows.zip(y.chunks_exact_mut(width)) {
                let attended = &attended[row * width..][..width];
                gate_heads(attended, &x[row * heads.width()..], heads.dim, y);
            }
        })
    }
}

/// Gradients of the attention output and of all heads from the gradient of the gated output; zeros
/// for all heads except the gates.
pub(super) fn gated_gradients<T: Number>(
    attended: &[T],
    x: &[T],
    dy: &[T],
    heads: GatedHeads,
) -> [Buffer<T>; 2] {
    let (n, width) = (rows(x, heads), heads.queries * heads.dim);
    let d_attended = gated(dy, x, heads);
    // SAFETY: `gate_gradients` writes queries and gates, and the other heads are written here.
    let dx = unsafe {
        write_rows([n, heads.width()], |rows, dx| {
            for (row, dx) in rows.zip(dx.chunks_exact_mut(heads.width())) {
                let [attended, dy] = [attended, dy].map(|all| &all[row * width..][..width]);
                let (pairs, key_values) = dx.split_at_mut(2 * width);
                gate_gradients(attended, dy, &x[row * heads.width()..], heads.dim, pairs);
                key_values.fill(MaybeUninit::new(T::narrow(0.0)));
            }
        })
    };
    [d_attended, dx]
}

fn rows<T>(x: &[T], heads: GatedHeads) -> usize {
    x.len() / heads.width().max(1)
}

for_each_isa! {
    fn gate_heads[T: Number](attended: &[T], pairs: &[T], dim: usize, y: &mut [MaybeUninit<T>]) {
        let heads = attended.chunks_exact(dim).zip(pairs.chunks_exact(2 * dim));
        for ((attended, pair), y) in heads.zip(y.chunks_exact_mut(dim)) {
            for ((y, attended), gate) in y.iter_mut().zip(attended).zip(&pair[dim..]) {
                y.write(T::narrow(attended.widen() * sigmoid(gate.widen())));
            }
        }
    }
}

for_each_isa! {
    fn gate_gradients[T: Number](
        attended: &[T],
        dy: &[T],
        pairs: &[T],
        dim: usize,
        d_pairs: &mut [MaybeUninit<T>],
    ) {
        let heads = attended.chunks_exact(dim).zip(dy.chunks_exact(dim));
        let pairs = pairs.chunks_exact(2 * dim).zip(d_pairs.chunks_exact_mut(2 * dim));
        for ((attended, dy), (pair, d_pair)) in heads.zip(pairs) {
            let (d_query, d_gate) = d_pair.split_at_mut(dim);
            d_query.fill(MaybeUninit::new(T::narrow(0.0)));
            let numbers = attended.iter().zip(dy).zip(&pair[dim..]);
            for (to, ((attended, dy), gate)) in d_gate.iter_mut().zip(numbers) {
                let sigmoid_gate = sigmoid(gate.widen());
                to.write(T::narrow(dy.widen() * attended.widen() * sigmoid_gate * (1.0 - sigmoid_gate)));
            }
        }
    }
}
