//! The rows of a data set to its means, with intervals, by depth and by broken rule.
//!
//! Every mean is a macro mean over rows: a row with many leaves counts as much as one with few.
//! All rows are checked before any text is encoded, so that one pass of the encoder over the
//! distinct texts serves the whole data set.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::encoder::{Embeddings, SentenceEncoder};
use super::error::ScoreError;
use super::row::{CheckedRow, Metrics, RowScore};
use crate::benchmarks::bootstrap::{Estimate, column_means, estimates};

/// One completion beside the row it answers.
#[derive(Debug, Clone, Copy)]
pub struct SlotRow<'r> {
    /// The completion exactly as it was generated.
    pub raw: &'r str,
    /// The row's JSON Schema.
    pub schema: &'r Value,
    /// The row's gold value.
    pub gold: &'r Value,
}

/// The scores of a data set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetScore {
    /// Number of rows.
    pub n: usize,
    /// Means over the rows, each with its bootstrap 95 % interval (1,000 resamples, fixed seed).
    #[serde(flatten)]
    pub overall: Metrics<Estimate>,
    /// Means over the rows of each depth of the gold value, shallow ones first.
    pub by_depth: Vec<DepthScore>,
    /// For each rule of the plain schema, the number of rows that break it at least once.
    pub violations: BTreeMap<String, usize>,
}

/// The means of the rows whose gold value has one depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DepthScore {
    /// Depth of the gold value; a flat object has depth 1.
    pub depth: usize,
    /// Number of rows of that depth.
    pub n: usize,
    /// Their means.
    #[serde(flatten)]
    pub metrics: Metrics<f64>,
}

/// Scores a data set and each of its rows.
///
/// # Errors
///
/// - there are no rows
/// - a row's schema is unusable; the error names the row
/// - the encoder fails
pub fn score_dataset(
    rows: &[SlotRow<'_>],
    encoder: &dyn SentenceEncoder,
) -> Result<(DatasetScore, Vec<RowScore>), ScoreError> {
    if rows.is_empty() {
        return Err(ScoreError::EmptyDataset);
    }
    let mut checked = Vec::with_capacity(rows.len());
    for (row_idx, row) in rows.iter().enumerate() {
        let named = |source| ScoreError::Row {
            row_idx,
            source: Box::new(source),
        };
        checked.push(CheckedRow::new(row).map_err(named)?);
    }
    let embeddings = Embeddings::of(checked.iter().flat_map(CheckedRow::texts), encoder)?;
    let scores: Vec<RowScore> = checked
        .into_iter()
        .map(|row| row.score(&embeddings))
        .collect();
    Ok((summary(&scores), scores))
}

fn summary(scores: &[RowScore]) -> DatasetScore {
    let columns: Vec<_> = scores
        .iter()
        .map(|score| score.metrics().columns())
        .collect();
    DatasetScore {
        n: scores.len(),
        overall: Metrics::from_columns(estimates(&columns)),
        by_depth: by_depth(scores),
        violations: violations(scores),
    }
}

fn by_depth(scores: &[RowScore]) -> Vec<DepthScore> {
    let mut groups: BTreeMap<usize, Vec<[f64; 7]>> = BTreeMap::new();
    for score in scores {
        groups
            .entry(score.gold_depth)
            .or_default()
            .push(score.metrics().columns());
    }
    groups
        .into_iter()
        .map(|(depth, columns)| DepthScore {
            depth,
            n: columns.len(),
            metrics: Metrics::from_columns(column_means(columns.iter())),
        })
        .collect()
}

fn violations(scores: &[RowScore]) -> BTreeMap<String, usize> {
    let mut n_rows = BTreeMap::new();
    for score in scores {
        let rules: BTreeSet<&str> = score
            .violations
            .iter()
            .map(|one| one.rule.as_str())
            .collect();
        for rule in rules {
            *n_rows.entry(rule.to_owned()).or_default() += 1;
        }
    }
    n_rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::slot::{HashEncoder, score_row};
    use serde_json::json;

    fn schema() -> Value {
        json!({"properties": {"a": {"type": "string"}, "b": {"type": "object"}},
               "required": ["a"], "additionalProperties": false})
    }

    const RAWS: [&str; 4] = [
        r#"{"a": "left"}"#,
        r#"{"a": "lift", "c": 1}"#,
        r#"{"a": "right", "b": {"x": 1}}"#,
        "no",
    ];

    fn golds() -> [Value; 4] {
        let nested = json!({"a": "right", "b": {"x": 1}});
        [
            json!({"a": "left"}),
            json!({"a": "left"}),
            nested.clone(),
            nested,
        ]
    }

    #[test]
    fn means_are_over_rows_and_equal_those_of_the_single_rows() {
        let (schema, golds) = (schema(), golds());
        let rows: Vec<SlotRow<'_>> = RAWS
            .iter()
            .zip(&golds)
            .map(|(raw, gold)| SlotRow {
                raw,
                schema: &schema,
                gold,
            })
            .collect();
        let (score, row_scores) = score_dataset(&rows, &HashEncoder).expect("usable rows");
        for (row, from_dataset) in rows.iter().zip(&row_scores) {
            let alone = score_row(row.raw, row.schema, row.gold, &HashEncoder).expect("usable");
            assert_eq!(&alone, from_dataset);
        }
        assert_eq!(score.n, 4);
        assert_eq!(score.overall.parse_rate.value, 0.75);
        assert_eq!(score.overall.schema_accuracy.value, 0.5);
        assert_eq!(score.overall.exact_match.value, 0.5);
        let similarity: f64 = row_scores.iter().map(|row| row.content.f).sum::<f64>() / 4.0;
        assert_eq!(score.overall.content_similarity.value, similarity);
        assert!((score.overall.mean.value - f64::midpoint(0.5, similarity)).abs() < 1e-15);
        let depths: Vec<_> = score
            .by_depth
            .iter()
            .map(|one| (one.depth, one.n))
            .collect();
        assert_eq!(depths, [(1, 2), (2, 2)]);
        assert_eq!(score.by_depth[1].metrics.parse_rate, 0.5);
        let rules: Vec<_> = score
            .violations
            .iter()
            .map(|(rule, n)| (rule.as_str(), *n))
            .collect();
        assert_eq!(rules, [("additionalProperties", 1), ("json", 1)]);
    }

    #[test]
    fn no_rows_and_an_unusable_schema_are_errors() {
        let error = score_dataset(&[], &HashEncoder).expect_err("no rows");
        assert!(matches!(error, ScoreError::EmptyDataset));
        let (good, bad, gold) = (json!({}), json!({"type": "text"}), json!({}));
        let rows = [
            SlotRow {
                raw: "{}",
                schema: &good,
                gold: &gold,
            },
            SlotRow {
                raw: "{}",
                schema: &bad,
                gold: &gold,
            },
        ];
        let error = score_dataset(&rows, &HashEncoder).expect_err("an unusable schema");
        assert!(error.to_string().starts_with("row 1: "), "{error}");
    }

    #[test]
    fn the_metrics_file_has_one_object_for_each_metric() {
        let (schema, gold) = (schema(), json!({"a": "left"}));
        let row = SlotRow {
            raw: RAWS[0],
            schema: &schema,
            gold: &gold,
        };
        let (score, _) = score_dataset(&[row], &HashEncoder).expect("usable row");
        let file = serde_json::to_value(&score).expect("serialisable");
        assert_eq!(
            file["schema_accuracy"],
            json!({"value": 1.0, "low": 1.0, "high": 1.0})
        );
        assert_eq!(file["by_depth"][0]["depth"], json!(1));
        assert_eq!(file["by_depth"][0]["content_similarity"], json!(1.0));
    }
}
