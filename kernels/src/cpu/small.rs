//! Products of small f32 matrices on the calling thread, which read their operands in place.
//!
//! For matrices that are used only a few times within an operation, so that packing would cost more
//! than it saves.

use super::isa::Isa;
#[cfg(target_arch = "x86_64")]
use super::lanes_avx2;
use super::matrix::Matrix;
use super::tile::{Portable, Tile, TileJob};
#[cfg(target_arch = "x86_64")]
use super::tile_avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use super::tile_avx512::{self, Avx512};

/// Lines of a right operand are read in whole vectors of this many floats.
pub(crate) const LINE: usize = 32;

/// Row stride of rows of `columns` elements that are lines of a right operand: an odd number of
/// cache lines, so that a column of vectors is spread over all cache sets.
pub(crate) const fn row_stride(columns: usize) -> usize {
    columns.next_multiple_of(LINE) + 16
}

/// The elements of a left operand that are used. The others must be zero, except where a whole tile
/// of rows skips them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// All elements.
    Full,
    /// Elements up to the diagonal.
    Lower,
    /// Elements from the diagonal on.
    Upper,
}

/// The rows to which a product is written.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) numbers: &'a mut [f32],
    /// Row stride in floats.
    pub(crate) stride: usize,
    /// Whether the product is added to the current contents.
    pub(crate) adds: bool,
}

/// `C = A B`, or `C += A B`.
///
/// # Panics
///
/// If the shapes do not match, the rows of `b` are not contiguous, its last row has no whole
/// vectors, or the target is too small.
pub(crate) fn multiply(c: Target<'_>, a: Matrix<'_>, shape: Shape, b: Matrix<'_>) {
    match Isa::detect() {
        // SAFETY: the CPU feature was detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { with_tiles::<Avx512<2>>(c, a, shape, b) },
        // SAFETY: the CPU feature was detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { with_tiles::<Avx2<2>>(c, a, shape, b) },
        // SAFETY: every CPU supports it.
        Isa::Portable => unsafe { with_tiles::<Portable>(c, a, shape, b) },
    }
}

/// # Safety
///
/// The CPU has the instruction set of `T`.
unsafe fn with_tiles<T: Tile>(c: Target<'_>, a: Matrix<'_>, shape: Shape, b: Matrix<'_>) {
    let (m, k, n) = (a.rows(), a.columns(), b.columns());
    if m == 0 || n == 0 {
        return;
    }
    const {
        assert!(
            LINE.is_multiple_of(T::COLUMNS),
            "a line is divided into whole tiles"
        )
    };
    assert_eq!(
        b.rows(),
        k,
        "the inner dimensions of a small product must match"
    );
    let end = k.saturating_sub(1) * b.row_stride() + n.next_multiple_of(LINE);
    assert!(
        k == 0 || (b.column_stride() == 1 && end <= b.data().len()),
        "the right operand needs contiguous rows of whole vectors"
    );
    assert!(
        n <= c.stride && (m - 1) * c.stride + n <= c.numbers.len(),
        "the target is too small for the product"
    );
    let first = c.numbers.as_mut_ptr();
    for column in (0..n).step_by(T::COLUMNS) {
        for row in (0..m).step_by(T::ROWS) {
            let rows = T::ROWS.min(m - row);
            let depths = match shape {
                Shape::Full => 0..k,
                Shape::Lower => 0..k.min(row + rows),
                Shape::Upper => k.min(row)..k,
            };
            let offset = row * a.row_stride() + depths.start * a.column_stride();
            let right = depths.start * b.row_stride() + column;
            let target = first.wrapping_add(row * c.stride + column);
            let job = TileJob {
                a: a.data().as_ptr().wrapping_add(offset),
                a_row_stride: a.row_stride(),
                a_depth_stride: a.column_stride(),
                b: b.data().as_ptr().wrapping_add(right),
                b_line_stride: b.row_stride(),
                b_half_stride: LINE / 2,
                sums: if c.adds { target } else { std::ptr::null() },
                sums_row_stride: c.stride,
                bias: std::ptr::null(),
                residual: std::ptr::null(),
                residual_row_stride: 0,
                c: target,
                c_row_stride: c.stride,
                next: (b.data().as_ptr().cast(), 0),
                c_is_far: false,
                rows,
                columns: T::COLUMNS.min(n - column),
                depth: depths.len(),
            };
            // SAFETY: the caller guarantees the instruction set; rows and depths are within A,
            // lines have whole vectors, and the target has the rows and columns.
            unsafe { T::run(&job) };
        }
    }
}

/// Writes `[rows, columns]` elements, rows `stride` apart, as `[columns, rows]`, rows `to_stride`
/// apart.
///
/// # Panics
///
/// If either slice is too small.
pub(crate) fn transpose(
    from: &[f32],
    stride: usize,
    [rows, columns]: [usize; 2],
    to: &mut [f32],
    to_stride: usize,
) {
    if rows == 0 || columns == 0 {
        return;
    }
    assert!(
        columns <= stride && (rows - 1) * stride + columns <= from.len(),
        "the source is too small for the transpose"
    );
    assert!(
        rows <= to_stride && (columns - 1) * to_stride + rows <= to.len(),
        "the target is too small for the transpose"
    );
    let n_done = match Isa::detect() {
        // SAFETY: the CPU feature was detected; both slices have the elements.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe {
            let shape = [rows, columns];
            tile_avx512::transpose(from.as_ptr(), stride, shape, to.as_mut_ptr(), to_stride)
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe {
            let (shape, bytes) = ([rows, columns], stride * size_of::<f32>());
            lanes_avx2::transpose(from.as_ptr(), bytes, shape, to.as_mut_ptr(), to_stride)
        },
        Isa::Portable => 0,
    };
    for row in n_done..rows {
        for (column, &value) in from[row * stride..][..columns].iter().enumerate() {
            to[column * to_stride + row] = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize) -> Vec<f32> {
        (0..n)
            .map(|i| ((i * 37 + 11) % 101) as f32 - 50.0)
            .collect()
    }

    #[test]
    fn products_of_any_shape_match_plain_loops() {
        for [m, k, n] in [
            [1, 1, 1],
            [12, 32, 32],
            [13, 5, 33],
            [32, 128, 70],
            [7, 0, 3],
        ] {
            for shape in [Shape::Full, Shape::Lower, Shape::Upper] {
                for adds in [false, true] {
                    let mut a = numbers(m * k);
                    for (i, value) in a.iter_mut().enumerate() {
                        let (row, column) = (i / k, i % k);
                        let is_zero = match shape {
                            Shape::Full => false,
                            Shape::Lower => column > row,
                            Shape::Upper => column < row,
                        };
                        if is_zero {
                            *value = 0.0;
                        }
                    }
                    let stride = row_stride(n);
                    let b = numbers(k * stride);
                    let mut c = numbers(m * stride);
                    let mut expected = c.clone();
                    for i in 0..m {
                        for j in 0..n {
                            let products = (0..k).map(|p| a[i * k + p] * b[p * stride + j]);
                            let sum: f32 = products.sum();
                            let earlier = expected[i * stride + j];
                            expected[i * stride + j] = sum + if adds { earlier } else { 0.0 };
                        }
                    }
                    let target = Target {
                        numbers: &mut c,
                        stride,
                        adds,
                    };
                    let lines = Matrix::strided(&b, [k, n], stride);
                    multiply(target, Matrix::strided(&a, [m, k], k), shape, lines);
                    // All sums are integers below 2^24.
                    assert_eq!(c, expected, "{m} {k} {n} {shape:?} {adds}");
                }
            }
        }
    }

    #[test]
    fn a_left_operand_may_be_stored_by_columns() {
        let (a, b) = (numbers(20 * 9), numbers(20 * row_stride(6)));
        let lines = Matrix::strided(&b, [20, 6], row_stride(6));
        let mut transposed_a = vec![0.0; 9 * 20];
        transpose(&a, 9, [20, 9], &mut transposed_a, 20);
        let [mut c, mut expected] = [vec![0.0; 9 * 6], vec![0.0; 9 * 6]];
        for (a, c) in [
            (Matrix::from_rows(&a, 9).transposed(), &mut c),
            (Matrix::from_rows(&transposed_a, 20), &mut expected),
        ] {
            let target = Target {
                numbers: c,
                stride: 6,
                adds: false,
            };
            multiply(target, a, Shape::Full, lines);
        }
        assert_eq!(c, expected);
    }

    #[test]
    fn transpose_moves_every_element() {
        for [rows, columns] in [[1, 1], [16, 16], [33, 50], [128, 128], [5, 40]] {
            let (stride, to_stride) = (columns + 3, rows + 5);
            let from = numbers(rows * stride);
            let mut to = vec![f32::NAN; columns * to_stride];
            transpose(&from, stride, [rows, columns], &mut to, to_stride);
            for (i, value) in to.iter().enumerate() {
                let (column, row) = (i / to_stride, i % to_stride);
                if row < rows {
                    assert_eq!(*value, from[row * stride + column], "{rows} {columns} {i}");
                } else {
                    assert!(value.is_nan(), "{i} is written");
                }
            }
        }
    }
}
