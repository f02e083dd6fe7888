//! Builds a before-and-after table of data set scores, in Markdown.
//!
//! Rows are plain data, so that a terminal can use a different layout. If only one run has rows of
//! a depth, the column of the other run contains a dash, never a zero.

use serde::Serialize;

use super::dataset::{DatasetScore, GroupMean};
use super::row::Metrics;
use super::suite::SUITE;
use crate::bootstrap::Estimate;

/// Metrics that are repeated for each depth, as indices into [`Metrics::NAMES`].
const DEPTH_COLUMNS: [usize; 4] = [1, 2, 3, 4];

/// One line of the table: a metric over all rows, or over the rows of one depth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportRow {
    /// Key of the metric, such as `schema_accuracy`.
    pub metric: &'static str,
    /// Depth of the gold values; `None` for the line over all rows.
    pub depth: Option<usize>,
    /// Number of rows; the larger number of the two runs.
    pub n: usize,
    /// Value before training.
    pub before: Option<Cell>,
    /// Value after training.
    pub after: Option<Cell>,
}

/// One value of the table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cell {
    /// Fraction in 0..=1.
    pub value: f64,
    /// Ends of the 95 % interval, if there is one.
    pub interval: Option<(f64, f64)>,
}

impl From<Estimate> for Cell {
    fn from(estimate: Estimate) -> Self {
        let Estimate { value, low, high } = estimate;
        Self {
            value,
            interval: Some((low, high)),
        }
    }
}

impl From<GroupMean> for Cell {
    fn from(mean: GroupMean) -> Self {
        match mean {
            GroupMean::Estimate(estimate) => estimate.into(),
            GroupMean::Value(value) => Self {
                value,
                interval: None,
            },
        }
    }
}

/// Compares two scores: every metric over all rows, then the main metrics by depth.
pub fn before_after_rows(before: &DatasetScore, after: &DatasetScore) -> Vec<ReportRow> {
    let (old, new) = (before.overall.columns(), after.overall.columns());
    let mut rows: Vec<ReportRow> = (0..Metrics::<f64>::NAMES.len())
        .map(|column| ReportRow {
            metric: Metrics::<f64>::NAMES[column],
            depth: None,
            n: before.n.max(after.n),
            before: Some(old[column].into()),
            after: Some(new[column].into()),
        })
        .collect();
    let mut depths: Vec<usize> = before
        .by_depth
        .iter()
        .chain(&after.by_depth)
        .map(|group| group.depth)
        .collect();
    depths.sort_unstable();
    depths.dedup();
    for depth in depths {
        rows.extend(DEPTH_COLUMNS.map(|column| depth_row(before, after, depth, column)));
    }
    rows
}

fn depth_row(
    before: &DatasetScore,
    after: &DatasetScore,
    depth: usize,
    column: usize,
) -> ReportRow {
    let at_depth = |score: &DatasetScore| {
        score
            .by_depth
            .iter()
            .find(|group| group.depth == depth)
            .map(|group| (group.n, Cell::from(group.metrics.columns()[column])))
    };
    let (before, after) = (at_depth(before), at_depth(after));
    ReportRow {
        metric: Metrics::<f64>::NAMES[column],
        depth: Some(depth),
        n: before
            .iter()
            .chain(&after)
            .map(|(n, _)| *n)
            .max()
            .unwrap_or(0),
        before: before.map(|(_, cell)| cell),
        after: after.map(|(_, cell)| cell),
    }
}

impl ReportRow {
    /// The columns of the line: metric, rows, before, after, gain in percentage points.
    pub fn cell_texts(&self) -> [String; 5] {
        let name = SUITE.metric(self.metric);
        let name = match self.depth {
            None => name,
            Some(depth) => format!("{name}, depth {depth}"),
        };
        let gain = match (self.before, self.after) {
            (Some(before), Some(after)) => format!("{:+.1}", 100.0 * (after.value - before.value)),
            _ => DASH.to_owned(),
        };
        [
            name,
            self.n.to_string(),
            percent(self.before),
            percent(self.after),
            gain,
        ]
    }
}

/// The cell of a run without rows.
const DASH: &str = "-";

/// Headings of the five columns of [`ReportRow::cell_texts`].
const HEADINGS: &str = "metric | n | before % | after % | gain";

/// Formats report rows as a Markdown table, in per cent with one decimal.
pub fn markdown_table(rows: &[ReportRow]) -> String {
    let lines = rows.iter().map(ReportRow::cell_texts);
    crate::markdown::markdown_table(HEADINGS, lines)
}

fn percent(cell: Option<Cell>) -> String {
    let Some(Cell { value, interval }) = cell else {
        return DASH.to_owned();
    };
    let value = 100.0 * value;
    match interval {
        None => format!("{value:.1}"),
        Some((low, high)) => format!("{value:.1} [{:.1}, {:.1}]", 100.0 * low, 100.0 * high),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::HashEncoder;
    use crate::slot::{SlotRow, score_dataset};
    use serde_json::{Value, json};

    fn score(raw: &str, golds: &[Value]) -> DatasetScore {
        let schema = json!({"type": "object"});
        let rows: Vec<SlotRow<'_>> = golds
            .iter()
            .map(|gold| SlotRow {
                raw,
                schema: &schema,
                gold,
            })
            .collect();
        score_dataset(&rows, &HashEncoder).expect("usable rows").0
    }

    #[test]
    fn the_table_has_every_metric_over_all_rows_and_main_metrics_by_depth() {
        let golds = [json!({"a": 1}), json!({"a": {"b": 1}})];
        let rows = before_after_rows(&score("none", &golds), &score(r#"{"a": 1}"#, &golds));
        let lines: Vec<String> = rows
            .iter()
            .map(|row| row.cell_texts().join(" | "))
            .collect();
        assert_eq!(
            lines,
            [
                "slot.parse_rate | 2 | 0.0 [0.0, 65.8] | 100.0 [34.2, 100.0] | +100.0",
                "slot.schema_accuracy | 2 | 0.0 [0.0, 65.8] | 100.0 [34.2, 100.0] | +100.0",
                "slot.strict_keys_accuracy | 2 | 0.0 [0.0, 65.8] | 100.0 [34.2, 100.0] | +100.0",
                "slot.content_similarity | 2 | 0.0 [0.0, 65.8] | 50.0 [9.5, 90.5] | +50.0",
                "slot.exact_match_f | 2 | 0.0 [0.0, 65.8] | 50.0 [9.5, 90.5] | +50.0",
                "slot.exact_match | 2 | 0.0 [0.0, 65.8] | 50.0 [9.5, 90.5] | +50.0",
                "slot.mean | 2 | 0.0 [0.0, 65.8] | 75.0 [25.6, 96.3] | +75.0",
                "slot.schema_accuracy, depth 1 | 1 | 0.0 [0.0, 79.3] | 100.0 [20.7, 100.0] | +100.0",
                "slot.strict_keys_accuracy, depth 1 | 1 | 0.0 [0.0, 79.3] | 100.0 [20.7, 100.0] | +100.0",
                "slot.content_similarity, depth 1 | 1 | 0.0 [0.0, 79.3] | 100.0 [20.7, 100.0] | +100.0",
                "slot.exact_match_f, depth 1 | 1 | 0.0 [0.0, 79.3] | 100.0 [20.7, 100.0] | +100.0",
                "slot.schema_accuracy, depth 2 | 1 | 0.0 [0.0, 79.3] | 100.0 [20.7, 100.0] | +100.0",
                "slot.strict_keys_accuracy, depth 2 | 1 | 0.0 [0.0, 79.3] | 100.0 [20.7, 100.0] | +100.0",
                "slot.content_similarity, depth 2 | 1 | 0.0 [0.0, 79.3] | 0.0 [0.0, 79.3] | +0.0",
                "slot.exact_match_f, depth 2 | 1 | 0.0 [0.0, 79.3] | 0.0 [0.0, 79.3] | +0.0",
            ]
        );
    }

    #[test]
    fn a_depth_missing_in_one_run_shows_a_dash() {
        let rows = before_after_rows(
            &score("{}", &[json!({})]),
            &score("{}", &[json!({}), json!({"a": {}})]),
        );
        let table = markdown_table(&rows);
        assert!(
            table.starts_with("| metric | n | before % | after % | gain |\n|---|"),
            "{table}"
        );
        assert!(
            table.contains("| slot.content_similarity, depth 2 | 1 | - | 0.0 [0.0, 79.3] | - |\n"),
            "{table}"
        );
    }
}
