//! How a run stands: which of its checkpoints is the best, and what it leaves behind.

use std::path::PathBuf;

use tooltune_checkpoints::run_dir::RunDir;

use crate::error::Error;
use crate::profile::Profile;

/// How a finished run ended.
#[derive(Debug, Clone)]
pub struct RunSummary {
    /// Optimizer steps of the run.
    pub steps: u64,
    /// Where it lies.
    pub run_dir: PathBuf,
    /// The selected checkpoint.
    pub best: Option<BestCheckpoint>,
    /// The last checkpoint.
    pub last: PathBuf,
    /// If it stopped early, after how many evaluations without a better one.
    pub stopped_early: Option<u64>,
    /// Where the time of its profiled steps went.
    pub profile: Option<Profile>,
}

/// What `BEST` points to.
#[derive(Debug, Clone)]
pub struct BestCheckpoint {
    /// The checkpoint.
    pub path: PathBuf,
    /// Optimizer steps behind it; of 0 it is the untrained model.
    pub step: u64,
    /// What it was selected by.
    pub metric: String,
    /// Its value of that metric.
    pub value: f64,
}

impl RunSummary {
    /// What a run directory holds after its last step.
    pub(super) fn of(
        run_dir: &RunDir,
        step: u64,
        stopped_early: Option<u64>,
    ) -> Result<Self, Error> {
        run_dir.check_still_there()?;
        let best = run_dir.best()?.and_then(|best| {
            Some(BestCheckpoint {
                path: run_dir.checkpoint_path(best.step),
                step: best.step,
                metric: best.metric?,
                value: best.value?,
            })
        });
        Ok(Self {
            steps: step,
            run_dir: run_dir.path().to_owned(),
            best,
            last: run_dir.checkpoint_path(step),
            stopped_early,
            profile: None,
        })
    }
}
