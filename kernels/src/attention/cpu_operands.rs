//! Packs the rows of a tensor into operands of small products.

use std::mem::MaybeUninit;

#[cfg(target_arch = "x86_64")]
use burn::backend::DType;

#[cfg(target_arch = "x86_64")]
use super::cpu_operands_avx512::{interleave_rows, transpose};
use super::cpu_tile::{Arithmetic, Left, PANEL, Panels};
use crate::cpu::isa::{Isa, for_each_isa};
#[cfg(target_arch = "x86_64")]
use crate::cpu::lanes_avx2;
use crate::cpu::number::Number;

/// `rows` rows of `c` elements, `stride` apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a, T> {
    pub(super) numbers: &'a [T],
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) c: usize,
}

impl<'a, T: Number> Rows<'a, T> {
    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> &'a [T] {
        &self.numbers[i * self.stride..i * self.stride + self.c]
    }

    /// Whether the rows have type `N` and are all within the slice.
    #[cfg(target_arch = "x86_64")]
    fn is_valid_as<N: Number>(&self) -> bool {
        let end = self.rows.saturating_sub(1) * self.stride + self.c;
        T::DTYPE == N::DTYPE && self.numbers.len() >= end
    }

    /// The rows as a left operand: in place, or converted to `A`'s type in `memory` of size
    /// [`left_units`].
    pub(super) fn left<A: Arithmetic>(&self, memory: &mut [f32]) -> Left {
        if T::DTYPE == A::Number::DTYPE {
            return Left {
                first: self.numbers.as_ptr().cast(),
                row_stride: self.stride / A::PER_UNIT,
                depth_stride: 1,
            };
        }
        copy_rows(*self, numbers_of::<A>(memory));
        Left {
            first: memory.as_ptr(),
            row_stride: self.c / A::PER_UNIT,
            depth_stride: 1,
        }
    }

    /// The rows as columns of a right operand, in `memory` of size [`column_units`].
    pub(super) fn columns<A: Arithmetic>(&self, memory: &mut [f32]) -> Panels {
        #[cfg(target_arch = "x86_64")]
        if self.is_valid_as::<A::Number>()
            && Isa::detect() == Isa::Avx512
            && self.c.is_multiple_of(A::PER_UNIT)
        {
            let shape = [self.rows, self.c / A::PER_UNIT];
            let stride = self.stride / A::PER_UNIT;
            // SAFETY: the CPU feature was detected; all rows are within the slice, in whole units.
            unsafe { transpose(self.numbers.as_ptr().cast(), stride, shape, memory) };
            return Panels {
                first: memory.as_ptr(),
                stride: shape[1] * PANEL,
            };
        }
        #[cfg(target_arch = "x86_64")]
        if self.is_valid_as::<A::Number>() && Isa::detect() == Isa::Avx2 {
            // SAFETY: the CPU feature was detected; all rows are within the slice.
            unsafe { transpose_avx2(*self, memory) };
            return Panels {
                first: memory.as_ptr(),
                stride: self.c * PANEL,
            };
        }
        pack_columns(*self, numbers_of::<A>(memory), A::PER_UNIT);
        Panels {
            first: memory.as_ptr(),
            stride: self.c.div_ceil(A::PER_UNIT) * PANEL,
        }
    }

    /// The rows packed as lines (see [`Panels`]) of a right operand, `A::PER_UNIT` rows per line,
    /// in `memory` of size [`line_units`].
    pub(super) fn lines<A: Arithmetic>(&self, memory: &mut [f32]) -> Panels {
        match Isa::detect() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if self.is_valid_as::<A::Number>() && A::PER_UNIT == 2 => {
                let shape = [self.rows, self.c];
                // SAFETY: the CPU feature was detected; all rows are within the slice.
                unsafe {
                    interleave_rows(self.numbers.as_ptr().cast(), self.stride, shape, memory);
                }
            }
            _ => pack_lines(*self, numbers_of::<A>(memory), A::PER_UNIT),
        }
        Panels {
            first: memory.as_ptr(),
            stride: self.rows.div_ceil(A::PER_UNIT) * PANEL,
        }
    }
}

/// Memory size for [`Rows::left`], in units.
pub(super) fn left_units<A: Arithmetic>(rows: usize, c: usize) -> usize {
    (rows * c).div_ceil(A::PER_UNIT)
}

/// Memory size for [`Rows::columns`], in units.
pub(super) fn column_units<A: Arithmetic>(rows: usize, c: usize) -> usize {
    rows.next_multiple_of(PANEL) * c.div_ceil(A::PER_UNIT)
}

/// Memory size for [`Rows::lines`], in units.
pub(super) fn line_units<A: Arithmetic>(rows: usize, c: usize) -> usize {
    rows.div_ceil(A::PER_UNIT) * c.next_multiple_of(PANEL)
}

/// Reinterprets units as elements.
pub(super) fn numbers_of<A: Arithmetic>(units: &mut [f32]) -> &mut [A::Number] {
    // SAFETY: a unit holds `PER_UNIT` elements with no stricter alignment; every bit pattern is
    // valid.
    unsafe { std::slice::from_raw_parts_mut(units.as_mut_ptr().cast(), units.len() * A::PER_UNIT) }
}

/// `[rows / PANEL, c, PANEL]`, padded with zero rows.
///
/// # Safety
///
/// The CPU has AVX2, the elements are f32, and the slice contains all rows.
#[cfg(target_arch = "x86_64")]
unsafe fn transpose_avx2<T: Number>(rows: Rows<'_, T>, to: &mut [f32]) {
    assert!(T::DTYPE == DType::F32, "elements must be f32");
    for (first, to) in (0..rows.rows)
        .step_by(PANEL)
        .zip(to.chunks_exact_mut(rows.c * PANEL))
    {
        let n = PANEL.min(rows.rows - first);
        if n < PANEL {
            to.fill(0.0);
        }
        let from = rows.numbers[first * rows.stride..].as_ptr().cast();
        let shape = [n, rows.c];
        // SAFETY: guaranteed by the caller; `to` has `PANEL` elements for each column.
        let n_transposed =
            unsafe { lanes_avx2::transpose(from, 4 * rows.stride, shape, to.as_mut_ptr(), PANEL) };
        for i in n_transposed..n {
            for (line, number) in to.chunks_exact_mut(PANEL).zip(rows.row(first + i)) {
                line[i] = number.widen();
            }
        }
    }
}

for_each_isa! {
    fn copy_rows[T: Number, N: Number](rows: Rows<'_, T>, to: &mut [N]) {
        for (i, to) in to.chunks_exact_mut(rows.c).take(rows.rows).enumerate() {
            for (to, from) in to.iter_mut().zip(rows.row(i)) {
                *to = N::narrow(from.widen());
            }
        }
    }
}

for_each_isa! {
    /// `[rows / PANEL, c / per_unit, PANEL, per_unit]`, padded with zero rows.
    fn pack_columns[T: Number, N: Number](rows: Rows<'_, T>, to: &mut [N], per_unit: usize) {
        let line = PANEL * per_unit;
        let panel = rows.c.div_ceil(per_unit) * line;
        for (first, to) in (0..rows.rows).step_by(PANEL).zip(to.chunks_exact_mut(panel)) {
            let n = PANEL.min(rows.rows - first);
            if n < PANEL {
                to.fill(N::narrow(0.0));
            }
            for j in 0..n {
                let row = rows.row(first + j).chunks(per_unit);
                for (to, unit) in to.chunks_exact_mut(line).zip(row) {
                    for (k, from) in unit.iter().enumerate() {
                        to[j * per_unit + k] = N::narrow(from.widen());
                    }
                }
            }
        }
    }
}

for_each_isa! {
    /// `[c / PANEL, rows / per_unit, PANEL, per_unit]`, padded with zero rows and columns.
    fn pack_lines[T: Number, N: Number](rows: Rows<'_, T>, to: &mut [N], per_unit: usize) {
        let line = PANEL * per_unit;
        let panel = rows.rows.div_ceil(per_unit) * line;
        for (first, to) in (0..rows.c).step_by(PANEL).zip(to.chunks_exact_mut(panel)) {
            let columns = first..(first + PANEL).min(rows.c);
            for (p, to) in to.chunks_exact_mut(line).enumerate() {
                let whole = columns.len() == PANEL && (p + 1) * per_unit <= rows.rows;
                if !whole {
                    to.fill(N::narrow(0.0));
                }
                if whole && per_unit == 2 {
                    let upper = &rows.row(2 * p)[columns.clone()];
                    let lower = &rows.row(2 * p + 1)[columns.clone()];
                    for ((to, a), b) in to.chunks_exact_mut(2).zip(upper).zip(lower) {
                        to[0] = N::narrow(a.widen());
                        to[1] = N::narrow(b.widen());
                    }
                    continue;
                }
                for k in 0..per_unit.min(rows.rows - p * per_unit) {
                    let row = &rows.row(p * per_unit + k)[columns.clone()];
                    for (j, from) in row.iter().enumerate() {
                        to[j * per_unit + k] = N::narrow(from.widen());
                    }
                }
            }
        }
    }
}

for_each_isa! {
    /// Writes a result row multiplied by `factor`.
    pub(super) fn write_row[T: Number](from: &[f32], factor: f32, to: &mut [MaybeUninit<T>]) {
        for (to, &value) in to.iter_mut().zip(from) {
            to.write(T::narrow(value * factor));
        }
    }
}
