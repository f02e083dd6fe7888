//! Supervised fine-tuning: trains an adapter on a base model and rows, and writes a run directory.
//!
//! [`train`] is one plain loop with one update and one save. A checkpoint contains everything that
//! the next step needs, so a resumed run equals an uninterrupted one.

use std::path::Path;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::run_dir::{Checkpoint, RunDir};
use tooltune_kernels::cpu::pool;
use tooltune_kernels::{is_cpu, operation};
use tooltune_rows::batches::{Example, MicroBatch, Padding, StepBatch, collate};
use tooltune_rows::examples::Examples;

use super::attention_plan_prefetch;
use super::kept_blocks::KeptBlocks;
use super::preparation::Preparation;
use super::reporter::{RetrieverTiming, StepLine, StepTiming};
use super::resume::{Resume, starting_checkpoint};
use super::retriever::{RetrieverRun, RetrieverStep, files};
use super::run_files::{self, RunSteps};
use super::run_lock::InputTimes;
use super::run_loop::{Recipe, RunLoop};
use super::starting;
use super::summary::RunSummary;
use super::trainer_state::{Snapshot, TrainerState, load_adapters, load_state};
use crate::config::Config;
use crate::device::{PlanPrefetch, loss_rows};
use crate::error::Error;
use crate::eval::in_loop::{EvalTarget, EvaluationOutcome, Evaluator};
use crate::eval::suites::{Files, Metrics};
use crate::interrupt::Interrupt;
use crate::lora::Adapters;
use crate::lora::LoraLayout as _;
use crate::models::Decoder;
use crate::not_finite;
use crate::optim::{BackwardOptions, LearningRateSchedule, Optimizer, StepOutcome, backward};
use crate::process::cpu_seconds;
use crate::profile::ProfiledSteps;
use crate::settings;
use tooltune_kernels::{DropoutKey, DropoutRate};

/// State of a run.
struct Run<'a> {
    run: RunLoop<'a>,
    preparation: &'a Preparation,
    /// Path of the base model, for `adapter_config.json`.
    base_model: String,
    decoder: Decoder,
    adapters: Adapters,
    optimizer: Optimizer,
    kept_blocks: KeptBlocks,
    state: TrainerState,
    retriever: Option<RetrieverRun<'a>>,
    /// Result of the retriever's last step in this process.
    retriever_step: Option<RetrieverStep>,
    evaluator: Option<Evaluator>,
    /// Set at the first step of this process; before that step there is nothing to save.
    interrupt: Option<Interrupt>,
    /// Threads that prepare attention plans for the device.
    _plans: PlanPrefetch,
}

/// Trains to the end of the run, to early stopping, or until a signal stops it.
///
/// `profiled_steps` steps are profiled, starting with the second step of this process. `inputs`
/// lists the config's files before `preparation` read them.
///
/// # Errors
///
/// An error ended the run early; saved checkpoints are kept.
pub fn train(
    config: &Config,
    preparation: &Preparation,
    inputs: &InputTimes,
    resume: &Resume,
    device: &Device,
    profiled_steps: u64,
) -> Result<RunSummary, Error> {
    let mut run = Run::open(config, preparation, inputs, resume, device)?;
    let schedule = LearningRateSchedule::for_training(&config.train, preparation.total_steps);
    let mut steps = ProfiledSteps::new(run.run.run_dir.path(), profiled_steps, device);
    run.evaluate_and_save_if_due()?;
    while run.state.step < preparation.total_steps && run.run.stopped_early.is_none() {
        steps.start_step(run.state.step + 1);
        run.advance(&schedule)?;
        steps.end_step(run.state.step);
    }
    let profile = steps.end();
    let summary = run.finish()?;
    Ok(RunSummary { profile, ..summary })
}

/// The micro-batches of one optimizer step.
fn step_batch(examples: &Examples, micro_batches: &[Vec<usize>]) -> Result<StepBatch, Error> {
    operation!("batch");
    let micro_batches = micro_batches.iter();
    let micro_batches = micro_batches.map(|ids| micro_batch(examples, ids));
    Ok(StepBatch {
        micro_batches: micro_batches.collect::<Result<_, _>>()?,
    })
}

/// Reads examples and collates them into a micro-batch.
///
/// # Errors
///
/// An example cannot be read, or the examples cannot be collated.
pub fn micro_batch(examples: &Examples, ids: &[usize]) -> Result<MicroBatch, Error> {
    let read = ids.iter().map(|&idx| examples.get(idx));
    let read = read.collect::<Result<Vec<_>, _>>()?;
    let examples: Vec<Example> = read.iter().map(Example::from).collect();
    Ok(collate(&examples, Padding::None)?)
}

impl<'a> Run<'a> {
    fn open(
        config: &'a Config,
        preparation: &'a Preparation,
        inputs: &InputTimes,
        resume: &Resume,
        device: &Device,
    ) -> Result<Self, Error> {
        let run_dir = RunDir::create_or_open(&config.train.output_dir)?;
        let start = starting_checkpoint(config, &run_dir, resume)?;
        let compute_dtype =
            settings::compute_dtype(config.language_model()?.compute_dtype, device)?;
        let slots = preparation.lora.slots(&preparation.base.config)?;
        let kept_blocks = preparation.kept_blocks(config, compute_dtype, device)?;
        let plans = attention_plan_prefetch::begin(preparation, compute_dtype, device);
        let mut adapters = match &start {
            Some(checkpoint) => {
                let lora = &preparation.lora;
                let whole_weights = lora.whole_weights(&preparation.base.config)?;
                load_adapters(&checkpoint.path, lora, slots, whole_weights, device)?
            }
            None => starting::begin(config, preparation, slots, device)?,
        };
        let base = &preparation.base;
        let mut decoder = base.residual_decoder(&adapters, compute_dtype, device)?;
        let max_grad_norm = config.train.max_grad_norm;
        let adamw = settings::adamw(&config.train);
        let mut optimizer = Optimizer::new(adamw, max_grad_norm, &adapters.flat);
        let ratio = config.train.loraplus_lr_ratio;
        optimizer.rate_scales = ratio.map(|ratio| adapters.rate_scales(ratio));
        let state = match &start {
            Some(checkpoint) => load_state(&checkpoint.path, &mut optimizer, device)?,
            None => TrainerState::new(),
        };
        if start.is_none() && preparation.starting_adapter.is_none() {
            adapters.init_dora_magnitudes(&mut decoder)?;
        }
        adapters.attach(&mut decoder);
        let retriever = open_retriever(config, preparation, start.as_ref(), device)?;
        let steps = RunSteps {
            n_done: state.step,
            total: preparation.total_steps,
            in_epoch: preparation.order.steps_in_epoch(0) as f64,
        };
        let split = preparation.split.as_ref();
        let run = RunLoop::begin(config, run_dir, start.as_ref(), steps, split, inputs)?;
        if let Some(flattened) = &preparation.flattened {
            run_files::write_flattened(flattened, run.run_dir.path())?;
        }
        let evaluator = Evaluator::new(config, preparation.eval_inputs(), device)?;
        adapters.slots.shrink_to_fit();
        let base_model = &config.language_model()?.model_name_or_path;
        let mut run = Self {
            base_model: base_model.display().to_string(),
            run,
            preparation,
            decoder,
            adapters,
            optimizer,
            kept_blocks,
            state,
            retriever,
            retriever_step: None,
            evaluator,
            interrupt: None,
            _plans: plans,
        };
        if let Some(checkpoint) = &start {
            let has_steps =
                run.state.step < preparation.total_steps && run.run.stopped_early.is_none();
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
        let (examples, next_cursor) = self.preparation.order.next(self.state.cursor);
        let batch = match step_batch(&self.preparation.examples, &examples) {
            Ok(batch) => batch,
            // Save the finished steps: a restart prepares the examples again and can resume here.
            Err(error) if self.state.step > 0 => {
                return Err(error.with_saved_step(self.save_if_absent()));
            }
            Err(error) => return Err(error),
        };
        let Some((loss_sum, gradient)) = self.gradient(&batch, started)? else {
            return Err(self.save_and_stop()?);
        };
        let step = self.state.step + 1;
        let learning_rate = schedule.at(step);
        let sum_loss_weights = batch.sum_loss_weights();
        let loss = loss_sum / sum_loss_weights;
        let outcome = self
            .optimizer
            .step(&mut self.adapters.flat, gradient, loss, learning_rate);
        self.adapters.attach(&mut self.decoder);
        self.interrupt.get_or_insert_with(Interrupt::begin);

        self.state.step = step;
        self.state.cursor = next_cursor;
        self.state.tokens += batch.n_tokens() as u64;
        self.state.trained_tokens += batch.n_trained_tokens() as u64;
        self.state.evaluated = false;
        let grad_norm = self.note_outcome(outcome, loss, &batch)?;
        if matches!(outcome, StepOutcome::Updated { .. }) {
            self.state.window.loss_sum += loss_sum;
            self.state.window.loss_weights_sum += sum_loss_weights;
        }
        let mut timing = StepTiming {
            step,
            seconds: started.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds() - cpu_started,
            tokens: batch.n_tokens(),
            trained_tokens: batch.n_trained_tokens(),
            retriever: None,
        };
        timing.retriever = self.advance_retriever()?;
        self.run.reporter.timing(&timing, loss)?;
        self.log_step(grad_norm, learning_rate)?;
        self.run.lock.write_if_read()?;
        self.evaluate_and_save_if_due()?;
        if self.is_interrupted() && self.state.step < self.preparation.total_steps {
            return Err(self.save_and_stop()?);
        }
        Ok(())
    }

    /// Runs the retriever steps that are due after this step of the language model.
    fn advance_retriever(&mut self) -> Result<Option<RetrieverTiming>, Error> {
        let Some(retriever) = &mut self.retriever else {
            return Ok(None);
        };
        let retriever_steps = retriever
            .preparation
            .steps_due(self.state.step, self.preparation.total_steps);
        let started = Instant::now();
        let mut pairs = 0;
        while retriever.state.step < retriever_steps {
            let step = retriever.step()?;
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
        batch: &StepBatch,
        started: Instant,
    ) -> Result<Option<(f64, Tensor<1>)>, Error> {
        let gradient_scale = 1.0 / batch.sum_loss_weights();
        let rate = DropoutRate::new(self.run.config.lora.lora_dropout);
        let mut total: Option<(f64, Tensor<1>)> = None;
        let shows_parts = is_cpu(&self.decoder.device());
        let n_tokens = batch.n_tokens() as f64;
        let mut n_done = 0;
        for (i, micro_batch) in batch.micro_batches.iter().enumerate() {
            if self.is_interrupted() {
                return Ok(None);
            }
            let n_before = n_done;
            n_done += micro_batch.n_tokens();
            // A micro-batch may have no supervised token although its step has some.
            if micro_batch.n_trained_tokens() == 0 {
                continue;
            }
            let step = self.state.step + 1;
            let dropout =
                rate.map(|rate| DropoutKey::new(rate, self.run.config.train.seed, step, i));
            let options = BackwardOptions {
                gradient_scale,
                dropout,
                noise: settings::embedding_noise(&self.run.config.train, step, i),
                n_kept_blocks: self.kept_blocks.count(micro_batch.n_tokens()),
                chunk_rows: loss_rows(&self.decoder.device()),
                distillation: settings::distillation(&self.run.config.train),
            };
            let (reporter, interrupt, before) = (
                &mut self.run.reporter,
                &self.interrupt,
                self.state.step as f64,
            );
            let mut watch = |done: f64| {
                // A GPU has only queued the work at this point, so its progress is unknown.
                if shows_parts {
                    let tokens = n_before as f64 + done * micro_batch.n_tokens() as f64;
                    // Report less than 1, because the optimizer update is still missing.
                    let part = (tokens / n_tokens).min(0.999);
                    reporter.show_step_progress(before + part, started.elapsed().as_secs_f64());
                }
                !interrupt.as_ref().is_some_and(Interrupt::is_set)
            };
            let (decoder, slots) = (&self.decoder, &self.adapters.slots);
            let part =
                backward::backward_watched(decoder, slots, micro_batch, options, &mut watch)?;
            let Some(part) = part else {
                return Ok(None);
            };
            total = Some(match total {
                Some((loss_sum, gradient)) => {
                    (loss_sum + part.loss_sum, gradient.add(part.gradient))
                }
                None => (part.loss_sum, part.gradient),
            });
        }
        match total {
            Some(total) => Ok(Some(total)),
            None => Err(Error::Step(crate::optim::StepError::NoSupervision(
                row_ids(batch),
            ))),
        }
    }

    /// Counts skipped steps and returns the gradient norm of the step.
    fn note_outcome(
        &mut self,
        outcome: StepOutcome,
        loss: f64,
        batch: &StepBatch,
    ) -> Result<f64, Error> {
        self.state.optimizer_step = self.optimizer.state.step;
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
                    let weights = &self.preparation.base.files.weights;
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
        let is_last = state.step == self.preparation.total_steps;
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
        let steps_in_epoch = self.preparation.order.steps_in_epoch(state.cursor.epoch);
        let line = StepLine {
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
        self.run.reporter.step(&line)
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.as_ref().is_some_and(Interrupt::is_set)
    }

    fn finish(self) -> Result<RunSummary, Error> {
        let (steps, updates) = (self.state.step, self.state.optimizer_step);
        not_finite::refuse_without_updates(steps, updates, "train.learning_rate")?;
        if let Some(RetrieverRun { state, .. }) = &self.retriever {
            let (steps, updates) = (state.step, state.optimizer_step);
            not_finite::refuse_without_updates(steps, updates, "retriever.learning_rate")?;
        }
        let is_finished = self.state.step == self.preparation.total_steps;
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
        // Free the pool's memory for activations before generation allocates its caches; both
        // together would be the memory peak of the run.
        pool::release();
        let interrupt = self.interrupt.as_ref();
        let reporter = &mut self.run.reporter;
        let mut watch = |progress| {
            reporter.generation(progress);
            !interrupt.is_some_and(Interrupt::is_set)
        };
        let retriever = self.retriever.as_ref().map(RetrieverRun::current_encoder);
        let present = EvalTarget {
            decoder: &self.decoder,
            base: &self.preparation.base,
            retriever: retriever.as_ref(),
        };
        Ok(match evaluator.evaluate(present, &mut watch)? {
            EvaluationOutcome::Done { metrics, files } => Some((metrics, files)),
            EvaluationOutcome::Interrupted => None,
        })
    }

    fn set_evaluated(&mut self) {
        self.state.evaluated = true;
    }

    fn write_checkpoint(&self, dir: &Path, extra: &Files) -> Result<(), CheckpointError> {
        // Free the pool's memory before copying the tensors to the host.
        pool::release();
        let snapshot = Snapshot {
            state: &self.state,
            adapters: &self.adapters,
            optimizer: &self.optimizer,
            lora: &self.preparation.lora,
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

fn row_ids(batch: &StepBatch) -> String {
    let ids: Vec<&str> = batch
        .micro_batches
        .iter()
        .flat_map(|b| &b.example_ids)
        .map(String::as_str)
        .collect();
    ids.join(", ")
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
