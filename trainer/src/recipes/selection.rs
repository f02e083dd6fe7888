//! Selects the best checkpoint from a run's evaluations, and decides on early stopping.
//!
//! Both read the evaluations that the checkpoints contain. They therefore give the same result if a
//! run was killed after it saved a checkpoint and before it moved `BEST`, or if `metrics.jsonl` is
//! damaged.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::Value;
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::run_dir::{MetricsFile, RunDir, Selected};

use super::history::History;
use crate::config::{Config, EvalConfig, MetricExpression};
use crate::error::Error;

/// Values of an evaluation line by name.
pub fn measurements(line: &Value) -> BTreeMap<String, f64> {
    let values = line.as_object().into_iter().flatten();
    values
        .filter_map(|(key, value)| {
            let name = key.strip_prefix("eval/")?;
            Some((name.to_owned(), value.as_f64()?))
        })
        .collect()
}

/// Values of a metric by step, in the order of the lines.
fn values(lines: &[Value], metric: &MetricExpression) -> Vec<(u64, f64)> {
    let value = |line: &Value| Some((line["step"].as_u64()?, metric.value(&measurements(line))?));
    let values = lines.iter().filter_map(value);
    values.filter(|(_, value)| value.is_finite()).collect()
}

/// A kept checkpoint with its value of the ranking metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// Step of the checkpoint.
    pub step: u64,
    /// Value of the metric.
    pub value: f64,
}

/// Ranks the kept checkpoints with a value of the metric, best first. If values are equal, the
/// earlier one is first.
///
/// # Errors
///
/// The run directory cannot be listed.
pub fn rank_checkpoints(
    run_dir: &RunDir,
    lines: &[Value],
    metric: &MetricExpression,
    greater_is_better: bool,
) -> Result<Vec<Ranked>, Error> {
    let checkpoints = run_dir.list()?;
    let is_kept = |step: u64| checkpoints.iter().any(|checkpoint| checkpoint.step == step);
    let mut values = values(lines, metric);
    values.retain(|&(step, _)| is_kept(step));
    let ranked = values.into_iter();
    let mut ranked: Vec<Ranked> = ranked.map(|(step, value)| Ranked { step, value }).collect();
    ranked.sort_by(|a, b| better_first(a.value, b.value, greater_is_better));
    Ok(ranked)
}

/// Orders two values, the better one first.
fn better_first(a: f64, b: f64, greater_is_better: bool) -> Ordering {
    if greater_is_better {
        b.total_cmp(&a)
    } else {
        a.total_cmp(&b)
    }
}

/// How checkpoints with equal values are ordered.
#[derive(Debug, Clone, Copy)]
pub struct TieBreak<'a> {
    /// Step of the current `BEST`, which comes first.
    pub best: Option<u64>,
    /// Checkpoints ranked by the run's own selection metric.
    pub own: &'a [Ranked],
    /// Whether higher values of the run's own metric are better.
    pub greater_is_better: bool,
}

impl TieBreak<'_> {
    /// Reorders entries of equal value in `ranked`: the current `BEST` first, then by the run's own
    /// metric, then by step.
    pub fn apply(&self, ranked: &mut [Ranked]) {
        for equals in ranked.chunk_by_mut(|a, b| a.value == b.value) {
            equals.sort_by(|a, b| {
                let is_best = |one: &Ranked| self.best == Some(one.step);
                let best = is_best(b).cmp(&is_best(a));
                best.then_with(|| self.compare_by_own_metric(a.step, b.step))
                    .then(a.step.cmp(&b.step))
            });
        }
    }

    /// Better value first; checkpoints without a value last.
    fn compare_by_own_metric(&self, a: u64, b: u64) -> Ordering {
        let own = |step: u64| {
            let at_step = self.own.iter().find(|one| one.step == step);
            at_step.map(|one| one.value)
        };
        match (own(a), own(b)) {
            (Some(a), Some(b)) => better_first(a, b, self.greater_is_better),
            (a, b) => b.is_some().cmp(&a.is_some()),
        }
    }
}

/// The evaluations of the kept checkpoints, in the format of `metrics.jsonl`. Each is read from its
/// checkpoint, or from `metrics.jsonl` if the checkpoint has none.
///
/// # Errors
///
/// The run directory cannot be listed, or a checkpoint has no evaluation and `metrics.jsonl` cannot
/// be read.
pub fn measured_lines(run_dir: &RunDir) -> Result<Vec<Value>, Error> {
    let mut lines = Vec::new();
    let mut unknown = Vec::new();
    for checkpoint in run_dir.list()? {
        match History::read(&checkpoint) {
            Ok(Some(history)) => lines.extend(history.evaluation(checkpoint.step).cloned()),
            Ok(None) => unknown.push(checkpoint.step),
            Err(error) => {
                tracing::warn!("{error}; using the evaluation in metrics.jsonl instead");
                unknown.push(checkpoint.step);
            }
        }
    }
    let path = run_dir.path().join("metrics.jsonl");
    if !unknown.is_empty() && path.exists() {
        let lacks_evaluation = |line: &Value| {
            let step = line["step"].as_u64();
            step.is_some_and(|step| unknown.contains(&step)) && !measurements(line).is_empty()
        };
        let all = MetricsFile::read(&path)?;
        lines.extend(all.into_iter().filter(lacks_evaluation));
        lines.sort_by_key(|line| line["step"].as_u64());
    }
    Ok(lines)
}

/// Moves `BEST` to the best kept checkpoint, then deletes old checkpoints.
///
/// # Errors
///
/// A file of the run directory cannot be read or written.
pub(super) fn select(config: &Config, run_dir: &RunDir) -> Result<(), Error> {
    let eval = &config.eval;
    let ranked = rank_checkpoints(
        run_dir,
        &measured_lines(run_dir)?,
        &metric(config)?,
        eval.greater_is_better,
    )?;
    if let Some(&Ranked { step, value }) = ranked.first() {
        run_dir.set_best(Selected {
            step,
            metric: &eval.metric_for_best_model,
            value,
            chosen_at: None,
        })?;
    }
    run_dir.rotate(config.checkpoint.save_total_limit)?;
    Ok(())
}

/// Repairs `BEST` and `LATEST` of a resumed run. They may be damaged, or the run may have ended
/// after it saved a checkpoint and before it moved them. A `BEST` set by `tooltune select` is kept.
///
/// # Errors
///
/// As for [`select`].
pub(super) fn fix(config: &Config, run_dir: &RunDir) -> Result<(), Error> {
    run_dir.fix_latest()?;
    let current_best = match run_dir.best_checkpoint() {
        Ok(best) => best.map(|(_, best)| best),
        Err(
            error @ (CheckpointError::DamagedPointer { .. } | CheckpointError::MissingBest { .. }),
        ) => {
            tracing::warn!("{error}; selecting the best checkpoint again");
            run_dir.remove_best()?;
            None
        }
        Err(error) => return Err(error.into()),
    };
    let lines = measured_lines(run_dir)?;
    let last_evaluated = lines.iter().filter_map(|line| line["step"].as_u64()).max();
    let is_chosen = current_best
        .is_some_and(|best| best.chosen_at.is_some() && best.chosen_at >= last_evaluated);
    if !is_chosen {
        return select(config, run_dir);
    }
    run_dir.rotate(config.checkpoint.save_total_limit)?;
    Ok(())
}

/// Number of evaluations without an improvement, if the run is to stop early.
///
/// # Errors
///
/// The metric is invalid, which cannot happen with a checked config.
pub(super) fn stopped_early(config: &Config, evaluations: &[Value]) -> Result<Option<u64>, Error> {
    let values = values(evaluations, &metric(config)?);
    Ok(stops_early(&config.eval, &values))
}

/// Metric by which the run selects its best checkpoint.
fn metric(config: &Config) -> Result<MetricExpression, Error> {
    MetricExpression::parse(&config.eval.metric_for_best_model).map_err(Error::Usage)
}

/// Number of evaluations without an improvement, if it reaches the patience.
fn stops_early(eval: &EvalConfig, values: &[(u64, f64)]) -> Option<u64> {
    let threshold = eval.early_stopping_threshold;
    let gains = values.iter().map(|&(_, value)| {
        if eval.greater_is_better {
            value
        } else {
            -value
        }
    });
    let n_without = n_without_improvement(gains, threshold);
    (n_without >= eval.early_stopping_patience?).then_some(n_without)
}

/// Number of latest values that did not exceed the best earlier value by more than the threshold.
/// This is the rule of transformers' `EarlyStoppingCallback` (`trainer_callback.py`, 5.23), except
/// that evaluations without the metric are ignored.
fn n_without_improvement(values: impl Iterator<Item = f64>, threshold: f64) -> u64 {
    let (mut best, mut n_without) = (f64::NEG_INFINITY, 0);
    for value in values {
        n_without = if value - best > threshold {
            0
        } else {
            n_without + 1
        };
        best = best.max(value);
    }
    n_without
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_keep_best_then_use_the_own_metric_then_the_earlier_step() {
        let ranked_values = |values: &[(u64, f64)]| -> Vec<Ranked> {
            let values = values.iter();
            values
                .map(|&(step, value)| Ranked { step, value })
                .collect()
        };
        let own = ranked_values(&[(10, 0.9), (20, 0.5), (30, 0.7), (40, 0.7)]);
        let order = |best, greater_is_better| {
            let mut ranked = ranked_values(&[
                (5, 1.0),
                (10, 0.8),
                (20, 0.8),
                (30, 0.8),
                (40, 0.8),
                (50, 0.8),
            ]);
            let tie = TieBreak {
                best,
                own: &own,
                greater_is_better,
            };
            tie.apply(&mut ranked);
            ranked.iter().map(|one| one.step).collect::<Vec<_>>()
        };
        assert_eq!(order(None, true), [5, 10, 30, 40, 20, 50]);
        assert_eq!(order(None, false), [5, 20, 30, 40, 10, 50]);
        assert_eq!(order(Some(20), true), [5, 20, 10, 30, 40, 50]);
        assert_eq!(order(Some(50), true), [5, 50, 10, 30, 40, 20]);
    }

    #[test]
    fn evaluations_are_counted_until_one_exceeds_the_threshold() {
        for (values, threshold, expected) in [
            (&[][..], 0.0, 0),
            (&[-3.0], 0.0, 0),
            (&[0.5, 0.5], 0.0, 1),
            (&[0.5, 0.5, 0.6], 0.0, 0),
            (&[0.5, 0.5, 0.6, 0.59, 0.58], 0.0, 2),
            (&[0.5, 0.6], 0.2, 1),
            // The best value is updated although the gain is below the threshold.
            (&[0.5, 0.6, 0.75], 0.2, 2),
            (&[0.5, 0.6, 0.81], 0.2, 0),
        ] {
            let n_without = n_without_improvement(values.iter().copied(), threshold);
            assert_eq!(n_without, expected, "{values:?}");
        }
    }
}
