//! The checkpoint that a run resumes from.

use std::path::{Path, PathBuf};

use tooltune_checkpoints::run_dir::{Checkpoint, RunDir};

use super::run_files;
use crate::config::Config;
use crate::error::Error;
use crate::export::{CheckpointChoice, no_checkpoint};

/// Which earlier state a run begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// The newest undamaged checkpoint of the run directory, or the beginning.
    Auto,
    /// The beginning; the run directory must hold no checkpoint.
    Never,
    /// This checkpoint of the run directory.
    From(PathBuf),
}

/// The checkpoint to go on from, after checking that the directory belongs to this config.
pub(super) fn starting_checkpoint(
    config: &Config,
    run_dir: &RunDir,
    resume: &Resume,
) -> Result<Option<Checkpoint>, Error> {
    run_files::check_same_run(config, run_dir.path())?;
    let found = run_dir.latest_valid()?;
    for (checkpoint, problem) in &found.rejected {
        tracing::warn!(
            "{} is damaged and passed over: {problem}",
            checkpoint.path.display()
        );
    }
    match resume {
        Resume::Auto => Ok(found.checkpoint),
        Resume::Never => match found.checkpoint {
            None => Ok(None),
            Some(checkpoint) => Err(Error::Usage(format!(
                "{} exists; --resume never starts a new run and needs an empty run directory: \
                 remove it or set train.output_dir to another folder",
                checkpoint.path.display()
            ))),
        },
        Resume::From(path) => from_path(run_dir, path).map(Some),
    }
}

/// A checkpoint by its step, its name or its path, or as "best" or "last".
fn from_path(run_dir: &RunDir, path: &Path) -> Result<Checkpoint, Error> {
    let listed = run_dir.list()?;
    let choice = CheckpointChoice::parse(&path.to_string_lossy());
    let found = match &choice {
        CheckpointChoice::Step(step) => listed.iter().find(|one| one.step == *step),
        CheckpointChoice::Best | CheckpointChoice::Last => {
            let chosen = choice.resolve(run_dir.path())?;
            listed.iter().find(|one| one.path == chosen)
        }
        CheckpointChoice::Path(path) => {
            let wanted = path.file_name();
            listed.iter().find(|one| one.path.file_name() == wanted)
        }
    };
    let Some(checkpoint) = found else {
        let wanted = path.display().to_string();
        return Err(no_checkpoint(run_dir.path(), &wanted, &listed));
    };
    checkpoint.verify()?;
    Ok(checkpoint.clone())
}
