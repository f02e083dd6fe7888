//! How a run stands: which of its checkpoints is the best, and what it leaves behind.

use std::path::PathBuf;

use tooltune_checkpoints::run_dir::RunDir;

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
    /// If it stopped early, after how many evaluations without a better one.
    pub stopped_early: Option<u64>,
}

impl RunSummary {
    /// What a run directory holds after its last step.
    pub(super) fn of(
        run_dir: &RunDir,
        step: u64,
        stopped_early: Option<u64>,
    ) -> Result<Self, Error> {
        let best = run_dir.best()?.and_then(|best| {
            let path = run_dir.checkpoint_path(best.step);
            Some((path, best.metric?, best.value?))
        });
        Ok(Self {
            steps: step,
            run_dir: run_dir.path().to_owned(),
            best,
            last: run_dir.checkpoint_path(step),
            stopped_early,
        })
    }
}
