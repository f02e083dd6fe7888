//! The evaluations of a run to its best checkpoint, and to whether there is a point in going on.
//!
//! Both are read from `metrics.jsonl`, where a resumed run finds what came before.

use std::collections::BTreeMap;

use serde_json::Value;
use tooltune_checkpoints::run_dir::{MetricsFile, RunDir};

use crate::config::{Config, EvalConfig, MetricExpression};
use crate::error::Error;

/// The values of an evaluation's line by name.
pub fn measured(line: &Value) -> BTreeMap<String, f64> {
    let values = line.as_object().into_iter().flatten();
    values
        .filter_map(|(key, value)| {
            let name = key.strip_prefix("eval/")?;
            Some((name.to_owned(), value.as_f64()?))
        })
        .collect()
}

/// What a metric was at each step that measured it, in the order of the lines.
fn values(lines: &[Value], metric: &MetricExpression) -> Vec<(u64, f64)> {
    let value = |line: &Value| Some((line["step"].as_u64()?, metric.value(&measured(line))?));
    let values = lines.iter().filter_map(value);
    values.filter(|(_, value)| value.is_finite()).collect()
}

/// The kept checkpoints that a metric was measured of, with its value, the best first; of equals the
/// earlier one.
///
/// # Errors
///
/// The run directory cannot be listed.
pub fn ranked(
    run_dir: &RunDir,
    lines: &[Value],
    metric: &MetricExpression,
    greater_is_better: bool,
) -> Result<Vec<(u64, f64)>, Error> {
    let checkpoints = run_dir.list()?;
    let is_kept = |step: u64| checkpoints.iter().any(|checkpoint| checkpoint.step == step);
    let mut ranked = values(lines, metric);
    ranked.retain(|&(step, _)| is_kept(step));
    ranked.sort_by(|a, b| match greater_is_better {
        true => b.1.total_cmp(&a.1),
        false => a.1.total_cmp(&b.1),
    });
    Ok(ranked)
}

/// Moves `BEST` to the best of the kept checkpoints, drops old ones, and says whether the run is to
/// stop early: after how many evaluations without a better one.
///
/// # Errors
///
/// A file of the run directory cannot be read or written.
pub(super) fn after_evaluation(config: &Config, run_dir: &RunDir) -> Result<Option<u64>, Error> {
    let (metric, lines) = so_far(config, run_dir)?;
    let ranked = ranked(run_dir, &lines, &metric, config.eval.greater_is_better)?;
    if let Some(&(step, value)) = ranked.first() {
        run_dir.set_best(&config.eval.metric_for_best_model, step, value)?;
    }
    run_dir.rotate(config.checkpoint.save_total_limit)?;
    Ok(stops_early(&config.eval, &values(&lines, &metric)))
}

/// Whether a run that goes on where it was has stopped early already: as [`after_evaluation`] says.
///
/// # Errors
///
/// `metrics.jsonl` cannot be read.
pub(super) fn stopped_early(config: &Config, run_dir: &RunDir) -> Result<Option<u64>, Error> {
    if config.eval.early_stopping_patience.is_none() {
        return Ok(None);
    }
    let (metric, lines) = so_far(config, run_dir)?;
    Ok(stops_early(&config.eval, &values(&lines, &metric)))
}

/// What the run selects by, and the lines that it has measured.
fn so_far(config: &Config, run_dir: &RunDir) -> Result<(MetricExpression, Vec<Value>), Error> {
    let name = &config.eval.metric_for_best_model;
    let metric = MetricExpression::parse(name).map_err(Error::Usage)?;
    let lines = MetricsFile::read(&run_dir.path().join("metrics.jsonl"))?;
    Ok((metric, lines))
}

/// The evaluations without gain, if they are as many as patience has.
fn stops_early(eval: &EvalConfig, values: &[(u64, f64)]) -> Option<u64> {
    let threshold = eval.early_stopping_threshold;
    let gains = values
        .iter()
        .map(|&(_, value)| match eval.greater_is_better {
            true => value,
            false => -value,
        });
    let without = without_gain(gains, threshold);
    (without >= eval.early_stopping_patience?).then_some(without)
}

/// How many of the last values were not greater than the greatest before them by more than the
/// threshold. The rule is that of transformers' `EarlyStoppingCallback` (`trainer_callback.py` of
/// 5.23), but for evaluations that lack the metric, which count for nothing.
fn without_gain(values: impl Iterator<Item = f64>, threshold: f64) -> u64 {
    let (mut best, mut without) = (f64::NEG_INFINITY, 0);
    for value in values {
        without = match value - best > threshold {
            true => 0,
            false => without + 1,
        };
        best = best.max(value);
    }
    without
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_count_until_one_is_better_by_more_than_the_threshold() {
        for (values, threshold, without) in [
            (&[][..], 0.0, 0),
            (&[-3.0], 0.0, 0),
            (&[0.5, 0.5], 0.0, 1),
            (&[0.5, 0.5, 0.6], 0.0, 0),
            (&[0.5, 0.5, 0.6, 0.59, 0.58], 0.0, 2),
            (&[0.5, 0.6], 0.2, 1),
            // The best moves although it counts as no gain.
            (&[0.5, 0.6, 0.75], 0.2, 2),
            (&[0.5, 0.6, 0.81], 0.2, 0),
        ] {
            let counted = without_gain(values.iter().copied(), threshold);
            assert_eq!(counted, without, "{values:?}");
        }
    }
}
