//! Lines the metrics of suites up, however they nest, in tables in which runs stand beside each other.

use serde::Serialize;

use super::error::ReportError;
use super::names::metric_name;
use super::number::{change, count, estimate};
use super::run::{ReportRun, SuiteResult};
use tables::{Block, Entry, Measure, blocks};

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
        note: Option<String>,
    },
    /// A group a line, a metric a column.
    Groups {
        title: String,
        label: String,
        has_n: bool,
        metrics: Vec<String>,
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

#[derive(Debug, Clone, Serialize)]
struct MetricRow {
    name: String,
    cells: Vec<MetricCell>,
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
struct Read {
    source: Source,
    blocks: Vec<Block>,
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
pub(super) fn suites(runs: &[ReportRun]) -> Result<Vec<Suite>, ReportError> {
    let mut suites: Vec<(String, Vec<Read>)> = Vec::new();
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
    let suite = |(name, results): (String, Vec<Read>)| Suite {
        tables: tables(&results),
        name,
    };
    Ok(suites.into_iter().map(suite).collect())
}

fn read((idx, run): (usize, &ReportRun), result: &SuiteResult) -> Result<Read, ReportError> {
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
        blocks: blocks(metrics),
    })
}

fn tables(results: &[Read]) -> Vec<Table> {
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
            group_table(key.0, &same)
        } else {
            metric_table(key.0, &same)
        }
    };
    keys.into_iter().map(table).collect()
}

/// Names in the order in which they first come.
fn union<'n>(names: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    let mut union = Vec::new();
    for name in names {
        if !union.contains(&name) {
            union.push(name);
        }
    }
    union
}

fn note(n_rows: usize) -> Option<String> {
    let n_more = n_rows.saturating_sub(MAX_ROWS) as u64;
    (n_more > 0).then(|| format!("{} more rows not shown", count(n_more)))
}

fn find<'m>(measures: &'m [Measure], name: &str) -> Option<&'m Entry> {
    let same = measures.iter().find(|measure| measure.name == name);
    same.map(|measure| &measure.entry)
}

fn interval_text(entry: &Entry) -> Option<String> {
    let (low, high) = entry.interval()?;
    Some(format!("{} to {}", estimate(low), estimate(high)))
}

fn value_text(entry: &Entry) -> String {
    match entry {
        Entry::Count { n } => count(*n),
        Entry::Number { value, .. } => estimate(*value),
        Entry::Text { text } => text.clone(),
    }
}

fn n_text(n: Option<u64>) -> String {
    n.map_or_else(|| DASH.to_owned(), count)
}

fn metric_table(title: &str, results: &[(&Source, &Block)]) -> Table {
    let measures = |block: &'_ Block| match block {
        Block::Metrics { measures, n, .. } => (measures.clone(), *n),
        Block::Groups { .. } => (Vec::new(), None),
    };
    let results: Vec<(&Source, Vec<Measure>, Option<u64>)> = results
        .iter()
        .map(|(source, block)| {
            let (measures, n) = measures(block);
            (*source, measures, n)
        })
        .collect();
    let all = results.iter().flat_map(|(_, measures, _)| measures);
    let names = union(all.clone().map(|measure| measure.name.as_str()));
    let row = |name: &&str| {
        let first = results
            .first()
            .and_then(|(_, measures, _)| find(measures, name));
        let cell =
            |(place, (source, measures, n)): (usize, &(&Source, Vec<Measure>, Option<u64>))| {
                let entry = find(measures, name);
                let measured = entry.filter(|entry| entry.number().is_some());
                MetricCell {
                    source: (*source).clone(),
                    value: entry.map_or_else(|| DASH.to_owned(), value_text),
                    interval: entry.and_then(interval_text),
                    n: n_text(measured.and_then(|entry| entry.n().or(*n))),
                    change: difference(first, entry).filter(|_| place > 0),
                    plot: entry.and_then(plot),
                }
            };
        MetricRow {
            name: metric_name(name),
            cells: results.iter().enumerate().map(cell).collect(),
        }
    };
    Table::Metrics {
        title: title.to_owned(),
        has_interval: all
            .clone()
            .any(|measure| measure.entry.interval().is_some()),
        has_n: all.clone().any(|measure| measure.entry.n().is_some())
            || results.iter().any(|(_, _, n)| n.is_some()),
        has_change: results.len() > 1,
        rows: names.iter().take(MAX_ROWS).map(row).collect(),
        note: note(names.len()),
    }
}

fn difference(first: Option<&Entry>, entry: Option<&Entry>) -> Option<String> {
    let (first, entry) = (first?, entry?);
    let difference = entry.number()? - first.number()?;
    Some(match (first, entry) {
        (Entry::Count { .. }, Entry::Count { .. }) if difference == 0.0 => "±0".to_owned(),
        (Entry::Count { .. }, Entry::Count { .. }) => {
            let sign = if difference < 0.0 { "−" } else { "+" };
            sign.to_owned() + &count(difference.abs() as u64)
        }
        _ => change(difference),
    })
}

fn plot(entry: &Entry) -> Option<Plot> {
    let (low, high) = entry.interval()?;
    let value = entry.number()?;
    let is_fraction = [low, value, high]
        .iter()
        .all(|end| (0.0..=1.0).contains(end));
    let percent = |share: f64| format!("{:.2}", 100.0 * share);
    is_fraction.then(|| Plot {
        at: percent(value),
        low: percent(low),
        width: percent((high - low).max(0.0)),
    })
}

fn group_table(title: &str, results: &[(&Source, &Block)]) -> Table {
    let mut groups = Vec::new();
    let mut label = "";
    for (source, block) in results {
        if let Block::Groups {
            label: own,
            groups: of_this,
            ..
        } = block
        {
            label = own;
            groups.push((*source, of_this));
        }
    }
    let all = || groups.iter().flat_map(|(_, groups)| groups.iter());
    let names = union(all().map(|group| group.name.as_str()));
    let measures = all().flat_map(|group| &group.measures);
    let metrics = union(measures.map(|measure| measure.name.as_str()));
    let row = |name: &&str| {
        let cells = groups.iter().filter_map(|(source, groups)| {
            let group = groups.iter().find(|group| group.name == *name)?;
            let value = |metric: &&str| {
                let entry = find(&group.measures, metric);
                GroupValue {
                    value: entry.map_or_else(|| DASH.to_owned(), value_text),
                    interval: entry.and_then(interval_text),
                }
            };
            Some(GroupCell {
                source: (*source).clone(),
                n: n_text(group.n),
                values: metrics.iter().map(value).collect(),
            })
        });
        GroupRow {
            name: (*name).to_owned(),
            cells: cells.collect(),
        }
    };
    Table::Groups {
        title: title.to_owned(),
        label: label.to_owned(),
        has_n: all().any(|group| group.n.is_some()),
        metrics: metrics.iter().map(|metric| metric_name(metric)).collect(),
        rows: names.iter().take(MAX_ROWS).map(row).collect(),
        note: note(names.len()),
    }
}

#[cfg(test)]
mod tests;
