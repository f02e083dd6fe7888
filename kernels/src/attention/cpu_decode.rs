//! Attention of one query a row on slices, to keys that are read in the cache where they lie.

use rayon::prelude::*;

use super::cpu::{Heads, pack_columns};
use super::softmax::exponentiate;
use crate::cpu::scratch::with_scratch;
use crate::cpu::shared::Shared;
use crate::cpu::tile::Tile;
use crate::cpu::tiles::{Left, Lines, Target, multiply};
use crate::cpu::with_tile;

/// Query heads of one key head that go side by side.
const W: usize = 16;

/// Keys and values of the rows, `[b, g, capacity, c]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cache<'a> {
    pub(super) keys: &'a [f32],
    pub(super) values: &'a [f32],
    pub(super) heads: Heads,
    pub(super) capacity: usize,
    /// Columns in use.
    pub(super) n_columns: usize,
}

/// `[b, h, c]` to the same: row `i` sees columns from `starts[i]` on.
pub(super) fn decode(q: &[f32], cache: &Cache<'_>, starts: &[usize]) -> Vec<f32> {
    let Heads { h, g, c } = cache.heads;
    assert!(
        cache.n_columns <= cache.capacity,
        "columns within the cache"
    );
    assert_eq!(q.len(), starts.len() * h * c, "one start a row");
    let mut out = vec![0.0; q.len()];
    let shared = Shared::new(&mut out);
    let group = h / g;
    (0..starts.len() * g).into_par_iter().for_each(|task| {
        let (row, kv_head) = (task / g, task % g);
        for first in (0..group).step_by(W) {
            let heads = W.min(group - first);
            let at = (row * h + kv_head * group + first) * c;
            // SAFETY: the heads of this row and key head belong to this task alone.
            let out = unsafe { shared.slice(at, heads * c) };
            let columns = starts[row]..cache.n_columns;
            // SAFETY: `with_tile` names an instruction set that the CPU has.
            with_tile!(T, 1 => unsafe {
                one_group::<T>(cache, task, columns, &q[at..at + heads * c], out)
            });
        }
    });
    out
}

/// Query heads `q`, `[heads, c]`, that share the keys of `kv`, a row's key head.
///
/// # Safety
///
/// The CPU has the instruction set of `T`.
unsafe fn one_group<T: Tile>(
    cache: &Cache<'_>,
    kv: usize,
    columns: std::ops::Range<usize>,
    q: &[f32],
    out: &mut [f32],
) {
    let heads @ Heads { c, .. } = cache.heads;
    let used = (kv * cache.capacity + columns.start) * c..(kv * cache.capacity + columns.end) * c;
    let (keys, values) = (&cache.keys[used.clone()], &cache.values[used]);
    let n = columns.len();
    with_scratch((n + 2 * c) * W, |scratch| {
        let (queries, rest) = scratch.split_at_mut(c * W);
        let (attended, scores) = rest.split_at_mut(c * W);
        pack_columns::<W>(q, [q.len() / c, c], c, heads.scale(), queries);
        let (mut maxima, mut sums) = ([0.0; W], [0.0; W]);
        let lines = |x: &[f32]| Lines {
            first: x.as_ptr(),
            stride: W,
        };
        let target = |x: &mut [f32]| Target {
            first: x.as_mut_ptr(),
            row_stride: W,
            adds: false,
        };
        let by_key = Left {
            first: keys.as_ptr(),
            row_stride: c,
            depth_stride: 1,
        };
        let by_value = Left {
            first: values.as_ptr(),
            row_stride: 1,
            depth_stride: c,
        };
        // SAFETY: `keys` and `values` are `n` rows of `c` floats, the scratch has room for `n`
        // lines of scores and `c` lines of queries and results.
        unsafe {
            multiply::<T>(target(scores), by_key, lines(queries), [n, W, c]);
            exponentiate::<W>(scores, &mut maxima, &mut sums);
            multiply::<T>(target(attended), by_value, lines(scores), [c, W, n]);
        }
        for (j, out) in out.chunks_exact_mut(c).enumerate() {
            for (value, line) in out.iter_mut().zip(attended.chunks_exact(W)) {
                *value = line[j] / sums[j];
            }
        }
    });
}
