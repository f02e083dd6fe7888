//! The permutation test of paired scores. Under the null hypothesis, the two scores of a sample are
//! assigned to the systems at random.

use super::{Pair, PairedOptions};
use crate::bootstrap::SplitMix64;

/// Maximum number of differing samples for which all swaps are enumerated, in two halves.
const MAX_ENUMERATED: usize = 30;
/// Maximum number of differing samples to enumerate if the weights differ between the systems.
const MAX_ENUMERATED_UNEVEN: usize = 15;
/// Largest denominator that is tried for a common fraction of the scores.
const MAX_DENOMINATOR: u32 = 5_040;
/// Maximum number of additions for counting the swaps of integer gains.
const MAX_ADDITIONS: u64 = 100_000_000;
/// Maximum number of samples for which 2^-n does not underflow.
const MAX_EXACT_BINOMIAL: usize = 1_000;
/// Sums that differ by less than this fraction of their terms are treated as equal.
const ROUNDING: f64 = 1e-9;

/// The smallest p value that `n` samples can have, which occurs if all differences have the same
/// sign.
pub(super) fn least_p(n: usize) -> f64 {
    0.5_f64
        .powi(i32::try_from(n).unwrap_or(i32::MAX) - 1)
        .min(1.0)
}

/// The fraction of swaps for which the difference is at least as large as the observed one.
pub(super) fn p_value(pairs: &[Pair], options: PairedOptions) -> f64 {
    if !pairs.iter().all(Pair::is_even) {
        return ratio_p_value(pairs, options);
    }
    let gains: Vec<f64> = pairs
        .iter()
        .map(|pair| pair.weights[0] * pair.flip.gain())
        .collect();
    sign_flips(&gains, options)
}

/// The sign-flip test of gains.
fn sign_flips(gains: &[f64], options: PairedOptions) -> f64 {
    let largest = gains
        .iter()
        .fold(0.0_f64, |largest, gain| largest.max(gain.abs()));
    // Treat differences that are only rounding errors as zero.
    let is_gain = |gain: &f64| gain.abs() > 1e-12 * largest;
    let gains: Vec<f64> = gains.iter().copied().filter(is_gain).collect();
    let Some(first_gain) = gains.first().map(|gain| gain.abs()) else {
        return 1.0;
    };
    if gains
        .iter()
        .all(|gain| (gain.abs() - first_gain).abs() <= ROUNDING * first_gain)
    {
        let n_better = gains.iter().filter(|gain| **gain > 0.0).count();
        return mcnemar(n_better, gains.len() - n_better);
    }
    if gains.len() <= MAX_ENUMERATED {
        return exact_signs(&gains);
    }
    match as_integers(&gains) {
        Some(numbers) => exact_grid_signs(&numbers),
        None => sampled_signs(&gains, options),
    }
}

/// McNemar's exact test: twice the smaller tail of the binomial distribution with p = 1/2.
///
/// # Source
///
/// McNemar, Note on the sampling error of the difference between correlated proportions (1947).
fn mcnemar(n_better: usize, n_worse: usize) -> f64 {
    let n = n_better + n_worse;
    let n_fewer = n_better.min(n_worse);
    if 2 * n_fewer == n {
        return 1.0;
    }
    if n <= MAX_EXACT_BINOMIAL {
        // Sum of the probabilities that 0, 1, … samples differ in the rarer direction.
        let mut probability = 0.5_f64.powi(n as i32);
        let mut tail = 0.0;
        for i in 0..=n_fewer {
            tail += probability;
            probability *= (n - i) as f64 / (i + 1) as f64;
        }
        return (2.0 * tail).min(1.0);
    }
    // Logarithm of (n choose n_fewer) * 2^-n.
    let choices = (0..n_fewer).map(|i| ((n - i) as f64 / (i + 1) as f64).ln());
    let mut term = (choices.sum::<f64>() - n as f64 * std::f64::consts::LN_2).exp();
    let mut tail = 0.0;
    for i in (0..=n_fewer).rev() {
        tail += term;
        term *= i as f64 / (n - i + 1) as f64;
    }
    (2.0 * tail).min(1.0)
}

/// Enumerates all sums of signs by combining the sums of two halves.
fn exact_signs(gains: &[f64]) -> f64 {
    let rounding = ROUNDING * gains.iter().map(|gain| gain.abs()).sum::<f64>();
    let observed = gains.iter().sum::<f64>().abs() - rounding;
    if observed <= 0.0 {
        return 1.0;
    }
    let (left_half, right) = gains.split_at(gains.len() / 2);
    let (left_half, right) = (sorted_sums(left_half), sorted_sums(right));
    // For larger left sums, more right sums reach the bound.
    let mut n_right_sums = right.len();
    let mut n_reaching = 0_u64;
    for sum in &left_half {
        while n_right_sums > 0 && sum + right[n_right_sums - 1] >= observed {
            n_right_sums -= 1;
        }
        n_reaching += (right.len() - n_right_sums) as u64;
    }
    2.0 * n_reaching as f64 / (left_half.len() as f64 * right.len() as f64)
}

fn sorted_sums(gains: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0];
    for gain in gains {
        let flipped: Vec<f64> = sums.iter().map(|sum| sum - gain).collect();
        sums.iter_mut().for_each(|sum| *sum += gain);
        sums.extend(flipped);
    }
    sums.sort_unstable_by(f64::total_cmp);
    sums
}

/// The gains as integer multiples of a common fraction; `None` if there is none or the number of
/// sums is too large to count.
fn as_integers(gains: &[f64]) -> Option<Vec<i64>> {
    (1..=MAX_DENOMINATOR).find_map(|parts| {
        let numbers = gains.iter().map(|gain| {
            let scaled = gain * f64::from(parts);
            let is_integer = (scaled - scaled.round()).abs() <= ROUNDING * scaled.abs().max(1.0);
            (is_integer && scaled.abs() < 1e9).then_some(scaled.round() as i64)
        });
        let numbers: Vec<i64> = numbers.collect::<Option<_>>()?;
        let total: u64 = numbers.iter().map(|number| number.unsigned_abs()).sum();
        (total.saturating_mul(numbers.len() as u64) <= MAX_ADDITIONS).then_some(numbers)
    })
}

/// Counts all sums of signed integers by their frequency.
fn exact_grid_signs(numbers: &[i64]) -> f64 {
    let total: u64 = numbers.iter().map(|number| number.unsigned_abs()).sum();
    let observed = numbers.iter().sum::<i64>().unsigned_abs();
    // Probability of each sum of the positive gains.
    let mut probabilities = vec![0.0; total as usize + 1];
    probabilities[0] = 1.0;
    let mut max_sum = 0;
    for number in numbers {
        let number = number.unsigned_abs() as usize;
        max_sum += number;
        for sum in (0..=max_sum).rev() {
            let with = if sum >= number {
                probabilities[sum - number]
            } else {
                0.0
            };
            probabilities[sum] = 0.5 * (probabilities[sum] + with);
        }
    }
    let sums = probabilities.iter().zip(0_u64..);
    let reaching_sums = sums.filter(|(_, sum)| (2 * sum).abs_diff(total) >= observed);
    reaching_sums
        .map(|(probability, _)| probability)
        .sum::<f64>()
        .min(1.0)
}

/// The p value from random sums of signs. The observed sum counts as one of them.
fn sampled_signs(gains: &[f64], options: PairedOptions) -> f64 {
    let rounding = ROUNDING * gains.iter().map(|gain| gain.abs()).sum::<f64>();
    let observed = gains.iter().sum::<f64>().abs() - rounding;
    let mut draws = SplitMix64 {
        state: options.seed,
    };
    let reaches_observed = |_: &usize| {
        let sum: f64 =
            gains
                .chunks(64)
                .map(|chunk| {
                    let signs = draws.next();
                    let signed = chunk.iter().enumerate().map(|(idx, gain)| {
                        if signs >> idx & 1 == 0 { *gain } else { -gain }
                    });
                    signed.sum::<f64>()
                })
                .sum();
        sum.abs() >= observed
    };
    let n_reaching = (0..options.n_resamples).filter(reaches_observed).count();
    sampled_p_value(n_reaching, options, gains.len())
}

fn sampled_p_value(n_reaching: usize, options: PairedOptions, n_differing: usize) -> f64 {
    let p_value = (n_reaching + 1) as f64 / (options.n_resamples + 1) as f64;
    p_value.max(least_p(n_differing))
}

/// The p value for ratios whose weights differ between the systems, such as turns weighted by the
/// number of calls that each system made.
fn ratio_p_value(pairs: &[Pair], options: PairedOptions) -> f64 {
    let both = |pair: &Pair| [pair.weighted_before(), pair.weighted_after()];
    let differs = |pair: &&[[f64; 2]; 2]| pair[0] != pair[1];
    let all_pairs: Vec<[[f64; 2]; 2]> = pairs.iter().map(both).collect();
    let differing_pairs: Vec<&[[f64; 2]; 2]> = all_pairs.iter().filter(differs).collect();
    let sums = |is_swapped: &dyn Fn(usize) -> bool| {
        let mut sums = [[0.0; 2]; 2];
        let equal = all_pairs.iter().filter(|pair| !differs(pair));
        let equal = equal.map(|pair| (pair, false));
        let swapped = differing_pairs.iter().enumerate();
        let swapped = swapped.map(|(idx, pair)| (*pair, is_swapped(idx)));
        for (pair, is_swapped) in equal.chain(swapped) {
            for (idx, side) in pair.iter().enumerate() {
                let sum = &mut sums[if is_swapped { 1 - idx } else { idx }];
                sum[0] += side[0];
                sum[1] += side[1];
            }
        }
        sums
    };
    let difference = |[before, after]: [[f64; 2]; 2]| {
        let has_both = before[1] > 0.0 && after[1] > 0.0;
        has_both.then(|| (after[0] / after[1] - before[0] / before[1]).abs())
    };
    let Some(observed) = difference(sums(&|_| false)) else {
        return 1.0;
    };
    // A swap after which a system has no sample with a weight counts as reaching the observed
    // difference.
    let reaches_observed = |is_swapped: &dyn Fn(usize) -> bool| {
        difference(sums(is_swapped)).is_none_or(|resampled| resampled >= observed - ROUNDING)
    };
    let n = differing_pairs.len();
    if n <= MAX_ENUMERATED_UNEVEN {
        let n_swaps = 1_u64 << n;
        let reaching_sums =
            (0..n_swaps).filter(|swaps| reaches_observed(&|idx| swaps >> idx & 1 == 1));
        return reaching_sums.count() as f64 / n_swaps as f64;
    }
    let mut draws = SplitMix64 {
        state: options.seed,
    };
    let mut n_reaching = 0;
    for _ in 0..options.n_resamples {
        let words: Vec<u64> = (0..n.div_ceil(64)).map(|_| draws.next()).collect();
        n_reaching += usize::from(reaches_observed(&|idx| {
            words[idx / 64] >> (idx % 64) & 1 == 1
        }));
    }
    sampled_p_value(n_reaching, options, n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intervals::fixtures;

    const OPTIONS: PairedOptions = PairedOptions {
        n_resamples: 10_000,
        seed: 17,
    };

    fn is_near(actual: f64, expected: f64) -> bool {
        (actual - expected).abs() < 1e-9 * expected.max(1e-6)
    }

    fn gains_of(row: &serde_json::Value) -> Vec<f64> {
        let gains = row["gains"].as_array().expect("a list").iter();
        gains.map(|gain| gain.as_f64().expect("a number")).collect()
    }

    #[test]
    fn mcnemars_test_equals_scipy() {
        for row in fixtures::rows("binomial") {
            let count = |name: &str| row[name].as_u64().expect("a count") as usize;
            let actual = mcnemar(count("better"), count("worse"));
            let expected = row["p"].as_f64().expect("a number");
            assert!(is_near(actual, expected), "{actual} {row}");
        }
    }

    #[test]
    fn sign_flip_tests_equal_scipy_for_each_counting_method() {
        for row in fixtures::rows("sign_flip") {
            let gains = gains_of(&row);
            let expected = row["p"].as_f64().expect("a number");
            let actual = sign_flips(&gains, OPTIONS);
            assert!(is_near(actual, expected), "{actual} {row}");
            if gains.iter().any(|gain| *gain != 0.0) {
                assert!(is_near(exact_signs(&gains), expected), "halves: {row}");
            }
            if let Some(numbers) = as_integers(&gains) {
                assert!(
                    is_near(exact_grid_signs(&numbers), expected),
                    "counted: {row}"
                );
            }
            let sampled = sampled_signs(&gains, OPTIONS);
            assert!((sampled - expected).abs() < 0.03, "{sampled} {row}");
        }
    }

    #[test]
    fn no_p_value_is_below_the_least_of_its_sample_count() {
        let six = sign_flips(&[-0.25, -0.5, -0.1, -0.7, -0.3, -0.2], OPTIONS);
        assert_eq!(six, 2.0 / 64.0);
        assert_eq!(sign_flips(&[0.4], OPTIONS), 1.0);
        assert_eq!(sign_flips(&[0.0, 0.1 + 0.2 - 0.3, 0.0], OPTIONS), 1.0);
        assert_eq!(sign_flips(&[], OPTIONS), 1.0);
        assert_eq!([1, 2, 6].map(least_p), [1.0, 0.5, 0.03125]);
        // If there are too many samples to enumerate, the number of draws is a lower bound for p.
        let distinct_gains: Vec<f64> = (0..60).map(|n| 1.0 + f64::from(n).sqrt() / 10.0).collect();
        assert_eq!(as_integers(&distinct_gains), None);
        assert_eq!(sign_flips(&distinct_gains, OPTIONS), 1.0 / 10_001.0);
        let few_draws = PairedOptions {
            n_resamples: 10_000_000,
            seed: 1,
        };
        assert_eq!(sampled_p_value(0, few_draws, 3), 0.25);
    }

    #[test]
    fn many_gains_on_a_grid_are_counted_exactly_like_mcnemar() {
        // The gains have two sizes. The small gains cancel in pairs, so only the large gains
        // matter.
        let gains = |n_better: usize, n_worse: usize| {
            [vec![1.0 / 3.0; n_better], vec![-1.0 / 3.0; n_worse]].concat()
        };
        let numbers = as_integers(&gains(60, 30)).expect("thirds");
        assert!(is_near(exact_grid_signs(&numbers), mcnemar(60, 30)));
        let mixed_gains = [gains(40, 20), vec![0.5, -0.25]].concat();
        let numbers = as_integers(&mixed_gains).expect("twelfths");
        let sampled = sampled_signs(&mixed_gains, OPTIONS);
        assert!((exact_grid_signs(&numbers) - sampled).abs() < 0.01);
    }
}
