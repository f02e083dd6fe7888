//! The result of a run: its best and last checkpoint.

use std::path::PathBuf;

use tooltune_checkpoints::run_dir::RunDir;

use crate::error::Error;
use crate::profile::Profile;

/// Result of a finished run.
#[derive(Debug, Clone)]
pub struct RunSummary {
    /// Optimizer steps of the run.
    pub steps: u64,
    /// Run directory.
    pub run_dir: PathBuf,
    /// The selected checkpoint.
    pub best: Option<BestCheckpoint>,
    /// The last checkpoint.
    pub last: PathBuf,
    /// Number of evaluations without an improvement, if the run stopped early.
    pub stopped_early: Option<u64>,
    /// Profile of the run, if any steps were profiled.
    pub profile: Option<Profile>,
}

/// The checkpoint that `BEST` points to.
#[derive(Debug, Clone)]
pub struct BestCheckpoint {
    /// The checkpoint.
    pub path: PathBuf,
    /// Step of the checkpoint; 0 is the untrained model.
    pub step: u64,
    /// Metric that selected the checkpoint.
    pub metric: String,
    /// Value of that metric.
    pub value: f64,
}

impl RunSummary {
    /// Reads the result from a run directory after its last step.
    pub(super) fn read(
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
