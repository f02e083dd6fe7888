//! Rotation of heads where they lie, or from a tensor that others hold to a new one.

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
    buffer::{contiguous, is_own, numbers, with_layout_of},
    rows::write_rows,
};

/// Tables of a micro-batch, `[n, half]` each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables<'a> {
    pub(super) cos: &'a [f32],
    pub(super) sin: &'a [f32],
    /// `c / 2`, or fewer where only the first part of a head turns.
    pub(super) half: usize,
    /// `c`.
    pub(super) head: usize,
}

/// Turns heads of `x`, `[n, heads, c]`.
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
            turned::<T>(x, shape, tables, sign, cpu_avx512::rotate_rows::<T>)
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 if half > 0 && half.is_multiple_of(8) => {
            turned::<T>(x, shape, tables, sign, cpu_avx2::rotate_rows::<T>)
        }
        _ => change_rows::<T>(x, width, |rows, x| {
            rotate_rows(x, shape, tables.lines(rows), sign);
        }),
    }
}

/// Rotates rows of an instruction set: from, to, width and turned numbers of a row, tables, sign.
#[cfg(target_arch = "x86_64")]
type RotateRows<T> = unsafe fn(*const T, *mut T, [usize; 2], Tables<'_>, f32);

/// The same with a function that reads one place and writes another, for instructions that were
/// detected.
#[cfg(target_arch = "x86_64")]
fn turned<T: Number>(
    x: FlexTensor,
    [width, turned]: [usize; 2],
    tables: Tables<'_>,
    sign: f32,
    rotate_rows: RotateRows<T>,
) -> FlexTensor {
    let shape = [width, turned];
    if is_own(&x) {
        return change_rows::<T>(x, width, |rows, x| {
            let to = x.as_mut_ptr();
            // SAFETY: detected by the caller; the rows are those of the tables.
            unsafe { rotate_rows(to.cast_const(), to, shape, tables.lines(rows), sign) };
        });
    }
    let x = contiguous(x);
    let from = numbers::<T>(&x);
    let rows = from.len() / width.max(1);
    // SAFETY: each row is written whole.
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
    /// Those of some rows.
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
    /// Rows of `width` numbers, of which the first `turned` are turned.
    fn rotate_rows[T: Number](
        x: &mut [T],
        shape: [usize; 2],
        tables: Tables<'_>,
        sign: f32,
    ) {
        let [width, turned] = shape;
        let half = tables.half;
        let lines = tables.cos.chunks_exact(half).zip(tables.sin.chunks_exact(half));
        for (x, (cos, sin)) in x.chunks_exact_mut(width).zip(lines) {
            for head in x[..turned].chunks_exact_mut(tables.head) {
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
