//! Chooses the checkpoint from which a run resumes.

use std::path::{Path, PathBuf};

use tooltune_checkpoints::run_dir::{Checkpoint, RunDir};

use super::run_files;
use crate::checkpoint_choice::{CheckpointChoice, no_checkpoint};
use crate::config::Config;
use crate::error::Error;

/// The checkpoint that a run starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// The newest undamaged checkpoint of the run directory, or step 0 if there is none.
    Auto,
    /// Step 0; the run directory must not contain a checkpoint.
    Never,
    /// This checkpoint of the run directory.
    From(PathBuf),
}

/// Returns the checkpoint to continue from, after checking that the directory belongs to this
/// config.
pub(super) fn starting_checkpoint(
    config: &Config,
    run_dir: &RunDir,
    resume: &Resume,
) -> Result<Option<Checkpoint>, Error> {
    run_files::check_same_run(config, run_dir.path())?;
    let valid = run_dir.latest_valid()?;
    for (checkpoint, problem) in &valid.rejected {
        tracing::warn!(
            "skipped the damaged checkpoint {}: {problem}",
            checkpoint.path.display()
        );
    }
    match resume {
        Resume::Auto => Ok(valid.checkpoint),
        Resume::Never => match valid.checkpoint {
            None => Ok(None),
            Some(checkpoint) => Err(Error::Usage(format!(
                "`--resume never` needs an empty run directory, but {} exists; \
                 delete the checkpoint, or set train.output_dir to another folder",
                checkpoint.path.display()
            ))),
        },
        Resume::From(path) => from_path(run_dir, path).map(Some),
    }
}

/// Finds a checkpoint by step, name or path, or by "best" or "last".
fn from_path(run_dir: &RunDir, path: &Path) -> Result<Checkpoint, Error> {
    let listed = run_dir.list()?;
    let choice = CheckpointChoice::parse(&path.to_string_lossy());
    let chosen = match &choice {
        CheckpointChoice::Step(step) => listed.iter().find(|one| one.step == *step),
        CheckpointChoice::Best | CheckpointChoice::Last => {
            let chosen = choice.resolve(run_dir.path())?;
            listed.iter().find(|one| one.path == chosen)
        }
        CheckpointChoice::Path(path) => {
            let name = path.file_name();
            listed.iter().find(|one| one.path.file_name() == name)
        }
    };
    let Some(checkpoint) = chosen else {
        let requested = path.display().to_string();
        return Err(no_checkpoint(run_dir.path(), &requested, &listed));
    };
    checkpoint.verify()?;
    Ok(checkpoint.clone())
}
