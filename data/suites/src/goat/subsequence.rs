//! Finds the longest common subsequence of two word lists, 64 table cells at a time.
//!
//! Adjacent cells in a row of the length table differ by 0 or 1, so a row is stored as one bit per
//! word, and the next row is computed by an addition and three bit operations. The traceback needs
//! only these bits. Only some rows are stored, and the rows between them are recomputed, so memory
//! grows with the square root of the table size.
//!
//! # Source
//!
//! Hyyrö 2004, "Bit-parallel LCS-length computation revisited".

use std::collections::HashMap;

const BITS: usize = 64;

/// The remaining computation budget, in words of 64 cells.
#[derive(Debug)]
pub(super) struct StepBudget(u64);

impl StepBudget {
    pub(super) fn new(n: u64) -> Self {
        Self(n)
    }

    /// Uses `n` steps; `None` if fewer are left.
    pub(super) fn use_steps(&mut self, n: usize) -> Option<()> {
        self.0 = self.0.checked_sub(n as u64)?;
        Some(())
    }
}

/// Maps words to numbers; equal words have equal numbers.
#[derive(Debug, Default)]
pub(super) struct Interner<'t> {
    numbers: HashMap<&'t str, usize>,
}

impl<'t> Interner<'t> {
    pub(super) fn intern(&mut self, words: impl Iterator<Item = &'t str>) -> Vec<usize> {
        let number = |word| {
            let next_number = self.numbers.len();
            *self.numbers.entry(word).or_insert(next_number)
        };
        words.map(number).collect()
    }
}

/// The rows of a `rows` by `columns` table.
struct Table<'w> {
    rows: &'w [usize],
    /// Columns at which each word occurs.
    positions: HashMap<usize, WordPositions>,
    n_blocks: usize,
}

enum WordPositions {
    Few(Vec<usize>),
    /// As a bit set, if a list would be longer.
    Many(Vec<u64>),
}

/// A set bit means that the row does not increase at that column.
type Row = Vec<u64>;

impl<'w> Table<'w> {
    fn new(rows: &'w [usize], columns: &[usize]) -> Self {
        let n_blocks = columns.len().div_ceil(BITS);
        let mut lists: HashMap<usize, Vec<usize>> = HashMap::new();
        for (idx, word) in columns.iter().enumerate() {
            lists.entry(*word).or_default().push(idx);
        }
        let positions = lists.into_iter().map(|(word, list)| {
            if list.len() <= n_blocks {
                return (word, WordPositions::Few(list));
            }
            let mut bits = vec![0; n_blocks];
            list.iter()
                .for_each(|idx| bits[idx / BITS] |= 1 << (idx % BITS));
            (word, WordPositions::Many(bits))
        });
        Self {
            rows,
            positions: positions.collect(),
            n_blocks,
        }
    }

    fn initial_row(&self) -> Row {
        vec![u64::MAX; self.n_blocks]
    }

    /// Advances a row to the next row; `scratch` contains only zeros before and after.
    fn advance_row(&self, row: &mut Row, word: usize, scratch: &mut [u64]) {
        match self.positions.get(&word) {
            None => {}
            Some(WordPositions::Many(bits)) => step(row, bits),
            Some(WordPositions::Few(list)) => {
                list.iter()
                    .for_each(|idx| scratch[idx / BITS] |= 1 << (idx % BITS));
                step(row, scratch);
                list.iter().for_each(|idx| scratch[idx / BITS] = 0);
            }
        }
    }
}

fn step(row: &mut [u64], equal: &[u64]) {
    let mut carry = false;
    for (cells, equal) in row.iter_mut().zip(equal) {
        let matching = *cells & equal;
        let (sum, carried) = cells.overflowing_add(matching);
        let (sum, second) = sum.overflowing_add(u64::from(carry));
        carry = carried || second;
        *cells = sum | (*cells & !equal);
    }
}

/// Length of a longest common subsequence; `None` if computing it takes more steps than are left.
pub(super) fn common_length(
    left: &[usize],
    right: &[usize],
    steps: &mut StepBudget,
) -> Option<usize> {
    let table = Table::new(left, right);
    steps.use_steps(left.len().saturating_mul(table.n_blocks))?;
    let mut row = table.initial_row();
    let mut scratch = vec![0; table.n_blocks];
    for word in left {
        table.advance_row(&mut row, *word, &mut scratch);
    }
    Some((0..right.len()).filter(|idx| is_match(&row, *idx)).count())
}

fn is_match(row: &[u64], column: usize) -> bool {
    row[column / BITS] >> (column % BITS) & 1 == 0
}

/// Indices in `reference` of a longest common subsequence, from last to first. If there are
/// several, the traceback determines which one is returned: it moves up only if no other move keeps
/// the length. `None` if this takes more steps than are left.
pub(super) fn common_subsequence(
    reference: &[usize],
    hypothesis: &[usize],
    steps: &mut StepBudget,
) -> Option<Vec<usize>> {
    let table = Table::new(reference, hypothesis);
    // Every row is computed twice.
    let n_cells = reference.len().saturating_mul(table.n_blocks.max(1));
    steps.use_steps(n_cells.saturating_mul(2))?;
    let stride = reference.len().isqrt().max(1);
    let mut scratch = vec![0; table.n_blocks];
    let mut row = table.initial_row();
    let mut row_strips = Vec::with_capacity(reference.len() / stride + 1);
    for (idx, word) in reference.iter().enumerate() {
        if idx % stride == 0 {
            row_strips.push(row.clone());
        }
        table.advance_row(&mut row, *word, &mut scratch);
    }
    let mut positions = Vec::new();
    let mut column = hypothesis.len();
    for (strip, row_at_start) in row_strips.into_iter().enumerate().rev() {
        let strip_start = strip * stride;
        let end = (strip_start + stride).min(reference.len());
        let mut rows = Vec::with_capacity(end - strip_start);
        let mut row = row_at_start;
        for word in &table.rows[strip_start..end] {
            table.advance_row(&mut row, *word, &mut scratch);
            rows.push(row.clone());
        }
        let mut idx = end;
        while idx > strip_start && column > 0 {
            if reference[idx - 1] == hypothesis[column - 1] {
                positions.push(idx - 1);
                (idx, column) = (idx - 1, column - 1);
            } else if is_match(&rows[idx - 1 - strip_start], column - 1) {
                idx -= 1;
            } else {
                column -= 1;
            }
        }
    }
    Some(positions)
}

#[cfg(test)]
mod tests {
    use tooltune_rows::batches::SeededRandom;

    use super::*;

    /// The result of the full table, with the traceback of the package `rouge`.
    fn subsequence_by_table(reference: &[usize], hypothesis: &[usize]) -> Vec<usize> {
        let (n, m) = (reference.len(), hypothesis.len());
        let mut lengths = vec![vec![0_u32; m + 1]; n + 1];
        for i in 1..=n {
            for j in 1..=m {
                lengths[i][j] = if reference[i - 1] == hypothesis[j - 1] {
                    lengths[i - 1][j - 1] + 1
                } else {
                    lengths[i - 1][j].max(lengths[i][j - 1])
                };
            }
        }
        let mut positions = Vec::new();
        let (mut i, mut j) = (n, m);
        while i > 0 && j > 0 {
            if reference[i - 1] == hypothesis[j - 1] {
                positions.push(i - 1);
                (i, j) = (i - 1, j - 1);
            } else if lengths[i - 1][j] > lengths[i][j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        positions
    }

    #[test]
    fn the_subsequence_equals_the_full_table() {
        let mut random = SeededRandom::new(4, 7);
        for _ in 0..3_000 {
            let n_words = 1 + random.below(12);
            let mut random_words = |n_random: usize| -> Vec<usize> {
                let n = random.below(n_random);
                (0..n).map(|_| random.below(n_words)).collect()
            };
            let (reference, hypothesis) = (random_words(150), random_words(150));
            let expected = subsequence_by_table(&reference, &hypothesis);
            let mut steps = StepBudget::new(u64::MAX);
            let positions = common_subsequence(&reference, &hypothesis, &mut steps);
            assert_eq!(
                positions.as_ref(),
                Some(&expected),
                "{reference:?} {hypothesis:?}"
            );
            let length = common_length(&reference, &hypothesis, &mut steps);
            assert_eq!(length, Some(expected.len()));
        }
    }

    #[test]
    fn the_comparison_stops_when_its_budget_is_used_up() {
        let words: Vec<usize> = (0..640).collect();
        assert_eq!(
            common_length(&words, &words, &mut StepBudget::new(6_400)),
            Some(640)
        );
        assert_eq!(
            common_length(&words, &words, &mut StepBudget::new(6_399)),
            None
        );
        let positions = common_subsequence(&words, &words, &mut StepBudget::new(12_799));
        assert_eq!(positions, None);
    }
}
