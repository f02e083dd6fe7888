//! Matmuls against sums in f64.

use tooltune_kernels::cpu::matrix::Matrix;
use tooltune_kernels::cpu::product::product;

use crate::support::{Numbers, assert_near, on_threads};

/// A matrix stored by rows or by columns.
fn stored(data: &[f32], [rows, columns]: [usize; 2], transposed: usize) -> Matrix<'_> {
    if transposed == 1 {
        Matrix::from_rows(data, rows).transposed()
    } else {
        Matrix::from_rows(data, columns)
    }
}

fn element(
    data: &[f32],
    [rows, columns]: [usize; 2],
    transposed: usize,
    i: usize,
    j: usize,
) -> f64 {
    f64::from(if transposed == 1 {
        data[j * rows + i]
    } else {
        data[i * columns + j]
    })
}

fn check(numbers: &mut Numbers, [m, n, k]: [usize; 3]) {
    for form in 0..4 {
        let (left, right) = (form & 1, form >> 1);
        let (a, b) = (numbers.floats(m * k), numbers.floats(k * n));
        let mut expected = vec![0.0f32; m * n];
        for i in 0..m {
            for j in 0..n {
                let sum: f64 = (0..k)
                    .map(|p| element(&a, [m, k], left, i, p) * element(&b, [k, n], right, p, j))
                    .sum();
                expected[i * n + j] = sum as f32;
            }
        }
        let ours = product(stored(&a, [m, k], left), stored(&b, [k, n], right));
        assert_near(&format!("{m}x{n}x{k}, form {form}"), &ours, &expected);
    }
}

#[test]
fn products_of_any_shape_and_layout_match_f64() {
    let mut numbers = Numbers::new(1);
    for shape in [
        [1, 1, 1],
        [1, 33, 5],
        [12, 32, 16],
        [13, 33, 17],
        [31, 100, 300],
        [33, 31, 385],
        [8, 200, 130],
        [200, 8, 130],
        [350, 65, 40],
        [64, 300, 8],
        [700, 3, 9],
        [60, 200, 1700],
        [400, 400, 20],
    ] {
        check(&mut numbers, shape);
    }
    for _ in 0..40 {
        let shape = [
            1 + numbers.below(90),
            1 + numbers.below(90),
            1 + numbers.below(300),
        ];
        check(&mut numbers, shape);
    }
}

#[test]
fn a_tall_product_is_split_into_row_blocks() {
    let mut numbers = Numbers::new(2);
    let [m, n, k] = [4100, 17, 6];
    let (a, b) = (numbers.floats(m * k), numbers.floats(n * k));
    let ours = product(
        Matrix::from_rows(&a, k),
        Matrix::from_rows(&b, k).transposed(),
    );
    for (row, ours) in a.chunks(k).zip(ours.chunks(n)) {
        let expected: Vec<f32> = b
            .chunks(k)
            .map(|b| {
                row.iter()
                    .zip(b)
                    .map(|(a, b)| f64::from(a * b))
                    .sum::<f64>() as f32
            })
            .collect();
        assert_near("a row", ours, &expected);
    }
}

#[test]
fn a_product_without_depth_is_zero() {
    let none: [f32; 0] = [];
    let c = product(
        Matrix::strided(&none, [2, 0], 0),
        Matrix::strided(&none, [0, 3], 0),
    );
    assert_eq!(c.to_vec(), [0.0; 6]);
}

#[test]
fn nan_and_infinity_reach_exactly_the_elements_that_depend_on_them() {
    let mut numbers = Numbers::new(4);
    for [m, n, k] in [[40, 50, 30], [5, 70, 30], [70, 5, 30]] {
        let (mut a, mut b) = (numbers.floats(m * k), numbers.floats(k * n));
        a[3 * k + 7] = f32::NAN;
        b[2 * n + 4] = f32::INFINITY;
        let c = product(Matrix::from_rows(&a, k), Matrix::from_rows(&b, n));
        for (i, row) in c.chunks(n).enumerate() {
            for (j, value) in row.iter().enumerate() {
                assert_eq!(
                    value.is_finite(),
                    i != 3 && j != 4,
                    "{m}x{n}: {i}, {j}: {value}"
                );
            }
        }
    }
}

/// Invariant: The number of threads does not change a bit of a result.
#[test]
fn results_are_bit_identical_for_any_number_of_threads() {
    let mut numbers = Numbers::new(5);
    for [m, n, k] in [
        [300, 200, 600],
        [9, 600, 300],
        [5000, 20, 40],
        [600, 8, 300],
    ] {
        let (a, b) = (numbers.floats(m * k), numbers.floats(k * n));
        let run = |threads| {
            on_threads(threads, || {
                product(
                    Matrix::from_rows(&a, k),
                    Matrix::from_rows(&b, k).transposed(),
                )
            })
        };
        assert!(run(1) == run(2) && run(1) == run(5), "{m}x{n}x{k}");
    }
}
