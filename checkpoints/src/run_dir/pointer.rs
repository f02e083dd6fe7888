//! The files `LATEST` and `BEST`. Each is a JSON object that names a checkpoint of the run.

use std::fs;

use serde::{Deserialize, Serialize};
use tooltune_disk::atomic::{sync_dir, write_atomic};

use super::{Checkpoint, RunDir, checkpoint_name};
use crate::budgets::JSON_BYTES;
use crate::error::CheckpointError;
use crate::regular_file;

pub(super) const LATEST: &str = "LATEST";
pub(super) const BEST: &str = "BEST";

/// The content of a pointer file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pointer {
    /// Name of the checkpoint directory.
    pub checkpoint: String,
    /// The checkpoint's optimizer step.
    pub step: u64,
    /// Metric that selected the checkpoint; only in `BEST`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Value of the metric; only in `BEST`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Step of the newest checkpoint when a user selected this one. The selection is kept until a
    /// newer checkpoint is evaluated. Only in `BEST`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_at: Option<u64>,
}

/// A checkpoint for `BEST`, with the reason for its selection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Selected<'a> {
    /// The checkpoint's optimizer step.
    pub step: u64,
    /// Metric that selected the checkpoint.
    pub metric: &'a str,
    /// Value of the metric.
    pub value: f64,
    /// See [`Pointer::chosen_at`].
    pub chosen_at: Option<u64>,
}

impl RunDir {
    /// The content of `LATEST`; `None` before the first save.
    ///
    /// # Errors
    ///
    /// The file exists but cannot be read or parsed.
    pub fn latest(&self) -> Result<Option<Pointer>, CheckpointError> {
        self.pointer(LATEST)
    }

    /// The content of `BEST`; `None` before a selection.
    ///
    /// # Errors
    ///
    /// The file exists but cannot be read or parsed.
    pub fn best(&self) -> Result<Option<Pointer>, CheckpointError> {
        self.pointer(BEST)
    }

    /// The checkpoint that `BEST` names; `None` before a selection. Does not read the checkpoint's
    /// files. Every lookup of a run's best checkpoint uses this function.
    ///
    /// # Errors
    ///
    /// The file exists but cannot be read or parsed, or the checkpoint does not exist.
    pub fn best_checkpoint(&self) -> Result<Option<(Checkpoint, Pointer)>, CheckpointError> {
        let mut missing = None;
        loop {
            let Some(best) = self.best()? else {
                return Ok(None);
            };
            let mut checkpoints = self.list()?;
            if let Some(index) = checkpoints
                .iter()
                .position(|checkpoint| checkpoint.step == best.step)
            {
                return Ok(Some((checkpoints.swap_remove(index), best)));
            }
            // A running process may have updated `BEST` and removed the old checkpoint in the
            // meantime.
            if missing == Some(best.step) {
                return Err(CheckpointError::MissingBest {
                    path: self.root.join(BEST),
                    checkpoint: best.checkpoint,
                    steps: checkpoints
                        .iter()
                        .map(|checkpoint| checkpoint.step)
                        .collect(),
                });
            }
            missing = Some(best.step);
        }
    }

    /// Points `BEST` to a checkpoint.
    ///
    /// # Errors
    ///
    /// - There is no checkpoint of that step.
    /// - The value is not finite.
    /// - The file cannot be written.
    pub fn set_best(&self, selected: Selected<'_>) -> Result<(), CheckpointError> {
        let path = self.root.join(BEST);
        let Selected {
            step,
            metric,
            value,
            chosen_at,
        } = selected;
        if !value.is_finite() {
            return Err(CheckpointError::field(
                &path,
                "value",
                format!("{value} is not finite"),
            ));
        }
        if !self.checkpoint_path(step).is_dir() {
            let problem = format!("there is no checkpoint at step {step}");
            return Err(CheckpointError::field(&path, "step", problem));
        }
        self.write_pointer(
            BEST,
            &Pointer {
                checkpoint: checkpoint_name(step),
                step,
                metric: Some(metric.to_owned()),
                value: Some(value),
                chosen_at,
            },
        )
    }

    /// Removes `BEST`, for example because it is damaged.
    ///
    /// # Errors
    ///
    /// The file cannot be removed.
    pub fn remove_best(&self) -> Result<(), CheckpointError> {
        let best = self.root.join(BEST);
        fs::remove_file(&best).map_err(CheckpointError::io("remove", &best))?;
        Ok(sync_dir(&self.root)?)
    }

    /// Points `LATEST` to the newest checkpoint if it is damaged or outdated, because a process may
    /// die between the save and the pointer update.
    ///
    /// # Errors
    ///
    /// The directory cannot be listed, or the file cannot be read or written.
    pub fn fix_latest(&self) -> Result<(), CheckpointError> {
        let Some(newest) = self.list()?.pop() else {
            return Ok(());
        };
        match self.latest() {
            Ok(Some(latest)) if latest.step == newest.step => Ok(()),
            Ok(_) | Err(CheckpointError::DamagedPointer { .. }) => self.set_latest(newest.step),
            Err(error) => Err(error),
        }
    }

    pub(super) fn set_latest(&self, step: u64) -> Result<(), CheckpointError> {
        let checkpoint = checkpoint_name(step);
        self.write_pointer(
            LATEST,
            &Pointer {
                checkpoint,
                step,
                metric: None,
                value: None,
                chosen_at: None,
            },
        )
    }

    fn pointer(&self, name: &str) -> Result<Option<Pointer>, CheckpointError> {
        let path = self.root.join(name);
        if !regular_file::is_there(&path)? {
            return Ok(None);
        }
        let text = regular_file::read(&path, JSON_BYTES)?;
        let damaged = |problem: String| CheckpointError::DamagedPointer {
            path: path.clone(),
            problem,
        };
        let pointer: Pointer =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if pointer.checkpoint != checkpoint_name(pointer.step) {
            let Pointer {
                checkpoint, step, ..
            } = pointer;
            return Err(damaged(format!(
                "{checkpoint:?} is not the checkpoint of step {step}"
            )));
        }
        Ok(Some(pointer))
    }

    fn write_pointer(&self, name: &str, pointer: &Pointer) -> Result<(), CheckpointError> {
        let path = self.root.join(name);
        // Refuse pipes, because writing to one would block until it has a reader.
        regular_file::is_there(&path)?;
        let mut text = serde_json::to_vec(pointer).map_err(CheckpointError::json(&path))?;
        text.push(b'\n');
        Ok(write_atomic(&path, &text)?)
    }
}
