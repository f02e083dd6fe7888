//! Pairs expected calls with predicted calls so that the total score is maximal.

/// Returns the pairs of rows and columns with the largest total gain. Each row and column is in at
/// most one pair, and every row or column of the shorter side is in a pair. All rows must have the
/// same length.
///
/// # Source
///
/// Kuhn, "The Hungarian Method for the Assignment Problem", with potentials, in O(rows × columns²).
pub(super) fn max_gain_pairs(gains: &[Vec<i64>]) -> Vec<(usize, usize)> {
    let n_columns = gains.first().map_or(0, Vec::len);
    if gains.len() > n_columns {
        let transposed: Vec<Vec<i64>> = (0..n_columns)
            .map(|column| gains.iter().map(|row| row[column]).collect())
            .collect();
        let pairs = max_gain_pairs(&transposed).into_iter();
        return pairs.map(|(column, row)| (row, column)).collect();
    }
    // Rows and columns are numbered from 1; column 0 contains the row that is being assigned.
    let mut row_of = vec![0; n_columns + 1];
    let (mut row_potential, mut column_potential) =
        (vec![0_i64; gains.len() + 1], vec![0_i64; n_columns + 1]);
    for row in 1..=gains.len() {
        row_of[0] = row;
        let mut current_column = 0;
        let mut previous = vec![0; n_columns + 1];
        let mut slack = vec![i64::MAX; n_columns + 1];
        let mut is_done = vec![false; n_columns + 1];
        while row_of[current_column] != 0 {
            is_done[current_column] = true;
            let row_here = row_of[current_column];
            let (mut step, mut next_column) = (i64::MAX, 0);
            for column in 1..=n_columns {
                if is_done[column] {
                    continue;
                }
                let cost = -gains[row_here - 1][column - 1];
                let reduced_cost = cost - row_potential[row_here] - column_potential[column];
                if reduced_cost < slack[column] {
                    (slack[column], previous[column]) = (reduced_cost, current_column);
                }
                if slack[column] < step {
                    (step, next_column) = (slack[column], column);
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
            current_column = next_column;
        }
        while current_column != 0 {
            row_of[current_column] = row_of[previous[current_column]];
            current_column = previous[current_column];
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

    /// The largest total, found by trying all pairings.
    fn largest_total(
        gains: &[Vec<i64>],
        row: usize,
        is_taken: &mut Vec<bool>,
        n_left: usize,
    ) -> i64 {
        if n_left == 0 || row == gains.len() {
            return 0;
        }
        let mut best = i64::MIN;
        if gains.len() - row > n_left {
            best = largest_total(gains, row + 1, is_taken, n_left);
        }
        for column in 0..is_taken.len() {
            if !is_taken[column] {
                is_taken[column] = true;
                let rest_gain = largest_total(gains, row + 1, is_taken, n_left - 1);
                best = best.max(gains[row][column] + rest_gain);
                is_taken[column] = false;
            }
        }
        best
    }

    proptest! {
        #[test]
        fn the_pairs_have_the_largest_total_gain(
            gains in (0_usize..5, 0_usize..5).prop_flat_map(|(rows, columns)| {
                prop::collection::vec(prop::collection::vec(-9_i64..9, columns), rows)
            })
        ) {
            let pairs = max_gain_pairs(&gains);
            let n_columns = gains.first().map_or(0, Vec::len);
            let n_pairs = gains.len().min(n_columns);
            prop_assert_eq!(pairs.len(), n_pairs);
            let sum: i64 = pairs.iter().map(|&(row, column)| gains[row][column]).sum();
            prop_assert_eq!(sum, largest_total(&gains, 0, &mut vec![false; n_columns], n_pairs));
            let mut columns: Vec<usize> = pairs.iter().map(|pair| pair.1).collect();
            columns.sort_unstable();
            columns.dedup();
            prop_assert_eq!(columns.len(), n_pairs);
        }
    }
}
