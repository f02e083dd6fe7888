//! Scores of the gold answers, for the metrics in which gold answers do not have the best value.

use serde::Serialize;

use super::bootstrap::Estimate;
use super::registry::SuiteInfo;

/// Tolerance. Because of rounding, a mean of ones may differ from 1. The F of ROUGE is lower by the
/// 1e-8 in its denominator.
const ROUNDING: f64 = 1e-7;

/// A metric's score of the gold answers. An answer that equals the gold answers cannot score
/// higher.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ceiling {
    /// Name of the metric.
    pub metric: &'static str,
    /// Score of the gold answers.
    pub value: f64,
}

/// The metrics for which the gold answers do not score the best value. The best value is 1, or 0 if
/// lower is better.
///
/// `gold` returns the value of each metric if the gold answers are scored like predictions. A
/// metric without samples has no ceiling.
pub fn ceilings(
    metrics: &[&'static str],
    lower_is_better: &[&str],
    gold: impl Fn(&str) -> Option<Estimate>,
) -> Vec<Ceiling> {
    let metric_ceiling = |&metric: &&'static str| {
        let best = if lower_is_better.contains(&metric) {
            0.0
        } else {
            1.0
        };
        let value = gold(metric)?.value;
        ((value - best).abs() > ROUNDING).then_some(Ceiling { metric, value })
    };
    metrics.iter().filter_map(metric_ceiling).collect()
}

impl SuiteInfo {
    /// Like [`ceilings`], for the metrics of this suite.
    pub fn ceilings(&self, gold: impl Fn(&str) -> Option<Estimate>) -> Vec<Ceiling> {
        ceilings(self.metrics, self.lower_is_better, gold)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::encoder::HashEncoder;
    use crate::slot::{SUITE, SlotRow, score_dataset};

    /// The ceilings of gold answers under a schema with an optional key.
    fn ceilings_of_golds(golds: &[serde_json::Value]) -> Vec<Ceiling> {
        let schema = json!({"type": "object", "required": ["a"],
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}});
        let texts: Vec<String> = golds.iter().map(ToString::to_string).collect();
        let rows = golds.iter().zip(&texts).map(|(gold, raw)| SlotRow {
            raw,
            schema: &schema,
            gold,
        });
        let rows: Vec<SlotRow<'_>> = rows.collect();
        let (score, _) = score_dataset(&rows, &HashEncoder).expect("rows");
        let columns = score.overall.columns();
        SUITE.ceilings(|name| {
            let position = SUITE
                .metrics
                .iter()
                .position(|known_metric| *known_metric == name);
            position.map(|position| columns[position])
        })
    }

    #[test]
    fn golds_without_an_optional_key_have_a_ceiling_in_strict_keys_alone() {
        let golds = [json!({"a": 1}), json!({"a": 2, "b": "x"})];
        let strict_keys = Ceiling {
            metric: "strict_keys_accuracy",
            value: 0.5,
        };
        assert_eq!(ceilings_of_golds(&golds), [strict_keys]);
        assert_eq!(ceilings_of_golds(&golds[1..]), []);
    }
}
