//! Compares the scores of two systems on the same samples: difference, interval and p value.
//!
//! Samples are paired by id, so the difficulty of a sample affects both sides and cancels out. The
//! difference of two systems can therefore be significant although their intervals overlap. The ids
//! are in the order of the first system, so the result depends only on the scores and the seed.

mod difference;
mod swaps;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::bootstrap::Estimate;
use difference::difference;
use swaps::p_value;

/// Number of ids that an error lists.
const N_SHOWN_IDS: usize = 3;

/// The score of one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleScore {
    /// Id of the sample, unique in its set.
    pub id: String,
    /// Score, any finite number.
    pub score: f64,
    /// Weight in the mean, such as the number of calls of a turn; 0 excludes the sample.
    #[serde(default = "default_weight")]
    pub weight: f64,
}

fn default_weight() -> f64 {
    1.0
}

impl SampleScore {
    /// A score of weight 1.
    pub fn new(id: impl Into<String>, score: f64) -> Self {
        Self {
            id: id.into(),
            score,
            weight: default_weight(),
        }
    }
}

/// How resamples are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairedOptions {
    /// Number of resamples for the interval of many samples. If there are too many swaps to
    /// enumerate, it is also the number of random swaps for the p value, which is then at least 1 /
    /// (n_resamples + 1).
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

/// A sample with different scores in the two systems.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flip {
    /// Sample id.
    pub id: String,
    /// Score of the first system.
    pub before: f64,
    /// Score of the second system.
    pub after: f64,
}

/// Comparison of the second system with the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairedComparison {
    /// Number of samples with a weight in either system.
    pub n: usize,
    /// The smallest p value possible with this number of samples.
    pub least_p: f64,
    /// Mean score of the first system.
    pub before: f64,
    /// Mean score of the second system.
    pub after: f64,
    /// Mean of the second system minus mean of the first, with its 95 % interval.
    pub difference: Estimate,
    /// Two-sided p value: the probability of a difference at least as large as the observed one, if
    /// for each sample the two scores were randomly assigned to the systems.
    pub p: f64,
    /// Samples with a higher score in the second system, in order. For metrics where lower is
    /// better, these are samples on which the second system is worse.
    pub won: Vec<Flip>,
    /// Samples with a lower score in the second system, in order.
    pub lost: Vec<Flip>,
}

/// Why two sets of scores cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PairedError {
    /// There are no samples.
    #[error("no samples to compare; provide the scores of at least one sample")]
    NoSamples,
    /// No sample of a set has a weight, so its mean is undefined.
    #[error(
        "all weights in the {set} set of scores are 0; provide at least one sample with a positive weight"
    )]
    NothingCounts {
        /// `first` or `second`.
        set: &'static str,
    },
    /// The number of resamples is 0.
    #[error("n_resamples is 0; set it to at least 1, preferably 1000 or more")]
    NoResamples,
    /// A sample occurs more than once in a set.
    #[error("the {set} set of scores has {id:?} more than once; provide one score per sample")]
    Repeated {
        /// `first` or `second`.
        set: &'static str,
        /// Sample id.
        id: String,
    },
    /// A score is NaN or infinite.
    #[error(
        "the score of {id:?} in the {set} set is {score}; provide a finite number, or remove the sample from both sets"
    )]
    NotFinite {
        /// `first` or `second`.
        set: &'static str,
        /// Sample id.
        id: String,
        /// The score as text.
        score: String,
    },
    /// The sets contain different samples.
    #[error(
        "{n} samples are only in the {present} set of scores ({ids}); score both systems on the same rows, or keep only the samples that both have"
    )]
    DifferentSamples {
        /// The set that contains them: `first` or `second`.
        present: &'static str,
        /// Number of samples that are in only one set.
        n: usize,
        /// The first ids that are in only one set.
        ids: String,
    },
}

/// Compares two systems by their mean scores on the same samples, in any order.
///
/// The p value is from a permutation test. It is the fraction of all ways to swap the two scores of
/// samples for which the difference is at least as large as the observed one. The test is exact for
/// rates (McNemar's exact test), for up to 30 differing samples, and for more samples if the scores
/// are multiples of a common fraction. Otherwise random swaps are drawn, and the observed
/// difference counts as one of them. With 6 samples, p is at least 2/64.
///
/// With few samples the interval is computed from the intervals of the two means. With many samples
/// it is the percentile interval of resampled differences. It contains 0 if p is above 0.05.
///
/// # Errors
///
/// - no samples, or no resamples
/// - an id that occurs twice in a set, or only in one set
/// - a score or weight that is not finite, or a negative weight
/// - a set in which all weights are 0
///
/// # Source
///
/// Good, Permutation, Parametric, and Bootstrap Tests of Hypotheses, section 3.7 (matched pairs);
/// Phipson and Smyth, Permutation P-values Should Never Be Zero (2010); Efron and Tibshirani, An
/// Introduction to the Bootstrap, section 13.3 (percentile interval).
pub fn compare_pairs(
    first_scores: &[SampleScore],
    second_scores: &[SampleScore],
    options: PairedOptions,
) -> Result<PairedComparison, PairedError> {
    if options.n_resamples == 0 {
        return Err(PairedError::NoResamples);
    }
    let pairs = pairs(first_scores, second_scores)?;
    if pairs.is_empty() {
        return Err(PairedError::NoSamples);
    }
    let first_scores = mean("first", &pairs, Pair::weighted_before)?;
    let second_scores = mean("second", &pairs, Pair::weighted_after)?;
    let p = p_value(&pairs, options);
    let flipped = |is: fn(f64) -> bool| -> Vec<Flip> {
        let both = pairs
            .iter()
            .filter(|pair| pair.weights.iter().all(|w| *w > 0.0));
        let flips = both.filter(|pair| is(pair.flip.gain()));
        flips.map(|pair| pair.flip.clone()).collect()
    };
    let counts = |pair: &&Pair| pair.weights.iter().any(|weight| *weight > 0.0);
    let n = pairs.iter().filter(counts).count();
    Ok(PairedComparison {
        n,
        least_p: swaps::least_p(n),
        before: first_scores,
        after: second_scores,
        p,
        difference: difference(&pairs, second_scores - first_scores, p, options),
        won: flipped(|gain| gain > 0.0),
        lost: flipped(|gain| gain < 0.0),
    })
}

/// Both scores of a sample, and their weights.
struct Pair {
    flip: Flip,
    weights: [f64; 2],
}

impl Pair {
    /// Weighted score and weight of the first system.
    fn weighted_before(&self) -> [f64; 2] {
        let weight = self.weights[0];
        [self.flip.before * weight, weight]
    }

    /// Weighted score and weight of the second system.
    fn weighted_after(&self) -> [f64; 2] {
        let weight = self.weights[1];
        [self.flip.after * weight, weight]
    }

    /// Whether both weights are equal.
    fn is_even(&self) -> bool {
        self.weights[0] == self.weights[1]
    }
}

fn mean(
    set: &'static str,
    pairs: &[Pair],
    side_of: fn(&Pair) -> [f64; 2],
) -> Result<f64, PairedError> {
    let sums = pairs.iter().map(side_of);
    let [sum, weight] = sums.fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d]);
    if weight > 0.0 {
        Ok(sum / weight)
    } else {
        Err(PairedError::NothingCounts { set })
    }
}

impl Flip {
    fn gain(&self) -> f64 {
        self.after - self.before
    }
}

/// Pairs the samples, in the order of the first set.
fn pairs(
    first_scores: &[SampleScore],
    second_scores: &[SampleScore],
) -> Result<Vec<Pair>, PairedError> {
    let first_by_id = by_id("first", first_scores)?;
    let second = by_id("second", second_scores)?;
    same_samples("first", first_scores, &second)?;
    same_samples("second", second_scores, &first_by_id)?;
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
    Ok(first_scores.iter().filter_map(pair).collect())
}

fn by_id<'s>(
    set: &'static str,
    scores: &'s [SampleScore],
) -> Result<HashMap<&'s str, &'s SampleScore>, PairedError> {
    let mut by_id = HashMap::with_capacity(scores.len());
    for sample in scores {
        let SampleScore { id, score, weight } = sample;
        if !score.is_finite() || !weight.is_finite() || *weight < 0.0 {
            let weighted = match weight {
                1.0 => score.to_string(),
                weight => format!("{score} with weight {weight}"),
            };
            return Err(PairedError::NotFinite {
                set,
                id: id.clone(),
                score: weighted,
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
    other_by_id: &HashMap<&str, &SampleScore>,
) -> Result<(), PairedError> {
    let missing: Vec<&str> = scores
        .iter()
        .map(|sample| sample.id.as_str())
        .filter(|id| !other_by_id.contains_key(id))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let quoted: Vec<String> = missing
        .iter()
        .take(N_SHOWN_IDS)
        .map(|id| format!("{id:?}"))
        .collect();
    let suffix = if missing.len() > N_SHOWN_IDS {
        ", ..."
    } else {
        ""
    };
    Err(PairedError::DifferentSamples {
        present,
        n: missing.len(),
        ids: quoted.join(", ") + suffix,
    })
}

#[cfg(test)]
mod tests;
