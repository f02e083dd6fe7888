//! Combines the tables of several results into one: a line per metric or group.

use super::tables::{Block, Entry, Measure};
use super::{
    Counts, DASH, GroupCell, GroupRow, GroupValue, MAX_ROWS, MetricCell, MetricRow, Name, Plot,
    Source, Table,
};
use crate::number::{estimate, format_change, group_digits, with_ceiling};
use crate::run::{MetricFacts, SuiteResult};

/// Names of a suite's metrics.
#[derive(Clone, Copy)]
pub(super) struct MetricNaming<'r> {
    pub(super) suite: &'r SuiteResult,
    pub(super) facts: MetricFacts,
}

impl MetricNaming<'_> {
    fn metric(self, key: &str) -> Name {
        let name = self.suite.metric(key);
        let plain_name = (self.facts.plain_name)(&name);
        Name { name, plain_name }
    }

    fn less_is_better(self, name: &Name) -> bool {
        (self.facts.greater_is_better)(&name.name) == Some(false)
    }

    /// The name of a count. Counts are not metrics, so only their key is shown.
    fn count_name(key: &str) -> Name {
        Name {
            name: key.replace('_', " "),
            plain_name: None,
        }
    }
}

/// The distinct names in order of first appearance.
fn distinct_names<'n>(names: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

fn omitted_rows_note(n_rows: usize) -> Option<String> {
    let n_more = n_rows.saturating_sub(MAX_ROWS) as u64;
    (n_more > 0).then(|| format!("{} more rows not shown", group_digits(n_more)))
}

fn find_entry<'m>(measures: &'m [Measure], name: &str) -> Option<&'m Entry> {
    let same_measure = measures.iter().find(|measure| measure.name == name);
    same_measure.map(|measure| &measure.entry)
}

fn interval_text(entry: &Entry) -> Option<String> {
    let (low, high) = entry.interval()?;
    Some(format!("{} to {}", estimate(low), estimate(high)))
}

fn value_text(entry: &Entry) -> String {
    match entry {
        Entry::Count { n } => group_digits(*n),
        Entry::Number { value, ceiling, .. } => with_ceiling(*value, *ceiling),
        Entry::Text { text } => text.clone(),
    }
}

fn n_text(n: Option<u64>) -> String {
    n.map_or_else(|| DASH.to_owned(), group_digits)
}

pub(super) fn metric_table(
    title: &str,
    results: &[(&Source, &Block)],
    naming: MetricNaming<'_>,
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
    let all_measures = results.iter().flat_map(|(_, measures, _)| measures);
    // In a table with metrics, counts are notes. A table may also contain only counts.
    let is_metric = |measure: &&Measure| matches!(measure.entry, Entry::Number { .. });
    let has_metrics = all_measures.clone().any(|measure| is_metric(&measure));
    let is_count = |name: &&str| {
        let mut same_name = all_measures.clone().filter(|measure| measure.name == *name);
        same_name.all(|measure| matches!(measure.entry, Entry::Count { .. }))
    };
    let names = distinct_names(all_measures.clone().map(|measure| measure.name.as_str()));
    let (count_names, names): (Vec<&str>, Vec<&str>) = names
        .into_iter()
        .partition(|name| has_metrics && is_count(name));
    let counts = results.iter().filter_map(|(source, measures, _)| {
        let count = |name: &&str| {
            let entry = find_entry(measures, name)?;
            Some(format!(
                "{}: {}",
                MetricNaming::count_name(name).name,
                value_text(entry)
            ))
        };
        let counts: Vec<String> = count_names.iter().filter_map(count).collect();
        (!counts.is_empty()).then(|| Counts {
            source: (*source).clone(),
            text: counts.join(", "),
        })
    });
    let row = |name: &&str| {
        let first_entry = results
            .first()
            .and_then(|(_, measures, _)| find_entry(measures, name));
        let is_of_suite = has_metrics && {
            let mut same_name = all_measures.clone().filter(|measure| measure.name == *name);
            // A metric is null if it applies to no sample.
            same_name.any(|measure| is_metric(&measure) || measure.entry == Entry::null())
        };
        let row_name = match is_of_suite {
            true => naming.metric(name),
            false => MetricNaming::count_name(name),
        };
        let values = results.iter();
        let values = values.map(|(_, measures, _)| find_entry(measures, name)?.number());
        let values: Vec<Option<f64>> = values.collect();
        let best = naming.facts.best(&row_name.name, &values);
        let cell =
            |(idx, (source, measures, n)): (usize, &(&Source, Vec<Measure>, Option<u64>))| {
                let entry = find_entry(measures, name);
                let measured = entry.filter(|entry| entry.number().is_some());
                MetricCell {
                    source: (*source).clone(),
                    is_best: best.get(idx) == Some(&true),
                    value: entry.map_or_else(|| DASH.to_owned(), value_text),
                    interval: entry.and_then(interval_text),
                    n: n_text(measured.and_then(|entry| entry.n().or(*n))),
                    change: change_text(first_entry, entry).filter(|_| idx > 0),
                    plot: entry.and_then(plot),
                }
            };
        let row = MetricRow {
            less_is_better: naming.less_is_better(&row_name),
            name: row_name,
            cells: results.iter().enumerate().map(cell).collect(),
        };
        (row, values.iter().all(|value| *value == Some(0.0)))
    };
    let (zeros, rows): (Vec<_>, Vec<_>) = names
        .iter()
        .take(MAX_ROWS)
        .map(row)
        .partition(|(_, is_zero)| *is_zero);
    let without_flag = |rows: Vec<(MetricRow, bool)>| -> Vec<MetricRow> {
        rows.into_iter().map(|(row, _)| row).collect()
    };
    let (zeros, rows) = (without_flag(zeros), without_flag(rows));
    let mut counted_n = rows
        .iter()
        .chain(&zeros)
        .flat_map(|row| &row.cells)
        .map(|cell| &cell.n);
    let first_n = counted_n.next().filter(|n| *n != DASH).cloned();
    let n = first_n.filter(|first_entry| counted_n.all(|n| n == first_entry || n == DASH));
    Table::Metrics {
        title: title.to_owned(),
        has_interval: all_measures
            .clone()
            .any(|measure| measure.entry.interval().is_some()),
        has_change: results.len() > 1,
        sources: results
            .iter()
            .map(|(source, ..)| (*source).clone())
            .collect(),
        n,
        rows,
        zeros,
        counts: counts.collect(),
        note: omitted_rows_note(names.len()),
    }
}

fn change_text(first_entry: Option<&Entry>, entry: Option<&Entry>) -> Option<String> {
    let (first_entry, entry) = (first_entry?, entry?);
    let difference = entry.number()? - first_entry.number()?;
    Some(match (first_entry, entry) {
        (Entry::Count { .. }, Entry::Count { .. }) if difference == 0.0 => "±0".to_owned(),
        (Entry::Count { .. }, Entry::Count { .. }) => {
            let sign = if difference < 0.0 { "−" } else { "+" };
            sign.to_owned() + &group_digits(difference.abs() as u64)
        }
        _ => format_change(difference),
    })
}

fn plot(entry: &Entry) -> Option<Plot> {
    let (low, high) = entry.interval()?;
    let value = entry.number()?;
    let is_fraction = [low, value, high]
        .iter()
        .all(|end| (0.0..=1.0).contains(end));
    let percent = |fraction: f64| format!("{:.2}", 100.0 * fraction);
    is_fraction.then(|| Plot {
        at: percent(value),
        low: percent(low),
        width: percent((high - low).max(0.0)),
    })
}

pub(super) fn group_table(
    title: &str,
    results: &[(&Source, &Block)],
    naming: MetricNaming<'_>,
) -> Table {
    let mut groups = Vec::new();
    let mut label = "";
    for (source, block) in results {
        if let Block::Groups {
            label: own,
            groups: source_groups,
            ..
        } = block
        {
            label = own;
            groups.push((*source, source_groups));
        }
    }
    let all_groups = || groups.iter().flat_map(|(_, groups)| groups.iter());
    let names = distinct_names(all_groups().map(|group| group.name.as_str()));
    let measures = all_groups().flat_map(|group| &group.measures);
    let metrics = distinct_names(measures.map(|measure| measure.name.as_str()));
    let row = |name: &&str| {
        let cells = groups.iter().filter_map(|(source, groups)| {
            let group = groups.iter().find(|group| group.name == *name)?;
            let value = |metric: &&str| {
                let entry = find_entry(&group.measures, metric);
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
        has_n: all_groups().any(|group| group.n.is_some()),
        is_zero: {
            let mut values = all_groups().flat_map(|group| &group.measures);
            values.all(|measure| measure.entry.number() == Some(0.0))
        },
        metrics: metrics
            .iter()
            .map(|metric| {
                let mut same_measures = all_groups().flat_map(|group| &group.measures);
                let is_metric = same_measures.any(|measure| {
                    measure.name == *metric && matches!(measure.entry, Entry::Number { .. })
                });
                match is_metric {
                    true => naming.metric(metric),
                    false => MetricNaming::count_name(metric),
                }
            })
            .collect(),
        rows: names.iter().take(MAX_ROWS).map(row).collect(),
        note: omitted_rows_note(names.len()),
    }
}
