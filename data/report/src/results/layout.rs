//! Lays the blocks of several results out in one table: a metric or a group a line.

use super::tables::{Block, Entry, Measure};
use super::{
    Counts, DASH, GroupCell, GroupRow, GroupValue, MAX_ROWS, MetricCell, MetricRow, Name, Plot,
    Source, Table,
};
use crate::number::{beside_ceiling, change, count, estimate};
use crate::run::{MetricWords, SuiteResult};

/// How the metrics of a suite are called.
#[derive(Clone, Copy)]
pub(super) struct Naming<'r> {
    pub(super) suite: &'r SuiteResult,
    pub(super) words: MetricWords,
}

impl Naming<'_> {
    fn metric(self, key: &str) -> Name {
        let name = self.suite.metric(key);
        let words = (self.words)(&name);
        Name { name, words }
    }

    /// What is counted has no name of a metric.
    fn count(key: &str) -> Name {
        Name {
            name: key.replace('_', " "),
            words: None,
        }
    }
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
        Entry::Number { value, ceiling, .. } => beside_ceiling(*value, *ceiling),
        Entry::Text { text } => text.clone(),
    }
}

fn n_text(n: Option<u64>) -> String {
    n.map_or_else(|| DASH.to_owned(), count)
}

pub(super) fn metric_table(
    title: &str,
    results: &[(&Source, &Block)],
    naming: Naming<'_>,
) -> Table {
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
    // Beside metrics, what counts something is a remark; a table may also be of counts alone.
    let is_metric = |measure: &&Measure| matches!(measure.entry, Entry::Number { .. });
    let has_metrics = all.clone().any(|measure| is_metric(&measure));
    let is_count = |name: &&str| {
        let mut same = all.clone().filter(|measure| measure.name == *name);
        same.all(|measure| matches!(measure.entry, Entry::Count { .. }))
    };
    let names = union(all.clone().map(|measure| measure.name.as_str()));
    let (counted, names): (Vec<&str>, Vec<&str>) = names
        .into_iter()
        .partition(|name| has_metrics && is_count(name));
    let counts = results.iter().filter_map(|(source, measures, _)| {
        let count = |name: &&str| {
            let entry = find(measures, name)?;
            Some(format!(
                "{}: {}",
                Naming::count(name).name,
                value_text(entry)
            ))
        };
        let counts: Vec<String> = counted.iter().filter_map(count).collect();
        (!counts.is_empty()).then(|| Counts {
            source: (*source).clone(),
            text: counts.join(", "),
        })
    });
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
        let is_of_suite = has_metrics && {
            let mut same = all.clone().filter(|measure| measure.name == *name);
            // A metric that no sample counts for is null.
            same.any(|measure| is_metric(&measure) || measure.entry == Entry::none())
        };
        MetricRow {
            name: match is_of_suite {
                true => naming.metric(name),
                false => Naming::count(name),
            },
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
        counts: counts.collect(),
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

pub(super) fn group_table(title: &str, results: &[(&Source, &Block)], naming: Naming<'_>) -> Table {
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
        metrics: metrics
            .iter()
            .map(|metric| {
                let mut same = all().flat_map(|group| &group.measures);
                let is_metric = same.any(|measure| {
                    measure.name == *metric && matches!(measure.entry, Entry::Number { .. })
                });
                match is_metric {
                    true => naming.metric(metric),
                    false => Naming::count(metric),
                }
            })
            .collect(),
        rows: names.iter().take(MAX_ROWS).map(row).collect(),
        note: note(names.len()),
    }
}
