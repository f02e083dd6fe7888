//! How attention on slices is split into tasks: one key/value head of a document, or a range of
//! queries of a long document.
//!
//! A task packs its keys and values once for all query heads that share them. Tasks depend on
//! shapes only, never on the number of threads, so the summation order is fixed.

use super::cpu_operands::Rows;
use super::{Causality, Documents};

/// Maximum queries per task; long documents are split into several tasks.
const TASK_QUERIES: usize = 512;

/// Evaluates an expression with `$name` bound to this CPU's arithmetic for elements of type `$t`
/// and heads of size `$c`.
macro_rules! with_arithmetic {
    ($t:ty, $c:expr, $a:ident => $work:expr) => {
        match $crate::cpu::isa::Isa::detect() {
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::isa::Isa::Avx512
                if <$t>::DTYPE == burn::tensor::DType::BF16
                    && $c % 2 == 0
                    && $crate::cpu::isa::has_pairs()
                    && !$crate::cpu::isa::widens_pairs() =>
            {
                type $a = $crate::attention::cpu_tile_avx512::Pairs;
                $work
            }
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::isa::Isa::Avx512 => {
                type $a = $crate::attention::cpu_tile_avx512::Single;
                $work
            }
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::isa::Isa::Avx2 => {
                type $a = $crate::attention::cpu_tile::WithTiles<$crate::cpu::tile_avx2::Avx2<2>>;
                $work
            }
            $crate::cpu::isa::Isa::Portable => {
                type $a = $crate::attention::cpu_tile::WithTiles<$crate::cpu::tile::Portable>;
                $work
            }
        }
    };
}

pub(super) use with_arithmetic;

/// Head counts and sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    /// Number of query heads.
    pub(super) h: usize,
    /// Number of key/value heads.
    pub(super) g: usize,
    /// Head size.
    pub(super) c: usize,
    /// Multiplier of the scores.
    pub(super) scale: f32,
}

impl Heads {
    /// Heads per token: queries, keys and values.
    pub(super) fn all(&self) -> usize {
        self.h + 2 * self.g
    }

    /// Query heads that share the keys of `kv_head`.
    pub(super) fn group(&self, kv_head: usize) -> std::ops::Range<usize> {
        let group = self.h / self.g;
        kv_head * group..(kv_head + 1) * group
    }
}

/// Queries, keys and values, `[n, h + 2 g, c]`.
#[derive(Debug)]
pub(super) struct Inputs<'a, T> {
    pub(super) qkv: &'a [T],
    pub(super) heads: Heads,
    pub(super) causality: Causality,
}

/// Queries of the heads that share one key/value head of one document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    /// First token of the document.
    pub(super) start: usize,
    pub(super) kv_head: usize,
    /// First query, relative to the start of the document.
    pub(super) first: usize,
    pub(super) queries: usize,
    /// Number of leading keys that at least one of these queries attends to.
    pub(super) keys: usize,
}

impl<'a, T> Inputs<'a, T> {
    /// Splits the work into tasks; tasks of the same document and head are consecutive.
    pub(super) fn tasks(&self, documents: &Documents) -> Vec<Task> {
        let mut tasks = Vec::new();
        for (start, length) in documents.spans() {
            for kv_head in 0..self.heads.g {
                for first in (0..length).step_by(TASK_QUERIES) {
                    let queries = TASK_QUERIES.min(length - first);
                    tasks.push(Task {
                        start,
                        kv_head,
                        first,
                        queries,
                        keys: self.keys_seen(first + queries, length),
                    });
                }
            }
        }
        tasks
    }

    /// How many of the first `keys` keys are visible to the queries before `end`.
    pub(super) fn keys_seen(&self, end: usize, keys: usize) -> usize {
        match self.causality {
            Causality::Causal | Causality::Sliding(_) => end.min(keys),
            Causality::Bidirectional => keys,
        }
    }

    /// The first key visible to `query`.
    pub(super) fn first_seen(&self, query: usize) -> usize {
        match self.causality {
            Causality::Sliding(window) => (query + 1).saturating_sub(window),
            Causality::Causal | Causality::Bidirectional => 0,
        }
    }

    /// Rows of one head (of query, key and value heads) for `rows` tokens starting at `first`.
    pub(super) fn head(&self, head: usize, first: usize, rows: usize) -> Rows<'a, T> {
        let Heads { c, .. } = self.heads;
        let stride = self.heads.all() * c;
        Rows {
            numbers: &self.qkv[first * stride + head * c..],
            stride,
            rows,
            c,
        }
    }

    /// Keys of a task.
    pub(super) fn keys(&self, task: &Task) -> Rows<'a, T> {
        self.head(self.heads.h + task.kv_head, task.start, task.keys)
    }

    /// Values of a task.
    pub(super) fn values(&self, task: &Task) -> Rows<'a, T> {
        let head = self.heads.h + self.heads.g + task.kv_head;
        self.head(head, task.start, task.keys)
    }

    /// Masks the scores of keys that do not exist, come after their query or precede its window:
    /// sets them to `-∞`.
    ///
    /// Rows of `scores`, `stride` apart, are queries starting at `first`; columns are keys starting
    /// at `keys.start`. The first `columns` columns are filled.
    pub(super) fn mask_scores(
        &self,
        scores: &mut [f32],
        stride: usize,
        first: usize,
        keys: std::ops::Range<usize>,
        columns: usize,
    ) {
        let last = first + (scores.len() / stride).saturating_sub(1);
        let all_behind = self.keys_seen(first + 1, keys.end) >= keys.start + columns;
        if all_behind && self.first_seen(last) <= keys.start {
            return;
        }
        let column = |key: usize| key.saturating_sub(keys.start).min(columns);
        for (i, row) in scores.chunks_exact_mut(stride).enumerate() {
            let end = self.keys_seen(first + i + 1, keys.end);
            row[column(end)..columns].fill(f32::NEG_INFINITY);
            row[..column(self.first_seen(first + i))].fill(f32::NEG_INFINITY);
        }
    }
}
