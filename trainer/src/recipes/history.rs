//! The file `history.json` of a checkpoint: all evaluations of the run so far, and the length of
//! `metrics.jsonl`.
//!
//! Selection and early stopping read only the checkpoints, so a damaged `metrics.jsonl` cannot
//! change `BEST`. A resumed run truncates that file to its length at the checkpoint. An evaluation
//! whose checkpoint was never saved is therefore dropped.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::run_dir::{Checkpoint, MetricsMark};
use tooltune_disk::regular_file;

use crate::config::budgets::RUN_FILE_BYTES;
use crate::error::Error;

/// File name in a checkpoint.
pub const HISTORY_FILE: &str = "history.json";

/// Metrics and evaluations of a run up to a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// State of `metrics.jsonl` when the checkpoint was saved.
    pub metrics: Option<MetricsMark>,
    /// One line per evaluation so far, in order.
    pub evaluations: Vec<Value>,
}

impl History {
    /// Reads the history of a checkpoint; `None` if it has none.
    ///
    /// # Errors
    ///
    /// The file cannot be read or parsed.
    pub fn read(checkpoint: &Checkpoint) -> Result<Option<History>, Error> {
        let path = checkpoint.path.join(HISTORY_FILE);
        let bytes = regular_file::read_if_there(&path, RUN_FILE_BYTES);
        let bytes = bytes.map_err(Error::io(&path, "read"))?;
        let parsed = bytes.map(|bytes| tooltune_json::from_slice(&bytes));
        Ok(parsed.transpose().map_err(CheckpointError::json(&path))?)
    }

    /// Content of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("JSON values serialise");
        bytes.push(b'\n');
        bytes
    }

    /// The latest evaluation, if it was at `step`.
    pub fn evaluation(&self, step: u64) -> Option<&Value> {
        self.evaluations
            .last()
            .filter(|line| line["step"].as_u64() == Some(step))
    }

    /// Whether a line of `metrics.jsonl` belongs to this run: any line that is not an evaluation,
    /// or an evaluation in this history.
    pub fn is_in_history(&self, line: &Value) -> bool {
        let fields = line.as_object().into_iter().flat_map(|line| line.keys());
        let is_evaluation = fields.into_iter().any(|key| key.starts_with("eval/"));
        !is_evaluation || self.evaluations.contains(line)
    }
}
