//! Evaluates and saves between the steps of a run, selects the best checkpoint, and stops early.
//!
//! Each recipe implements [`Recipe`] with its evaluation and checkpoints. [`RunLoop`] owns the
//! folder, the lock and the reporter of the run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::run_dir::{Checkpoint, RunDir};
use tooltune_kernels::operation;

use super::history::HISTORY_FILE;
use super::pending_lock::PendingLock;
use super::reporter::Reporter;
use super::run_files::{self, RunSteps};
use super::run_lock::{InputTimes, LOCK_FILE};
use super::selection;
use crate::config::Config;
use crate::error::Error;
use crate::eval::suites::{Files, Metrics};
use tooltune_files::SplitRecord;

/// State of a run other than weights and optimizer.
pub(super) struct RunLoop<'a> {
    pub(super) config: &'a Config,
    /// Declared before `run_dir` so that it is dropped first: its thread may still write there.
    pub(super) lock: PendingLock,
    pub(super) run_dir: RunDir,
    pub(super) reporter: Reporter,
    /// Number of evaluations without an improvement; `None` until it reaches the patience.
    pub(super) stopped_early: Option<u64>,
    total_steps: u64,
}

impl<'a> RunLoop<'a> {
    /// Starts the run in `run_dir`, or resumes it from the checkpoint `start`.
    ///
    /// # Errors
    ///
    /// The folder cannot be written, or contains a run with other settings or data.
    pub(super) fn begin(
        config: &'a Config,
        run_dir: RunDir,
        start: Option<&Checkpoint>,
        steps: RunSteps,
        split: Option<&SplitRecord>,
        inputs: &InputTimes,
    ) -> Result<Self, Error> {
        let (steps_done, total_steps) = (steps.n_done, steps.total);
        let lock = run_files::begin(config, run_dir.path(), steps, split, inputs)?;
        run_dir.set_aside_after(steps_done)?;
        selection::fix(config, &run_dir)?;
        let reporter = Reporter::open(config, &run_dir, start, total_steps)?;
        Ok(Self {
            stopped_early: selection::stopped_early(config, reporter.evaluations())?,
            config,
            lock,
            run_dir,
            reporter,
            total_steps,
        })
    }

    /// Whether `step` is a multiple of `every`, or the last step.
    fn is_due(&self, every: u64, step: u64) -> bool {
        step.is_multiple_of(every) || step == self.total_steps
    }
}

/// Interface between a training recipe and its run loop.
pub(super) trait Recipe<'a> {
    /// The state that all recipes share.
    fn run(&self) -> &RunLoop<'a>;

    /// Mutable [`run`](Self::run).
    fn run_mut(&mut self) -> &mut RunLoop<'a>;

    /// Steps taken so far.
    fn step(&self) -> u64;

    /// Whether the run evaluates and has not evaluated the current step yet.
    fn lacks_evaluation(&self) -> bool;

    /// Evaluates the current weights; `None` if a signal interrupted the evaluation.
    ///
    /// # Errors
    ///
    /// A suite fails.
    fn evaluate(&mut self) -> Result<Option<(Metrics, Files)>, Error>;

    /// Records that the current step has been evaluated.
    fn set_evaluated(&mut self) {}

    /// Checks that all processes of the run have the same weights.
    ///
    /// # Errors
    ///
    /// A process has other weights, or was lost.
    fn compare_ranks(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Writes a checkpoint of the current step into `dir`, including the files `extra`, keyed by
    /// name.
    ///
    /// # Errors
    ///
    /// A parameter is not finite, or a file cannot be written.
    fn write_checkpoint(&self, dir: &Path, extra: &Files) -> Result<(), CheckpointError>;

    /// Whether an evaluation is due at the current step.
    fn evaluation_is_due(&self) -> bool {
        let run = self.run();
        self.lacks_evaluation() && run.is_due(run.config.eval.eval_steps, self.step())
    }

    /// Evaluates and saves if an evaluation is due, otherwise saves if a checkpoint is due.
    ///
    /// # Errors
    ///
    /// As [`evaluate_and_save`](Self::evaluate_and_save).
    fn evaluate_and_save_if_due(&mut self) -> Result<(), Error> {
        if self.evaluation_is_due() {
            return self.evaluate_and_save();
        }
        let (run, step) = (self.run(), self.step());
        if step > 0 && run.is_due(run.config.checkpoint.save_steps, step) {
            self.save_if_absent()?;
        }
        Ok(())
    }

    /// Evaluates the current weights, saves them with the results, moves `BEST`, and deletes old
    /// checkpoints. If the evaluation fails, the weights are saved before the error is returned.
    ///
    /// # Errors
    ///
    /// An evaluation fails or is interrupted, or a file cannot be written.
    fn evaluate_and_save(&mut self) -> Result<(), Error> {
        let step = self.step();
        let evaluated = {
            operation!("evaluation");
            self.evaluate()
        };
        let (metrics, files) = match evaluated {
            Ok(Some(evaluated)) => evaluated,
            Ok(None) => return Err(self.save_and_stop()?),
            Err(error) if step == 0 => return Err(error),
            Err(error) => return Err(error.with_saved(self.save_if_absent())),
        };
        self.set_evaluated();
        self.run_mut().reporter.record_evaluation(step, &metrics)?;
        self.save(files)?;
        let run = self.run_mut();
        selection::select(run.config, &run.run_dir)?;
        run.stopped_early = selection::stopped_early(run.config, run.reporter.evaluations())?;
        Ok(())
    }

    /// Saves a checkpoint of the current step with additional files. The caller deletes old
    /// checkpoints.
    ///
    /// # Errors
    ///
    /// As [`write_checkpoint`](Self::write_checkpoint).
    fn save(&mut self, mut extra: Files) -> Result<Checkpoint, Error> {
        operation!("save");
        self.compare_ranks()?;
        let run = self.run_mut();
        // Check the run directory first: a removed metrics file must not be rewritten in a removed
        // or foreign folder.
        run.run_dir.check_still_there()?;
        run.reporter.sync()?;
        extra.insert(HISTORY_FILE.to_string(), run.reporter.history_json());
        extra.insert(LOCK_FILE.to_string(), run.lock.for_checkpoint()?);
        let write = |dir: &Path| self.write_checkpoint(dir, &extra);
        Ok(self.run().run_dir.save_checkpoint(self.step(), write)?)
    }

    /// Saves a checkpoint at the current step unless one exists, and returns its path.
    ///
    /// # Errors
    ///
    /// As [`save`](Self::save).
    fn save_if_absent(&mut self) -> Result<PathBuf, Error> {
        let path = self.run().run_dir.checkpoint_path(self.step());
        if !path.exists() {
            self.save(BTreeMap::new())?;
            let run = self.run();
            run.run_dir.rotate(run.config.checkpoint.save_total_limit)?;
        }
        Ok(path)
    }

    /// Saves a checkpoint of the current step, and returns the error that ends an interrupted run.
    ///
    /// # Errors
    ///
    /// As [`save`](Self::save).
    fn save_and_stop(&mut self) -> Result<Error, Error> {
        Ok(Error::Interrupted {
            checkpoint: self.save_if_absent()?.display().to_string(),
        })
    }
}
