//! Finds a checkpoint of a run by `best`, `last`, a step or a path.

use std::path::{Path, PathBuf};

use tooltune_checkpoints::run_dir::{Checkpoint, RunDir};

use crate::error::Error;

/// Selects a checkpoint of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointChoice {
    /// The checkpoint that `BEST` points to, or the last one if none was selected.
    Best,
    /// The newest undamaged checkpoint.
    Last,
    /// The checkpoint at an optimizer step.
    Step(u64),
    /// A directory, or the name of a checkpoint in the run.
    Path(PathBuf),
}

impl CheckpointChoice {
    /// Parses `best`, `last`, a step such as `20`, a name such as `checkpoint-000020`, or a path.
    pub fn parse(text: &str) -> Self {
        match (text, text.parse()) {
            ("best", _) => Self::Best,
            ("last", _) => Self::Last,
            (_, Ok(step)) => Self::Step(step),
            (path, Err(_)) => Self::Path(PathBuf::from(path)),
        }
    }

    /// Returns the directory of the checkpoint after verifying the checksums of its files.
    ///
    /// # Errors
    ///
    /// The run has no such checkpoint, or it is damaged.
    pub fn resolve(&self, run: &Path) -> Result<PathBuf, Error> {
        match self {
            Self::Path(path) if path.exists() => return verify_adapter_dir(path),
            Self::Path(path) if run.is_dir() && is_name(path) => return find_by_name(run, path),
            Self::Path(path) => return verify_adapter_dir(path),
            Self::Step(step) => return find_by_step(run, *step),
            Self::Best | Self::Last => {}
        }
        let run_dir = RunDir::open_to_read(run)?;
        if *self == Self::Best
            && let Some((best, _)) = run_dir.best_checkpoint()?
        {
            best.verify()?;
            return Ok(best.path);
        }
        let valid = run_dir.latest_valid()?;
        for (checkpoint, problem) in &valid.rejected {
            tracing::warn!(
                "skipped the damaged checkpoint {}: {problem}",
                checkpoint.path.display()
            );
        }
        let latest = valid.checkpoint.map(|checkpoint| checkpoint.path);
        latest.ok_or_else(|| {
            Error::Usage(format!(
                "{} has no complete checkpoint; train first, or name one with --checkpoint",
                run.display()
            ))
        })
    }

    /// Describes the result of [`resolve`](Self::resolve) by its step and its rank; `None` if the
    /// user named a step or path.
    ///
    /// # Errors
    ///
    /// The run directory cannot be read.
    pub fn describe(&self, checkpoint: &Path) -> Result<Option<String>, Error> {
        let run = match self {
            Self::Best | Self::Last => checkpoint.parent().unwrap_or(Path::new("")),
            Self::Step(_) | Self::Path(_) => return Ok(None),
        };
        let run_dir = RunDir::open_to_read(run)?;
        let checkpoints = run_dir.list()?;
        let Some(checkpoint_info) = checkpoints.iter().find(|c| c.path == checkpoint) else {
            return Ok(None);
        };
        let best = run_dir
            .best()?
            .filter(|best| best.step == checkpoint_info.step);
        let rank = match (self, best.and_then(|best| best.metric)) {
            (Self::Best, Some(metric)) => format!("best by {metric}"),
            (Self::Best, None) => "last (no best one was selected)".to_string(),
            _ => "last".to_string(),
        };
        let state = match checkpoint_info.step {
            0 => ", untrained model",
            _ => "",
        };
        Ok(Some(format!(
            "step {}, {rank}{state}",
            checkpoint_info.step
        )))
    }
}

fn is_name(path: &Path) -> bool {
    path.parent()
        .is_some_and(|folder| folder.as_os_str().is_empty())
}

/// Finds the checkpoint of `run` with this name and verifies its checksums.
fn find_by_name(run: &Path, name: &Path) -> Result<PathBuf, Error> {
    let listed = RunDir::open_to_read(run)?.list()?;
    let named_checkpoint = listed
        .iter()
        .find(|one| one.path.file_name() == Some(name.as_os_str()));
    match named_checkpoint {
        Some(checkpoint) => {
            checkpoint.verify()?;
            Ok(checkpoint.path.clone())
        }
        None => Err(no_checkpoint(run, &name.display().to_string(), &listed)),
    }
}

/// Finds the checkpoint of `run` at this step and verifies its checksums.
fn find_by_step(run: &Path, step: u64) -> Result<PathBuf, Error> {
    let listed = RunDir::open_to_read(run)?.list()?;
    match listed.iter().find(|one| one.step == step) {
        Some(checkpoint) => {
            checkpoint.verify()?;
            Ok(checkpoint.path.clone())
        }
        None => Err(no_checkpoint(run, &format!("step {step}"), &listed)),
    }
}

/// The error for a checkpoint that a run does not have.
pub(crate) fn no_checkpoint(run: &Path, requested: &str, listed: &[Checkpoint]) -> Error {
    let steps: Vec<String> = listed.iter().map(|one| one.step.to_string()).collect();
    let existing = match steps.as_slice() {
        [] => "it has none".to_owned(),
        steps => format!("it has checkpoints at steps {}", steps.join(", ")),
    };
    Error::Usage(format!(
        "{requested}: no such checkpoint in {}; {existing}",
        run.display()
    ))
}

/// Accepts any adapter directory, but a checkpoint only if it is complete.
fn verify_adapter_dir(path: &Path) -> Result<PathBuf, Error> {
    let canonical = std::fs::canonicalize(path).map_err(Error::io(path, "open"))?;
    if let Some(run) = canonical.parent() {
        let listed = RunDir::open_to_read(run)?.list()?;
        if let Some(checkpoint) = listed.iter().find(|c| c.path == canonical) {
            checkpoint.verify()?;
        }
    }
    Ok(path.to_owned())
}
