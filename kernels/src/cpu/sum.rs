//! Sums in a fixed order that vectors of any width can follow.

/// Partial sums side by side; enough for two of the widest vectors.
const LANES: usize = 32;

/// `Σ f(aᵢ, bᵢ)`.
#[inline(always)]
pub(crate) fn sum_of_pairs<A: Copy, B: Copy>(a: &[A], b: &[B], f: impl Fn(A, B) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_lines, b_lines) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a_lines.remainder().iter().zip(b_lines.remainder());
    let rest: f32 = rest.map(|(&a, &b)| f(a, b)).sum();
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
    lanes[0] + rest
}
