//! Compares results with values from other programs or a naive loop.

use proptest::prelude::*;

use super::*;
use crate::intervals::fixtures;

fn scores(values: &[f64]) -> Vec<SampleScore> {
    let sample_score = |(n, score): (usize, &f64)| SampleScore::new(format!("row:{n}"), *score);
    values.iter().enumerate().map(sample_score).collect()
}

fn compare_scores(before: &[f64], after: &[f64]) -> PairedComparison {
    compare_pairs(&scores(before), &scores(after), PairedOptions::default())
        .expect("the same samples")
}

#[test]
fn six_worse_samples_have_the_smallest_p_value_of_six() {
    let comparison = compare_scores(&[1.0; 6], &[0.0; 6]);
    assert_eq!(
        (comparison.n, comparison.p, comparison.least_p),
        (6, 2.0 / 64.0, 2.0 / 64.0)
    );
    assert_eq!((comparison.before, comparison.after), (1.0, 0.0));
    // Newcombe's interval, from Wilson's intervals of 6 of 6 and 0 of 6.
    assert!(
        (comparison.difference.high + 0.447_983_956).abs() < 1e-8,
        "{comparison:?}"
    );
    assert_eq!((comparison.won.len(), comparison.lost.len()), (0, 6));
    let two = compare_scores(&[1.0; 2], &[0.0; 2]);
    assert_eq!((two.p, two.difference.high), (0.5, 0.0));
    let single = compare_scores(&[0.25], &[0.75]);
    assert!(single.p == 1.0 && single.difference.low < 0.0, "{single:?}");
    assert!(single.difference.high > 0.5, "{single:?}");
}

#[test]
fn intervals_of_paired_rates_equal_newcombes() {
    for row in fixtures::rows("newcombe") {
        let count = |name: &str| row[name].as_u64().expect("a count") as usize;
        let cells = [
            (count("both"), 1.0, 1.0),
            (count("first"), 1.0, 0.0),
            (count("second"), 0.0, 1.0),
            (count("neither"), 0.0, 0.0),
        ];
        let cells = cells.into_iter();
        let pairs = cells.flat_map(|(n, first, second)| std::iter::repeat_n((first, second), n));
        let (first, second): (Vec<f64>, Vec<f64>) = pairs.unzip();
        let comparison = compare_scores(&first, &second);
        let expected = |name: &str| row[name].as_f64().expect("a number");
        let mut bounds = [expected("low"), expected("high")];
        if comparison.p > 0.05 {
            bounds = [bounds[0].min(0.0), bounds[1].max(0.0)];
        }
        assert!(
            (comparison.difference.low - bounds[0]).abs() < 1e-9,
            "{comparison:?} {row}"
        );
        assert!(
            (comparison.difference.high - bounds[1]).abs() < 1e-9,
            "{comparison:?} {row}"
        );
    }
}

#[test]
fn unbounded_scores_have_students_interval_and_equal_gains_none() {
    let comparison = compare_scores(&[1.0, 2.0, 5.0, 4.0], &[2.0, 4.0, 8.0, 8.0]);
    // Gains of 1, 2, 3 and 4: the standard error of their mean is the square root of 5/12.
    let half = 3.182_446_305 * (5.0_f64 / 12.0).sqrt();
    assert_eq!((comparison.difference.value, comparison.p), (2.5, 0.125));
    assert!(
        (comparison.difference.high - (2.5 + half)).abs() < 1e-8,
        "{comparison:?}"
    );
    // Student's interval starts above 0, but 4 samples cannot be significant.
    assert_eq!(comparison.difference.low, 0.0);
    let equal = compare_scores(
        &[1.0, 2.0, 5.0, 4.0, 9.0, 3.0],
        &[3.0, 4.0, 7.0, 6.0, 11.0, 5.0],
    );
    assert_eq!((equal.p, equal.difference.interval()), (0.03125, None));
}

#[test]
fn a_constant_difference_is_as_certain_as_its_number_of_samples() {
    let first: Vec<f64> = (0..50).map(|n| f64::from(n % 7) / 16.0).collect();
    let second: Vec<f64> = first.iter().map(|score| score + 0.25).collect();
    let comparison = compare_scores(&first, &second);
    assert_eq!((comparison.n, comparison.difference.value), (50, 0.25));
    assert_eq!(comparison.p, 2.0_f64.powi(-49));
    assert!(
        comparison.difference.low > 0.15 && comparison.difference.low < 0.25,
        "{comparison:?}"
    );
    assert_eq!((comparison.won.len(), comparison.lost.len()), (50, 0));
    let unchanged = compare_scores(&first, &first);
    assert_eq!((unchanged.difference.value, unchanged.p), (0.0, 1.0));
    assert!(unchanged.difference.low <= 0.0 && unchanged.difference.high >= 0.0);
    assert!(unchanged.won.is_empty() && unchanged.lost.is_empty());
}

#[test]
fn swapping_the_systems_swaps_the_signs() {
    let (before, after) = ([0.0, 0.5, 1.0, 0.2, 0.0], [1.0, 0.5, 0.8, 0.9, 1.0]);
    let (forward, other) = (
        compare_scores(&before, &after),
        compare_scores(&after, &before),
    );
    assert_eq!(forward.p, other.p);
    assert!((forward.difference.low + other.difference.high).abs() < 1e-12);
    assert!((forward.difference.high + other.difference.low).abs() < 1e-12);
}

#[test]
fn weights_make_the_mean_one_over_all_parts_of_the_samples() {
    // One turn of four calls, three turns of one call, and a turn with a weight only in the second
    // system.
    let weighted = |scores: [(f64, f64); 5]| -> Vec<SampleScore> {
        let all_scores = scores.into_iter().enumerate();
        let sample = |(n, (score, weight)): (usize, (f64, f64))| SampleScore {
            id: n.to_string(),
            score,
            weight,
        };
        all_scores.map(sample).collect()
    };
    let first = weighted([(0.25, 4.0), (1.0, 1.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)]);
    let second = weighted([(0.75, 4.0), (1.0, 1.0), (1.0, 1.0), (0.0, 1.0), (0.5, 2.0)]);
    let comparison = compare_pairs(&first, &second, PairedOptions::default()).unwrap();
    assert_eq!(
        (comparison.before, comparison.after),
        (3.0 / 7.0, 6.0 / 9.0)
    );
    assert_eq!(comparison.difference.value, 6.0 / 9.0 - 3.0 / 7.0);
    assert!(comparison.difference.low < comparison.difference.value);
    assert!(comparison.difference.high > comparison.difference.value);
    assert_eq!(
        (comparison.n, comparison.won.len(), comparison.lost.len()),
        (5, 2, 1)
    );
    // 12 of the 16 swaps of the four differing samples, enumerated in Python.
    assert_eq!(comparison.p, 12.0 / 16.0);
    let zero_weights = weighted([(0.0, 0.0); 5]);
    let error = compare_pairs(&zero_weights, &second, PairedOptions::default()).unwrap_err();
    assert_eq!(error, PairedError::NothingCounts { set: "first" });
}

#[test]
fn won_and_lost_samples_are_listed_in_the_order_of_the_first_set() {
    let mut second = scores(&[1.0, 0.0, 1.0, 0.0]);
    second.reverse();
    let comparison = compare_pairs(
        &scores(&[0.0, 1.0, 1.0, 1.0]),
        &second,
        PairedOptions::default(),
    )
    .expect("the same samples");
    let ids = |flips: &[Flip]| flips.iter().map(|f| f.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&comparison.won), ["row:0"]);
    assert_eq!(ids(&comparison.lost), ["row:1", "row:3"]);
    assert_eq!((comparison.before, comparison.after), (0.75, 0.5));
    assert_eq!(comparison.difference.value, -0.25);
}

#[test]
fn interval_and_p_value_of_many_samples_equal_the_normal_distribution() {
    // Differences +1 (60 of 400), -1 (30) and 0: mean 0.075, variance 0.225 - 0.075^2.
    let second: Vec<f64> = (0..400)
        .map(|n| match n % 40 {
            0..6 => 1.0,
            6..9 => -1.0,
            _ => 0.0,
        })
        .collect();
    let comparison = compare_scores(&[0.0; 400], &second);
    let deviation = ((0.225 - 0.075_f64.powi(2)) / 400.0).sqrt();
    assert!((comparison.difference.value - 0.075).abs() < 1e-12);
    assert!((comparison.difference.low - (0.075 - 1.96 * deviation)).abs() < 0.004);
    assert!((comparison.difference.high - (0.075 + 1.96 * deviation)).abs() < 0.004);
    // 0.075 / 0.02342 is 3.20 standard deviations; the two-sided tail of the normal distribution is
    // 0.00137.
    assert!((0.0004..0.003).contains(&comparison.p), "{}", comparison.p);
}

/// The definition of the interval, with an independent implementation of the resampling indices.
fn naive_difference(before: &[f64], after: &[f64], options: PairedOptions) -> Estimate {
    let n = before.len();
    let mut state = options.seed;
    let mut random_below = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * n as u128) >> 64) as usize
    };
    let mut value = 0.0;
    for i in 0..n {
        value += after[i] - before[i];
    }
    value /= n as f64;
    let mut means = Vec::new();
    for _ in 0..options.n_resamples {
        let mut sum = 0.0;
        for _ in 0..n {
            let i = random_below();
            sum += after[i] - before[i];
        }
        means.push(sum / n as f64);
    }
    means.sort_by(f64::total_cmp);
    let cut = (0.025 * options.n_resamples as f64) as usize;
    Estimate {
        value,
        low: means[cut],
        high: means[options.n_resamples - 1 - cut],
    }
}

proptest! {
    #[test]
    fn intervals_of_many_samples_equal_a_naive_loop_and_are_reproducible(
        pairs in prop::collection::vec((-2.0..2.0f64, -2.0..2.0f64), 100..130),
        seed: u64,
        n_resamples in 1..200usize,
    ) {
        let (before, after): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        let options = PairedOptions { n_resamples, seed };
        let run = || compare_pairs(&scores(&before), &scores(&after), options);
        let comparison = run().expect("the same samples");
        prop_assert_eq!(&comparison, &run().expect("the same samples"));
        let mut estimate = naive_difference(&before, &after, options);
        if comparison.p > 0.05 {
            estimate.low = estimate.low.min(0.0);
            estimate.high = estimate.high.max(0.0);
        }
        prop_assert_eq!(comparison.difference, estimate);
        prop_assert!(comparison.p >= 1.0 / (n_resamples + 1) as f64 && comparison.p <= 1.0);
    }

    #[test]
    fn few_samples_have_a_p_value_in_steps_of_their_swaps(
        pairs in prop::collection::vec((0.0..1.0f64, 0.0..1.0f64), 1..16),
    ) {
        let (before, after): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        let comparison = compare_scores(&before, &after);
        let in_swaps = comparison.p * 2.0_f64.powi(comparison.n as i32);
        prop_assert_eq!(in_swaps, in_swaps.round());
        prop_assert!(comparison.p >= comparison.least_p);
        prop_assert!(comparison.p <= 0.05 || comparison.difference.low <= 0.0 && comparison.difference.high >= 0.0);
        prop_assert!(comparison.difference.low <= comparison.difference.value);
        prop_assert!(comparison.difference.high >= comparison.difference.value);
    }
}

#[test]
fn unpairable_samples_are_refused_with_their_ids() {
    let refusal = |before: &[SampleScore], after: &[SampleScore]| {
        compare_pairs(before, after, PairedOptions::default())
            .expect_err("refused")
            .to_string()
    };
    assert_eq!(
        refusal(&scores(&[1.0; 6]), &scores(&[1.0])),
        "5 samples are only in the first set of scores (\"row:1\", \"row:2\", \"row:3\", ...); score \
         both systems on the same rows, or keep only the samples that both have"
    );
    assert!(
        refusal(&[], &scores(&[1.0])).starts_with("1 samples are only in the second set of scores")
    );
    let duplicated = [scores(&[1.0]), scores(&[0.0])].concat();
    assert_eq!(
        refusal(&scores(&[1.0]), &duplicated),
        "the second set of scores has \"row:0\" more than once; provide one score per sample"
    );
    assert!(
        refusal(&scores(&[f64::NAN]), &scores(&[1.0]))
            .starts_with("the score of \"row:0\" in the first set is NaN;")
    );
    assert!(refusal(&[], &[]).starts_with("no samples to compare"));
    let options = PairedOptions {
        n_resamples: 0,
        seed: 1,
    };
    assert_eq!(
        compare_pairs(&[], &[], options),
        Err(PairedError::NoResamples)
    );
}
