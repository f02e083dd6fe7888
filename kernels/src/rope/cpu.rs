//! Rotation of heads where they lie: heads that are not turned are not touched.

use burn::backend::flex::FlexTensor;

#[cfg(target_arch = "x86_64")]
use super::cpu_avx512;
use super::{Direction, Turn};
use crate::cpu::isa::{Isa, for_each_isa};
use crate::cpu::number::Number;
use crate::cpu::rows::change_rows;

/// Tables of a micro-batch, `[n, c / 2]` each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tables<'a> {
    pub(super) cos: &'a [f32],
    pub(super) sin: &'a [f32],
    /// `c / 2`.
    pub(super) half: usize,
}

/// Turns heads of `x`, `[n, heads, c]`.
pub(super) fn rotate<T: Number>(
    x: FlexTensor,
    heads: usize,
    tables: Tables<'_>,
    turn: Turn,
) -> FlexTensor {
    let half = tables.half;
    let width = heads * 2 * half;
    let sign = match turn.direction {
        Direction::Forward => 1.0,
        Direction::Back => -1.0,
    };
    let shape = [width, turn.heads * 2 * half];
    change_rows::<T>(x, width, |rows, x| {
        let part = rows.start * half..rows.end * half;
        let (cos, sin) = (&tables.cos[part.clone()], &tables.sin[part]);
        let tables = Tables { cos, sin, half };
        match Isa::detect() {
            // SAFETY: detected; the tables are those of the rows.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { cpu_avx512::rotate_rows(x, shape, tables, sign) },
            _ => rotate_rows(x, shape, tables, sign),
        }
    })
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
        let tables = tables.cos.chunks_exact(half).zip(tables.sin.chunks_exact(half));
        for (x, (cos, sin)) in x.chunks_exact_mut(width).zip(tables) {
            for head in x[..turned].chunks_exact_mut(2 * half) {
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
