//! The short convolution on slices; the backward pass recomputes the convolution instead of storing
//! the input of `silu`.

use std::mem::MaybeUninit;

use crate::cpu::exp::sigmoid;
use crate::cpu::isa::for_each_isa;
use crate::cpu::number::Number;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::write_rows;

/// Channels whose sums fit in the L1 cache.
const PART: usize = 256;

/// Weights and document positions of a convolution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taps<'a> {
    /// `[k, channels]`; the last row is for the token itself.
    pub(crate) weight: &'a [f32],
    pub(crate) channels: usize,
    /// For each token, the number of preceding tokens of its document.
    pub(crate) positions: &'a [u32],
}

impl Taps<'_> {
    fn k(&self) -> usize {
        self.weight.len() / self.channels.max(1)
    }

    /// The weights of the `s`th token before the current one.
    #[inline(always)]
    fn weights_at(&self, s: usize) -> &[f32] {
        let first = (self.k() - 1 - s) * self.channels;
        &self.weight[first..first + self.channels]
    }

    /// Number of tokens of the document that are read for token `t`, including itself.
    #[inline(always)]
    fn n_taps(&self, t: usize) -> usize {
        self.k().min(self.positions[t] as usize + 1)
    }
}

/// Convolves rows of channels; the result has the same shape.
pub(crate) fn forward<T: Number>(x: &[T], taps: Taps<'_>) -> Buffer<T> {
    // SAFETY: `convolve` writes every element of its target.
    unsafe {
        write_rows([taps.positions.len(), taps.channels], |rows, y| {
            convolve(x, taps, rows.start, y);
        })
    }
}

/// Gradient of the rows, from the rows and the gradient of the result.
pub(crate) fn gradient<T: Number>(x: &[T], dy: &[T], taps: Taps<'_>) -> Buffer<T> {
    let shape = [taps.positions.len(), taps.channels];
    // SAFETY: `silu_backward` writes every element of its target.
    let dz: Buffer<f32> =
        unsafe { write_rows(shape, |rows, dz| silu_backward(x, dy, taps, rows.start, dz)) };
    // SAFETY: `spread` writes every element of its target.
    unsafe { write_rows(shape, |rows, dx| spread::<T>(&dz, taps, rows.start, dx)) }
}

/// Sums over the taps of token `t`, for the channels starting at `first`.
#[inline(always)]
fn sums<T: Number>(x: &[T], taps: Taps<'_>, t: usize, first: usize, to: &mut [f32]) {
    let columns = first..first + to.len();
    let token_row = |t: usize| &x[t * taps.channels..][columns.clone()];
    for ((to, &x), &w) in to
        .iter_mut()
        .zip(token_row(t))
        .zip(&taps.weights_at(0)[columns.clone()])
    {
        *to = x.widen() * w;
    }
    for s in 1..taps.n_taps(t) {
        let weight = &taps.weights_at(s)[columns.clone()];
        for ((to, &x), &w) in to.iter_mut().zip(token_row(t - s)).zip(weight) {
            *to += x.widen() * w;
        }
    }
}

for_each_isa! {
    fn convolve[T: Number](x: &[T], taps: Taps<'_>, row: usize, y: &mut [MaybeUninit<T>]) {
        let mut all = [0.0f32; PART];
        for (i, y) in y.chunks_exact_mut(taps.channels).enumerate() {
            for (part, y) in y.chunks_mut(PART).enumerate() {
                let z = &mut all[..y.len()];
                sums(x, taps, row + i, part * PART, z);
                for (y, &z) in y.iter_mut().zip(&*z) {
                    y.write(T::narrow(z * sigmoid(z)));
                }
            }
        }
    }
}

for_each_isa! {
    fn silu_backward[T: Number](x: &[T], dy: &[T], taps: Taps<'_>, row: usize, dz: &mut [MaybeUninit<f32>]) {
        let mut all = [0.0f32; PART];
        for (i, dz) in dz.chunks_exact_mut(taps.channels).enumerate() {
            let dy = &dy[(row + i) * taps.channels..][..taps.channels];
            for (part, (dz, dy)) in dz.chunks_mut(PART).zip(dy.chunks(PART)).enumerate() {
                let z = &mut all[..dz.len()];
                sums(x, taps, row + i, part * PART, z);
                for ((dz, &z), &dy) in dz.iter_mut().zip(&*z).zip(dy) {
                    let sigmoid_z = sigmoid(z);
                    dz.write(dy.widen() * sigmoid_z * (1.0 + z * (1.0 - sigmoid_z)));
                }
            }
        }
    }
}

for_each_isa! {
    fn spread[T: Number](dz: &[f32], taps: Taps<'_>, row: usize, dx: &mut [MaybeUninit<T>]) {
        let mut all = [0.0f32; PART];
        let n = taps.positions.len();
        for (i, dx) in dx.chunks_exact_mut(taps.channels).enumerate() {
            let t = row + i;
            for (part, dx) in dx.chunks_mut(PART).enumerate() {
                let columns = part * PART..part * PART + dx.len();
                let sum = &mut all[..dx.len()];
                sum.fill(0.0);
                for s in 0..taps.k().min(n - t) {
                    // A later token that does not reach back this far belongs to another document.
                    if taps.n_taps(t + s) <= s {
                        break;
                    }
                    let dz = &dz[(t + s) * taps.channels..][columns.clone()];
                    let weight = &taps.weights_at(s)[columns.clone()];
                    for ((sum, &dz), &w) in sum.iter_mut().zip(dz).zip(weight) {
                        *sum += dz * w;
                    }
                }
                for (dx, &sum) in dx.iter_mut().zip(&*sum) {
                    dx.write(T::narrow(sum));
                }
            }
        }
    }
}
