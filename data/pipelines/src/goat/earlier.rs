//! Generates the rows of an earlier run again, with the same sub-graphs and call order but
//! different values.
//!
//! # Source
//!
//! GOAT, appendix D: the seen test set.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::Value;
use tooltune_apis::{ApiCatalogue, Trajectory, read_checked_trajectories};
use tooltune_json::faults::collect_rows;
use tooltune_rows::batches::SeededRandom;

use super::items::{CalledTask, Task};
use super::words::normalize_query;
use super::{RESPONSE, STAGES, SUBGRAPHS, TRAIN_FILE};
use crate::error::PipelineError;
use crate::report::Dropped;
use crate::run::{StageResult, digest_of, read_items};

/// Random stream for drawing tasks; other uses of the seed have their own streams.
const DRAW_STREAM: u64 = 0x676F_6174_6C6D_0003;

const NOT_DRAWN: &str = "not drawn: --rows limit reached";
const SAME_VALUES: &str = "same values as the earlier row";

/// The results of an earlier run.
#[derive(Debug)]
pub(super) struct EarlierRun {
    /// Tasks of its training rows, with the arguments of their calls.
    tasks: Vec<Task>,
    /// Its queries in normalized form.
    pub(super) queries: HashSet<String>,
    /// Digest of its training rows.
    pub(super) digest: String,
}

impl EarlierRun {
    /// Reads the folder of a completed run.
    ///
    /// # Errors
    ///
    /// - the run is not complete, or it generated the rows of another run again
    /// - its rows use other documents, or its files cannot be read
    pub(super) fn read(dir: &Path, catalogue: &ApiCatalogue) -> Result<Self, PipelineError> {
        let train = dir.join(TRAIN_FILE);
        let not_done = || {
            PipelineError::Usage(format!(
                "--seen-from {}: not a completed run of `data goat`; complete it first",
                dir.display()
            ))
        };
        let tasks: Option<Vec<Task>> = read_items(dir, STAGES, SUBGRAPHS)?;
        let rows: Option<Vec<Trajectory>> = read_items(dir, STAGES, RESPONSE)?;
        let (tasks, rows) = (tasks.ok_or_else(not_done)?, rows.ok_or_else(not_done)?);
        let training_rows = collect_rows(read_checked_trajectories(&train, catalogue)?)?;
        let mut training_rows: BTreeMap<String, Trajectory> = training_rows
            .into_iter()
            .map(|row| (row.id.clone(), row))
            .collect();
        let as_redo = |task: Task| {
            let row = training_rows.remove(&task.id)?;
            let calls = row.calls.into_iter();
            let earlier_arguments = calls.map(|call| (call.name, call.arguments)).collect();
            Some(Task {
                taken: earlier_arguments,
                ..task
            })
        };
        Ok(Self {
            tasks: tasks.into_iter().filter_map(as_redo).collect(),
            queries: rows.iter().map(|row| normalize_query(&row.query)).collect(),
            digest: digest_of(&train)?,
        })
    }

    /// Draws the requested number of tasks.
    pub(super) fn tasks(&self, rows: usize, seed: u64) -> StageResult<Task> {
        let mut tasks = self.tasks.clone();
        SeededRandom::new(seed, DRAW_STREAM).shuffle(&mut tasks);
        tasks.truncate(rows);
        let mut result = StageResult::from_results(tasks.into_iter().map(Ok));
        result.n_in = self.tasks.len();
        if result.n_in > result.kept.len() {
            let n_not_drawn = result.n_in - result.kept.len();
            result
                .dropped_in_bulk
                .insert(NOT_DRAWN.to_owned(), n_not_drawn);
        }
        result
    }
}

/// Drops a task if all its values equal the values of the earlier row.
pub(super) fn require_changes(called_task: CalledTask) -> Result<CalledTask, Dropped> {
    let task = &called_task.task;
    let is_of_edge = |api: &str, parameter: &str| {
        let mut edges = task.edges.iter();
        edges.any(|edge| edge.target == api && edge.parameter == parameter)
    };
    let mut free_arguments = called_task.calls.iter().flat_map(|call| {
        let arguments = call.arguments.iter();
        arguments.map(move |(name, value)| (call, name, value))
    });
    let is_new = |(call, name, value): (&tooltune_apis::TrajectoryCall, &String, &Value)| {
        let earlier_arguments = task.taken.get(&call.name);
        !is_of_edge(&call.name, name)
            && earlier_arguments.and_then(|earlier_arguments| earlier_arguments.get(name))
                != Some(value)
    };
    if task.taken.is_empty() || free_arguments.any(is_new) {
        return Ok(called_task);
    }
    Err(Dropped::new(&task.id, SAME_VALUES, ""))
}
