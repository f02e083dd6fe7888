//! Sums the samples of a run up, over all and by the shape of the gold.
//!
//! Rates of wins are means over the rows that could be run and whose gold replays; how many others
//! there are stands beside them. The F1 are macro means over the labels of the whole set, most of
//! which occur once, so that they are unstable and have no interval: compare runs by partial and
//! full matches and by wins.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::NestfulError;
use super::macro_f1::{MacroF1, MacroF1Counter};
use super::parse::Parser;
use super::replay::{GoldReplay, replay_gold};
use super::row::NestfulRow;
use super::runner::ToolRunner;
use super::sample::{SampleScore, Win, score_sample};
use crate::bootstrap::{Estimate, cell, estimates, indicator, mean};

/// Means over samples, each with its bootstrap 95 % interval (1,000 resamples, fixed seed).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NestfulMetrics {
    /// Samples.
    pub n: usize,
    /// Samples whose wins count.
    pub n_run: usize,
    /// Share of completions that could not be read.
    pub parse_error_rate: Estimate,
    /// Mean partial sequence match.
    pub partial: Estimate,
    /// Share of full sequence matches.
    pub full: Estimate,
    /// Share of wins by the published rules, failures with a gold of zero among them.
    pub win_official: Option<Estimate>,
    /// Share of wins by the strict rules.
    pub win_strict: Option<Estimate>,
    /// Share of wins by the published rules that are no full match.
    pub alternate_trajectory: Option<Estimate>,
}

/// The numbers of the samples that have something in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NestfulGroup {
    /// What they have in common: a depth, a number of dependencies, a pattern.
    pub group: String,
    /// Their numbers.
    #[serde(flatten)]
    pub metrics: NestfulMetrics,
}

/// The numbers of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NestfulReport {
    /// Over all samples.
    #[serde(flatten)]
    pub overall: NestfulMetrics,
    /// Of function names; see the module about how little it says.
    pub f1_function: MacroF1,
    /// Of arguments with values.
    pub f1_parameter: MacroF1,
    /// Samples that need tools which the runner does not have.
    pub n_need_tools: usize,
    /// Samples whose gold does not compute its answer.
    pub n_failed_golds: usize,
    /// By the dependencies on the longest path of the gold.
    pub by_depth: Vec<NestfulGroup>,
    /// By the number of dependencies.
    pub by_dependencies: Vec<NestfulGroup>,
    /// By the shape.
    pub by_pattern: Vec<NestfulGroup>,
}

/// Scores completions, one for each row, and says what became of each.
///
/// The golds are replayed first; where one fails, the wins of its row do not count.
///
/// # Errors
///
/// - there is no row, or not one completion for each
/// - a gold has no calls
/// - the runner cannot work
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

impl NestfulReport {
    /// Names that [`NestfulReport::value`] knows.
    pub const NAMES: [&'static str; 6] = [
        "partial",
        "full",
        "win_official",
        "win_strict",
        "alternate_trajectory",
        "parse_error_rate",
    ];

    /// Gathers the scores of a run.
    ///
    /// # Errors
    ///
    /// - there is no score
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
        let all: Vec<&SampleScore> = scores.iter().collect();
        Ok(Self {
            overall: NestfulMetrics::of(&all),
            f1_function: functions.means(),
            f1_parameter: parameters.means(),
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

    /// The estimate of that name; none if the name is unknown or the run has no such number.
    pub fn value(&self, name: &str) -> Option<Estimate> {
        let metrics = &self.overall;
        match name {
            "partial" => Some(metrics.partial),
            "full" => Some(metrics.full),
            "win_official" => metrics.win_official,
            "win_strict" => metrics.win_strict,
            "alternate_trajectory" => metrics.alternate_trajectory,
            "parse_error_rate" => Some(metrics.parse_error_rate),
            _ => None,
        }
    }
}

impl NestfulMetrics {
    /// The numbers of at least one sample.
    fn of(scores: &[&SampleScore]) -> Self {
        let columns = |score: &&SampleScore| {
            [
                indicator(score.parse_error),
                score.partial,
                indicator(score.full),
            ]
        };
        let rows: Vec<[f64; 3]> = scores.iter().map(columns).collect();
        let [parse_error_rate, partial, full] = estimates(&rows);
        let share = |wins: fn(&SampleScore) -> Option<bool>| {
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
            win_official: share(|score| score.win.official()),
            win_strict: share(|score| score.win.strict()),
            alternate_trajectory: share(|score| {
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
            metrics: NestfulMetrics::of(&scores),
        })
        .collect()
}

/// Renders reports as a Markdown table in per cent: a line for each with its name, and below it one
/// for each depth and each pattern. A number that a run does not have is a dash; so are the macro
/// F1 of groups, which have too few classes.
pub fn nestful_table(reports: &[(&str, &NestfulReport)]) -> String {
    let mut table = "| nestful | n | f1_function % | f1_parameter % | partial % | full % \
                     | win_official % | win_strict % | executed | parse_error_rate % |\n\
                     |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for (name, report) in reports {
        let f1 = [report.f1_function, report.f1_parameter];
        let f1 = f1.map(|means| format!("{:.1}", 100.0 * means.f1));
        table.push_str(&table_line(name, &f1, &report.overall));
        let none = ["-", "-"].map(str::to_owned);
        for group in &report.by_depth {
            let name = format!("{name}, depth {}", group.group);
            table.push_str(&table_line(&name, &none, &group.metrics));
        }
        for group in &report.by_pattern {
            let name = format!("{name}, {}", group.group);
            table.push_str(&table_line(&name, &none, &group.metrics));
        }
    }
    table
}

fn table_line(name: &str, [function, parameter]: &[String; 2], metrics: &NestfulMetrics) -> String {
    let percent = |estimate: Option<Estimate>| cell(estimate, 100.0, "");
    let cells = [
        name.to_owned(),
        metrics.n.to_string(),
        function.clone(),
        parameter.clone(),
        percent(Some(metrics.partial)),
        percent(Some(metrics.full)),
        percent(metrics.win_official),
        percent(metrics.win_strict),
        metrics.n_run.to_string(),
        percent(Some(metrics.parse_error_rate)),
    ];
    format!("| {} |\n", cells.join(" | "))
}
