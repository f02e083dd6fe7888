//! Tabulates the metrics of suites at any nesting depth, with runs side by side.

use serde::Serialize;

use super::error::ReportError;
use super::run::{MetricFacts, ReportRun, SuiteResult};
use layout::{MetricNaming, group_table, metric_table};
use tables::{Block, Entry, Measure, blocks};

mod layout;
mod opening;
mod tables;

pub(super) use opening::{SuiteOpening, suite_openings};

/// The results of one suite.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Suite {
    name: String,
    tables: Vec<Table>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "shape", rename_all = "lowercase")]
enum Table {
    /// One line per metric, with its interval.
    Metrics {
        title: String,
        has_interval: bool,
        has_change: bool,
        /// The results, one column each.
        sources: Vec<Source>,
        /// Number of samples, if it is the same for all values.
        n: Option<String>,
        rows: Vec<MetricRow>,
        /// Metrics that are 0 in every result.
        zeros: Vec<MetricRow>,
        /// Counts listed next to the metrics, per result.
        counts: Vec<Counts>,
        note: Option<String>,
    },
    /// One line per group, one column per metric.
    Groups {
        title: String,
        label: String,
        has_n: bool,
        /// Whether every value is 0.
        is_zero: bool,
        metrics: Vec<Name>,
        rows: Vec<GroupRow>,
        note: Option<String>,
    },
}

/// The result in a line or column.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Source {
    run: usize,
    label: String,
}

/// A metric's identifier and plain-language name.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Name {
    name: String,
    plain_name: Option<&'static str>,
}

#[derive(Debug, Clone, Serialize)]
struct MetricRow {
    #[serde(flatten)]
    name: Name,
    /// Whether lower values are better.
    less_is_better: bool,
    cells: Vec<MetricCell>,
}

/// The counts of one result.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Counts {
    source: Source,
    text: String,
}

#[derive(Debug, Clone, Serialize)]
struct MetricCell {
    source: Source,
    value: String,
    /// Whether the value is better than the values of all other results.
    is_best: bool,
    interval: Option<String>,
    n: String,
    /// Difference from the first result.
    change: Option<String>,
    plot: Option<Plot>,
}

/// An interval of a fraction, in per cent of the range from 0 to 1.
#[derive(Debug, Clone, Serialize)]
struct Plot {
    at: String,
    low: String,
    width: String,
}

#[derive(Debug, Clone, Serialize)]
struct GroupRow {
    name: String,
    cells: Vec<GroupCell>,
}

#[derive(Debug, Clone, Serialize)]
struct GroupCell {
    source: Source,
    n: String,
    values: Vec<GroupValue>,
}

#[derive(Debug, Clone, Serialize)]
struct GroupValue {
    value: String,
    interval: Option<String>,
}

/// A result with its tables.
struct SuiteRead<'r> {
    source: Source,
    result: &'r SuiteResult,
    blocks: Vec<Block>,
}

impl SuiteRead<'_> {
    /// The table over all samples.
    fn headline(&self) -> Option<&Block> {
        let suite = self.result.suite.as_str();
        let is_overall = |block: &&Block| matches!(block.key(), (title, false) if title.is_empty() || title == suite);
        self.blocks.iter().find(is_overall)
    }
}

/// A metric of a result, over all samples.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    /// Full name of the metric.
    pub(super) name: String,
    pub(super) value: f64,
    /// Ends of the 95 % interval.
    pub(super) interval: Option<(f64, f64)>,
    /// The score of the gold answer, if it is below the maximum.
    pub(super) ceiling: Option<f64>,
}

/// The metrics of a result over all samples, without counts.
///
/// # Errors
///
/// The metrics are not a JSON object.
pub(super) fn figures(run: &ReportRun, result: &SuiteResult) -> Result<Vec<Figure>, ReportError> {
    let suite_read = read_suite((0, run), result)?;
    let Some(Block::Metrics { measures, .. }) = suite_read.headline() else {
        return Ok(Vec::new());
    };
    let figure = |measure: &Measure| match measure.entry {
        Entry::Number {
            value,
            interval,
            ceiling,
            ..
        } => Some(Figure {
            name: result.metric(&measure.name),
            value,
            interval,
            ceiling,
        }),
        Entry::Count { .. } | Entry::Text { .. } => None,
    };
    Ok(measures.iter().filter_map(figure).collect())
}

/// Maximum number of metrics or groups per table.
const MAX_ROWS: usize = 100;

/// Shown if a result has no value.
const DASH: &str = "–";

/// Tabulates all results of each suite, in order of first appearance.
///
/// # Errors
///
/// The metrics of a result are not a JSON object.
pub(super) fn suites(runs: &[ReportRun], facts: MetricFacts) -> Result<Vec<Suite>, ReportError> {
    let mut suites: Vec<(String, Vec<SuiteRead<'_>>)> = Vec::new();
    for (idx, run) in runs.iter().enumerate() {
        // Separate evaluations use different rows than the run itself. In one table, the change
        // from the first result would compare two sets of rows.
        let evaluations = run.evaluations.iter().map(|result| {
            let heading = format!("{}, further evaluations", result.suite);
            (heading, result)
        });
        let run_suites = run.suites.iter();
        let run_suites = run_suites.map(|result| (result.suite.clone(), result));
        for (heading, result) in run_suites.chain(evaluations) {
            let suite_read = read_suite((idx, run), result)?;
            match suites.iter_mut().find(|(suite, _)| *suite == heading) {
                Some((_, results)) => results.push(suite_read),
                None => suites.push((heading, vec![suite_read])),
            }
        }
    }
    let suite = |(name, results): (String, Vec<SuiteRead<'_>>)| Suite {
        tables: tables(&results, facts),
        name,
    };
    Ok(suites.into_iter().map(suite).collect())
}

fn read_suite<'r>(
    (idx, run): (usize, &ReportRun),
    result: &'r SuiteResult,
) -> Result<SuiteRead<'r>, ReportError> {
    let metrics = result.metrics.as_object();
    let metrics = metrics.ok_or_else(|| ReportError::Suite {
        run: run.name.clone(),
        suite: result.suite.clone(),
        label: result.label.clone(),
    })?;
    Ok(SuiteRead {
        source: Source {
            run: idx,
            label: result.label.clone(),
        },
        result,
        blocks: blocks(metrics),
    })
}

fn tables(results: &[SuiteRead<'_>], facts: MetricFacts) -> Vec<Table> {
    let Some(suite) = results.first().map(|suite_read| suite_read.result) else {
        return Vec::new();
    };
    let naming = MetricNaming { suite, facts };
    let all_blocks = results.iter().flat_map(|result| &result.blocks);
    let mut keys: Vec<(&str, bool)> = Vec::new();
    for block in all_blocks {
        if !keys.contains(&block.key()) {
            keys.push(block.key());
        }
    }
    let table = |key: (&str, bool)| {
        let same_blocks = results.iter().filter_map(|result| {
            let block = result.blocks.iter().find(|block| block.key() == key)?;
            Some((&result.source, block))
        });
        let same_blocks: Vec<(&Source, &Block)> = same_blocks.collect();
        if key.1 {
            group_table(key.0, &same_blocks, naming)
        } else {
            metric_table(key.0, &same_blocks, naming)
        }
    };
    keys.into_iter().map(table).collect()
}

#[cfg(test)]
mod tests;
