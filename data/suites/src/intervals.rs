//! Computes closed-form intervals for means of few samples. A bootstrap needs more samples, because
//! few samples have too few distinct resamples.

use super::bootstrap::Estimate;

/// Minimum number of samples for a bootstrap. For fewer samples the interval is computed in closed
/// form. For example, all resamples of six equal scores are equal and would give an interval of
/// zero width.
pub(super) const MIN_BOOTSTRAP_SAMPLES: usize = 100;

/// Tables add a note if there are fewer samples than this.
const FEW_SAMPLES: usize = 30;

/// A note for results of few samples; `None` for 30 samples or more.
pub fn few_samples(n: usize) -> Option<String> {
    (n < FEW_SAMPLES).then(|| {
        format!(
            "n is {n}: with fewer than {FEW_SAMPLES} samples only large differences are significant; evaluate \
             on more rows"
        )
    })
}

/// The 97.5 % quantile of the normal distribution.
const NORMAL_QUANTILE: f64 = 1.959_963_984_540_054;

/// Student's 97.5 % quantiles for 1 to 9 degrees of freedom. For more degrees, a series is used,
/// which is exact to five digits.
const STUDENT_QUANTILES: [f64; 9] = [
    12.706_204_736,
    4.302_652_730,
    3.182_446_305,
    2.776_445_105,
    2.570_581_836,
    2.446_911_851,
    2.364_624_252,
    2.306_004_135,
    2.262_157_163,
];

/// The range of scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// From 0 to 1, such as a rate or a similarity.
    Share,
    /// Any number, such as a count of additional calls.
    Open,
}

/// The terms of a mean or of a ratio of sums.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Summands {
    /// For each included sample, its numerator minus the ratio times its denominator.
    residuals: Vec<f64>,
    /// Sum of the denominators.
    total: f64,
    value: f64,
    /// Whether the value of every sample is between 0 and its denominator.
    are_shares: bool,
}

impl Summands {
    /// Builds the terms from rows of (numerator, denominator) whose sums have the ratio `value`.
    pub(super) fn new(rows: &[(f64, f64)], value: f64) -> Self {
        let used_rows = || rows.iter().filter(|(_, denominator)| *denominator != 0.0);
        Self {
            residuals: used_rows()
                .map(|(numerator, denominator)| numerator - value * denominator)
                .collect(),
            total: used_rows().map(|(_, denominator)| denominator).sum(),
            value,
            are_shares: used_rows()
                .all(|(numerator, denominator)| (0.0..=*denominator).contains(numerator)),
        }
    }

    /// Whether there are enough distinct samples for a bootstrap.
    pub(super) fn can_be_resampled(&self) -> bool {
        let tiny = 1e-12 * self.total.abs().max(1.0);
        self.residuals.len() >= MIN_BOOTSTRAP_SAMPLES
            && self.residuals.iter().any(|residual| residual.abs() > tiny)
    }

    /// The value with its 95 % interval: Wilson's for values in 0..=1, otherwise Student's.
    pub(super) fn estimate(&self, scale: Scale) -> Estimate {
        match scale {
            Scale::Share if self.are_shares && (0.0..=1.0).contains(&self.value) => {
                wilson(self.value, self.effective_size())
            }
            _ => student(self.value, self.variance(), self.residuals.len()),
        }
    }

    /// The number of yes-or-no samples whose mean has the same variance.
    ///
    /// Scores between 0 and 1 vary less than yes-or-no samples, and items of one sample are not
    /// independent. The measured variance is therefore shrunk towards the variance of yes-or-no
    /// samples with the weight of one sample. A few equal scores then do not give an interval of
    /// zero width.
    ///
    /// # Source
    ///
    /// Korn and Graubard, Confidence intervals for proportions with small expected number of
    /// positive counts estimated from survey data (1998), for the effective size. Dean and Pagano,
    /// Evaluating confidence interval methods for binomial proportions in clustered surveys (2015),
    /// for Wilson's interval with this size.
    fn effective_size(&self) -> f64 {
        let n = self.residuals.len() as f64;
        let rate_variance = self.value * (1.0 - self.value);
        if rate_variance <= 0.0 {
            return n;
        }
        let squares: f64 = self
            .residuals
            .iter()
            .map(|residual| residual * residual)
            .sum();
        let dispersion = n * squares / (self.total * self.total) / rate_variance;
        n / (((n - 1.0) * dispersion + 1.0) / n)
    }

    /// First-order variance of the ratio.
    fn variance(&self) -> f64 {
        let n = self.residuals.len() as f64;
        let squares: f64 = self
            .residuals
            .iter()
            .map(|residual| residual * residual)
            .sum();
        n / (n - 1.0) * squares / (self.total * self.total)
    }
}

/// Wilson's 95 % interval of a proportion of `n` samples.
///
/// # Source
///
/// Wilson, Probable Inference, the Law of Succession, and Statistical Inference (1927).
fn wilson(value: f64, n: f64) -> Estimate {
    let square = NORMAL_QUANTILE * NORMAL_QUANTILE;
    let center = (value * n + square / 2.0) / (n + square);
    let half = NORMAL_QUANTILE / (n + square) * (n * value * (1.0 - value) + square / 4.0).sqrt();
    Estimate {
        value,
        low: (center - half).clamp(0.0, value),
        high: (center + half).clamp(value, 1.0),
    }
}

/// Student's 95 % interval of a mean of `n` samples with the given variance. There is no interval
/// for one sample or for equal samples, because the spread is unknown.
pub(super) fn student(value: f64, variance: f64, n: usize) -> Estimate {
    if n < 2 || variance.is_nan() || variance <= 0.0 {
        return Estimate::without_interval(value);
    }
    let half = student_quantile(n - 1) * variance.sqrt();
    Estimate {
        value,
        low: value - half,
        high: value + half,
    }
}

/// # Source
///
/// Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
fn student_quantile(n_degrees: usize) -> f64 {
    if let Some(quantile) = STUDENT_QUANTILES.get(n_degrees.wrapping_sub(1)) {
        return *quantile;
    }
    let n = n_degrees as f64;
    let z = |power: i32| NORMAL_QUANTILE.powi(power);
    let terms = [
        (z(3) + NORMAL_QUANTILE) / 4.0,
        (5.0 * z(5) + 16.0 * z(3) + 3.0 * NORMAL_QUANTILE) / 96.0,
        (3.0 * z(7) + 19.0 * z(5) + 17.0 * z(3) - 15.0 * NORMAL_QUANTILE) / 384.0,
        (79.0 * z(9) + 776.0 * z(7) + 1482.0 * z(5) - 1920.0 * z(3) - 945.0 * NORMAL_QUANTILE)
            / 92160.0,
    ];
    let powers = (1..).map(|power| n.powi(power));
    NORMAL_QUANTILE
        + terms
            .iter()
            .zip(powers)
            .map(|(term, power)| term / power)
            .sum::<f64>()
}

#[cfg(test)]
pub(crate) mod fixtures {
    use serde_json::Value;

    /// Rows of a file generated by `scripts/fixtures/small_samples.py`.
    pub(crate) fn rows(name: &str) -> Vec<Value> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/small_samples");
        let text = std::fs::read_to_string(format!("{folder}/{name}.jsonl")).expect("a fixture");
        let rows: Result<_, _> = text.lines().map(serde_json::from_str).collect();
        rows.expect("lines of JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate_estimate(scores: &[f64]) -> Estimate {
        let rows: Vec<(f64, f64)> = scores.iter().map(|score| (*score, 1.0)).collect();
        let value = scores.iter().sum::<f64>() / scores.len() as f64;
        Summands::new(&rows, value).estimate(Scale::Share)
    }

    fn is_near(actual: f64, expected: f64) -> bool {
        (actual - expected).abs() < 1e-9
    }

    #[test]
    fn wilson_intervals_equal_statsmodels() {
        for row in fixtures::rows("wilson") {
            let number = |name: &str| row[name].as_f64().expect("a number");
            let actual = wilson(number("value"), number("n"));
            assert!(is_near(actual.low, number("low")), "{actual:?} {row}");
            assert!(is_near(actual.high, number("high")), "{actual:?} {row}");
        }
    }

    #[test]
    fn the_interval_of_a_rate_equals_statsmodels_for_any_sample_count() {
        for row in fixtures::rows("wilson") {
            let number = |name: &str| row[name].as_f64().expect("a number");
            if number("n").fract() != 0.0 {
                continue;
            }
            let n = number("n") as usize;
            let n_right = (number("value") * number("n")).round() as usize;
            let scores: Vec<f64> = (0..n)
                .map(|idx| f64::from(u8::from(idx < n_right)))
                .collect();
            let actual = rate_estimate(&scores);
            assert!(is_near(actual.low, number("low")), "{actual:?} {row}");
            assert!(is_near(actual.high, number("high")), "{actual:?} {row}");
        }
    }

    #[test]
    fn student_quantiles_equal_scipy() {
        for row in fixtures::rows("student") {
            let n = row["n"].as_u64().expect("a count") as usize;
            let actual = student_quantile(n - 1);
            let expected = row["quantile"].as_f64().expect("a number");
            assert!(
                (actual - expected).abs() < 2e-5 * expected,
                "{actual} {row}"
            );
        }
    }

    #[test]
    fn few_equal_scores_have_an_interval_with_width() {
        for n in [1, 2, 6, 40] {
            for score in [0.0, 0.25, 0.83, 1.0] {
                let actual = rate_estimate(&vec![score; n]);
                assert!((actual.value - score).abs() < 1e-12);
                assert!(
                    actual.high - actual.low > 1e-3,
                    "{n} times {score}: {actual:?}"
                );
                assert!((0.0..=score + 1e-12).contains(&actual.low), "{actual:?}");
                assert!((score - 1e-12..=1.0).contains(&actual.high), "{actual:?}");
            }
        }
    }

    #[test]
    fn scores_that_vary_less_than_a_rate_have_a_narrower_interval() {
        let rate = rate_estimate(&[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
        let scores = rate_estimate(&[0.45, 0.55, 0.5, 0.5, 0.4, 0.6, 0.52, 0.48]);
        assert_eq!(rate.value, 0.5);
        assert!(scores.high - scores.low < 0.5 * (rate.high - rate.low));
        // A turn with several calls counts as one sample.
        let one_each = Summands::new(&[(1.0, 1.0), (0.0, 1.0), (1.0, 1.0)], 2.0 / 3.0);
        let ten_each = Summands::new(&[(10.0, 10.0), (0.0, 10.0), (10.0, 10.0)], 2.0 / 3.0);
        assert_eq!(
            one_each.estimate(Scale::Share),
            ten_each.estimate(Scale::Share)
        );
    }

    #[test]
    fn unbounded_scores_have_students_interval_and_a_single_sample_none() {
        let rows = [(1.0, 1.0), (2.0, 1.0), (6.0, 1.0), (0.0, 0.0)];
        let actual = Summands::new(&rows, 3.0).estimate(Scale::Open);
        // The standard deviation is the square root of 7, and 4.302653 is the quantile for 2
        // degrees of freedom.
        let half = 4.302_652_730 * (7.0_f64 / 3.0).sqrt();
        assert!(is_near(actual.high - 3.0, half) && is_near(3.0 - actual.low, half));
        for rows in [vec![(3.0, 1.0)], vec![(3.0, 1.0); 6]] {
            let actual = Summands::new(&rows, 3.0).estimate(Scale::Open);
            assert_eq!((actual.value, actual.interval()), (3.0, None));
        }
    }
}
