//! Computes the mean of a sample and a percentile-bootstrap interval, reproducibly.
//!
//! Rows are drawn with replacement [`N_RESAMPLES`] times from a fixed seed, so the same scores
//! always print the same interval. All metrics of a data set are resampled together, row by row.

use serde::{Deserialize, Serialize};

/// Resamples behind an interval.
const N_RESAMPLES: usize = 1000;

/// Seed of the draws; any other number would serve as well.
const SEED: u64 = 17;

/// Share of the resamples cut off at either end: together 5 %.
const TAIL: f64 = 0.025;

/// A mean and its bootstrap 95 % interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Mean over the rows.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Estimates the mean of each of `N` columns; `rows` must not be empty.
///
/// # Source
///
/// Efron and Tibshirani, An Introduction to the Bootstrap, section 13.3 (percentile interval).
pub(super) fn estimates<const N: usize>(rows: &[[f64; N]]) -> [Estimate; N] {
    let means = column_means(rows.iter());
    if are_equal(rows) {
        return means.map(|mean| percentile_interval(mean, Vec::new()));
    }
    let resampled = resampled_means(rows, N_RESAMPLES, SEED);
    std::array::from_fn(|column| {
        let resampled = resampled.iter().map(|means| means[column]).collect();
        percentile_interval(means[column], resampled)
    })
}

/// Column means of `n_resamples` draws of as many rows as there are, with replacement.
pub(super) fn resampled_means<const N: usize>(
    rows: &[[f64; N]],
    n_resamples: usize,
    seed: u64,
) -> Vec<[f64; N]> {
    let mut draws = SplitMix64 { state: seed };
    (0..n_resamples)
        .map(|_| column_means((0..rows.len()).map(|_| &rows[draws.below(rows.len())])))
        .collect()
}

/// A value with the percentile interval of its resamples; without any, an interval of no width.
pub(super) fn percentile_interval(value: f64, mut resampled: Vec<f64>) -> Estimate {
    resampled.sort_unstable_by(f64::total_cmp);
    let n_cut = (TAIL * resampled.len() as f64) as usize;
    let (low, high) = match resampled.len() {
        0 => (value, value),
        n => (resampled[n_cut], resampled[n - 1 - n_cut]),
    };
    Estimate { value, low, high }
}

/// Estimates the ratio of two sums, from rows of (numerator, denominator).
///
/// Such is a mean over some of the rows: each row that counts gives (value, 1), each other (0, 0).
/// Resamples whose denominators are all zero have no ratio and are left out; where no row has a
/// denominator there is no estimate.
pub(super) fn ratio_estimate(rows: &[(f64, f64)]) -> Option<Estimate> {
    let value = ratio_of_sums(rows.iter())?;
    if are_equal(rows) {
        return Some(percentile_interval(value, Vec::new()));
    }
    let mut draws = SplitMix64 { state: SEED };
    let resampled = (0..N_RESAMPLES)
        .filter_map(|_| ratio_of_sums((0..rows.len()).map(|_| &rows[draws.below(rows.len())])))
        .collect();
    Some(percentile_interval(value, resampled))
}

/// Whether every resample is the sample itself, as in the many groups of one row.
fn are_equal<R: PartialEq>(rows: &[R]) -> bool {
    rows.windows(2).all(|pair| pair[0] == pair[1])
}

/// The mean of the values that there are; none without any.
pub(super) fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<Estimate> {
    let rows: Vec<(f64, f64)> = values
        .map(|value| value.map_or((0.0, 0.0), |value| (value, 1.0)))
        .collect();
    ratio_estimate(&rows)
}

pub(super) fn indicator(holds: bool) -> f64 {
    if holds { 1.0 } else { 0.0 }
}

fn ratio_of_sums<'r>(rows: impl Iterator<Item = &'r (f64, f64)>) -> Option<f64> {
    let (above, below) = rows.fold((0.0, 0.0), |(above, below), row| {
        (above + row.0, below + row.1)
    });
    (below != 0.0).then(|| above / below)
}

/// Means of the columns of at least one row.
pub(super) fn column_means<'r, const N: usize>(
    rows: impl ExactSizeIterator<Item = &'r [f64; N]>,
) -> [f64; N] {
    let n_rows = rows.len() as f64;
    let sums = rows.fold([0.0; N], |sums, row| {
        std::array::from_fn(|c| sums[c] + row[c])
    });
    sums.map(|sum| sum / n_rows)
}

/// `value [low, high]` times a factor, or a dash; with a `plus`, signed and with two digits.
pub(super) fn cell(estimate: Option<Estimate>, factor: f64, plus: &str) -> String {
    let Some(Estimate { value, low, high }) = estimate else {
        return "-".to_owned();
    };
    let show = |number: f64| match plus {
        "" => format!("{:.1}", factor * number),
        _ => format!("{:+.2}", factor * number),
    };
    format!("{} [{}, {}]", show(value), show(low), show(high))
}

/// The generator of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators".
struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A position in `0..n`; the bias of the multiplication is below n / 2^64.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_sequence() {
        let mut draws = SplitMix64 { state: 1_234_567 };
        assert_eq!(draws.next(), 6_457_827_717_110_365_317);
        assert_eq!(draws.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn an_interval_holds_the_mean_and_is_as_wide_as_the_normal_one() {
        let rows: Vec<[f64; 1]> = (0..400)
            .map(|n| [f64::from(u8::from(n % 4 == 0))])
            .collect();
        let [share] = estimates(&rows);
        assert_eq!(share.value, 0.25);
        let normal_half_width = 1.96 * (0.25_f64 * 0.75 / 400.0).sqrt();
        assert!(
            (share.value - share.low - normal_half_width).abs() < 0.01,
            "{share:?}"
        );
        assert!(
            (share.high - share.value - normal_half_width).abs() < 0.01,
            "{share:?}"
        );
        assert_eq!(estimates(&rows), [share]);
    }

    #[test]
    fn a_constant_column_has_an_interval_of_no_width() {
        let [first, second] = estimates(&[[1.0, 0.5]; 9]);
        assert_eq!(
            first,
            Estimate {
                value: 1.0,
                low: 1.0,
                high: 1.0
            }
        );
        assert_eq!(
            second,
            Estimate {
                value: 0.5,
                low: 0.5,
                high: 0.5
            }
        );
    }

    #[test]
    fn a_ratio_over_all_rows_is_the_mean_and_without_any_row_there_is_none() {
        let values = [0.0, 1.0, 1.0, 3.0, -2.0];
        let [mean] = estimates(&values.map(|value| [value]));
        assert_eq!(
            ratio_estimate(&values.map(|value| (value, 1.0))),
            Some(mean)
        );
        assert_eq!(ratio_estimate(&[(0.0, 0.0); 4]), None);
        assert_eq!(ratio_estimate(&[]), None);
    }

    #[test]
    fn rows_without_a_denominator_move_neither_ratio_nor_interval_by_much() {
        let counted: Vec<(f64, f64)> = (0..60).map(|n| (f64::from(n % 3), 1.0)).collect();
        let mut diluted = counted.clone();
        diluted.extend([(0.0, 0.0); 60]);
        let (full, some) = (ratio_estimate(&counted), ratio_estimate(&diluted));
        let (full, some) = (full.expect("counted"), some.expect("counted"));
        assert_eq!((full.value, some.value), (1.0, 1.0));
        let ends = [full.low - some.low, full.high - some.high];
        assert!(ends.iter().all(|end| end.abs() < 0.05), "{full:?} {some:?}");
        assert!(some.low < 0.9 && some.high > 1.1, "{some:?}");
    }

    #[test]
    fn equal_rows_have_the_interval_of_their_resamples() {
        for n in [1, 3, 7, 100] {
            let rows = vec![[1.0 / 3.0, 0.1]; n];
            let mean = column_means(rows.iter());
            for resampled in resampled_means(&rows, 20, SEED) {
                assert_eq!(resampled, mean);
            }
            for (estimate, mean) in estimates(&rows).into_iter().zip(mean) {
                assert_eq!([estimate.low, estimate.high], [mean, mean]);
            }
        }
    }
}
