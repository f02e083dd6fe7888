//! Averages the rows of a data set, with intervals, by depth, complexity and broken rule.
//!
//! Every mean is a macro mean over rows: a row with many leaves counts as much as one with few.
//! All rows are checked before any text is encoded, so that one pass of the encoder over the
//! distinct texts serves the whole data set.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_rows::json::schema_complexity;

use super::error::ScoreError;
use super::row::{CheckedRow, Checkers, Metrics, RowScore};
use crate::bootstrap::{Estimate, estimates};
use crate::encoder::{Embeddings, SentenceEncoder};

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
    /// Means over the rows of each third by schema complexity of the gold value, simple ones first;
    /// empty in files of versions that did not write them.
    #[serde(default)]
    pub by_complexity: Vec<ComplexityScore>,
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
    pub metrics: Metrics<GroupMean>,
}

/// The means of the rows whose gold value is about as complex.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComplexityScore {
    /// The least and the largest schema complexity of the group, such as `3.4 to 12.0`.
    pub complexity: String,
    /// Number of rows of the group.
    pub n: usize,
    /// Their means.
    #[serde(flatten)]
    pub metrics: Metrics<GroupMean>,
}

/// The mean of a group.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GroupMean {
    /// With its bootstrap 95 % interval, as it is written.
    Estimate(Estimate),
    /// Without, as in files of versions that wrote none.
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
/// - a row's schema is unusable; the error names the row
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
        let named = |source| ScoreError::Row {
            row_idx,
            source: Box::new(source),
        };
        checked.push(CheckedRow::new(row, &mut checkers).map_err(named)?);
    }
    let embeddings = Embeddings::of(checked.iter().flat_map(CheckedRow::texts), encoder)?;
    let scores: Vec<RowScore> = checked
        .into_iter()
        .map(|row| row.score(&embeddings))
        .collect();
    // All weights are whole or tenths; without rounding, the order of keys would show in the sum.
    let tenths = |row: &SlotRow<'_>| (10.0 * schema_complexity(row.gold)).round() / 10.0;
    let complexities: Vec<f64> = rows.iter().map(tenths).collect();
    let overall = slot_means(&scores).ok_or(ScoreError::EmptyDataset)?;
    Ok((summary(&scores, overall, &complexities), scores))
}

/// The means of some rows, each with its bootstrap 95 % interval; none without a row.
pub fn slot_means(scores: &[RowScore]) -> Option<Metrics<Estimate>> {
    let columns = scores.iter().map(|score| score.metrics().columns());
    let columns: Vec<_> = columns.collect();
    (!columns.is_empty()).then(|| Metrics::from_columns(estimates(&columns)))
}

fn summary(scores: &[RowScore], overall: Metrics<Estimate>, complexities: &[f64]) -> DatasetScore {
    DatasetScore {
        n: scores.len(),
        overall,
        by_depth: by_depth(scores),
        by_complexity: by_complexity(scores, complexities),
        violations: violations(scores),
    }
}

fn by_depth(scores: &[RowScore]) -> Vec<DepthScore> {
    let depths = scores.iter().map(|score| (score.gold_depth, score));
    let group = |(depth, members): (usize, Vec<&RowScore>)| DepthScore {
        depth,
        n: members.len(),
        metrics: group_means(&members),
    };
    grouped(depths).into_iter().map(group).collect()
}

/// Thirds of the rows by the schema complexity of their gold value.
///
/// Equal complexities are never parted, so that no order of the rows decides who is in a third; a
/// third that this leaves empty is left out.
fn by_complexity(scores: &[RowScore], complexities: &[f64]) -> Vec<ComplexityScore> {
    let cuts = tercile_cuts(complexities);
    let third = |complexity: &f64| cuts.iter().filter(|cut| complexity > *cut).count();
    let rows = complexities.iter().zip(scores);
    let thirds = grouped(rows.map(|row| (third(row.0), row)));
    let group = |members: &Vec<(&f64, &RowScore)>| {
        let (complexities, scores): (Vec<f64>, Vec<&RowScore>) = members.iter().copied().unzip();
        let least = complexities.iter().copied().fold(f64::INFINITY, f64::min);
        let most = complexities.iter().copied().fold(0.0, f64::max);
        ComplexityScore {
            complexity: format!("{least:.1} to {most:.1}"),
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

fn grouped<K: Ord, M>(members: impl Iterator<Item = (K, M)>) -> BTreeMap<K, Vec<M>> {
    let mut groups: BTreeMap<K, Vec<M>> = BTreeMap::new();
    for (key, member) in members {
        groups.entry(key).or_default().push(member);
    }
    groups
}

fn group_means(scores: &[&RowScore]) -> Metrics<GroupMean> {
    let columns: Vec<_> = scores.iter().map(|one| one.metrics().columns()).collect();
    Metrics::from_columns(estimates(&columns).map(GroupMean::Estimate))
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
        // Of two rows, one parses: a quarter of the resamples has none, a quarter both.
        let half = GroupMean::Estimate(Estimate {
            value: 0.5,
            low: 0.0,
            high: 1.0,
        });
        assert_eq!(score.by_depth[1].metrics.parse_rate, half);
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
    fn the_metrics_file_has_one_object_for_each_metric() {
        let score = score_of_one_row();
        let file = serde_json::to_value(&score).expect("serialisable");
        assert_eq!(
            file["schema_accuracy"],
            json!({"value": 1.0, "low": 1.0, "high": 1.0})
        );
        assert_eq!(file["by_depth"][0]["depth"], json!(1));
        let whole = json!({"value": 1.0, "low": 1.0, "high": 1.0});
        assert_eq!(file["by_depth"][0]["content_similarity"], whole);
        // Root 1 and a key 1, a text of four characters 1.4.
        assert_eq!(file["by_complexity"][0]["complexity"], json!("3.4 to 3.4"));
        assert_eq!(file["by_complexity"][0]["n"], json!(1));
        assert_eq!(file["by_complexity"][0]["mean"], whole);
        let read: DatasetScore = serde_json::from_value(file).expect("what was written");
        assert_eq!(read, score);
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
        let read: DatasetScore = serde_json::from_value(file).expect("an earlier file");
        assert_eq!(read.by_depth[0].metrics.mean, GroupMean::Value(0.25));
        assert_eq!(read.by_depth[0].metrics.mean.value(), 0.25);
        assert_eq!(read.by_complexity, []);
    }

    #[test]
    fn thirds_by_complexity_are_those_counted_by_hand() {
        let schema = json!({});
        // An object is 1, each key of it 1, a number 1, and a text of ten characters 2.
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
            .map(|one| {
                (
                    one.complexity.as_str(),
                    one.n,
                    one.metrics.exact_match.value(),
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
        let expected = Estimate {
            value: 0.5,
            low: 0.0,
            high: 1.0,
        };
        assert_eq!(half, GroupMean::Estimate(expected));
    }

    #[test]
    fn equal_values_are_never_parted_and_no_third_is_empty() {
        assert_eq!(tercile_cuts(&[5.0, 1.0, 3.0, 2.0]), [2.0, 3.0]);
        assert_eq!(tercile_cuts(&[7.0]), [7.0, 7.0]);
        let (schema, gold) = (json!({}), json!({}));
        let row = SlotRow {
            raw: "{}",
            schema: &schema,
            gold: &gold,
        };
        let (score, _) = score_dataset(&[row; 5], &HashEncoder).expect("usable rows");
        let groups: Vec<_> = score.by_complexity.iter().map(|one| one.n).collect();
        assert_eq!(groups, [5]);
    }
}
