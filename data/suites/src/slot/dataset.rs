//! Averages the rows of a data set, with intervals, overall and by depth, complexity and broken
//! rule.
//!
//! Every mean is a macro mean over rows: a row with many leaves has the same weight as a row with
//! few. All rows are checked before any text is encoded, so that the distinct texts of the whole
//! data set are encoded in one pass.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_json::schema_complexity;

use super::error::ScoreError;
use super::row::{CheckedRow, Checkers, Metrics, RowScore, is_zero};
use crate::bootstrap::{Estimate, estimates};
use crate::encoder::{Embeddings, SentenceEncoder};

/// A completion and its row.
#[derive(Debug, Clone, Copy)]
pub struct SlotRow<'r> {
    /// The completion exactly as generated.
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
    /// Means over the rows of each depth of the gold value; lower depths come first.
    pub by_depth: Vec<DepthScore>,
    /// Means over thirds of the rows by schema complexity of the gold value; the simplest third is
    /// first. Empty in files of earlier versions.
    #[serde(default)]
    pub by_complexity: Vec<ComplexityScore>,
    /// Number of rows that break each rule of the plain schema at least once.
    pub violations: BTreeMap<String, usize>,
    /// Number of rows that are valid under their schema but break a `format`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_broken_formats: usize,
}

/// The means of the rows with the same gold depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DepthScore {
    /// Depth of the gold value; a flat object has depth 1.
    pub depth: usize,
    /// Number of rows of that depth.
    pub n: usize,
    /// Means of these rows.
    #[serde(flatten)]
    pub metrics: Metrics<GroupMean>,
}

/// The means of the rows with similar complexity of the gold value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComplexityScore {
    /// Range of schema complexity of the group, such as `3.4 to 12.0`.
    pub complexity: String,
    /// Number of rows in the group.
    pub n: usize,
    /// Means of these rows.
    #[serde(flatten)]
    pub metrics: Metrics<GroupMean>,
}

/// The mean of a group.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GroupMean {
    /// With its bootstrap 95 % interval, as in files of this version.
    Estimate(Estimate),
    /// Without an interval, as in files of earlier versions.
    Value(f64),
}

impl GroupMean {
    /// The mean.
    pub fn value(self) -> f64 {
        match self {
            Self::Estimate(estimate) => estimate.value,
            Self::Value(value) => value,
        }
    }
}

/// Scores a data set and each of its rows.
///
/// # Errors
///
/// - there are no rows
/// - a row's schema is unusable; the error contains the row index
/// - the encoder fails
pub fn score_dataset(
    rows: &[SlotRow<'_>],
    encoder: &dyn SentenceEncoder,
) -> Result<(DatasetScore, Vec<RowScore>), ScoreError> {
    if rows.is_empty() {
        return Err(ScoreError::EmptyDataset);
    }
    let (mut checked, mut checkers) = (Vec::with_capacity(rows.len()), Checkers::default());
    for (row_idx, row) in rows.iter().enumerate() {
        let row_error = |source| ScoreError::Row {
            row_idx,
            source: Box::new(source),
        };
        checked.push(CheckedRow::new(row, &mut checkers).map_err(row_error)?);
    }
    let embeddings = Embeddings::encode(
        checked.iter().flat_map(CheckedRow::texts_to_encode),
        encoder,
    )?;
    let scores: Vec<RowScore> = checked
        .into_iter()
        .map(|row| row.score(&embeddings))
        .collect();
    // All weights are integers or tenths. Without rounding, the sum would depend on the key order.
    let tenths = |row: &SlotRow<'_>| (10.0 * schema_complexity(row.gold)).round() / 10.0;
    let complexities: Vec<f64> = rows.iter().map(tenths).collect();
    let overall = slot_means(&scores).ok_or(ScoreError::EmptyDataset)?;
    Ok((summary(&scores, overall, &complexities), scores))
}

/// Means of some rows, each with its bootstrap 95 % interval; `None` without rows.
pub fn slot_means(scores: &[RowScore]) -> Option<Metrics<Estimate>> {
    let columns = scores.iter().map(|score| score.metrics().columns());
    let columns: Vec<_> = columns.collect();
    (!columns.is_empty()).then(|| Metrics::from_columns(estimates(&columns)))
}

fn summary(scores: &[RowScore], overall: Metrics<Estimate>, complexities: &[f64]) -> DatasetScore {
    DatasetScore {
        n: scores.len(),
        overall,
        by_depth: scores_by_depth(scores),
        by_complexity: scores_by_complexity(scores, complexities),
        violations: violations(scores),
        n_broken_formats: scores
            .iter()
            .filter(|score| score.n_broken_formats > 0)
            .count(),
    }
}

fn scores_by_depth(scores: &[RowScore]) -> Vec<DepthScore> {
    let depths = scores.iter().map(|score| (score.gold_depth, score));
    let group = |(depth, members): (usize, Vec<&RowScore>)| DepthScore {
        depth,
        n: members.len(),
        metrics: group_means(&members),
    };
    group_by(depths).into_iter().map(group).collect()
}

/// Splits the rows into thirds by schema complexity of their gold value.
///
/// Rows of equal complexity are in the same third, so the result does not depend on the row order.
/// A third without rows is omitted.
fn scores_by_complexity(scores: &[RowScore], complexities: &[f64]) -> Vec<ComplexityScore> {
    let cuts = tercile_cuts(complexities);
    let third = |complexity: &f64| cuts.iter().filter(|cut| complexity > *cut).count();
    let rows = complexities.iter().zip(scores);
    let thirds = group_by(rows.map(|row| (third(row.0), row)));
    let group = |members: &Vec<(&f64, &RowScore)>| {
        let (complexities, scores): (Vec<f64>, Vec<&RowScore>) = members.iter().copied().unzip();
        let lowest = complexities.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = complexities.iter().copied().fold(0.0, f64::max);
        ComplexityScore {
            complexity: format!("{lowest:.1} to {highest:.1}"),
            n: scores.len(),
            metrics: group_means(&scores),
        }
    };
    thirds.values().map(group).collect()
}

/// The largest values of the first and of the second third.
fn tercile_cuts(values: &[f64]) -> [f64; 2] {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    [1, 2].map(|thirds| {
        let n_below = (thirds * sorted.len()).div_ceil(3);
        let last = sorted.get(n_below.saturating_sub(1));
        last.copied().unwrap_or(f64::INFINITY)
    })
}

fn group_by<K: Ord, M>(members: impl Iterator<Item = (K, M)>) -> BTreeMap<K, Vec<M>> {
    let mut groups: BTreeMap<K, Vec<M>> = BTreeMap::new();
    for (key, member) in members {
        groups.entry(key).or_default().push(member);
    }
    groups
}

fn group_means(scores: &[&RowScore]) -> Metrics<GroupMean> {
    let columns: Vec<_> = scores
        .iter()
        .map(|score| score.metrics().columns())
        .collect();
    Metrics::from_columns(estimates(&columns).map(GroupMean::Estimate))
}

fn violations(scores: &[RowScore]) -> BTreeMap<String, usize> {
    let mut n_rows = BTreeMap::new();
    for score in scores {
        let rules: BTreeSet<&str> = score
            .violations
            .iter()
            .map(|violation| violation.rule.as_str())
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
    use crate::encoder::HashEncoder;
    use crate::slot::score_row;
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
    fn dataset_means_equal_the_means_of_single_rows() {
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
            let single = score_row(row.raw, row.schema, row.gold, &HashEncoder).expect("usable");
            assert_eq!(&single, from_dataset);
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
            .map(|group| (group.depth, group.n))
            .collect();
        assert_eq!(depths, [(1, 2), (2, 2)]);
        // One of two rows can be parsed.
        let half = GroupMean::Estimate(half_of_two());
        assert_eq!(score.by_depth[1].metrics.parse_rate, half);
        let rules: Vec<_> = score
            .violations
            .iter()
            .map(|(rule_name, n)| (rule_name.as_str(), *n))
            .collect();
        assert_eq!(rules, [("additionalProperties", 1), ("json", 1)]);
    }

    #[test]
    fn no_rows_and_an_unusable_schema_are_errors() {
        let error = score_dataset(&[], &HashEncoder).expect_err("no rows");
        assert!(matches!(error, ScoreError::EmptyDataset));
        let (valid, invalid, gold) = (json!({}), json!({"type": "text"}), json!({}));
        let rows = [
            SlotRow {
                raw: "{}",
                schema: &valid,
                gold: &gold,
            },
            SlotRow {
                raw: "{}",
                schema: &invalid,
                gold: &gold,
            },
        ];
        let error = score_dataset(&rows, &HashEncoder).expect_err("an unusable schema");
        assert!(error.to_string().starts_with("row 1: "), "{error}");
    }

    /// Wilson's interval of 1 of 2.
    fn half_of_two() -> Estimate {
        let rows = [[1.0], [0.0]];
        let [half] = estimates(&rows);
        assert!(
            (half.low - 0.094_531_205_734_230_73).abs() < 1e-12,
            "{half:?}"
        );
        half
    }

    #[test]
    fn broken_formats_are_counted_next_to_the_published_accuracy() {
        let schema = json!({"properties": {"day": {"type": "string", "format": "date"}}});
        let gold = json!({"day": "2026-07-20"});
        let row = |raw: &'static str| SlotRow {
            raw,
            schema: &schema,
            gold: &gold,
        };
        let rows = [
            row(r#"{"day": "20 July 2026"}"#),
            row(r#"{"day": "2026-07-20"}"#),
            row(r#"{"day": 20}"#),
        ];
        let (score, scores) = score_dataset(&rows, &HashEncoder).expect("usable rows");
        assert_eq!(score.overall.schema_accuracy.value, 2.0 / 3.0);
        assert_eq!(score.n_broken_formats, 1);
        let n_broken: Vec<usize> = scores
            .iter()
            .map(|row_score| row_score.n_broken_formats)
            .collect();
        assert_eq!(n_broken, [1, 0, 0]);
        let line = serde_json::to_value(&scores[1]).expect("serialisable");
        assert_eq!(line.get("n_broken_formats"), None);
    }

    fn score_of_one_row() -> DatasetScore {
        let (schema, gold) = (schema(), json!({"a": "left"}));
        let row = SlotRow {
            raw: RAWS[0],
            schema: &schema,
            gold: &gold,
        };
        let (score, _) = score_dataset(&[row], &HashEncoder).expect("usable row");
        score
    }

    #[test]
    fn the_metrics_file_has_one_object_per_metric() {
        let score = score_of_one_row();
        let file = serde_json::to_value(&score).expect("serialisable");
        // Wilson's interval of 1 of 1.
        let accuracy = file["schema_accuracy"].clone();
        assert_eq!(
            (&accuracy["value"], &accuracy["high"]),
            (&json!(1.0), &json!(1.0))
        );
        let low = accuracy["low"].as_f64().expect("a number");
        assert!((low - 0.206_549_314_377).abs() < 1e-9, "{low}");
        assert_eq!(file["by_depth"][0]["depth"], json!(1));
        assert_eq!(file["by_depth"][0]["content_similarity"], accuracy);
        // The root object 1, a key 1, and a string of four characters 1.4.
        assert_eq!(file["by_complexity"][0]["complexity"], json!("3.4 to 3.4"));
        assert_eq!(file["by_complexity"][0]["n"], json!(1));
        assert_eq!(file["by_complexity"][0]["mean"], accuracy);
        let read_back: DatasetScore = serde_json::from_value(file).expect("what was written");
        assert_eq!(read_back, score);
    }

    #[test]
    fn a_file_without_intervals_and_complexities_is_read() {
        let score = score_of_one_row();
        let mut file = serde_json::to_value(&score).expect("serialisable");
        let fields = file.as_object_mut().expect("an object");
        fields.remove("by_complexity");
        let mut depth = json!({"depth": 1, "n": 1});
        for name in Metrics::<f64>::NAMES {
            depth[name] = json!(0.25);
        }
        fields["by_depth"] = json!([depth]);
        let scores: DatasetScore = serde_json::from_value(file).expect("an earlier file");
        assert_eq!(scores.by_depth[0].metrics.mean, GroupMean::Value(0.25));
        assert_eq!(scores.by_depth[0].metrics.mean.value(), 0.25);
        assert_eq!(scores.by_complexity, []);
    }

    #[test]
    fn complexity_thirds_equal_a_manual_count() {
        let schema = json!({});
        // An object is 1, each key 1, a number 1, and a string of ten characters 2.
        let golds = [
            json!({"a": {"b": 1}}),
            json!({}),
            json!({"a": 1}),
            json!({"a": "0123456789"}),
            json!({}),
            json!({"a": 2}),
        ];
        let rows: Vec<SlotRow<'_>> = golds
            .iter()
            .map(|gold| SlotRow {
                raw: r#"{"a": 1}"#,
                schema: &schema,
                gold,
            })
            .collect();
        let (score, _) = score_dataset(&rows, &HashEncoder).expect("usable rows");
        let thirds: Vec<_> = score
            .by_complexity
            .iter()
            .map(|group| {
                (
                    group.complexity.as_str(),
                    group.n,
                    group.metrics.exact_match.value(),
                )
            })
            .collect();
        assert_eq!(
            thirds,
            [
                ("1.0 to 1.0", 2, 0.0),
                ("3.0 to 3.0", 2, 0.5),
                ("4.0 to 5.0", 2, 0.0)
            ]
        );
        let half = score.by_complexity[1].metrics.exact_match;
        assert_eq!(half, GroupMean::Estimate(half_of_two()));
    }

    #[test]
    fn equal_complexities_share_a_third_and_no_third_is_empty() {
        assert_eq!(tercile_cuts(&[5.0, 1.0, 3.0, 2.0]), [2.0, 3.0]);
        assert_eq!(tercile_cuts(&[7.0]), [7.0, 7.0]);
        let (schema, gold) = (json!({}), json!({}));
        let row = SlotRow {
            raw: "{}",
            schema: &schema,
            gold: &gold,
        };
        let (score, _) = score_dataset(&[row; 5], &HashEncoder).expect("usable rows");
        let groups: Vec<_> = score.by_complexity.iter().map(|group| group.n).collect();
        assert_eq!(groups, [5]);
    }
}
