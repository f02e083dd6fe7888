//! Rotates heads in place, or from a shared tensor to a new one.

#[cfg(target_arch = "x86_64")]
use std::mem::MaybeUninit;
use std::ops::Range;

use burn::backend::flex::FlexTensor;

use super::{Direction, Turn};
#[cfg(target_arch = "x86_64")]
use super::{cpu_avx2, cpu_avx512};
use crate::cpu::isa::{Isa, for_each_isa};
use crate::cpu::number::Number;
use crate::cpu::rows::change_rows;
#[cfg(target_arch = "x86_64")]
use crate::cpu::{
    buffer::{contiguous, numbers, owns_whole_memory, with_layout_of},
    rows::write_rows,
};

/// Tables of a micro-batch, `[n, half]` each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables<'a> {
    pub(super) cos: &'a [f32],
    pub(super) sin: &'a [f32],
    /// `c / 2`, or fewer if only the first part of a head is rotated.
    pub(super) half: usize,
    /// `c`.
    pub(super) head: usize,
}

/// Rotates heads of `x`, `[n, heads, c]`.
pub(super) fn rotate<T: Number>(
    x: FlexTensor,
    heads: usize,
    tables: Tables<'_>,
    turn: Turn,
) -> FlexTensor {
    let half = tables.half;
    let width = heads * tables.head;
    let sign = match turn.direction {
        Direction::Forward => 1.0,
        Direction::Back => -1.0,
    };
    let shape = [width, turn.heads * tables.head];
    match Isa::detect() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if half > 0 => {
            rotate_heads::<T>(x, shape, tables, sign, cpu_avx512::rotate_rows::<T>)
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if half > 0 && half.is_multiple_of(8) => {
            rotate_heads::<T>(x, shape, tables, sign, cpu_avx2::rotate_rows::<T>)
        }
        _ => change_rows::<T>(x, width, |rows, x| {
            rotate_rows(x, shape, tables.lines(rows), sign);
        }),
    }
}

/// Rotates rows with one instruction set. Arguments: from, to, the width and the rotated elements
/// of a row, tables, sign.
#[cfg(target_arch = "x86_64")]
type RotateRows<T> = unsafe fn(*const T, *mut T, [usize; 2], Tables<'_>, f32);

/// Rotates heads with `rotate_rows`, in place or to a new tensor. The caller has detected its
/// instructions.
#[cfg(target_arch = "x86_64")]
fn rotate_heads<T: Number>(
    x: FlexTensor,
    [width, rotated]: [usize; 2],
    tables: Tables<'_>,
    sign: f32,
    rotate_rows: RotateRows<T>,
) -> FlexTensor {
    let shape = [width, rotated];
    if owns_whole_memory(&x) {
        return change_rows::<T>(x, width, |rows, x| {
            let to = x.as_mut_ptr();
            // SAFETY: detected by the caller; the tables have these rows.
            unsafe { rotate_rows(to.cast_const(), to, shape, tables.lines(rows), sign) };
        });
    }
    let x = contiguous(x);
    let from = numbers::<T>(&x);
    let rows = from.len() / width.max(1);
    // SAFETY: each row is written completely.
    let changed = unsafe {
        write_rows([rows, width], |run, to: &mut [MaybeUninit<T>]| {
            let from = &from[run.start * width..run.end * width];
            if 2 * tables.half < tables.head {
                let to = to.write_copy_of_slice(from).as_mut_ptr();
                rotate_rows(to.cast_const(), to, shape, tables.lines(run), sign);
                return;
            }
            let to = to.as_mut_ptr().cast::<T>();
            rotate_rows(from.as_ptr(), to, shape, tables.lines(run), sign);
        })
    };
    with_layout_of(changed, &x)
}

impl<'a> Tables<'a> {
    /// The tables of some rows.
    fn lines(self, rows: Range<usize>) -> Self {
        let part = rows.start * self.half..rows.end * self.half;
        Self {
            cos: &self.cos[part.clone()],
            sin: &self.sin[part],
            ..self
        }
    }
}

for_each_isa! {
    /// Rows of `width` elements, of which the first `rotated` are rotated.
    fn rotate_rows[T: Number](
        x: &mut [T],
        shape: [usize; 2],
        tables: Tables<'_>,
        sign: f32,
    ) {
        let [width, rotated] = shape;
        let half = tables.half;
        let lines = tables.cos.chunks_exact(half).zip(tables.sin.chunks_exact(half));
        for (x, (cos, sin)) in x.chunks_exact_mut(width).zip(lines) {
            for head in x[..rotated].chunks_exact_mut(tables.head) {
                let (first, second) = head.split_at_mut(half);
                let angles = cos.iter().zip(sin);
                for ((a, b), (&cos, &sin)) in first.iter_mut().zip(second).zip(angles) {
                    let (x1, x2, sin) = (a.widen(), b.widen(), sign * sin);
                    *a = T::narrow(x1 * cos - x2 * sin);
                    *b = T::narrow(x2 * cos + x1 * sin);
                }
            }
        }
    }
}
