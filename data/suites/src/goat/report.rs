//! Aggregates the samples of a run into a line of GOAT's tables, with intervals.
//!
//! Means are macro means over samples. The length difference is a mean over only the solved
//! samples, and `None` if no sample is solved. The success rate is `None` if no sample was judged.

use serde::{Deserialize, Serialize};

use super::GoatError;
use super::invocations::{ArgumentEquality, Call, invocation_accuracy, selection_accuracy};
use super::paths::correct_path;
use crate::bootstrap::{Estimate, cell, estimates, indicator, mean, unbounded_mean};
use crate::markdown::{markdown_table, percent};
use crate::named_metrics::named_estimates;

/// A run's result for one query.
#[derive(Debug, Clone, Copy)]
pub struct GoatSample<'s> {
    /// Attempted calls in order, including failed ones.
    pub pred: &'s [Call],
    /// The gold calls in order; their names are the gold path.
    pub gold: &'s [Call],
    /// Whether the final answer solves the query; `None` if it was not judged.
    pub success: Option<bool>,
    /// Whether a completion of the run could not be parsed.
    pub has_parse_error: bool,
}

/// The scores of one query.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GoatScore {
    /// Selection accuracy, 0 to 1.
    pub sa: f64,
    /// Invocation accuracy with normalized arguments, 0 to 1.
    pub ia: f64,
    /// Invocation accuracy with plain JSON equality, 0 to 1.
    pub ia_strict: f64,
    /// Whether the query was solved; `None` if it was not judged.
    pub success: Option<bool>,
    /// Whether the gold path is a subsequence of the predicted path.
    pub correct_path: bool,
    /// Number of attempted calls minus gold calls.
    pub delta_len: i64,
    /// Whether a completion could not be parsed.
    pub parse_error: bool,
}

impl GoatScore {
    /// Scores one sample.
    ///
    /// # Errors
    ///
    /// The sample has no gold calls.
    pub fn from_sample(sample: &GoatSample<'_>) -> Result<Self, GoatError> {
        let names = |calls: &[Call]| -> Vec<String> {
            calls.iter().map(|call| call.name.clone()).collect()
        };
        let (pred, gold) = (sample.pred, sample.gold);
        Ok(Self {
            sa: selection_accuracy(pred, gold),
            ia: invocation_accuracy(pred, gold, ArgumentEquality::Normalized),
            ia_strict: invocation_accuracy(pred, gold, ArgumentEquality::Strict),
            success: sample.success,
            correct_path: correct_path(&names(pred), &[names(gold)])?,
            delta_len: pred.len() as i64 - gold.len() as i64,
            parse_error: sample.has_parse_error,
        })
    }
}

/// The metrics of a run, each with its bootstrap 95 % interval (1,000 resamples, fixed seed).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GoatReport {
    /// Number of queries.
    pub n: usize,
    /// Mean selection accuracy, 0 to 1.
    pub sa: Estimate,
    /// Mean invocation accuracy, normalized arguments.
    pub ia: Estimate,
    /// Mean invocation accuracy, plain JSON equality.
    pub ia_strict: Estimate,
    /// Fraction of solved queries among the judged queries; `None` if none was judged.
    pub sr: Option<Estimate>,
    /// Number of queries that were judged, or whose gold answers have facts.
    #[serde(default)]
    pub n_judged: usize,
    /// Fraction of queries with a correct path.
    pub correct_path: Estimate,
    /// Mean number of calls in addition to the gold calls, over the solved queries; `None` if none
    /// is solved.
    pub delta_len: Option<Estimate>,
    /// Fraction of queries with an unparsable completion.
    pub parse_error_rate: Estimate,
}

named_estimates!(
    GoatReport,
    |report| report,
    [
        sa,
        ia,
        ia_strict,
        sr,
        correct_path,
        delta_len,
        parse_error_rate
    ]
);

impl GoatReport {
    /// Aggregates the scores of a run, or of one of its groups.
    ///
    /// # Errors
    ///
    /// There are no scores.
    pub fn new(scores: &[GoatScore]) -> Result<Self, GoatError> {
        if scores.is_empty() {
            return Err(GoatError::NoSamples);
        }
        let rows: Vec<[f64; 5]> = scores.iter().map(columns).collect();
        let [sa, ia, ia_strict, correct_path, parse_error_rate] = estimates(&rows);
        let queries = scores
            .iter()
            .map(|score| (score.success, Some(score.delta_len)));
        let judged = JudgedMeans::new(queries);
        Ok(Self {
            n: scores.len(),
            sa,
            ia,
            ia_strict,
            sr: judged.sr,
            n_judged: judged.n,
            correct_path,
            delta_len: judged.delta_len,
            parse_error_rate,
        })
    }
}

/// Means over the judged queries of a run; `None` without such queries.
pub(super) struct JudgedMeans {
    /// Number of judged queries.
    pub(super) n: usize,
    /// Fraction of the judged queries that were solved.
    pub(super) sr: Option<Estimate>,
    /// Mean number of calls in addition to the gold calls, over the solved queries.
    pub(super) delta_len: Option<Estimate>,
}

impl JudgedMeans {
    /// Aggregates the queries. An item has a query's verdict and its number of calls in addition to
    /// the gold calls, if known.
    pub(super) fn new(queries: impl Iterator<Item = (Option<bool>, Option<i64>)> + Clone) -> Self {
        let solved = |(success, delta_len): (Option<bool>, Option<i64>)| {
            delta_len
                .filter(|_| success == Some(true))
                .map(|n| n as f64)
        };
        Self {
            n: queries
                .clone()
                .filter(|(success, _)| success.is_some())
                .count(),
            sr: mean(queries.clone().map(|(success, _)| success.map(indicator))),
            delta_len: unbounded_mean(queries.map(solved)),
        }
    }
}

fn columns(score: &GoatScore) -> [f64; 5] {
    [
        score.sa,
        score.ia,
        score.ia_strict,
        indicator(score.correct_path),
        indicator(score.parse_error),
    ]
}

/// Formats reports as a Markdown table, one named line per report.
///
/// Fractions are in per cent and the length difference in calls, both with intervals; missing
/// values are dashes.
pub fn goat_table(reports: &[(&str, &GoatReport)]) -> String {
    let headings = "goat | n | sa % | ia % | ia_strict % | judged | sr % | correct_path % \
                    | delta_len | parse_error_rate %";
    let line = |(name, report): &(&str, &GoatReport)| {
        [
            (*name).to_owned(),
            report.n.to_string(),
            percent(report.sa),
            percent(report.ia),
            percent(report.ia_strict),
            report.n_judged.to_string(),
            percent(report.sr),
            percent(report.correct_path),
            cell(report.delta_len, 1.0, "+"),
            percent(report.parse_error_rate),
        ]
    };
    markdown_table(headings, reports.iter().map(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn calls(items: &[(&str, Value)]) -> Vec<Call> {
        let call = |(name, arguments): &(&str, Value)| Call::new(*name, arguments);
        items.iter().map(call).collect()
    }

    fn score(pred: &[(&str, Value)], success: Option<bool>) -> GoatScore {
        let gold = calls(&[("tide", json!({"day": 3})), ("berth", json!({}))]);
        let pred = calls(pred);
        let sample = GoatSample {
            pred: &pred,
            gold: &gold,
            success,
            has_parse_error: pred.is_empty(),
        };
        GoatScore::from_sample(&sample).expect("a gold path")
    }

    #[test]
    fn a_sample_has_every_metric() {
        let gold_calls = [("tide", json!({"day": "3"})), ("berth", json!({}))];
        let scored = score(&gold_calls, Some(true));
        assert_eq!(
            (scored.sa, scored.ia, scored.ia_strict),
            (1.0, 1.0, 1.0 / 3.0)
        );
        assert_eq!((scored.correct_path, scored.delta_len), (true, 0));
        let no_calls = score(&[], None);
        assert_eq!(
            (no_calls.sa, no_calls.ia, no_calls.delta_len),
            (0.0, 0.0, -2)
        );
        assert!(no_calls.parse_error && !no_calls.correct_path);
    }

    #[test]
    fn success_is_averaged_over_judged_samples_and_length_over_solved_ones() {
        let long = [
            ("tide", json!({"day": 3})),
            ("pilot", json!({})),
            ("berth", json!({})),
        ];
        let scores = [
            score(&long, Some(true)),
            score(&long[..1], Some(false)),
            score(&long[..2], None),
            score(&[], Some(false)),
        ];
        let report = GoatReport::new(&scores).expect("samples");
        assert_eq!(report.n, 4);
        assert_eq!(report.value("sr").map(|e| e.value), Some(1.0 / 3.0));
        assert_eq!(report.value("delta_len").map(|e| e.value), Some(1.0));
        assert_eq!(report.correct_path.value, 0.25);
        assert_eq!(report.parse_error_rate.value, 0.25);
        assert_eq!(report.value("recall"), None);
        assert!(report.sa.low <= report.sa.value && report.sa.value <= report.sa.high);
    }

    #[test]
    fn a_run_that_solves_nothing_shows_dashes() {
        let unjudged = GoatReport::new(&[score(&[], None)]).expect("a sample");
        let unsolved = GoatReport::new(&[score(&[], Some(false))]).expect("a sample");
        let table = goat_table(&[("base", &unjudged), ("adapter", &unsolved)]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines[2],
            "| base | 1 | 0.0 [0.0, 79.3] | 0.0 [0.0, 79.3] | 0.0 [0.0, 79.3] | 0 | - \
             | 0.0 [0.0, 79.3] | - | 100.0 [20.7, 100.0] |"
        );
        assert!(
            lines[3].contains("| 0.0 [0.0, 79.3] | 0.0 [0.0, 79.3] | - |"),
            "{}",
            lines[3]
        );
        let gold_calls = [
            ("tide", json!({"day": 3})),
            ("berth", json!({})),
            ("berth", json!({})),
        ];
        let solved = GoatReport::new(&[score(&gold_calls, Some(true))]).expect("a sample");
        // The interval of one sample is undefined.
        assert!(goat_table(&[("gold", &solved)]).contains("| +1.00 |"));
    }

    #[test]
    fn every_metric_name_is_known_and_a_report_needs_samples() {
        let gold_calls = [("tide", json!({"day": 3})), ("berth", json!({}))];
        let report = GoatReport::new(&[score(&gold_calls, Some(true))]).expect("a sample");
        assert!(
            GoatReport::NAMES
                .iter()
                .all(|name| report.value(name).is_some())
        );
        assert_eq!(GoatReport::new(&[]), Err(GoatError::NoSamples));
        let sample = GoatSample {
            pred: &[],
            gold: &[],
            success: None,
            has_parse_error: false,
        };
        assert_eq!(GoatScore::from_sample(&sample), Err(GoatError::EmptyGold));
    }
}
