//! The difference of two means over the same samples, with its interval.

use super::{Pair, PairedOptions};
use crate::bootstrap::{Estimate, percentile_interval, resampled_means};
use crate::intervals::{MIN_BOOTSTRAP_SAMPLES, Scale, Summands, student};

/// If the p value is larger, the difference may be due to chance, and its interval is extended to
/// contain 0.
const SIGNIFICANCE_LEVEL: f64 = 0.05;

/// The difference of the means with its 95 % interval.
pub(super) fn difference(
    pairs: &[Pair],
    observed: f64,
    p: f64,
    options: PairedOptions,
) -> Estimate {
    let is_plain = pairs.iter().all(|pair| pair.weights == [1.0; 2]);
    // Compute the mean of the differences, because it has a smaller rounding error.
    let observed = match is_plain {
        true => pairs.iter().map(|pair| pair.flip.gain()).sum::<f64>() / pairs.len() as f64,
        false => observed,
    };
    let mut difference = if can_be_resampled(pairs) {
        percentile_interval(observed, resampled_differences(pairs, is_plain, options))
    } else {
        few_pairs_interval(pairs, observed, is_plain)
    };
    if p > SIGNIFICANCE_LEVEL {
        difference.low = difference.low.min(0.0);
        difference.high = difference.high.max(0.0);
    }
    difference
}

/// Whether there are enough pairs that do not all differ by the same amount.
fn can_be_resampled(pairs: &[Pair]) -> bool {
    let are_equal = |pair: &[Pair]| {
        let [one, other] = pair else { return true };
        one.weights == other.weights && (one.flip.gain() - other.flip.gain()).abs() < 1e-12
    };
    pairs.len() >= MIN_BOOTSTRAP_SAMPLES && !pairs.windows(2).all(are_equal)
}

/// The differences of the resamples in which both means are defined.
fn resampled_differences(pairs: &[Pair], is_plain: bool, options: PairedOptions) -> Vec<f64> {
    if is_plain {
        let gains: Vec<[f64; 1]> = pairs.iter().map(|pair| [pair.flip.gain()]).collect();
        let means = resampled_means(&gains, options.n_resamples, options.seed);
        return means.into_iter().map(|[mean]| mean).collect();
    }
    let sums = |pair: &Pair| {
        let ([a, b], [c, d]) = (pair.weighted_before(), pair.weighted_after());
        [a, b, c, d]
    };
    let rows: Vec<[f64; 4]> = pairs.iter().map(sums).collect();
    let resampled = resampled_means(&rows, options.n_resamples, options.seed).into_iter();
    let difference = |[a, b, c, d]: [f64; 4]| (b > 0.0 && d > 0.0).then(|| c / d - a / b);
    resampled.filter_map(difference).collect()
}

/// The ratio of one of the two systems.
struct SystemRatio {
    estimate: Estimate,
    /// The contribution of each sample to the deviation of the ratio.
    residuals: Vec<f64>,
    are_shares: bool,
}

impl SystemRatio {
    fn new(rows: &[(f64, f64)]) -> Self {
        let total: f64 = rows.iter().map(|(_, weight)| weight).sum();
        let value = rows.iter().map(|(sum, _)| sum).sum::<f64>() / total;
        let residual = |(sum, weight): &(f64, f64)| (sum - value * weight) / total;
        Self {
            estimate: Summands::new(rows, value).estimate(Scale::Share),
            residuals: rows.iter().map(residual).collect(),
            are_shares: rows
                .iter()
                .all(|(sum, weight)| (0.0..=*weight).contains(sum)),
        }
    }
}

/// Computes the interval from the intervals of the two means and their correlation. If scores are
/// not in 0..=1, it is Student's interval.
///
/// # Source
///
/// Newcombe, Improved confidence intervals for the difference between binomial proportions based on
/// paired data (1998), method 10; Zou and Donner, Construction of confidence limits about effect
/// measures: a general approach (2008), for means of other scores.
fn few_pairs_interval(pairs: &[Pair], observed: f64, is_plain: bool) -> Estimate {
    let side = |side_of: fn(&Pair) -> [f64; 2]| {
        let rows: Vec<(f64, f64)> = pairs
            .iter()
            .map(side_of)
            .map(|[sum, weight]| (sum, weight))
            .collect();
        SystemRatio::new(&rows)
    };
    let (first_side, second_side) = (side(Pair::weighted_before), side(Pair::weighted_after));
    let intervals = first_side
        .estimate
        .interval()
        .zip(second_side.estimate.interval());
    let (Some(([low_1, high_1], [low_2, high_2])), true) =
        (intervals, first_side.are_shares && second_side.are_shares)
    else {
        let residuals = first_side.residuals.iter().zip(&second_side.residuals);
        let squares: f64 = residuals
            .map(|(first, other)| (other - first).powi(2))
            .sum();
        let n = pairs.len();
        return student(observed, squares * n as f64 / (n as f64 - 1.0), n);
    };
    let are_rates = is_plain
        && pairs.iter().all(|pair| {
            let is_rate = |score: f64| score == 0.0 || score == 1.0;
            is_rate(pair.flip.before) && is_rate(pair.flip.after)
        });
    let r = correlation(&first_side.residuals, &second_side.residuals, are_rates);
    let (value_1, value_2) = (first_side.estimate.value, second_side.estimate.value);
    let distance = |first: f64, other: f64| {
        (first * first - 2.0 * r * first * other + other * other)
            .max(0.0)
            .sqrt()
    };
    Estimate {
        value: observed,
        low: observed - distance(value_2 - low_2, high_1 - value_1),
        high: observed + distance(high_2 - value_2, value_1 - low_1),
    }
}

/// The correlation of two systems over the samples; 0 if either system does not vary. For rates, it
/// includes Newcombe's correction for few samples.
fn correlation(first: &[f64], other: &[f64], are_rates: bool) -> f64 {
    let sum = |terms: &mut dyn Iterator<Item = f64>| terms.sum::<f64>();
    let products = sum(&mut first.iter().zip(other).map(|(a, b)| a * b));
    let squares = sum(&mut first.iter().map(|a| a * a)) * sum(&mut other.iter().map(|b| b * b));
    if squares <= 0.0 {
        return 0.0;
    }
    let n = first.len() as f64;
    let corrected = match are_rates && products > 0.0 {
        // The continuity correction is half a sample, in residuals divided by their number.
        true => (products - 0.5 / (n * n)).max(0.0),
        false => products,
    };
    (corrected / squares.sqrt()).clamp(-1.0, 1.0)
}
