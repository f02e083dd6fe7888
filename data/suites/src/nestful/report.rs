//! Aggregates the samples of a run, overall and by the shape of the gold sequence.
//!
//! Win rates are means over the rows that could be run and whose gold sequence computes its answer.
//! The number of other rows is also reported. F1 scores are macro means over the labels of the
//! whole set, most of which occur only once. These means are unstable and have no interval, so
//! compare runs by partial and full matches and by wins.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::NestfulError;
use super::macro_f1::{MacroF1, MacroF1Counter};
use super::parse::Parser;
use super::replay::{GoldReplay, replay_gold};
use super::row::NestfulRow;
use super::runner::ToolRunner;
use super::sample::{SampleScore, Win, score_sample};
use crate::bootstrap::{Estimate, estimates, indicator, mean};
use crate::markdown::{markdown_table, percent};
use crate::named_metrics::named_estimates;

/// Means over samples, each with its bootstrap 95 % interval (1,000 resamples, fixed seed).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NestfulMetrics {
    /// Number of samples.
    pub n: usize,
    /// Number of samples with a defined win.
    pub n_run: usize,
    /// Fraction of completions that could not be parsed.
    pub parse_error_rate: Estimate,
    /// Mean partial sequence match.
    pub partial: Estimate,
    /// Fraction of full sequence matches.
    pub full: Estimate,
    /// Win rate by the published rules, including failures with a gold value of zero.
    pub win_official: Option<Estimate>,
    /// Win rate by the strict rules.
    pub win_strict: Option<Estimate>,
    /// Fraction of wins by the published rules without a full match.
    pub alternate_trajectory: Option<Estimate>,
}

/// The metrics of samples with a common property.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NestfulGroup {
    /// The property: a depth, a number of dependencies, or a pattern.
    pub group: String,
    /// The metrics.
    #[serde(flatten)]
    pub metrics: NestfulMetrics,
}

/// The metrics of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NestfulReport {
    /// Over all samples.
    #[serde(flatten)]
    pub overall: NestfulMetrics,
    /// Macro F1 of function names; the module documentation explains why it is not informative.
    pub f1_function: MacroF1,
    /// Macro F1 of arguments with values.
    pub f1_parameter: MacroF1,
    /// Number of samples that need tools that are missing in the runner.
    pub n_need_tools: usize,
    /// Number of samples whose gold calls do not compute the gold answer.
    pub n_failed_golds: usize,
    /// By number of dependencies on the longest path of the gold sequence.
    pub by_depth: Vec<NestfulGroup>,
    /// By the number of dependencies.
    pub by_dependencies: Vec<NestfulGroup>,
    /// By shape.
    pub by_pattern: Vec<NestfulGroup>,
}

/// Scores completions, one per row, and returns the score of each.
///
/// The gold calls are replayed first; if they fail, the win of the row is undefined.
///
/// # Errors
///
/// - there are no rows, or the number of completions differs
/// - a gold sequence has no calls
/// - the runner fails
pub fn score_rows(
    rows: &[NestfulRow],
    completions: &[&str],
    parser: Parser,
    runner: &dyn ToolRunner,
) -> Result<(NestfulReport, Vec<SampleScore>), NestfulError> {
    if rows.len() != completions.len() {
        return Err(NestfulError::Unpaired {
            n_rows: rows.len(),
            n_predictions: completions.len(),
        });
    }
    let score = |(row, completion): (&NestfulRow, &&str)| {
        let mut score = score_sample(row, completion, parser, runner)?;
        if let GoldReplay::Fails { .. } = replay_gold(row, runner)? {
            score.win = Win::GoldFails;
        }
        Ok(score)
    };
    let pairs = rows.iter().zip(completions);
    let scores: Vec<SampleScore> = pairs.map(score).collect::<Result<_, NestfulError>>()?;
    Ok((NestfulReport::new(&scores)?, scores))
}

named_estimates!(
    NestfulReport,
    |report| report.overall,
    [
        partial,
        full,
        win_official,
        win_strict,
        alternate_trajectory,
        parse_error_rate
    ]
);

impl NestfulReport {
    /// Aggregates the scores of a run.
    ///
    /// # Errors
    ///
    /// There are no scores.
    pub fn new(scores: &[SampleScore]) -> Result<Self, NestfulError> {
        if scores.is_empty() {
            return Err(NestfulError::NoSamples);
        }
        let (mut functions, mut parameters) =
            (MacroF1Counter::default(), MacroF1Counter::default());
        for score in scores {
            functions.add(&score.gold_names, &score.pred_names);
            for row in &score.slot_rows {
                parameters.add(&row.gold, &row.pred);
            }
        }
        let n_with = |win: Win| scores.iter().filter(|score| score.win == win).count();
        let all_scores: Vec<&SampleScore> = scores.iter().collect();
        Ok(Self {
            overall: NestfulMetrics::from_scores(&all_scores),
            f1_function: functions.macro_f1(),
            f1_parameter: parameters.macro_f1(),
            n_need_tools: n_with(Win::NeedsTools),
            n_failed_golds: n_with(Win::GoldFails),
            by_depth: groups(
                scores,
                |score| score.gold_dag.max_depth,
                |depth| depth.to_string(),
            ),
            by_dependencies: groups(
                scores,
                |score| score.gold_dag.dependencies,
                |dependencies| dependencies.to_string(),
            ),
            by_pattern: groups(
                scores,
                |score| score.gold_dag.pattern,
                |pattern| pattern.name().to_owned(),
            ),
        })
    }
}

impl NestfulMetrics {
    /// Aggregates at least one sample.
    fn from_scores(scores: &[&SampleScore]) -> Self {
        let columns = |score: &&SampleScore| {
            [
                indicator(score.parse_error),
                score.partial,
                indicator(score.full),
            ]
        };
        let rows: Vec<[f64; 3]> = scores.iter().map(columns).collect();
        let [parse_error_rate, partial, full] = estimates(&rows);
        let estimate_of = |wins: fn(&SampleScore) -> Option<bool>| {
            mean(scores.iter().map(|score| wins(score).map(indicator)))
        };
        Self {
            n: scores.len(),
            n_run: scores
                .iter()
                .filter(|score| score.win.strict().is_some())
                .count(),
            parse_error_rate,
            partial,
            full,
            win_official: estimate_of(|score| score.win.official()),
            win_strict: estimate_of(|score| score.win.strict()),
            alternate_trajectory: estimate_of(|score| {
                score.win.official().map(|wins| wins && !score.full)
            }),
        }
    }
}

fn groups<K: Ord>(
    scores: &[SampleScore],
    key: impl Fn(&SampleScore) -> K,
    name: impl Fn(&K) -> String,
) -> Vec<NestfulGroup> {
    let mut groups: BTreeMap<K, Vec<&SampleScore>> = BTreeMap::new();
    for score in scores {
        groups.entry(key(score)).or_default().push(score);
    }
    groups
        .into_iter()
        .map(|(key, scores)| NestfulGroup {
            group: name(&key),
            metrics: NestfulMetrics::from_scores(&scores),
        })
        .collect()
}

/// Formats reports as a Markdown table in per cent: one named line per report, followed by one line
/// per depth and pattern. Missing values are dashes. The macro F1 of a group is also a dash,
/// because groups have too few classes.
pub fn nestful_table(reports: &[(&str, &NestfulReport)]) -> String {
    let headings = "nestful | n | f1_function % | f1_parameter % | partial % | full % \
                    | win_official % | win_strict % | executed | parse_error_rate %";
    let mut lines = Vec::new();
    for (name, report) in reports {
        let f1 = [report.f1_function, report.f1_parameter];
        let f1 = f1.map(|means| format!("{:.1}", 100.0 * means.f1));
        lines.push(table_line((*name).to_owned(), f1, &report.overall));
        let depths = report.by_depth.iter();
        let depths = depths.map(|group| (format!("{name}, depth {}", group.group), group));
        let patterns = report.by_pattern.iter();
        let patterns = patterns.map(|group| (format!("{name}, {}", group.group), group));
        for (name, group) in depths.chain(patterns) {
            let no_values = ["-", "-"].map(str::to_owned);
            lines.push(table_line(name, no_values, &group.metrics));
        }
    }
    markdown_table(headings, lines)
}

fn table_line(
    name: String,
    [function, parameter]: [String; 2],
    metrics: &NestfulMetrics,
) -> [String; 10] {
    [
        name,
        metrics.n.to_string(),
        function,
        parameter,
        percent(metrics.partial),
        percent(metrics.full),
        percent(metrics.win_official),
        percent(metrics.win_strict),
        metrics.n_run.to_string(),
        percent(metrics.parse_error_rate),
    ]
}
