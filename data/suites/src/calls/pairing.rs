//! Pairs wanted calls with those that were made, so that as much as possible is right.

/// Finds the pairs of rows and columns whose worths have the largest sum, each row and column in one
/// pair at most; all of the shorter side are paired. Rows must be of one length.
///
/// # Source
///
/// Kuhn, "The Hungarian Method for the Assignment Problem", with potentials, in rows × columns².
pub(super) fn best_pairs(worth: &[Vec<i64>]) -> Vec<(usize, usize)> {
    let n_columns = worth.first().map_or(0, Vec::len);
    if worth.len() > n_columns {
        let turned: Vec<Vec<i64>> = (0..n_columns)
            .map(|column| worth.iter().map(|row| row[column]).collect())
            .collect();
        let pairs = best_pairs(&turned).into_iter();
        return pairs.map(|(column, row)| (row, column)).collect();
    }
    // Rows and columns are counted from 1; column 0 holds the row that is being placed.
    let mut row_of = vec![0; n_columns + 1];
    let (mut row_potential, mut column_potential) =
        (vec![0_i64; worth.len() + 1], vec![0_i64; n_columns + 1]);
    for row in 1..=worth.len() {
        row_of[0] = row;
        let mut at = 0;
        let mut before = vec![0; n_columns + 1];
        let mut slack = vec![i64::MAX; n_columns + 1];
        let mut is_done = vec![false; n_columns + 1];
        while row_of[at] != 0 {
            is_done[at] = true;
            let here = row_of[at];
            let (mut step, mut next) = (i64::MAX, 0);
            for column in 1..=n_columns {
                if is_done[column] {
                    continue;
                }
                let cost = -worth[here - 1][column - 1];
                let reduced = cost - row_potential[here] - column_potential[column];
                if reduced < slack[column] {
                    (slack[column], before[column]) = (reduced, at);
                }
                if slack[column] < step {
                    (step, next) = (slack[column], column);
                }
            }
            for column in 0..=n_columns {
                if is_done[column] {
                    row_potential[row_of[column]] += step;
                    column_potential[column] -= step;
                } else if slack[column] != i64::MAX {
                    slack[column] -= step;
                }
            }
            at = next;
        }
        while at != 0 {
            row_of[at] = row_of[before[at]];
            at = before[at];
        }
    }
    let columns = row_of.into_iter().enumerate().skip(1);
    let mut pairs: Vec<(usize, usize)> = columns
        .filter(|&(_, row)| row != 0)
        .map(|(column, row)| (row - 1, column - 1))
        .collect();
    pairs.sort_unstable();
    pairs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The largest sum, by trying everything.
    fn largest(worth: &[Vec<i64>], row: usize, taken: &mut Vec<bool>, n_left: usize) -> i64 {
        if n_left == 0 || row == worth.len() {
            return 0;
        }
        let mut best = i64::MIN;
        if worth.len() - row > n_left {
            best = largest(worth, row + 1, taken, n_left);
        }
        for column in 0..taken.len() {
            if !taken[column] {
                taken[column] = true;
                let rest = largest(worth, row + 1, taken, n_left - 1);
                best = best.max(worth[row][column] + rest);
                taken[column] = false;
            }
        }
        best
    }

    proptest! {
        #[test]
        fn no_other_pairs_are_worth_more(
            worth in (0_usize..5, 0_usize..5).prop_flat_map(|(rows, columns)| {
                prop::collection::vec(prop::collection::vec(-9_i64..9, columns), rows)
            })
        ) {
            let pairs = best_pairs(&worth);
            let n_columns = worth.first().map_or(0, Vec::len);
            let n_pairs = worth.len().min(n_columns);
            prop_assert_eq!(pairs.len(), n_pairs);
            let sum: i64 = pairs.iter().map(|&(row, column)| worth[row][column]).sum();
            prop_assert_eq!(sum, largest(&worth, 0, &mut vec![false; n_columns], n_pairs));
            let mut columns: Vec<usize> = pairs.iter().map(|pair| pair.1).collect();
            columns.sort_unstable();
            columns.dedup();
            prop_assert_eq!(columns.len(), n_pairs);
        }
    }
}
