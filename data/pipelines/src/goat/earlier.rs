//! Rows of an earlier run made anew: the same sub-graphs in the same order, with other values.
//!
//! # Source
//!
//! GOAT, appendix D: the seen test set.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::Value;
use tooltune_rows::batches::SeededRandom;
use tooltune_rows::text::all_rows;
use tooltune_rows::tools::{ApiCatalogue, Trajectory, read_checked_trajectories};

use super::items::{CalledTask, Task};
use super::words::normal;
use super::{RESPONSE, STAGES, SUBGRAPHS, TRAIN_FILE};
use crate::error::PipelineError;
use crate::report::Dropped;
use crate::run::{Made, digest_of, read_items};

/// Stream of the draws; other uses of a seed have streams of their own.
const DRAW_STREAM: u64 = 0x676F_6174_6C6D_0003;

const NOT_DRAWN: &str = "not drawn, since --rows takes no more";
const SAME_VALUES: &str = "its values are those of the earlier row";

/// What an earlier run has made.
#[derive(Debug)]
pub(super) struct Earlier {
    /// The tasks of its rows of training, with the arguments of their calls.
    tasks: Vec<Task>,
    /// Its queries, in their normal form.
    pub(super) queries: HashSet<String>,
    /// What tells its rows of training from others.
    pub(super) digest: String,
}

impl Earlier {
    /// Reads the folder of a run that is done.
    ///
    /// # Errors
    ///
    /// - the run is not done, or is one that makes rows of an earlier one anew
    /// - its rows are of other documents, or its files cannot be read
    pub(super) fn read(dir: &Path, catalogue: &ApiCatalogue) -> Result<Self, PipelineError> {
        let train = dir.join(TRAIN_FILE);
        let not_done = || {
            PipelineError::Usage(format!(
                "--seen-from {}: there is no run of `data goat` that is done; run it to its end first",
                dir.display()
            ))
        };
        let tasks: Option<Vec<Task>> = read_items(dir, STAGES, SUBGRAPHS)?;
        let rows: Option<Vec<Trajectory>> = read_items(dir, STAGES, RESPONSE)?;
        let (tasks, rows) = (tasks.ok_or_else(not_done)?, rows.ok_or_else(not_done)?);
        let learned = all_rows(read_checked_trajectories(&train, catalogue)?)?;
        let mut learned: BTreeMap<String, Trajectory> = learned
            .into_iter()
            .map(|row| (row.id.clone(), row))
            .collect();
        let again = |task: Task| {
            let row = learned.remove(&task.id)?;
            let calls = row.calls.into_iter();
            let taken = calls.map(|call| (call.name, call.arguments)).collect();
            Some(Task { taken, ..task })
        };
        Ok(Self {
            tasks: tasks.into_iter().filter_map(again).collect(),
            queries: rows.iter().map(|row| normal(&row.query)).collect(),
            digest: digest_of(&train)?,
        })
    }

    /// Draws as many tasks as there are to be rows.
    pub(super) fn tasks(&self, rows: usize, seed: u64) -> Made<Task> {
        let mut tasks = self.tasks.clone();
        SeededRandom::new(seed, DRAW_STREAM).shuffle(&mut tasks);
        tasks.truncate(rows);
        let mut made = Made::of(tasks.into_iter().map(Ok));
        made.n_in = self.tasks.len();
        if made.n_in > made.kept.len() {
            let n_left = made.n_in - made.kept.len();
            made.dropped_in_bulk.insert(NOT_DRAWN.to_owned(), n_left);
        }
        made
    }
}

/// A task whose values are all those of the earlier row is the earlier row.
pub(super) fn differing(called: CalledTask) -> Result<CalledTask, Dropped> {
    let task = &called.task;
    let is_of_edge = |api: &str, parameter: &str| {
        let mut edges = task.edges.iter();
        edges.any(|edge| edge.target == api && edge.parameter == parameter)
    };
    let mut free = called.calls.iter().flat_map(|call| {
        let arguments = call.arguments.iter();
        arguments.map(move |(name, value)| (call, name, value))
    });
    let is_new = |(call, name, value): (&tooltune_rows::tools::TrajectoryCall, &String, &Value)| {
        let taken = task.taken.get(&call.name);
        !is_of_edge(&call.name, name) && taken.and_then(|taken| taken.get(name)) != Some(value)
    };
    if task.taken.is_empty() || free.any(is_new) {
        return Ok(called);
    }
    Err(Dropped::new(&task.id, SAME_VALUES, ""))
}
