//! The `LATEST` and `BEST` files: one JSON object each that names a checkpoint of the run.

use std::fs;

use serde::{Deserialize, Serialize};

use super::{RunDir, checkpoint_name};
use crate::atomic::{sync_dir, write_atomic};
use crate::budgets::JSON_BYTES;
use crate::error::CheckpointError;
use crate::regular_file;

pub(super) const LATEST: &str = "LATEST";
pub(super) const BEST: &str = "BEST";

/// What a pointer file says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pointer {
    /// Name of the checkpoint directory.
    pub checkpoint: String,
    /// Its optimizer step.
    pub step: u64,
    /// Metric it was selected by; `BEST` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Value of that metric; `BEST` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The newest checkpoint when a user chose this one; the choice holds until a newer one is
    /// evaluated. `BEST` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_at: Option<u64>,
}

/// A checkpoint for `BEST`, with what it was selected by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Selected<'a> {
    /// Its optimizer step.
    pub step: u64,
    /// The metric.
    pub metric: &'a str,
    /// Its value of that metric.
    pub value: f64,
    /// See [`Pointer::chosen_at`].
    pub chosen_at: Option<u64>,
}

impl RunDir {
    /// What `LATEST` says; `None` before the first save.
    ///
    /// # Errors
    ///
    /// The file exists and cannot be read or parsed.
    pub fn latest(&self) -> Result<Option<Pointer>, CheckpointError> {
        self.pointer(LATEST)
    }

    /// What `BEST` says; `None` as long as none was selected.
    ///
    /// # Errors
    ///
    /// The file exists and cannot be read or parsed.
    pub fn best(&self) -> Result<Option<Pointer>, CheckpointError> {
        self.pointer(BEST)
    }

    /// Points `BEST` to a checkpoint.
    ///
    /// # Errors
    ///
    /// - there is no checkpoint of that step
    /// - the value is not finite
    /// - the file cannot be written
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
            let problem = format!("there is no checkpoint of step {step}");
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

    /// Removes `BEST`, as where it is damaged.
    ///
    /// # Errors
    ///
    /// The file cannot be removed.
    pub fn remove_best(&self) -> Result<(), CheckpointError> {
        let best = self.root.join(BEST);
        fs::remove_file(&best).map_err(CheckpointError::io("remove", &best))?;
        sync_dir(&self.root)
    }

    /// Points `LATEST` to the newest checkpoint, if it says otherwise or is damaged: a process may
    /// die between the two.
    ///
    /// # Errors
    ///
    /// The directory cannot be listed, or the file not be read or written.
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
        let parsed = serde_json::from_slice(&text);
        parsed
            .map(Some)
            .map_err(|error| CheckpointError::DamagedPointer {
                path,
                problem: error.to_string(),
            })
    }

    fn write_pointer(&self, name: &str, pointer: &Pointer) -> Result<(), CheckpointError> {
        let path = self.root.join(name);
        // Writing to a pipe would wait for whoever reads it.
        regular_file::is_there(&path)?;
        let mut text = serde_json::to_vec(pointer).map_err(CheckpointError::json(&path))?;
        text.push(b'\n');
        write_atomic(&path, &text)
    }
}
