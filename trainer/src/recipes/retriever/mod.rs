//! Fine-tunes a retriever alone: pairs and an encoder become a run directory.
//!
//! [`train`] is one straight loop, as [`super::sft`]'s: an update at one place, a save at one place.

pub mod files;
pub mod mining;
pub mod preparation;
pub mod run;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use burn::tensor::Device;
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_kernels::operation;

use super::history::HISTORY_FILE;
use super::pending_lock::PendingLock;
use super::reporter::{Reporter, RetrieverTiming, StepTiming};
use super::resume::{Resume, starting_checkpoint};
use super::run_files::{self, RunSteps};
use super::run_lock::{InputTimes, LOCK_FILE};
use super::selection;
use super::summary::RunSummary;
use crate::config::{Config, EvalStrategy};
use crate::error::Error;
use crate::eval::suites::LoadedSuites;
use crate::interrupt::Interrupt;
use crate::not_finite;
use crate::process::cpu_seconds;
use crate::profile::ProfiledSteps;
pub use preparation::RetrieverPreparation;
pub use run::{RetrieverRun, RetrieverState, RetrieverStep};

/// Reads and checks everything but the weights.
///
/// # Errors
///
/// The config trains no retriever, or as [`RetrieverPreparation::new`].
pub fn prepare_run(config: &Config) -> Result<RetrieverPreparation, Error> {
    let no_retriever = || Error::Usage("the config has no retriever: add [retriever]".to_string());
    let retriever = config.retriever.as_ref().ok_or_else(no_retriever)?;
    RetrieverPreparation::new(config, retriever, None)
}

/// Trains to the end of the run, to where it stops early, or to the signal that stops it.
///
/// So many steps are profiled, from the second one of this process on. `inputs` are the files of the config as
/// they were before `preparation` was read from them.
///
/// # Errors
///
/// Whatever ends the run early; what it had saved stays.
pub fn train(
    config: &Config,
    preparation: &RetrieverPreparation,
    inputs: &InputTimes,
    resume: &Resume,
    device: &Device,
    profiled_steps: u64,
) -> Result<RunSummary, Error> {
    let training = config
        .trained_retriever()
        .ok_or_else(|| Error::Usage("the config trains no retriever".to_string()))?;
    let run_dir = RunDir::create_or_open(&config.train.output_dir)?;
    let start = starting_checkpoint(config, &run_dir, resume)?;
    let mut retriever = RetrieverRun::new(config, training, preparation, device)?;
    if let Some(checkpoint) = &start {
        files::read(&mut retriever, &checkpoint.path, device)?;
    }
    let steps = RunSteps {
        taken: retriever.state.step,
        total: preparation.total_steps,
    };
    let lock = run_files::begin(config, run_dir.path(), steps, None, inputs)?;
    run_dir.set_aside_after(retriever.state.step)?;
    selection::fix(config, &run_dir)?;
    let reporter = Reporter::open(config, &run_dir, start.as_ref(), preparation.total_steps)?;
    let suites = match config.eval.eval_strategy {
        EvalStrategy::Steps => Some(LoadedSuites::open(config, device)?),
        EvalStrategy::No => None,
    };
    let mut run = Run {
        stopped_early: selection::stopped_early(config, reporter.evaluations())?,
        config,
        run_dir,
        lock,
        suites,
        reporter,
    };
    if let Some(checkpoint) = &start {
        let has_steps = !retriever.is_done() && run.stopped_early.is_none();
        let is_over = !has_steps && !run.evaluation_is_due(&retriever);
        run.reporter.resumed(checkpoint, is_over);
    }
    run.evaluate_and_save_if_due(&mut retriever)?;
    // Before the first step of this process there is nothing to save.
    let mut interrupt: Option<Interrupt> = None;
    let mut steps = ProfiledSteps::new(run.run_dir.path(), profiled_steps, device);
    while !retriever.is_done() && run.stopped_early.is_none() {
        steps.before(retriever.state.step + 1);
        let (started, cpu_started) = (Instant::now(), cpu_seconds());
        let step = retriever.step()?;
        let interrupt = interrupt.get_or_insert_with(Interrupt::begin);
        let seconds = started.elapsed().as_secs_f64();
        let timing = StepTiming {
            step: retriever.state.step,
            seconds: 0.0,
            cpu_seconds: cpu_seconds() - cpu_started,
            tokens: step.tokens,
            trained_tokens: step.tokens,
            retriever: Some(RetrieverTiming {
                retriever_seconds: seconds,
                retriever_pairs: step.pairs,
            }),
        };
        run.reporter.timing(&timing, step.loss)?;
        run.run_dir.check_still_there()?;
        let at = retriever.state.step;
        if at.is_multiple_of(config.train.logging_steps) || retriever.is_done() {
            retriever.report(at, Some(step), &mut run.reporter, true)?;
        }
        run.lock.write_if_read()?;
        run.evaluate_and_save_if_due(&mut retriever)?;
        if interrupt.is_set() && !retriever.is_done() {
            return Err(Error::Interrupted {
                checkpoint: run.save_if_absent(&retriever)?.display().to_string(),
            });
        }
        steps.behind(retriever.state.step);
    }
    let profile = steps.end();
    let (steps, updates) = (retriever.state.step, retriever.state.optimizer_step);
    not_finite::refuse_without_updates(steps, updates, "retriever.learning_rate")?;
    let stopped_early = run.stopped_early.filter(|_| !retriever.is_done());
    let summary = RunSummary::of(&run.run_dir, retriever.state.step, stopped_early)?;
    Ok(RunSummary { profile, ..summary })
}

/// What surrounds the steps.
struct Run<'a> {
    config: &'a Config,
    /// Goes before the folder whose lock it needs: it may still write there.
    lock: PendingLock,
    run_dir: RunDir,
    suites: Option<LoadedSuites>,
    reporter: Reporter,
    /// The evaluations without a better one, once they are too many.
    stopped_early: Option<u64>,
}

impl Run<'_> {
    fn is_due(&self, every: u64, retriever: &RetrieverRun<'_>) -> bool {
        retriever.state.step.is_multiple_of(every) || retriever.is_done()
    }

    fn evaluation_is_due(&self, retriever: &RetrieverRun<'_>) -> bool {
        self.suites.is_some()
            && self.is_due(self.config.eval.eval_steps, retriever)
            && !self.reporter.has_evaluated(retriever.state.step)
    }

    /// Evaluates what is due, saves it with its results, moves `BEST`, and then drops old
    /// checkpoints. An evaluation that fails costs no step: what it was of is saved first.
    fn evaluate_and_save_if_due(&mut self, retriever: &mut RetrieverRun<'_>) -> Result<(), Error> {
        let step = retriever.state.step;
        if self.evaluation_is_due(retriever)
            && let Some(suites) = &self.suites
        {
            operation!("evaluation");
            let found = suites.ranked(&retriever.present());
            let (metrics, files) = match found {
                Ok(found) => found,
                Err(error) if step == 0 => return Err(error),
                Err(error) => return Err(error.with_saved(self.save_if_absent(retriever))),
            };
            self.reporter.evaluation(step, &metrics)?;
            self.save(retriever, files)?;
            selection::select(self.config, &self.run_dir)?;
            let evaluations = self.reporter.evaluations();
            self.stopped_early = selection::stopped_early(self.config, evaluations)?;
            return Ok(());
        }
        if step > 0 && self.is_due(self.config.checkpoint.save_steps, retriever) {
            self.save_if_absent(retriever)?;
        }
        Ok(())
    }

    /// Saves where the run stands, unless that is saved already; answers the checkpoint.
    fn save_if_absent(&mut self, retriever: &RetrieverRun<'_>) -> Result<PathBuf, Error> {
        let path = self.run_dir.checkpoint_path(retriever.state.step);
        if !path.exists() {
            self.save(retriever, BTreeMap::new())?;
            self.run_dir
                .rotate(self.config.checkpoint.save_total_limit)?;
        }
        Ok(path)
    }

    /// Saves the run as it stands, with further files; old checkpoints stay until the caller drops
    /// them.
    fn save(
        &mut self,
        retriever: &RetrieverRun<'_>,
        mut extra: BTreeMap<String, Vec<u8>>,
    ) -> Result<(), Error> {
        operation!("save");
        extra.insert(HISTORY_FILE.to_string(), self.reporter.history());
        extra.insert(LOCK_FILE.to_string(), self.lock.for_checkpoint()?);
        self.reporter.sync()?;
        self.run_dir.save_checkpoint(retriever.state.step, |dir| {
            files::write(retriever, dir)?;
            for (name, bytes) in &extra {
                tooltune_checkpoints::atomic::write_file(&dir.join(name), bytes)?;
            }
            Ok(())
        })?;
        Ok(())
    }
}
