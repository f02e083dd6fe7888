//! Computes the mean of a sample and its 95 % interval, reproducibly.
//!
//! With at least [`MIN_BOOTSTRAP_SAMPLES`] rows, the interval is a percentile bootstrap:
//! [`N_RESAMPLES`] resamples with replacement. They are drawn with a fixed seed, so the same scores
//! always give the same interval. All metrics of a data set are resampled together, row by row. For
//! fewer rows, or if all rows are equal, the interval is computed in closed form
//! ([`intervals`](super::intervals)).

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::intervals::MIN_BOOTSTRAP_SAMPLES;
use super::intervals::{Scale, Summands};

/// Number of resamples per interval.
const N_RESAMPLES: usize = 1000;

/// Seed of the draws; the value is arbitrary.
const SEED: u64 = 17;

/// Fraction of the resamples that is cut off at each end, which is 5 % in total.
const TAIL: f64 = 0.025;

/// A mean and its 95 % interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Mean over the rows.
    pub value: f64,
    /// Lower end of the interval. If the rows do not determine it, it is NaN and omitted in files.
    #[serde(default = "nan", skip_serializing_if = "is_absent")]
    pub low: f64,
    /// Upper end of the interval. If the rows do not determine it, it is NaN and omitted in files.
    #[serde(default = "nan", skip_serializing_if = "is_absent")]
    pub high: f64,
}

fn nan() -> f64 {
    f64::NAN
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_absent(end: &f64) -> bool {
    end.is_nan()
}

impl Estimate {
    /// A mean without an interval. The rows do not determine an interval.
    pub(super) fn without_interval(value: f64) -> Self {
        Self {
            value,
            low: nan(),
            high: nan(),
        }
    }

    /// The ends of the interval, if there is one.
    pub fn interval(&self) -> Option<[f64; 2]> {
        let ends = [self.low, self.high];
        ends.iter().all(|end| !end.is_nan()).then_some(ends)
    }
}

/// Estimates the means of `N` columns of values in 0..=1; `rows` must not be empty.
///
/// # Source
///
/// Efron and Tibshirani, An Introduction to the Bootstrap, section 13.3 (percentile interval).
pub(super) fn estimates<const N: usize>(rows: &[[f64; N]]) -> [Estimate; N] {
    let means = column_means(rows.iter());
    let summands: [Summands; N] = std::array::from_fn(|column| {
        let rows: Vec<(f64, f64)> = rows.iter().map(|row| (row[column], 1.0)).collect();
        Summands::new(&rows, means[column])
    });
    let resampled = match summands.iter().any(Summands::can_be_resampled) {
        true => resampled_means(rows, N_RESAMPLES, SEED),
        false => Vec::new(),
    };
    std::array::from_fn(|column| {
        if summands[column].can_be_resampled() {
            let resampled = resampled.iter().map(|means| means[column]).collect();
            percentile_interval(means[column], resampled)
        } else {
            summands[column].estimate(Scale::Share)
        }
    })
}

/// Column means of `n_resamples` resamples of the rows. Each resample is drawn with replacement and
/// has as many rows as the original.
pub(super) fn resampled_means<const N: usize>(
    rows: &[[f64; N]],
    n_resamples: usize,
    seed: u64,
) -> Vec<[f64; N]> {
    let mut draws = SplitMix64 { state: seed };
    (0..n_resamples)
        .map(|_| column_means((0..rows.len()).map(|_| &rows[draws.next_below(rows.len())])))
        .collect()
}

/// A value with the percentile interval of its resamples. Without resamples the interval has zero
/// width.
pub(super) fn percentile_interval(value: f64, mut resampled: Vec<f64>) -> Estimate {
    resampled.sort_unstable_by(f64::total_cmp);
    let n_cut = (TAIL * resampled.len() as f64) as usize;
    let (low, high) = match resampled.len() {
        0 => (value, value),
        n => (resampled[n_cut], resampled[n - 1 - n_cut]),
    };
    Estimate { value, low, high }
}

/// Estimates the ratio of two sums from rows of (numerator, denominator), where no numerator
/// exceeds its denominator.
///
/// A mean over a subset of rows is such a ratio: each row of the subset is (value, 1), and each
/// other row is (0, 0). Resamples whose denominators are all zero are dropped. Returns `None` if no
/// row has a positive denominator.
pub(super) fn ratio_estimate(rows: &[(f64, f64)]) -> Option<Estimate> {
    ratio_on(Scale::Share, rows)
}

fn ratio_on(scale: Scale, rows: &[(f64, f64)]) -> Option<Estimate> {
    let value = ratio_of_sums(rows.iter())?;
    let summands = Summands::new(rows, value);
    if !summands.can_be_resampled() {
        return Some(summands.estimate(scale));
    }
    let mut draws = SplitMix64 { state: SEED };
    let resampled = (0..N_RESAMPLES)
        .filter_map(|_| ratio_of_sums((0..rows.len()).map(|_| &rows[draws.next_below(rows.len())])))
        .collect();
    Some(percentile_interval(value, resampled))
}

/// The mean of the values that are present. All values are in 0..=1. `None` if none is present.
pub(super) fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<Estimate> {
    ratio_on(Scale::Share, &weighted_rows(values))
}

/// The mean of the values that are present. The values may have any size. `None` if none is
/// present.
pub(super) fn unbounded_mean(values: impl Iterator<Item = Option<f64>>) -> Option<Estimate> {
    ratio_on(Scale::Open, &weighted_rows(values))
}

fn weighted_rows(values: impl Iterator<Item = Option<f64>>) -> Vec<(f64, f64)> {
    let rows = values.map(|value| value.map_or((0.0, 0.0), |value| (value, 1.0)));
    rows.collect()
}

pub(super) fn indicator(condition: bool) -> f64 {
    if condition { 1.0 } else { 0.0 }
}

fn ratio_of_sums<'r>(rows: impl Iterator<Item = &'r (f64, f64)>) -> Option<f64> {
    let (numerator, denominator) = rows.fold((0.0, 0.0), |(numerator, denominator), row| {
        (numerator + row.0, denominator + row.1)
    });
    (denominator != 0.0).then(|| numerator / denominator)
}

/// Column means of at least one row.
pub(super) fn column_means<'r, const N: usize>(
    rows: impl ExactSizeIterator<Item = &'r [f64; N]>,
) -> [f64; N] {
    let n_rows = rows.len() as f64;
    let sums = rows.fold([0.0; N], |sums, row| {
        std::array::from_fn(|c| sums[c] + row[c])
    });
    sums.map(|sum| sum / n_rows)
}

/// Formats `value [low, high]` times a factor, or a dash if there is no estimate. If `plus` is not
/// empty, numbers have a sign and two decimals.
pub(super) fn cell(estimate: Option<Estimate>, factor: f64, plus: &str) -> String {
    let Some(estimate) = estimate else {
        return "-".to_owned();
    };
    let show = |number: f64| match plus {
        "" => format!("{:.1}", factor * number),
        _ => format!("{:+.2}", factor * number),
    };
    match estimate.interval() {
        Some([low, high]) => format!("{} [{}, {}]", show(estimate.value), show(low), show(high)),
        None => show(estimate.value),
    }
}

/// The generator of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators".
pub(super) struct SplitMix64 {
    pub(super) state: u64,
}

impl SplitMix64 {
    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// An index in `0..n`; the bias of the multiplication is below n / 2^64.
    fn next_below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_yields_the_published_sequence() {
        let mut draws = SplitMix64 { state: 1_234_567 };
        assert_eq!(draws.next(), 6_457_827_717_110_365_317);
        assert_eq!(draws.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn an_interval_contains_the_mean_and_has_the_width_of_the_normal_interval() {
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
    fn a_constant_column_has_the_interval_of_its_number_of_rows() {
        // Lower ends of Wilson's interval for 9 of 9 and for 400 of 400.
        for (n, low) in [(9, 0.700_854_9), (400, 0.990_487_9)] {
            let varying = |row: usize| if row.is_multiple_of(2) { 0.5 } else { 0.25 };
            let rows: Vec<[f64; 2]> = (0..n).map(|row| [1.0, varying(row)]).collect();
            let [constant, varying] = estimates(&rows);
            assert_eq!((constant.value, constant.high), (1.0, 1.0));
            assert!((constant.low - low).abs() < 1e-6, "{constant:?}");
            assert!(varying.low < varying.value && varying.value < varying.high);
            let counted = rows.iter().map(|[one, _]| Some(*one)).chain([None]);
            let estimate_of_counted = mean(counted).expect("rows");
            assert!(
                (estimate_of_counted.low - low).abs() < 1e-6,
                "{estimate_of_counted:?}"
            );
        }
    }

    #[test]
    fn an_estimate_without_an_interval_is_written_as_a_bare_value() {
        let estimate = unbounded_mean([Some(3.0), None].into_iter()).expect("a value");
        let file = serde_json::to_value(estimate).expect("serialisable");
        assert_eq!(file, serde_json::json!({"value": 3.0}));
        let read_back: Estimate = serde_json::from_value(file).expect("what was written");
        assert_eq!((read_back.value, read_back.interval()), (3.0, None));
        assert_eq!(cell(Some(read_back), 1.0, "+"), "+3.00");
        assert_eq!(unbounded_mean([None].into_iter()), None);
    }

    #[test]
    fn a_ratio_over_all_rows_is_the_mean_and_absent_without_rows() {
        let values = [0.0, 1.0, 1.0, 0.5, 0.25];
        let [mean] = estimates(&values.map(|value| [value]));
        assert_eq!(
            ratio_estimate(&values.map(|value| (value, 1.0))),
            Some(mean)
        );
        assert_eq!(ratio_estimate(&[(0.0, 0.0); 4]), None);
        assert_eq!(ratio_estimate(&[]), None);
    }

    #[test]
    fn rows_without_a_denominator_barely_change_ratio_and_interval() {
        let counted: Vec<(f64, f64)> = (0..150).map(|n| (f64::from(n % 3), 1.0)).collect();
        let mut diluted = counted.clone();
        diluted.extend([(0.0, 0.0); 150]);
        let (full, some) = (
            ratio_on(Scale::Open, &counted),
            ratio_on(Scale::Open, &diluted),
        );
        let (full, some) = (full.expect("counted"), some.expect("counted"));
        assert_eq!((full.value, some.value), (1.0, 1.0));
        let ends = [full.low - some.low, full.high - some.high];
        assert!(ends.iter().all(|end| end.abs() < 0.05), "{full:?} {some:?}");
        assert!(some.low < 0.95 && some.high > 1.05, "{some:?}");
    }
}
