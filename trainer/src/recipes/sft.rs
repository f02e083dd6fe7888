//! Supervised fine-tuning: trains an adapter on a base model and rows, and writes a run directory.
//!
//! [`train`] is one plain loop with one update and one save. A checkpoint contains everything that
//! the next step needs, so a resumed run equals an uninterrupted one. Other processes compute a share
//! of every step in [`super::follower`].

use std::path::Path;
use std::time::Instant;

use burn::tensor::Device;
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::run_dir::{Checkpoint, RunDir};
use tooltune_kernels::cpu::pool;
use tooltune_kernels::{is_cpu, operation};
use tooltune_ranks::Ranks;
use tooltune_rows::batches::StepBatch;

use super::data_plane::DataPlane;
use super::learner::{Learner, StepInput, row_ids};
use super::preparation::Preparation;
use super::ranks::{self, ComputedStep, Order, Working};
use super::reporter::{RanksTiming, RetrieverTiming, StepTiming};
use super::resume::{Resume, starting_checkpoint};
use super::retriever::{self, RetrieverRun, RetrieverStep, files};
use super::run_files::{self, RunSteps};
use super::run_lock::InputTimes;
use super::run_loop::{Recipe, RunLoop};
use super::summary::RunSummary;
use super::trainer_state::{Snapshot, TrainerState};
use crate::config::Config;
use crate::error::Error;
use crate::eval::in_loop::{EvalTarget, EvaluationOutcome, Evaluator};
use crate::eval::served::{OtherProcesses, Served};
use crate::eval::suites::{Files, Metrics};
use crate::interrupt::Interrupt;
use crate::metrics::StepMetrics;
use crate::not_finite;
use crate::optim::{LearningRateSchedule, StepOutcome};
use crate::process::cpu_seconds;
use crate::profile::ProfiledSteps;

/// State of a run.
struct Run<'a> {
    run: RunLoop<'a>,
    preparation: &'a Preparation,
    /// Path of the base model, for `adapter_config.json`.
    base_model: String,
    learner: Learner<'a>,
    state: TrainerState,
    retriever: Option<RetrieverRun<'a>>,
    /// Result of the retriever's last step in this process.
    retriever_step: Option<RetrieverStep>,
    evaluator: Option<Evaluator>,
    /// Set at the first step of this process; before that step there is nothing to save.
    interrupt: Option<Interrupt>,
    /// The processes that compute the steps together.
    ranks: &'a mut Ranks,
}

/// Trains to the end of the run, to early stopping, or until a signal stops it.
///
/// `profiled_steps` steps are profiled, starting with the second step of this process. `inputs`
/// lists the config's files before `preparation` read them. The other processes of `ranks` run
/// [`follow`](super::follower::follow); `data_plane` adds the gradients of all.
///
/// # Errors
///
/// An error ended the run early; saved checkpoints are kept.
pub fn train(
    config: &Config,
    preparation: &Preparation,
    start: (&InputTimes, &Resume),
    device: &Device,
    profiled_steps: u64,
    (ranks, data_plane): (&mut Ranks, DataPlane),
) -> Result<RunSummary, Error> {
    let total_steps = preparation.training.total_steps;
    let mut run = Run::open(config, preparation, start, device, (ranks, data_plane))?;
    let schedule = LearningRateSchedule::for_training(&config.train, total_steps);
    let mut steps = ProfiledSteps::new(run.run.run_dir.path(), profiled_steps, device);
    run.evaluate_and_save_if_due()?;
    while run.state.step < total_steps && run.run.stopped_early.is_none() {
        steps.start_step(run.state.step + 1);
        run.advance(&schedule)?;
        steps.end_step(run.state.step);
    }
    let profile = steps.end();
    let summary = run.finish()?;
    Ok(RunSummary { profile, ..summary })
}

/// A step that has been computed and not yet applied, with the retriever's steps.
struct JointStep {
    computed: ComputedStep,
    retriever: Option<RetrieverTiming>,
    retriever_cpu_seconds: f64,
}

impl<'a> Run<'a> {
    fn open(
        config: &'a Config,
        preparation: &'a Preparation,
        (inputs, resume): (&InputTimes, &Resume),
        device: &Device,
        (ranks, data_plane): (&'a mut Ranks, DataPlane),
    ) -> Result<Self, Error> {
        let training = &preparation.training;
        let run_dir = RunDir::create_or_open(&config.train.output_dir)?;
        let start = starting_checkpoint(config, &run_dir, resume)?;
        let (learner, state) = Learner::open(config, training, start.as_ref(), device, data_plane)?;
        ranks::hand_over(&learner, ranks)?;
        let retriever = open_retriever(config, preparation, start.as_ref(), device)?;
        if let Some(retriever) = &retriever {
            retriever::ranks::hand_over(retriever, ranks)?;
        }
        let steps = RunSteps {
            n_done: state.step,
            total: training.total_steps,
            in_epoch: training.order.steps_in_epoch(0) as f64,
        };
        let split = preparation.split.as_ref();
        let run = RunLoop::begin(config, run_dir, start.as_ref(), steps, split, inputs)?;
        if let Some(flattened) = &preparation.flattened {
            run_files::write_flattened(flattened, run.run_dir.path())?;
        }
        let evaluator = Evaluator::new(config, preparation.eval_inputs(), device)?;
        let base_model = &config.language_model()?.model_name_or_path;
        let mut run = Self {
            base_model: base_model.display().to_string(),
            run,
            preparation,
            learner,
            state,
            retriever,
            retriever_step: None,
            evaluator,
            interrupt: None,
            ranks,
        };
        if let Some(checkpoint) = &start {
            let has_steps =
                run.state.step < training.total_steps && run.run.stopped_early.is_none();
            let is_over = !has_steps && !run.evaluation_is_due();
            run.run.reporter.show_resumed_step(checkpoint, is_over);
        }
        Ok(run)
    }

    /// Runs one step, then evaluates and saves if due.
    fn advance(&mut self, schedule: &LearningRateSchedule) -> Result<(), Error> {
        operation!("step");
        let started = Instant::now();
        let cpu_started = cpu_seconds();
        let (input, next_cursor) = self.learner.read_step(self.state.cursor);
        let input = match input {
            Ok(input) => input,
            // Save the finished steps: a restart prepares the examples again and can resume here.
            Err(error) if self.state.step > 0 => {
                return Err(error.with_saved_step(self.save_if_absent()));
            }
            Err(error) => return Err(error),
        };
        let joint = match self.compute(&input, started) {
            Ok(Some(joint)) => joint,
            Ok(None) => return Err(self.save_and_stop()?),
            // The steps so far are whole, whatever happened to another rank.
            Err(error @ (Error::Ranks(_) | Error::Nccl(_))) if self.state.step > 0 => {
                return Err(error.with_saved_step(self.save_if_absent()));
            }
            Err(error) => return Err(error),
        };
        let step = self.state.step + 1;
        let learning_rate = schedule.at(step);
        let (batch, n_trained_tokens) = (&input.batch, input.n_trained_tokens());
        let (computed, sum_loss_weights) = (joint.computed, batch.sum_loss_weights());
        let loss = computed.loss_sum / sum_loss_weights;
        let outcome = self.learner.update(computed.gradient, loss, learning_rate);
        self.interrupt.get_or_insert_with(Interrupt::begin);

        self.state.step = step;
        self.state.cursor = next_cursor;
        self.state.tokens += batch.n_tokens() as u64;
        self.state.trained_tokens += n_trained_tokens as u64;
        self.state.evaluated = false;
        let grad_norm = self.note_outcome(outcome, loss, batch)?;
        if matches!(outcome, StepOutcome::Updated { .. }) {
            self.state.window.loss_sum += computed.loss_sum;
            self.state.window.loss_weights_sum += sum_loss_weights;
        }
        let retriever_seconds = joint
            .retriever
            .map_or(0.0, |timing| timing.retriever_seconds);
        let timing = StepTiming {
            step,
            seconds: started.elapsed().as_secs_f64() - retriever_seconds,
            cpu_seconds: cpu_seconds() - cpu_started - joint.retriever_cpu_seconds,
            tokens: batch.n_tokens(),
            trained_tokens: n_trained_tokens,
            ranks: (self.ranks.world_size() > 1).then_some(RanksTiming {
                door_seconds: computed.door_seconds,
                sum_seconds: computed.sum_seconds,
            }),
            retriever: joint.retriever,
        };
        self.run.reporter.record_timing(&timing, loss)?;
        self.log_step(grad_norm, learning_rate)?;
        self.run.lock.write_if_read()?;
        self.evaluate_and_save_if_due()?;
        if self.is_interrupted() && self.state.step < self.preparation.training.total_steps {
            return Err(self.save_and_stop()?);
        }
        Ok(())
    }

    /// Computes the gradient of a step that began at `started`, and runs the retriever's steps that
    /// are due with it. Returns `None` if a signal interrupted the step, which discards it.
    ///
    /// The language model is updated afterwards: if a process is lost in a step of the retriever,
    /// both models can be saved as they are before the next step of the language model.
    fn compute(&mut self, input: &StepInput, started: Instant) -> Result<Option<JointStep>, Error> {
        let Some(computed) = self.gradient(input, started)? else {
            return Ok(None);
        };
        if self.retriever.is_some() {
            self.learner.free_graph();
        }
        let cpu_started = cpu_seconds();
        let retriever = self.advance_retriever(self.state.step + 1)?;
        Ok(Some(JointStep {
            computed,
            retriever,
            retriever_cpu_seconds: cpu_seconds() - cpu_started,
        }))
    }

    /// Runs the retriever steps that are due with step `step` of the language model.
    fn advance_retriever(&mut self, step: u64) -> Result<Option<RetrieverTiming>, Error> {
        let Some(retriever) = &mut self.retriever else {
            return Ok(None);
        };
        let retriever_steps = retriever
            .preparation
            .steps_due(step, self.preparation.training.total_steps);
        let started = Instant::now();
        let mut pairs = 0;
        while retriever.state.step < retriever_steps {
            let (step, _) = retriever.step(self.ranks, false)?;
            pairs += step.pairs;
            self.retriever_step = Some(step);
        }
        Ok(Some(RetrieverTiming {
            retriever_seconds: started.elapsed().as_secs_f64(),
            retriever_pairs: pairs,
        }))
    }

    /// Returns the loss sum and gradient of a step that began at `started`; `None` if a signal
    /// interrupted it, which discards the step.
    fn gradient(
        &mut self,
        input: &StepInput,
        started: Instant,
    ) -> Result<Option<ComputedStep>, Error> {
        if input.supervised().next().is_none() {
            return Err(input.no_supervision());
        }
        let shows_parts = is_cpu(&self.learner.decoder.device());
        let (done, reporter) = (self.state.step as f64, &mut self.run.reporter);
        let interrupt = self.interrupt.as_ref();
        let mut watch = |part: f64| {
            // A GPU has only queued the work at this point, so its progress is unknown.
            if shows_parts {
                // Report less than 1, because the optimizer update is still missing.
                let part = part.min(0.999);
                reporter.show_step_progress(done + part, started.elapsed().as_secs_f64());
            }
            !interrupt.is_some_and(Interrupt::is_set)
        };
        let (step, cursor) = (self.state.step + 1, self.state.cursor);
        ranks::order(self.ranks, &Order::Step { step, cursor })?;
        ranks::compute_step(&self.learner, self.ranks, input, step, &mut watch)
    }

    /// Counts skipped steps and returns the gradient norm of the step.
    fn note_outcome(
        &mut self,
        outcome: StepOutcome,
        loss: f64,
        batch: &StepBatch,
    ) -> Result<f64, Error> {
        self.state.optimizer_step = self.learner.optimizer.state.step;
        match outcome {
            StepOutcome::Updated { grad_norm } => {
                self.state.nonfinite_in_a_row = 0;
                Ok(grad_norm)
            }
            StepOutcome::NonFinite { grad_norm } => {
                self.state.nonfinite_in_a_row += 1;
                self.state.nonfinite_total += 1;
                let rows = row_ids(batch);
                tracing::warn!(
                    "step {}: loss {loss}, gradient norm {grad_norm}: no update (rows {rows})",
                    self.state.step
                );
                let is_first = self.state.nonfinite_total == 1;
                if is_first && self.state.optimizer_step == 0 {
                    let weights = &self.preparation.training.base.files.weights;
                    let what = format!("step {}: the loss is {loss}", self.state.step);
                    not_finite::blame_weights(weights, &what)?;
                }
                if self.state.nonfinite_in_a_row >= self.run.config.train.max_nonfinite {
                    let last = self.run.run_dir.list()?.pop();
                    let checkpoint =
                        last.map_or("none".to_string(), |last| last.path.display().to_string());
                    return Err(Error::NonFinite {
                        in_a_row: self.state.nonfinite_in_a_row,
                        step: self.state.step,
                        rows,
                        checkpoint,
                        learning_rate_key: "train.learning_rate",
                    });
                }
                Ok(grad_norm)
            }
        }
    }

    fn log_step(&mut self, grad_norm: f64, learning_rate: f64) -> Result<(), Error> {
        let state = &mut self.state;
        let is_last = state.step == self.preparation.training.total_steps;
        if !state
            .step
            .is_multiple_of(self.run.config.train.logging_steps)
            && !is_last
        {
            return Ok(());
        }
        // Writes to a deleted folder are lost, so end the run with an error instead.
        self.run.run_dir.check_still_there()?;
        let window = std::mem::take(&mut state.window);
        let steps_in_epoch = self
            .preparation
            .training
            .order
            .steps_in_epoch(state.cursor.epoch);
        let line = StepMetrics {
            step: state.step,
            epoch: state.cursor.epoch as f64
                + state.cursor.step_in_epoch as f64 / steps_in_epoch as f64,
            loss: window.loss_sum / window.loss_weights_sum,
            grad_norm,
            learning_rate,
            tokens: state.tokens,
            trained_tokens: state.trained_tokens,
        };
        if let Some(retriever) = &mut self.retriever {
            retriever.report(
                line.step,
                self.retriever_step,
                &mut self.run.reporter,
                false,
            )?;
        }
        self.run.reporter.record_training_step(&line)
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.as_ref().is_some_and(Interrupt::is_set)
    }

    fn finish(mut self) -> Result<RunSummary, Error> {
        ranks::disconnect(&mut self.learner, self.ranks)?;
        let (steps, updates) = (self.state.step, self.state.optimizer_step);
        not_finite::refuse_without_updates(steps, updates, "train.learning_rate")?;
        if let Some(RetrieverRun { state, .. }) = &self.retriever {
            let (steps, updates) = (state.step, state.optimizer_step);
            not_finite::refuse_without_updates(steps, updates, "retriever.learning_rate")?;
        }
        let is_finished = self.state.step == self.preparation.training.total_steps;
        let stopped_early = self.run.stopped_early.filter(|_| !is_finished);
        RunSummary::read(&self.run.run_dir, self.state.step, stopped_early)
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
        self.state.step
    }

    fn lacks_evaluation(&self) -> bool {
        self.evaluator.is_some() && !self.state.evaluated
    }

    fn evaluate(&mut self) -> Result<Option<(Metrics, Files)>, Error> {
        let Some(evaluator) = &self.evaluator else {
            return Ok(None);
        };
        let _working = Working::begin(self.ranks, "evaluation");
        // Free the pool's memory for activations before generation allocates its caches; both
        // together would be the memory peak of the run.
        pool::release();
        let interrupt = self.interrupt.as_ref();
        let reporter = &mut self.run.reporter;
        let mut watch = |progress| {
            reporter.show_generation(progress);
            !interrupt.is_some_and(Interrupt::is_set)
        };
        let retriever = self.retriever.as_ref().map(RetrieverRun::current_encoder);
        let is_served = self.ranks.world_size() > 1;
        if is_served {
            ranks::order(self.ranks, &Order::Serve)?;
        }
        let served = Served::new(self.ranks);
        let present = EvalTarget {
            served: is_served.then_some(&served as &dyn OtherProcesses),
            decoder: &self.learner.decoder,
            base: &self.preparation.training.base,
            retriever: retriever.as_ref(),
        };
        let evaluated = evaluator.evaluate(present, &mut watch);
        if is_served {
            served.end()?;
        }
        Ok(match evaluated? {
            EvaluationOutcome::Done { metrics, files } => Some((metrics, files)),
            EvaluationOutcome::Interrupted => None,
        })
    }

    fn set_evaluated(&mut self) {
        self.state.evaluated = true;
    }

    fn compare_ranks(&mut self) -> Result<(), Error> {
        let retriever = self.retriever.as_ref().filter(|run| run.is_divisible());
        let weights = ranks::weights(&self.learner, retriever);
        ranks::compare_before_save(&weights, self.ranks)
    }

    fn write_checkpoint(&self, dir: &Path, extra: &Files) -> Result<(), CheckpointError> {
        // Free the pool's memory before copying the tensors to the host.
        pool::release();
        let snapshot = Snapshot {
            state: &self.state,
            adapters: &self.learner.adapters,
            optimizer: &self.learner.optimizer,
            lora: &self.preparation.training.lora,
            base_model: &self.base_model,
            prompts: &self.preparation.prompts,
            extra,
        };
        snapshot.write(dir)?;
        match &self.retriever {
            Some(retriever) => files::write(retriever, dir),
            None => Ok(()),
        }
    }
}

/// The retriever of a run, restored from the checkpoint `start` if the run resumes.
fn open_retriever<'a>(
    config: &Config,
    preparation: &'a Preparation,
    start: Option<&Checkpoint>,
    device: &Device,
) -> Result<Option<RetrieverRun<'a>>, Error> {
    let Some((training, pairs)) = config
        .trained_retriever()
        .zip(preparation.retriever.as_ref())
    else {
        return Ok(None);
    };
    let mut retriever = RetrieverRun::new(config, training, pairs, device)?;
    if let Some(checkpoint) = start {
        files::read(&mut retriever, &checkpoint.path, device)?;
    }
    Ok(Some(retriever))
}
