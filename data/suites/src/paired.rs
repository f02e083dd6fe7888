//! Compares two systems' scores of the same samples: difference, interval and p value.
//!
//! Samples are paired by id, so that what makes a sample hard counts on both sides and cancels;
//! two intervals that overlap can therefore still differ for sure. The order of the ids is that of
//! the first system, and with it every number is a function of scores and seed.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::bootstrap::{Estimate, percentile_interval, resampled_means};

/// Ids that an error names before it only counts.
const N_SHOWN_IDS: usize = 3;

/// The score of one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleScore {
    /// Unique in its set.
    pub id: String,
    /// Any finite number.
    pub score: f64,
    /// How much it counts in the mean, such as the calls of a turn; 0 for not at all.
    #[serde(default = "one")]
    pub weight: f64,
}

fn one() -> f64 {
    1.0
}

impl SampleScore {
    /// A score that counts as much as any other.
    pub fn new(id: impl Into<String>, score: f64) -> Self {
        Self {
            id: id.into(),
            score,
            weight: one(),
        }
    }
}

/// How resamples are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairedOptions {
    /// Resamples behind interval and p value; p cannot be below one over one more than these.
    pub n_resamples: usize,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for PairedOptions {
    fn default() -> Self {
        Self {
            n_resamples: 10_000,
            seed: 17,
        }
    }
}

/// A sample whose score differs between the two systems.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flip {
    /// Of the sample.
    pub id: String,
    /// Score of the first system.
    pub before: f64,
    /// Score of the second system.
    pub after: f64,
}

/// What the second system changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairedComparison {
    /// Number of samples that count in either system.
    pub n: usize,
    /// Mean score of the first system.
    pub before: f64,
    /// Mean score of the second system.
    pub after: f64,
    /// The second's mean less the first's, with its 95 % interval.
    pub difference: Estimate,
    /// Two-sided: how likely a difference as far from zero is, were there none.
    pub p: f64,
    /// Samples that the second system scores higher, in order; it does them better, unless less of
    /// the score is better.
    pub won: Vec<Flip>,
    /// Samples that it scores lower, in order.
    pub lost: Vec<Flip>,
}

/// Why two sets of scores have no comparison.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PairedError {
    /// There is nothing to compare.
    #[error("there is no sample to compare; give the scores of at least one")]
    NoSamples,
    /// No sample counts in one of the sets, so that it has no mean.
    #[error("no sample counts in the {set} scores; there is nothing to compare")]
    NothingCounts {
        /// `first` or `second`.
        set: &'static str,
    },
    /// There is nothing to draw.
    #[error("n_resamples is 0; give at least 1, better 1000 or more")]
    NoResamples,
    /// A set names a sample more than once.
    #[error("the {set} scores have {id:?} more than once; give each sample one score")]
    Repeated {
        /// `first` or `second`.
        set: &'static str,
        /// The sample.
        id: String,
    },
    /// A score is NaN or infinite.
    #[error(
        "the {set} score of {id:?} is {score}; give a finite number, or leave the sample out of both sets"
    )]
    NotFinite {
        /// `first` or `second`.
        set: &'static str,
        /// The sample.
        id: String,
        /// The score as text.
        score: String,
    },
    /// The sets are not about the same samples.
    #[error(
        "{n} samples are in the {present} scores alone ({ids}); score both systems on the same rows, or keep only the samples that both have"
    )]
    OtherSamples {
        /// The set that has them: `first` or `second`.
        present: &'static str,
        /// Number of samples without a partner.
        n: usize,
        /// The first of them.
        ids: String,
    },
}

/// Compares two systems by the means of their scores of the same samples, in any order.
///
/// The interval is the percentile interval of the mean difference. The p value counts resamples
/// whose difference, centred on zero, is at least as far from zero as the observed one; the
/// observed difference counts as one resample, so that p is never zero.
///
/// # Errors
///
/// - no samples, or no resamples
/// - an id that comes twice in a set, or that only one set has
/// - a score or a weight that is not finite, or a weight below 0
/// - a set in which no sample counts
///
/// # Source
///
/// Efron and Tibshirani, An Introduction to the Bootstrap, sections 13.3 (percentile interval) and
/// 16.4 (resampling under the null hypothesis by centring); Davison and Hinkley, Bootstrap Methods
/// and their Application, section 4.2.5 (the observed value counts as one).
pub fn paired_bootstrap(
    before: &[SampleScore],
    after: &[SampleScore],
    options: PairedOptions,
) -> Result<PairedComparison, PairedError> {
    if options.n_resamples == 0 {
        return Err(PairedError::NoResamples);
    }
    let pairs = pairs(before, after)?;
    if pairs.is_empty() {
        return Err(PairedError::NoSamples);
    }
    let n_as_far = |observed: f64, resampled: &[f64]| {
        let is_as_far = |mean: &&f64| (**mean - observed).abs() >= observed.abs();
        resampled.iter().filter(is_as_far).count()
    };
    let before = mean("first", &pairs, Pair::before)?;
    let after = mean("second", &pairs, Pair::after)?;
    let (observed, resampled) = resampled_differences(&pairs, after - before, options);
    let n_drawn = resampled.len();
    let flipped = |is: fn(f64) -> bool| -> Vec<Flip> {
        let both = pairs
            .iter()
            .filter(|pair| pair.weights.iter().all(|w| *w > 0.0));
        let flips = both.filter(|pair| is(pair.flip.gain()));
        flips.map(|pair| pair.flip.clone()).collect()
    };
    let counts = |pair: &&Pair| pair.weights.iter().any(|weight| *weight > 0.0);
    Ok(PairedComparison {
        n: pairs.iter().filter(counts).count(),
        before,
        after,
        p: (n_as_far(observed, &resampled) + 1) as f64 / (n_drawn + 1) as f64,
        difference: percentile_interval(observed, resampled),
        won: flipped(|gain| gain > 0.0),
        lost: flipped(|gain| gain < 0.0),
    })
}

/// Both scores of a sample, and how much each counts.
struct Pair {
    flip: Flip,
    weights: [f64; 2],
}

impl Pair {
    /// The first score times its weight, and the weight.
    fn before(&self) -> [f64; 2] {
        let weight = self.weights[0];
        [self.flip.before * weight, weight]
    }

    /// The same of the second.
    fn after(&self) -> [f64; 2] {
        let weight = self.weights[1];
        [self.flip.after * weight, weight]
    }
}

fn mean(set: &'static str, pairs: &[Pair], of: fn(&Pair) -> [f64; 2]) -> Result<f64, PairedError> {
    let sums = pairs.iter().map(of);
    let [sum, weight] = sums.fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d]);
    if weight > 0.0 {
        Ok(sum / weight)
    } else {
        Err(PairedError::NothingCounts { set })
    }
}

/// The difference of the means, and that of each resample in which both are there.
fn resampled_differences(pairs: &[Pair], observed: f64, options: PairedOptions) -> (f64, Vec<f64>) {
    let draw = |rows: &[[f64; 1]]| resampled_means(rows, options.n_resamples, options.seed);
    if pairs.iter().all(|pair| pair.weights == [1.0; 2]) {
        // The mean of the differences, which has fewer roundings.
        let gains: Vec<[f64; 1]> = pairs.iter().map(|pair| [pair.flip.gain()]).collect();
        let observed = gains.iter().map(|[gain]| gain).sum::<f64>() / gains.len() as f64;
        return (
            observed,
            draw(&gains).into_iter().map(|[mean]| mean).collect(),
        );
    }
    let sums = |pair: &Pair| {
        let ([a, b], [c, d]) = (pair.before(), pair.after());
        [a, b, c, d]
    };
    let rows: Vec<[f64; 4]> = pairs.iter().map(sums).collect();
    let resampled = resampled_means(&rows, options.n_resamples, options.seed).into_iter();
    let difference = |[a, b, c, d]: [f64; 4]| (b > 0.0 && d > 0.0).then(|| c / d - a / b);
    (observed, resampled.filter_map(difference).collect())
}

impl Flip {
    fn gain(&self) -> f64 {
        self.after - self.before
    }
}

/// Both scores of each sample, in the order of the first set.
fn pairs(before: &[SampleScore], after: &[SampleScore]) -> Result<Vec<Pair>, PairedError> {
    let first = by_id("first", before)?;
    let second = by_id("second", after)?;
    same_samples("first", before, &second)?;
    same_samples("second", after, &first)?;
    let pair = |sample: &SampleScore| {
        let other = second.get(sample.id.as_str())?;
        Some(Pair {
            flip: Flip {
                id: sample.id.clone(),
                before: sample.score,
                after: other.score,
            },
            weights: [sample.weight, other.weight],
        })
    };
    Ok(before.iter().filter_map(pair).collect())
}

fn by_id<'s>(
    set: &'static str,
    scores: &'s [SampleScore],
) -> Result<HashMap<&'s str, &'s SampleScore>, PairedError> {
    let mut by_id = HashMap::with_capacity(scores.len());
    for sample in scores {
        let SampleScore { id, score, weight } = sample;
        if !score.is_finite() || !weight.is_finite() || *weight < 0.0 {
            let weighed = match weight {
                1.0 => score.to_string(),
                weight => format!("{score} with weight {weight}"),
            };
            return Err(PairedError::NotFinite {
                set,
                id: id.clone(),
                score: weighed,
            });
        }
        if by_id.insert(id.as_str(), sample).is_some() {
            return Err(PairedError::Repeated {
                set,
                id: id.clone(),
            });
        }
    }
    Ok(by_id)
}

fn same_samples(
    present: &'static str,
    scores: &[SampleScore],
    others: &HashMap<&str, &SampleScore>,
) -> Result<(), PairedError> {
    let missing: Vec<&str> = scores
        .iter()
        .map(|sample| sample.id.as_str())
        .filter(|id| !others.contains_key(id))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> = missing
        .iter()
        .take(N_SHOWN_IDS)
        .map(|id| format!("{id:?}"))
        .collect();
    let more = if missing.len() > N_SHOWN_IDS {
        ", ..."
    } else {
        ""
    };
    Err(PairedError::OtherSamples {
        present,
        n: missing.len(),
        ids: shown.join(", ") + more,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scores(values: &[f64]) -> Vec<SampleScore> {
        let named = |(n, score): (usize, &f64)| SampleScore::new(format!("row:{n}"), *score);
        values.iter().enumerate().map(named).collect()
    }

    fn compared(before: &[f64], after: &[f64]) -> PairedComparison {
        paired_bootstrap(&scores(before), &scores(after), PairedOptions::default())
            .expect("the same samples")
    }

    #[test]
    fn a_constant_difference_has_an_interval_of_no_width_and_the_least_p() {
        let before: Vec<f64> = (0..50).map(|n| f64::from(n % 7)).collect();
        let after: Vec<f64> = before.iter().map(|score| score + 0.25).collect();
        let found = compared(&before, &after);
        let exact = Estimate {
            value: 0.25,
            low: 0.25,
            high: 0.25,
        };
        assert_eq!((found.n, found.difference), (50, exact));
        assert_eq!(found.p, 1.0 / 10_001.0);
        assert_eq!((found.won.len(), found.lost.len()), (50, 0));
        let same = compared(&before, &before);
        assert_eq!((same.difference, same.p), (Estimate::default(), 1.0));
        assert!(same.won.is_empty() && same.lost.is_empty());
    }

    #[test]
    fn weights_make_the_mean_one_of_all_that_samples_hold() {
        // One turn of four calls and three of one; a turn that counts in the second system alone.
        let weighed = |scores: [(f64, f64); 5]| -> Vec<SampleScore> {
            let all = scores.into_iter().enumerate();
            let sample = |(n, (score, weight)): (usize, (f64, f64))| SampleScore {
                id: n.to_string(),
                score,
                weight,
            };
            all.map(sample).collect()
        };
        let before = weighed([(0.25, 4.0), (1.0, 1.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)]);
        let after = weighed([(0.75, 4.0), (1.0, 1.0), (1.0, 1.0), (0.0, 1.0), (0.5, 2.0)]);
        let found = paired_bootstrap(&before, &after, PairedOptions::default()).unwrap();
        assert_eq!((found.before, found.after), (3.0 / 7.0, 6.0 / 9.0));
        assert_eq!(found.difference.value, 6.0 / 9.0 - 3.0 / 7.0);
        assert!(found.difference.low < found.difference.value);
        assert!(found.difference.high > found.difference.value);
        assert_eq!((found.n, found.won.len(), found.lost.len()), (5, 2, 1));
        let nothing = weighed([(0.0, 0.0); 5]);
        let error = paired_bootstrap(&nothing, &after, PairedOptions::default()).unwrap_err();
        assert_eq!(error, PairedError::NothingCounts { set: "first" });
    }

    #[test]
    fn won_and_lost_samples_are_named_in_the_order_of_the_first_set() {
        let mut after = scores(&[1.0, 0.0, 1.0, 0.0]);
        after.reverse();
        let found = paired_bootstrap(
            &scores(&[0.0, 1.0, 1.0, 1.0]),
            &after,
            PairedOptions::default(),
        )
        .expect("the same samples");
        let ids = |flips: &[Flip]| flips.iter().map(|f| f.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&found.won), ["row:0"]);
        assert_eq!(ids(&found.lost), ["row:1", "row:3"]);
        assert_eq!((found.before, found.after), (0.75, 0.5));
        assert_eq!(found.difference.value, -0.25);
    }

    #[test]
    fn interval_and_p_are_those_of_the_normal_distribution_for_many_samples() {
        // Differences +1 (60 of 400), -1 (30) and 0: mean 0.075, variance 0.225 - 0.075^2.
        let after: Vec<f64> = (0..400)
            .map(|n| match n % 40 {
                0..6 => 1.0,
                6..9 => -1.0,
                _ => 0.0,
            })
            .collect();
        let found = compared(&[0.0; 400], &after);
        let deviation = ((0.225 - 0.075_f64.powi(2)) / 400.0).sqrt();
        assert!((found.difference.value - 0.075).abs() < 1e-12);
        assert!((found.difference.low - (0.075 - 1.96 * deviation)).abs() < 0.004);
        assert!((found.difference.high - (0.075 + 1.96 * deviation)).abs() < 0.004);
        // 0.075 / 0.02342 is 3.20 deviations: 0.00137 of the normal distribution lie beyond.
        assert!((0.0004..0.003).contains(&found.p), "{}", found.p);
    }

    /// The definition, written once more over indices of a generator of its own.
    fn naive(before: &[f64], after: &[f64], options: PairedOptions) -> (Estimate, f64) {
        let n = before.len();
        let mut state = options.seed;
        let mut below = || {
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
        let mut n_as_far = 1;
        for _ in 0..options.n_resamples {
            let mut sum = 0.0;
            for _ in 0..n {
                let i = below();
                sum += after[i] - before[i];
            }
            let mean = sum / n as f64;
            means.push(mean);
            if (mean - value).abs() >= value.abs() {
                n_as_far += 1;
            }
        }
        means.sort_by(f64::total_cmp);
        let cut = (0.025 * options.n_resamples as f64) as usize;
        let estimate = Estimate {
            value,
            low: means[cut],
            high: means[options.n_resamples - 1 - cut],
        };
        (estimate, n_as_far as f64 / (options.n_resamples + 1) as f64)
    }

    proptest! {
        #[test]
        fn numbers_are_those_of_a_naive_loop_and_repeat_themselves(
            pairs in prop::collection::vec((-2.0..2.0f64, -2.0..2.0f64), 1..30),
            seed: u64,
            n_resamples in 1..200usize,
        ) {
            let (before, after): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let options = PairedOptions { n_resamples, seed };
            let run = || paired_bootstrap(&scores(&before), &scores(&after), options);
            let found = run().expect("the same samples");
            prop_assert_eq!(&found, &run().expect("the same samples"));
            let (estimate, p) = naive(&before, &after, options);
            prop_assert_eq!(found.difference, estimate);
            prop_assert_eq!(found.p, p);
            prop_assert!(found.difference.low <= found.difference.high);
        }
    }

    #[test]
    fn what_cannot_be_paired_is_refused_with_its_place() {
        let refused = |before: &[SampleScore], after: &[SampleScore]| {
            paired_bootstrap(before, after, PairedOptions::default())
                .expect_err("refused")
                .to_string()
        };
        assert_eq!(
            refused(&scores(&[1.0; 6]), &scores(&[1.0])),
            "5 samples are in the first scores alone (\"row:1\", \"row:2\", \"row:3\", ...); score \
             both systems on the same rows, or keep only the samples that both have"
        );
        assert!(refused(&[], &scores(&[1.0])).starts_with("1 samples are in the second scores"));
        let twice = [scores(&[1.0]), scores(&[0.0])].concat();
        assert_eq!(
            refused(&scores(&[1.0]), &twice),
            "the second scores have \"row:0\" more than once; give each sample one score"
        );
        assert!(
            refused(&scores(&[f64::NAN]), &scores(&[1.0]))
                .starts_with("the first score of \"row:0\" is NaN;")
        );
        assert!(refused(&[], &[]).starts_with("there is no sample"));
        let options = PairedOptions {
            n_resamples: 0,
            seed: 1,
        };
        assert_eq!(
            paired_bootstrap(&[], &[], options),
            Err(PairedError::NoResamples)
        );
    }
}
