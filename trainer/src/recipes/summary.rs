//! How a run stands: which of its checkpoints is the best, and what it leaves behind.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tooltune_checkpoints::run_dir::RunDir;

use crate::config::{Config, MetricExpression};
use crate::error::Error;

/// How a finished run ended.
#[derive(Debug, Clone)]
pub struct RunSummary {
    /// Optimizer steps of the run.
    pub steps: u64,
    /// Where it lies.
    pub run_dir: PathBuf,
    /// The selected checkpoint, its metric and value.
    pub best: Option<(PathBuf, String, f64)>,
    /// The last checkpoint.
    pub last: PathBuf,
}

impl RunSummary {
    /// What a run directory holds after its last step.
    pub(super) fn of(run_dir: &RunDir, step: u64) -> Result<Self, Error> {
        let best = run_dir.best()?.and_then(|best| {
            let path = run_dir.checkpoint_path(best.step);
            Some((path, best.metric?, best.value?))
        });
        Ok(Self {
            steps: step,
            run_dir: run_dir.path().to_owned(),
            best,
            last: run_dir.checkpoint_path(step),
        })
    }
}

/// Moves `BEST` to the checkpoint of `step` if its metrics are better, and drops old checkpoints.
pub(super) fn note_best(
    config: &Config,
    run_dir: &RunDir,
    step: u64,
    metrics: &BTreeMap<String, f64>,
) -> Result<(), Error> {
    let name = &config.eval.metric_for_best_model;
    let expression = MetricExpression::parse(name).map_err(Error::Usage)?;
    let Some(value) = expression.value(metrics) else {
        return Ok(());
    };
    let is_better = match run_dir.best()?.and_then(|best| best.value) {
        Some(best) if config.eval.greater_is_better => value > best,
        Some(best) => value < best,
        None => true,
    };
    if is_better {
        run_dir.set_best(name, step, value)?;
    }
    run_dir.rotate(config.checkpoint.save_total_limit)?;
    Ok(())
}
