//! Computes the largest singular values and vectors of a matrix, in f64.
//!
//! PiSSA needs only a few singular values of matrices with thousands of rows. Lanczos iteration on
//! `Wᵀ W` with full reorthogonalisation computes them with matrix-vector products only.

use rayon::prelude::*;
use tooltune_rows::batches::SeededRandom;

/// A matrix, `[rows, columns]`, that is multiplied with vectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) values: &'a [f32],
    pub(super) columns: usize,
}

/// Singular values with their vectors, largest first.
#[derive(Debug)]
pub(super) struct SingularValues {
    pub(super) values: Vec<f64>,
    /// One left vector per value, with one entry per row.
    pub(super) left: Vec<Vec<f64>>,
    /// One right vector per value, with one entry per column.
    pub(super) right: Vec<Vec<f64>>,
}

/// Rows per partial sum of a product. The number is fixed, so that results do not depend on the
/// number of threads.
const ROWS: usize = 128;

/// Tolerance of the squared singular values, relative to the largest one.
const TOLERANCE: f64 = 1e-12;

impl Matrix<'_> {
    fn n_rows(self) -> usize {
        self.values.len() / self.columns
    }

    /// Returns `W x`.
    fn product(self, x: &[f64]) -> Vec<f64> {
        let rows = self.values.par_chunks_exact(self.columns);
        rows.map(|row| dot_f32(row, x)).collect()
    }

    /// Returns `Wᵀ y`.
    fn transposed_product(self, y: &[f64]) -> Vec<f64> {
        let parts = self.values.par_chunks(ROWS * self.columns);
        let parts = parts.zip(y.par_chunks(ROWS));
        let sums: Vec<Vec<f64>> = parts
            .map(|(rows, y)| {
                let mut sum = vec![0.0; self.columns];
                for (row, factor) in rows.chunks_exact(self.columns).zip(y) {
                    add_f32(&mut sum, row, *factor);
                }
                sum
            })
            .collect();
        sum_all(sums, self.columns)
    }

    /// Returns `Wᵀ W x` with one pass over the matrix.
    fn gram_product(self, x: &[f64]) -> Vec<f64> {
        let parts = self.values.par_chunks(ROWS * self.columns);
        let sums: Vec<Vec<f64>> = parts
            .map(|rows| {
                let mut sum = vec![0.0; self.columns];
                for row in rows.chunks_exact(self.columns) {
                    add_f32(&mut sum, row, dot_f32(row, x));
                }
                sum
            })
            .collect();
        sum_all(sums, self.columns)
    }

    /// The `n` largest singular values, or fewer if the matrix has fewer rows or columns.
    pub(super) fn largest(self, n: usize, random: &mut SeededRandom) -> SingularValues {
        let n = n.min(self.n_rows()).min(self.columns);
        let right = largest_vectors(self.columns, n, random, |x| self.gram_product(x));
        let triples = right.into_iter().map(|right| {
            let mut left = self.product(&right);
            let value = norm(&left);
            scale(&mut left, if value > 0.0 { 1.0 / value } else { 0.0 });
            (value, left, right)
        });
        SingularValues::sorted(triples)
    }

    /// Approximates the `n` largest singular values with `n` random vectors and `iterations`
    /// products with `W` and `Wᵀ`.
    ///
    /// # Source
    ///
    /// `torch.svd_lowrank` with `q = n`; Halko et al. 2011 ("Finding structure with randomness"),
    /// algorithm 5.1.
    pub(super) fn sketch(
        self,
        n: usize,
        iterations: usize,
        random: &mut SeededRandom,
    ) -> SingularValues {
        let n = n.min(self.n_rows()).min(self.columns);
        let start: Vec<Vec<f64>> = (0..n)
            .map(|_| random_unit_vector(self.columns, random))
            .collect();
        let project = |vectors: &[Vec<f64>]| {
            let products = vectors.iter().map(|x| self.product(x));
            orthonormalize(products.collect())
        };
        let project_back = |vectors: &[Vec<f64>]| {
            let products = vectors.iter().map(|y| self.transposed_product(y));
            products.collect::<Vec<Vec<f64>>>()
        };
        let mut basis = project(&start);
        for _ in 0..iterations {
            basis = project(&orthonormalize(project_back(&basis)));
        }
        // `small` is `Qᵀ W`. Multiplied by Q, its left singular vectors are the left singular
        // vectors of W.
        let small = project_back(&basis);
        let small_left = largest_vectors(n, n, random, |x| {
            let mut sum = vec![0.0; self.columns];
            for (row, factor) in small.iter().zip(x) {
                add(&mut sum, row, *factor);
            }
            small.iter().map(|row| dot(row, &sum)).collect()
        });
        let triples = small_left.into_iter().map(|coordinates| {
            let mut right = vec![0.0; self.columns];
            let mut left = vec![0.0; self.n_rows()];
            for (i, factor) in coordinates.iter().enumerate() {
                add(&mut right, &small[i], *factor);
                add(&mut left, &basis[i], *factor);
            }
            let value = norm(&right);
            scale(&mut right, if value > 0.0 { 1.0 / value } else { 0.0 });
            (value, left, right)
        });
        SingularValues::sorted(triples)
    }
}

impl SingularValues {
    fn sorted(triples: impl Iterator<Item = (f64, Vec<f64>, Vec<f64>)>) -> Self {
        let mut triples: Vec<_> = triples.collect();
        triples.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut sorted = Self {
            values: Vec::new(),
            left: Vec::new(),
            right: Vec::new(),
        };
        for (value, left, right) in triples {
            sorted.values.push(value);
            sorted.left.push(left);
            sorted.right.push(right);
        }
        sorted
    }
}

/// Eigenvectors of the `n` largest eigenvalues of a positive semidefinite matrix `[size, size]`;
/// `apply` multiplies the matrix with a vector.
///
/// # Source
///
/// Golub and Van Loan, "Matrix Computations", chapter 10: Lanczos with complete
/// reorthogonalisation, restarted when an invariant subspace is found.
fn largest_vectors(
    size: usize,
    n: usize,
    random: &mut SeededRandom,
    apply: impl Fn(&[f64]) -> Vec<f64>,
) -> Vec<Vec<f64>> {
    let mut basis: Vec<Vec<f64>> = Vec::new();
    let (mut diagonal, mut off_diagonal) = (Vec::new(), Vec::new());
    let mut next = random_unit_vector(size, random);
    let mut next_check = (2 * n + 8).min(size);
    loop {
        let mut product = apply(&next);
        diagonal.push(dot(&product, &next));
        basis.push(next);
        let largest = diagonal.iter().copied().fold(0.0, f64::max);
        deflate(&mut product, &basis);
        let mut residual = norm(&product);
        if residual <= f64::EPSILON * largest * size as f64 || residual == 0.0 {
            residual = 0.0;
            product = random_unit_vector(size, random);
            deflate(&mut product, &basis);
            let length = norm(&product);
            scale(&mut product, if length > 0.0 { 1.0 / length } else { 0.0 });
        } else {
            scale(&mut product, 1.0 / residual);
        }
        let is_full_basis = basis.len() == size;
        if is_full_basis || basis.len() >= next_check {
            let eigenpairs = tridiagonal(diagonal.clone(), off_diagonal.clone());
            let last = basis.len() - 1;
            let top = &eigenpairs[..n];
            let is_converged = |(_, vector): &(f64, Vec<f64>)| {
                residual * vector[last].abs() <= TOLERANCE * eigenpairs[0].0.max(f64::MIN_POSITIVE)
            };
            if is_full_basis || top.iter().all(is_converged) {
                return top
                    .iter()
                    .map(|(_, vector)| combine(&basis, vector))
                    .collect();
            }
            next_check = (next_check + next_check / 4 + 8).min(size);
        }
        off_diagonal.push(residual);
        next = product;
    }
}

/// Eigenvalues and eigenvectors of a symmetric tridiagonal matrix, largest first.
///
/// # Source
///
/// Bowdler et al. 1968 ("The QR and QL algorithms for symmetric matrices"): implicit QL.
fn tridiagonal(mut d: Vec<f64>, mut e: Vec<f64>) -> Vec<(f64, Vec<f64>)> {
    let n = d.len();
    e.resize(n, 0.0);
    // Transposed eigenvector matrix, so that each Givens rotation updates two contiguous rows.
    let mut vectors: Vec<Vec<f64>> = (0..n)
        .map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect())
        .collect();
    for l in 0..n {
        // An eigenvalue usually needs two or three iterations.
        for _ in 0..100 {
            let is_small = |m: usize| e[m].abs() <= f64::EPSILON * (d[m].abs() + d[m + 1].abs());
            let m = (l..n - 1).find(|&m| is_small(m)).unwrap_or(n - 1);
            if m == l {
                break;
            }
            let mut g = (d[l + 1] - d[l]) / (2.0 * e[l]);
            let mut r = g.hypot(1.0);
            g = d[m] - d[l] + e[l] / (g + r.copysign(g));
            let (mut s, mut c, mut p) = (1.0, 1.0, 0.0);
            let mut is_split = false;
            for i in (l..m).rev() {
                let (f, b) = (s * e[i], c * e[i]);
                r = f.hypot(g);
                e[i + 1] = r;
                if r == 0.0 {
                    d[i + 1] -= p;
                    e[m] = 0.0;
                    is_split = true;
                    break;
                }
                s = f / r;
                c = g / r;
                g = d[i + 1] - p;
                r = (d[i] - g) * s + 2.0 * c * b;
                p = s * r;
                d[i + 1] = g + p;
                g = c * r - b;
                let (low, high) = vectors.split_at_mut(i + 1);
                for (x, y) in low[i].iter_mut().zip(&mut high[0]) {
                    (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
                }
            }
            if !is_split {
                d[l] -= p;
                e[l] = g;
                e[m] = 0.0;
            }
        }
    }
    let mut eigenpairs: Vec<(f64, Vec<f64>)> = d.into_iter().zip(vectors).collect();
    eigenpairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    eigenpairs
}

/// Removes the span of `basis` from `x`. It does this twice, because one pass leaves a rounding
/// error.
fn deflate(x: &mut [f64], basis: &[Vec<f64>]) {
    for _ in 0..2 {
        for vector in basis {
            let share = dot(x, vector);
            add(x, vector, -share);
        }
    }
}

/// Orthonormalises vectors in order. Vectors that depend linearly on earlier ones become zero.
fn orthonormalize(vectors: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(vectors.len());
    for mut vector in vectors {
        let before = norm(&vector);
        deflate(&mut vector, &basis);
        let after = norm(&vector);
        let is_new = after > 1e-12 * before;
        scale(&mut vector, if is_new { 1.0 / after } else { 0.0 });
        basis.push(vector);
    }
    basis
}

fn combine(basis: &[Vec<f64>], factors: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; basis[0].len()];
    for (vector, factor) in basis.iter().zip(factors) {
        add(&mut sum, vector, *factor);
    }
    sum
}

/// A random vector of length 1.
fn random_unit_vector(size: usize, random: &mut SeededRandom) -> Vec<f64> {
    let mut vector: Vec<f64> = (0..size)
        .map(|_| random.uniform_f64() * 2.0 - 1.0)
        .collect();
    let length = norm(&vector);
    scale(&mut vector, if length > 0.0 { 1.0 / length } else { 0.0 });
    vector
}

fn sum_all(sums: Vec<Vec<f64>>, size: usize) -> Vec<f64> {
    let mut total = vec![0.0; size];
    for sum in sums {
        add(&mut total, &sum, 1.0);
    }
    total
}

/// Number of parallel partial sums, to use vector instructions.
const LANES: usize = 8;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

fn dot_f32(a: &[f32], b: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += f64::from(*a) * b;
        }
    }
    sums.iter().sum()
}

fn add(to: &mut [f64], from: &[f64], factor: f64) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

fn add_f32(to: &mut [f64], from: &[f32], factor: f64) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * f64::from(*from);
    }
}

fn norm(x: &[f64]) -> f64 {
    dot(x, x).sqrt()
}

fn scale(x: &mut [f64], factor: f64) {
    x.iter_mut().for_each(|x| *x *= factor);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A matrix with the given singular values and random singular vectors.
    fn matrix(rows: usize, columns: usize, values: &[f64]) -> Vec<f32> {
        let mut random = SeededRandom::new(7, 7);
        let random_basis = |size: usize, random: &mut SeededRandom| {
            let vectors = values.iter().map(|_| random_unit_vector(size, random));
            orthonormalize(vectors.collect())
        };
        let (left, right) = (
            random_basis(rows, &mut random),
            random_basis(columns, &mut random),
        );
        let mut sum = vec![0.0; rows * columns];
        for ((value, left), right) in values.iter().zip(&left).zip(&right) {
            for (row, factor) in sum.chunks_exact_mut(columns).zip(left) {
                add(row, right, value * factor);
            }
        }
        sum.into_iter().map(|x| x as f32).collect()
    }

    fn check(svd: &SingularValues, values: &[f64], tolerance: f64, matrix: Matrix<'_>) {
        for (i, (found_value, value)) in svd.values.iter().zip(values).enumerate() {
            let difference = (found_value - value).abs();
            assert!(difference < tolerance * values[0], "{found_value} {value}");
            let mut product = matrix.product(&svd.right[i]);
            add(&mut product, &svd.left[i], -found_value);
            assert!(
                norm(&product) < tolerance * values[0],
                "{i}: {}",
                norm(&product)
            );
        }
    }

    #[test]
    fn the_largest_singular_values_match_their_vectors() {
        let close: Vec<f64> = (0..60).map(|i| 5.0 - 0.01 * f64::from(i)).collect();
        let equal = vec![3.0; 12];
        let few = vec![2.0, 1.0];
        for (rows, columns, values) in [
            (80, 300, &close),
            (300, 80, &close),
            (64, 64, &close),
            (40, 30, &equal),
            (40, 30, &few),
        ] {
            let values_of = matrix(rows, columns, values);
            let matrix = Matrix {
                values: &values_of,
                columns,
            };
            let mut random = SeededRandom::new(1, 2);
            let n = 8.min(values.len());
            let svd = matrix.largest(8, &mut random);
            assert_eq!(svd.values.len(), 8);
            check(&svd, &values[..n], 1e-6, matrix);
            assert!(svd.values[n..].iter().all(|value| *value < 1e-6));
            let sketched = matrix.sketch(8, 200, &mut random);
            check(&sketched, &values[..n], 2e-2, matrix);
        }
    }

    #[test]
    fn a_zero_matrix_has_no_singular_values_and_a_row_has_one() {
        let mut random = SeededRandom::new(1, 2);
        let zeros = [0.0f32; 12];
        let svd = Matrix {
            values: &zeros,
            columns: 4,
        }
        .largest(3, &mut random);
        assert_eq!(svd.values, [0.0; 3]);
        let row = [3.0f32, 4.0];
        let svd = Matrix {
            values: &row,
            columns: 2,
        }
        .largest(3, &mut random);
        assert!(svd.values.len() == 1 && (svd.values[0] - 5.0).abs() < 1e-12);
    }
}
