//! `history.json` of a checkpoint: the evaluations of its run so far, and what `metrics.jsonl` held.
//!
//! Selection and early stopping go by the checkpoints alone, so that nothing that happens to
//! `metrics.jsonl` moves `BEST`; and a resumed run cuts that file to the byte where the checkpoint
//! was saved, so that an evaluation whose checkpoint was never saved counts for nothing.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::run_dir::{Checkpoint, MetricsMark};
use tooltune_rows::regular_file;

use crate::budgets::RUN_FILE_BYTES;
use crate::error::Error;

/// Its name in a checkpoint.
pub const HISTORY_FILE: &str = "history.json";

/// What came before a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// What `metrics.jsonl` held when the checkpoint was saved.
    pub metrics: Option<MetricsMark>,
    /// The line of every evaluation so far, in order.
    pub evaluations: Vec<Value>,
}

impl History {
    /// That of a checkpoint; `None` if it keeps none.
    ///
    /// # Errors
    ///
    /// The file cannot be read or parsed.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<History>, Error> {
        let path = checkpoint.path.join(HISTORY_FILE);
        let bytes = regular_file::read_if_there(&path, RUN_FILE_BYTES);
        let bytes = bytes.map_err(Error::io(&path, "read"))?;
        let parsed = bytes.map(|bytes| serde_json::from_slice(&bytes));
        Ok(parsed.transpose().map_err(CheckpointError::json(&path))?)
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("JSON values serialise");
        bytes.push(b'\n');
        bytes
    }

    /// The evaluation at `step`, if that was the last one.
    pub fn evaluation(&self, step: u64) -> Option<&Value> {
        self.evaluations
            .last()
            .filter(|line| line["step"].as_u64() == Some(step))
    }

    /// Whether a line of `metrics.jsonl` belongs to this course: every one that is no evaluation, and
    /// the evaluations that are known.
    pub fn keeps(&self, line: &Value) -> bool {
        let fields = line.as_object().into_iter().flat_map(|line| line.keys());
        let is_evaluation = fields.into_iter().any(|key| key.starts_with("eval/"));
        !is_evaluation || self.evaluations.contains(line)
    }
}
