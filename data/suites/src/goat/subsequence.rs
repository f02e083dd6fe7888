//! Finds the longest common subsequence of two lists of words, 64 cells of the table at a time.
//!
//! A row of the table of lengths grows by 0 or 1 from each cell to the next, so that a row is one
//! bit for each word, and the next row follows from it by a sum and three operations on bits. The
//! way back through the table asks for nothing else than these bits; some rows are kept, and those
//! between are made again, so that memory grows with the square root of the table.
//!
//! # Source
//!
//! Hyyrö 2004, "Bit-parallel LCS-length computation revisited".

use std::collections::HashMap;

const BITS: usize = 64;

/// What may still be computed, in words of 64 cells.
#[derive(Debug)]
pub(super) struct Steps(u64);

impl Steps {
    pub(super) fn new(n: u64) -> Self {
        Self(n)
    }

    /// None if there are fewer than `n` left.
    pub(super) fn take(&mut self, n: usize) -> Option<()> {
        self.0 = self.0.checked_sub(n as u64)?;
        Some(())
    }
}

/// The words of a text as numbers, equal ones alike.
#[derive(Debug, Default)]
pub(super) struct Interner<'t> {
    numbers: HashMap<&'t str, usize>,
}

impl<'t> Interner<'t> {
    pub(super) fn numbers(&mut self, words: impl Iterator<Item = &'t str>) -> Vec<usize> {
        let number = |word| {
            let next = self.numbers.len();
            *self.numbers.entry(word).or_insert(next)
        };
        words.map(number).collect()
    }
}

/// The rows of the table of `rows` by `columns`.
struct Table<'w> {
    rows: &'w [usize],
    /// Where each word stands among the columns.
    places: HashMap<usize, Places>,
    n_blocks: usize,
}

enum Places {
    Few(Vec<usize>),
    /// As bits, where the list would be longer.
    Many(Vec<u64>),
}

/// A set bit says that the row does not grow at that column.
type Row = Vec<u64>;

impl<'w> Table<'w> {
    fn new(rows: &'w [usize], columns: &[usize]) -> Self {
        let n_blocks = columns.len().div_ceil(BITS);
        let mut lists: HashMap<usize, Vec<usize>> = HashMap::new();
        for (at, word) in columns.iter().enumerate() {
            lists.entry(*word).or_default().push(at);
        }
        let places = lists.into_iter().map(|(word, list)| {
            if list.len() <= n_blocks {
                return (word, Places::Few(list));
            }
            let mut bits = vec![0; n_blocks];
            list.iter()
                .for_each(|at| bits[at / BITS] |= 1 << (at % BITS));
            (word, Places::Many(bits))
        });
        Self {
            rows,
            places: places.collect(),
            n_blocks,
        }
    }

    fn before_the_first(&self) -> Row {
        vec![u64::MAX; self.n_blocks]
    }

    /// Turns a row into the one below it; `scratch` holds zeros before and after.
    fn advance(&self, row: &mut Row, word: usize, scratch: &mut [u64]) {
        match self.places.get(&word) {
            None => {}
            Some(Places::Many(bits)) => step(row, bits),
            Some(Places::Few(list)) => {
                list.iter()
                    .for_each(|at| scratch[at / BITS] |= 1 << (at % BITS));
                step(row, scratch);
                list.iter().for_each(|at| scratch[at / BITS] = 0);
            }
        }
    }
}

fn step(row: &mut [u64], equal: &[u64]) {
    let mut carry = false;
    for (cells, equal) in row.iter_mut().zip(equal) {
        let kept = *cells & equal;
        let (sum, first) = cells.overflowing_add(kept);
        let (sum, second) = sum.overflowing_add(u64::from(carry));
        carry = first || second;
        *cells = sum | (*cells & !equal);
    }
}

/// The length of a longest common subsequence; none if it takes more steps than are left.
pub(super) fn common_length(left: &[usize], right: &[usize], steps: &mut Steps) -> Option<usize> {
    let table = Table::new(left, right);
    steps.take(left.len().saturating_mul(table.n_blocks))?;
    let mut row = table.before_the_first();
    let mut scratch = vec![0; table.n_blocks];
    for word in left {
        table.advance(&mut row, *word, &mut scratch);
    }
    Some((0..right.len()).filter(|at| grows(&row, *at)).count())
}

fn grows(row: &[u64], column: usize) -> bool {
    row[column / BITS] >> (column % BITS) & 1 == 0
}

/// Positions in `reference` of one longest common subsequence, from the last to the first; of
/// several the one that the way back finds which goes up only where that alone keeps the length.
/// None if it takes more steps than are left.
pub(super) fn common_subsequence(
    reference: &[usize],
    hypothesis: &[usize],
    steps: &mut Steps,
) -> Option<Vec<usize>> {
    let table = Table::new(reference, hypothesis);
    // Every row is made twice.
    let n_cells = reference.len().saturating_mul(table.n_blocks.max(1));
    steps.take(n_cells.saturating_mul(2))?;
    let stride = reference.len().isqrt().max(1);
    let mut scratch = vec![0; table.n_blocks];
    let mut row = table.before_the_first();
    let mut kept = Vec::with_capacity(reference.len() / stride + 1);
    for (at, word) in reference.iter().enumerate() {
        if at % stride == 0 {
            kept.push(row.clone());
        }
        table.advance(&mut row, *word, &mut scratch);
    }
    let mut found = Vec::new();
    let mut column = hypothesis.len();
    for (strip, first) in kept.into_iter().enumerate().rev() {
        let begin = strip * stride;
        let end = (begin + stride).min(reference.len());
        let mut rows = Vec::with_capacity(end - begin);
        let mut row = first;
        for word in &table.rows[begin..end] {
            table.advance(&mut row, *word, &mut scratch);
            rows.push(row.clone());
        }
        let mut at = end;
        while at > begin && column > 0 {
            if reference[at - 1] == hypothesis[column - 1] {
                found.push(at - 1);
                (at, column) = (at - 1, column - 1);
            } else if grows(&rows[at - 1 - begin], column - 1) {
                at -= 1;
            } else {
                column -= 1;
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use tooltune_rows::batches::SeededRandom;

    use super::*;

    /// The table itself, and the way back through it as the package `rouge` goes it.
    fn by_table(reference: &[usize], hypothesis: &[usize]) -> Vec<usize> {
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
        let mut found = Vec::new();
        let (mut i, mut j) = (n, m);
        while i > 0 && j > 0 {
            if reference[i - 1] == hypothesis[j - 1] {
                found.push(i - 1);
                (i, j) = (i - 1, j - 1);
            } else if lengths[i - 1][j] > lengths[i][j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        found
    }

    #[test]
    fn the_subsequence_is_that_of_the_table() {
        let mut random = SeededRandom::new(4, 7);
        for _ in 0..3_000 {
            let n_words = 1 + random.below(12);
            let mut words = |most: usize| -> Vec<usize> {
                let n = random.below(most);
                (0..n).map(|_| random.below(n_words)).collect()
            };
            let (reference, hypothesis) = (words(150), words(150));
            let expected = by_table(&reference, &hypothesis);
            let mut steps = Steps::new(u64::MAX);
            let found = common_subsequence(&reference, &hypothesis, &mut steps);
            assert_eq!(
                found.as_ref(),
                Some(&expected),
                "{reference:?} {hypothesis:?}"
            );
            let length = common_length(&reference, &hypothesis, &mut steps);
            assert_eq!(length, Some(expected.len()));
        }
    }

    #[test]
    fn steps_run_out() {
        let words: Vec<usize> = (0..640).collect();
        assert_eq!(
            common_length(&words, &words, &mut Steps::new(6_400)),
            Some(640)
        );
        assert_eq!(common_length(&words, &words, &mut Steps::new(6_399)), None);
        let found = common_subsequence(&words, &words, &mut Steps::new(12_799));
        assert_eq!(found, None);
    }
}
