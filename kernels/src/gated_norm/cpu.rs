//! The gated norm on slices; the backward pass recomputes roots and sigmoids instead of storing
//! them.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::cpu::exp::sigmoid;
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::write_rows;
use crate::cpu::sum::sum_of_pairs;

/// Parameters of the norm; a head has as many elements as there are weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Norm<'a> {
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
}

/// Normalises consecutive heads with their gates; the result has the same size.
pub(crate) fn forward<T: Number>(x: &[T], gate: &[T], norm: Norm<'_>) -> Buffer<T> {
    let c = norm.weight.len();
    // SAFETY: `norm_heads` writes every element of its target.
    unsafe {
        write_rows([x.len() / c.max(1), c], |rows, y| {
            let range = rows.start * c..rows.end * c;
            norm_heads(&x[range.clone()], &gate[range], norm, y);
        })
    }
}

/// Gradients of the heads and of their gates, from heads, gates and the gradient of the result.
pub(crate) fn gradients<T: Number>(read: [&[T]; 3], norm: Norm<'_>) -> [Buffer<T>; 2] {
    let c = norm.weight.len();
    let shape = [read[0].len() / c.max(1), c];
    let rows_of = |rows: Range<usize>| read.map(|all| &all[rows.start * c..rows.end * c]);
    // SAFETY: both write every element of their target.
    unsafe {
        [
            write_rows(shape, |rows, dx| {
                let [x, gate, dy] = rows_of(rows);
                heads_gradient(x, gate, dy, norm, dx);
            }),
            write_rows(shape, |rows, d_gate| {
                let [x, gate, dy] = rows_of(rows);
                gates_gradient(x, gate, dy, norm, d_gate);
            }),
        ]
    }
}

#[inline(always)]
fn inverse_rms<T: Number>(x: &[T], eps: f32) -> f32 {
    let squares = sum_of_pairs(x, x, |a, b| a.widen() * b.widen());
    1.0 / (squares / x.len() as f32 + eps).sqrt()
}

for_each_isa! {
    fn norm_heads[T: Number](x: &[T], gate: &[T], norm: Norm<'_>, y: &mut [MaybeUninit<T>]) {
        let c = norm.weight.len();
        let heads = x.chunks_exact(c).zip(gate.chunks_exact(c));
        for ((x, gate), y) in heads.zip(y.chunks_exact_mut(c)) {
            let scale = inverse_rms(x, norm.eps);
            for (((y, &x), &gate), &w) in y.iter_mut().zip(x).zip(gate).zip(norm.weight) {
                let gate = gate.widen();
                y.write(T::narrow(x.widen() * scale * w * (gate * sigmoid(gate))));
            }
        }
    }
}

for_each_isa! {
    fn heads_gradient[T: Number](x: &[T], gate: &[T], dy: &[T], norm: Norm<'_>, dx: &mut [MaybeUninit<T>]) {
        let c = norm.weight.len();
        let mut weighed = vec![0.0f32; c];
        let heads = x.chunks_exact(c).zip(gate.chunks_exact(c)).zip(dy.chunks_exact(c));
        for (((x, gate), dy), dx) in heads.zip(dx.chunks_exact_mut(c)) {
            let scale = inverse_rms(x, norm.eps);
            let numbers = gate.iter().zip(dy).zip(norm.weight);
            for (to, ((&gate, &dy), &w)) in weighed.iter_mut().zip(numbers) {
                let gate = gate.widen();
                *to = dy.widen() * w * (gate * sigmoid(gate));
            }
            let projection = sum_of_pairs(x, &weighed, |x, weighed| x.widen() * weighed);
            let projection = projection * scale * scale / c as f32;
            for ((dx, &weighed), &x) in dx.iter_mut().zip(&weighed).zip(x) {
                dx.write(T::narrow(scale * (weighed - projection * x.widen())));
            }
        }
    }
}

for_each_isa! {
    fn gates_gradient[T: Number](x: &[T], gate: &[T], dy: &[T], norm: Norm<'_>, d_gate: &mut [MaybeUninit<T>]) {
        let c = norm.weight.len();
        let heads = x.chunks_exact(c).zip(gate.chunks_exact(c)).zip(dy.chunks_exact(c));
        for (((x, gate), dy), d_gate) in heads.zip(d_gate.chunks_exact_mut(c)) {
            let scale = inverse_rms(x, norm.eps);
            let numbers = x.iter().zip(gate).zip(dy).zip(norm.weight);
            for (to, (((&x, &gate), &dy), &w)) in d_gate.iter_mut().zip(numbers) {
                let gate = gate.widen();
                let sigmoid_gate = sigmoid(gate);
                let slope = sigmoid_gate * (1.0 + gate * (1.0 - sigmoid_gate));
                to.write(T::narrow(dy.widen() * x.widen() * scale * w * slope));
            }
        }
    }
}
