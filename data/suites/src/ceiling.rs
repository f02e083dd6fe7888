//! What the gold itself scores, where that is not the best that a metric has.

use serde::Serialize;

use super::bootstrap::Estimate;

/// The value of a metric for the gold of the same rows; no answer that is right has a better one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ceiling {
    /// Name of the metric.
    pub metric: &'static str,
    /// Its value for the gold.
    pub value: f64,
}

/// The metrics whose value for the gold is not the best: 1, or 0 where less is better.
///
/// `gold` has the value of each metric when the gold is scored as any answer is. A metric that no
/// row counts for has no ceiling.
pub fn ceilings(
    metrics: &[&'static str],
    lower_is_better: &[&str],
    gold: impl Fn(&str) -> Option<Estimate>,
) -> Vec<Ceiling> {
    let of_metric = |&metric: &&'static str| {
        let best = if lower_is_better.contains(&metric) {
            0.0
        } else {
            1.0
        };
        let value = gold(metric)?.value;
        (value != best).then_some(Ceiling { metric, value })
    };
    metrics.iter().filter_map(of_metric).collect()
}
