//! Fine-tunes a retriever without a language model: trains an encoder on pairs, and writes a run
//! directory.
//!
//! [`train`] is one plain loop, like [`super::sft`].

mod division;
pub mod files;
pub mod mining;
pub mod preparation;
pub mod ranks;
pub mod run;

use std::path::Path;
use std::time::Instant;

use burn::tensor::Device;
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_disk::atomic::write_file;
use tooltune_ranks::Ranks;

use super::data_plane::DataPlane;
use super::ranks::{Working, compare_before_save, disconnect};
use super::reporter::{RetrieverTiming, StepTiming};
use super::resume::{Resume, starting_checkpoint};
use super::run_files::RunSteps;
use super::run_lock::InputTimes;
use super::run_loop::{Recipe, RunLoop};
use super::summary::RunSummary;
use crate::config::{Config, EvalStrategy};
use crate::error::Error;
use crate::eval::suites::{Files, LoadedSuites, Metrics};
use crate::interrupt::Interrupt;
use crate::not_finite;
use crate::process::cpu_seconds;
use crate::profile::ProfiledSteps;
pub use preparation::RetrieverPreparation;
pub use run::{RetrieverRun, RetrieverState, RetrieverStep};

/// Reads and checks everything except the weights.
///
/// # Errors
///
/// The config has no `[retriever]` table, or [`RetrieverPreparation::new`] fails.
pub fn prepare_run(config: &Config) -> Result<RetrieverPreparation, Error> {
    let no_retriever = || Error::Usage("the config has no retriever: add [retriever]".to_string());
    let retriever = config.retriever.as_ref().ok_or_else(no_retriever)?;
    RetrieverPreparation::new(config, retriever, None)
}

/// Trains to the end of the run, to early stopping, or until a signal stops it.
///
/// `profiled_steps` steps are profiled, starting with the second step of this process. `inputs`
/// lists the config's files before `preparation` read them. The other processes of `ranks` run
/// [`ranks::follow`]; `data_plane` adds the gradients of all.
///
/// # Errors
///
/// An error ended the run early; saved checkpoints are kept.
pub fn train(
    config: &Config,
    preparation: &RetrieverPreparation,
    (inputs, resume): (&InputTimes, &Resume),
    device: &Device,
    profiled_steps: u64,
    (ranks, data_plane): (&mut Ranks, DataPlane),
) -> Result<RunSummary, Error> {
    let training = config.trained_retriever().ok_or_else(no_training)?;
    let run_dir = RunDir::create_or_open(&config.train.output_dir)?;
    let start = starting_checkpoint(config, &run_dir, resume)?;
    let mut retriever = RetrieverRun::new(config, training, preparation, device)?;
    if let Some(checkpoint) = &start {
        files::read(&mut retriever, &checkpoint.path, device)?;
    }
    ranks::hand_over(&retriever, (ranks, &data_plane))?;
    let steps = RunSteps {
        n_done: retriever.state.step,
        total: preparation.total_steps,
        in_epoch: preparation.order.steps_in_epoch(0) as f64,
    };
    let run = RunLoop::begin(config, run_dir, start.as_ref(), steps, None, inputs)?;
    let suites = match config.eval.eval_strategy {
        EvalStrategy::Steps => Some(LoadedSuites::open(config, device)?),
        EvalStrategy::No => None,
    };
    let mut run = Run {
        run,
        retriever,
        suites,
        ranks,
        data_plane,
    };
    if let Some(checkpoint) = &start {
        let has_steps = !run.retriever.is_done() && run.run.stopped_early.is_none();
        let is_over = !has_steps && !run.evaluation_is_due();
        run.run.reporter.show_resumed_step(checkpoint, is_over);
    }
    run.evaluate_and_save_if_due()?;
    // Before the first step of this process there is nothing to save.
    let mut interrupt: Option<Interrupt> = None;
    let mut steps = ProfiledSteps::new(run.run.run_dir.path(), profiled_steps, device);
    while !run.retriever.is_done() && run.run.stopped_early.is_none() {
        steps.start_step(run.retriever.state.step + 1);
        let (started, cpu_started) = (Instant::now(), cpu_seconds());
        let (step, is_any_interrupted) = run.advance(interrupt.as_ref())?;
        let interrupt = interrupt.get_or_insert_with(Interrupt::begin);
        let seconds = started.elapsed().as_secs_f64();
        let timing = StepTiming {
            step: run.retriever.state.step,
            seconds: 0.0,
            cpu_seconds: cpu_seconds() - cpu_started,
            tokens: step.tokens,
            trained_tokens: step.tokens,
            ranks: None,
            retriever: Some(RetrieverTiming {
                retriever_seconds: seconds,
                retriever_pairs: step.pairs,
            }),
        };
        run.run.reporter.record_timing(&timing, step.loss)?;
        run.run.run_dir.check_still_there()?;
        let current_step = run.retriever.state.step;
        if current_step.is_multiple_of(config.train.logging_steps) || run.retriever.is_done() {
            run.retriever
                .report(current_step, Some(step), &mut run.run.reporter, true)?;
        }
        run.run.lock.write_if_read()?;
        run.evaluate_and_save_if_due()?;
        if (interrupt.is_set() || is_any_interrupted) && !run.retriever.is_done() {
            return Err(run.save_and_stop()?);
        }
        steps.end_step(run.retriever.state.step);
    }
    let profile = steps.end();
    disconnect(&mut run.data_plane, run.ranks)?;
    let (steps, updates) = (run.retriever.state.step, run.retriever.state.optimizer_step);
    not_finite::refuse_without_updates(steps, updates, "retriever.learning_rate")?;
    let stopped_early = run.run.stopped_early.filter(|_| !run.retriever.is_done());
    let summary = RunSummary::read(&run.run.run_dir, run.retriever.state.step, stopped_early)?;
    Ok(RunSummary { profile, ..summary })
}

/// The error of a config without training data for a retriever.
fn no_training() -> Error {
    Error::Usage("the config does not train a retriever".to_string())
}

/// Run of a retriever without a language model, with its evaluation suites.
struct Run<'a> {
    run: RunLoop<'a>,
    retriever: RetrieverRun<'a>,
    suites: Option<LoadedSuites>,
    /// The processes that compute the steps together.
    ranks: &'a mut Ranks,
    data_plane: DataPlane,
}

impl Run<'_> {
    /// Trains on the next batch. Returns the result, and whether a signal has arrived at a rank.
    fn advance(&mut self, interrupt: Option<&Interrupt>) -> Result<(RetrieverStep, bool), Error> {
        let is_interrupted = interrupt.is_some_and(Interrupt::is_set);
        let ranks = (&mut *self.ranks, &self.data_plane);
        match self.retriever.step(ranks, is_interrupted) {
            // The steps so far are whole, whatever happened to another rank.
            Err(error @ (Error::Ranks(_) | Error::Nccl(_))) if self.retriever.state.step > 0 => {
                Err(error.with_saved_step(self.save_if_absent()))
            }
            advanced => advanced,
        }
    }
}

impl<'a> Recipe<'a> for Run<'a> {
    fn run(&self) -> &RunLoop<'a> {
        &self.run
    }

    fn run_mut(&mut self) -> &mut RunLoop<'a> {
        &mut self.run
    }

    fn step(&self) -> u64 {
        self.retriever.state.step
    }

    fn lacks_evaluation(&self) -> bool {
        self.suites.is_some() && !self.run.reporter.has_evaluated(self.step())
    }

    fn evaluate(&mut self) -> Result<Option<(Metrics, Files)>, Error> {
        let _working = Working::begin(self.ranks, "evaluation");
        let suites = self.suites.as_ref();
        let current_encoder = self.retriever.current_encoder();
        suites
            .map(|suites| suites.evaluate_rankings(&current_encoder))
            .transpose()
    }

    fn compare_ranks(&mut self) -> Result<(), Error> {
        compare_before_save(&[("retriever", &self.retriever.parameters)], self.ranks)
    }

    fn write_checkpoint(&self, dir: &Path, extra: &Files) -> Result<(), CheckpointError> {
        files::write(&self.retriever, dir)?;
        for (name, bytes) in extra {
            write_file(&dir.join(name), bytes)?;
        }
        Ok(())
    }
}
