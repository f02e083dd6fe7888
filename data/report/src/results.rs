//! Lines the metrics of suites up, however they nest, in tables in which runs stand beside each other.

use serde::Serialize;

use super::error::ReportError;
use super::run::{MetricWords, ReportRun, SuiteResult};
use layout::{Naming, group_table, metric_table};
use tables::{Block, Entry, Measure, blocks};

mod layout;
mod opening;
mod tables;

pub(super) use opening::{Opening, openings};

/// The results of one suite.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Suite {
    name: String,
    tables: Vec<Table>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "shape", rename_all = "lowercase")]
enum Table {
    /// A metric a line, with its interval.
    Metrics {
        title: String,
        has_interval: bool,
        has_n: bool,
        has_change: bool,
        rows: Vec<MetricRow>,
        /// Numbers that count something beside the metrics, by result.
        counts: Vec<Counts>,
        note: Option<String>,
    },
    /// A group a line, a metric a column.
    Groups {
        title: String,
        label: String,
        has_n: bool,
        metrics: Vec<Name>,
        rows: Vec<GroupRow>,
        note: Option<String>,
    },
}

/// Which result a line is about.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Source {
    run: usize,
    label: String,
}

/// What is measured: its name, and what people call it.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Name {
    name: String,
    words: Option<&'static str>,
}

#[derive(Debug, Clone, Serialize)]
struct MetricRow {
    #[serde(flatten)]
    name: Name,
    cells: Vec<MetricCell>,
}

/// What a result counts.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Counts {
    source: Source,
    text: String,
}

#[derive(Debug, Clone, Serialize)]
struct MetricCell {
    source: Source,
    value: String,
    interval: Option<String>,
    n: String,
    /// Difference to the first result.
    change: Option<String>,
    plot: Option<Plot>,
}

/// An interval of a fraction, in per cent of the way from 0 to 1.
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

/// The tables of a result, with what the result is.
struct Read<'r> {
    source: Source,
    result: &'r SuiteResult,
    blocks: Vec<Block>,
}

impl Read<'_> {
    /// The table over all samples.
    fn headline(&self) -> Option<&Block> {
        let suite = self.result.suite.as_str();
        let of_all = |block: &&Block| matches!(block.key(), (title, false) if title.is_empty() || title == suite);
        self.blocks.iter().find(of_all)
    }
}

/// A metric of a result over all of its samples.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    /// The one name of the metric.
    pub(super) name: String,
    pub(super) value: f64,
    /// Ends of its 95 % interval.
    pub(super) interval: Option<(f64, f64)>,
    /// What the gold itself scores, where that is not the best.
    pub(super) ceiling: Option<f64>,
}

/// The metrics of a result over all of its samples; what it counts is none.
///
/// # Errors
///
/// - its metrics are no object
pub(super) fn figures(run: &ReportRun, result: &SuiteResult) -> Result<Vec<Figure>, ReportError> {
    let read = read((0, run), result)?;
    let Some(Block::Metrics { measures, .. }) = read.headline() else {
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

/// Metrics or groups of a table that are shown.
const MAX_ROWS: usize = 100;

/// Stands where a result has no such number.
const DASH: &str = "–";

/// Lines up all results of each suite, in the order in which suites first come.
///
/// # Errors
///
/// - the metrics of a result are no object
pub(super) fn suites(runs: &[ReportRun], words: MetricWords) -> Result<Vec<Suite>, ReportError> {
    let mut suites: Vec<(String, Vec<Read<'_>>)> = Vec::new();
    for (idx, run) in runs.iter().enumerate() {
        // On other rows than the results of the run: in one table, the change to the first result
        // would compare two sets of rows.
        let evaluations = run.evaluations.iter().map(|result| {
            let heading = format!("{}, further evaluations", result.suite);
            (heading, result)
        });
        let own = run.suites.iter();
        let own = own.map(|result| (result.suite.clone(), result));
        for (heading, result) in own.chain(evaluations) {
            let read = read((idx, run), result)?;
            match suites.iter_mut().find(|(suite, _)| *suite == heading) {
                Some((_, results)) => results.push(read),
                None => suites.push((heading, vec![read])),
            }
        }
    }
    let suite = |(name, results): (String, Vec<Read<'_>>)| Suite {
        tables: tables(&results, words),
        name,
    };
    Ok(suites.into_iter().map(suite).collect())
}

fn read<'r>(
    (idx, run): (usize, &ReportRun),
    result: &'r SuiteResult,
) -> Result<Read<'r>, ReportError> {
    let metrics = result.metrics.as_object();
    let metrics = metrics.ok_or_else(|| ReportError::Suite {
        run: run.name.clone(),
        suite: result.suite.clone(),
        label: result.label.clone(),
    })?;
    Ok(Read {
        source: Source {
            run: idx,
            label: result.label.clone(),
        },
        result,
        blocks: blocks(metrics),
    })
}

fn tables(results: &[Read<'_>], words: MetricWords) -> Vec<Table> {
    let Some(suite) = results.first().map(|read| read.result) else {
        return Vec::new();
    };
    let naming = Naming { suite, words };
    let all = results.iter().flat_map(|result| &result.blocks);
    let mut keys: Vec<(&str, bool)> = Vec::new();
    for block in all {
        if !keys.contains(&block.key()) {
            keys.push(block.key());
        }
    }
    let table = |key: (&str, bool)| {
        let same = results.iter().filter_map(|result| {
            let block = result.blocks.iter().find(|block| block.key() == key)?;
            Some((&result.source, block))
        });
        let same: Vec<(&Source, &Block)> = same.collect();
        if key.1 {
            group_table(key.0, &same, naming)
        } else {
            metric_table(key.0, &same, naming)
        }
    };
    keys.into_iter().map(table).collect()
}

#[cfg(test)]
mod tests;
