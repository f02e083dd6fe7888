//! Sums in a fixed order that suits vectors of any width.

/// Parallel partial sums; enough for two of the widest vectors.
const LANES: usize = 32;

/// `Σ f(aᵢ, bᵢ)`.
#[inline(always)]
pub(crate) fn sum_of_pairs<A: Copy, B: Copy>(a: &[A], b: &[B], f: impl Fn(A, B) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_lines, b_lines) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let remainder = a_lines.remainder().iter().zip(b_lines.remainder());
    let remainder: f32 = remainder.map(|(&a, &b)| f(a, b)).sum();
    for (a, b) in a_lines.zip(b_lines) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += f(a, b);
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0] + remainder
}
