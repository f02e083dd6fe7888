//! Fine-tunes on supervised rows: a base model becomes a run directory with a selected adapter.
//!
//! [`train`] is one straight loop. An update happens at one place, a save at one place, and what
//! a save holds is all that the next step depends on: a resumed run is the uninterrupted one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use tooltune_checkpoints::run_dir::{Checkpoint, RunDir};
use tooltune_kernels::cpu::pool;
use tooltune_kernels::{is_cpu, operation};
use tooltune_rows::batches::{Example, MicroBatch, Padding, StepBatch, collate};
use tooltune_rows::examples::Examples;

use super::attention_ahead;
use super::history::HISTORY_FILE;
use super::kept_blocks::KeptBlocks;
use super::pending_lock::PendingLock;
use super::preparation::Preparation;
use super::reporter::{Reporter, RetrieverTiming, StepLine, StepTiming};
use super::resume::{Resume, starting_checkpoint};
use super::retriever::{RetrieverRun, RetrieverStep, files};
use super::run_files::{self, RunSteps};
use super::run_lock::{InputTimes, LOCK_FILE};
use super::selection;
use super::starting;
use super::summary::RunSummary;
use super::trainer_state::{Snapshot, TrainerState, load_adapters, load_state};
use crate::config::Config;
use crate::device::{PlansAhead, loss_rows};
use crate::error::Error;
use crate::eval::in_loop::{EvalTarget, EvaluationOutcome, Evaluator};
use crate::interrupt::Interrupt;
use crate::lora::{Adapters, DropoutKey, DropoutRate};
use crate::models::Decoder;
use crate::not_finite;
use crate::optim::{BackwardOptions, LearningRateSchedule, Optimizer, StepOutcome, backward};
use crate::process::cpu_seconds;
use crate::profile::ProfiledSteps;
use crate::settings;

/// The moving parts of a run.
struct Run<'a> {
    config: &'a Config,
    preparation: &'a Preparation,
    /// Goes before the folder whose lock it needs: it may still write there.
    lock: PendingLock,
    run_dir: RunDir,
    decoder: Decoder,
    adapters: Adapters,
    optimizer: Optimizer,
    kept_blocks: KeptBlocks,
    state: TrainerState,
    retriever: Option<RetrieverRun<'a>>,
    /// What the retriever did last in this process.
    retriever_step: Option<RetrieverStep>,
    evaluator: Option<Evaluator>,
    reporter: Reporter,
    /// From the first step of this process on; before it there is nothing to save.
    interrupt: Option<Interrupt>,
    /// The evaluations without a better one, once they are too many.
    stopped_early: Option<u64>,
    /// Threads that make what the device will need.
    _plans: PlansAhead,
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
    preparation: &Preparation,
    inputs: &InputTimes,
    resume: &Resume,
    device: &Device,
    profiled_steps: u64,
) -> Result<RunSummary, Error> {
    let mut run = Run::open(config, preparation, inputs, resume, device)?;
    let schedule = settings::learning_rate(&config.train, preparation.total_steps);
    let mut steps = ProfiledSteps::new(run.run_dir.path(), profiled_steps, device);
    run.evaluate_and_save_if_due()?;
    while run.state.step < preparation.total_steps && run.stopped_early.is_none() {
        steps.before(run.state.step + 1);
        run.advance(&schedule)?;
        steps.behind(run.state.step);
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

/// Reads examples and lays them end to end.
///
/// # Errors
///
/// Examples that cannot be read, or that fit no batch.
pub fn micro_batch(examples: &Examples, ids: &[usize]) -> Result<MicroBatch, Error> {
    let read = ids.iter().map(|&idx| examples.get(idx));
    let read = read.collect::<Result<Vec<_>, _>>()?;
    let examples: Vec<Example> = read
        .iter()
        .map(|example| Example {
            id: &example.id,
            input_ids: &example.input_ids,
            loss_weights: &example.loss_weights,
        })
        .collect();
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
        let plans = attention_ahead::begin(preparation, compute_dtype, device);
        let mut adapters = match &start {
            Some(checkpoint) => {
                let lora = &preparation.lora;
                let whole = lora.whole_weights(&preparation.base.config)?;
                load_adapters(&checkpoint.path, lora, slots, whole, device)?
            }
            None => starting::begin(config, preparation, slots, device)?,
        };
        let base = &preparation.base;
        let mut decoder = base.decoder_beside(&adapters, compute_dtype, device)?;
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
            adapters.begin_magnitudes(&mut decoder)?;
        }
        adapters.attach(&mut decoder);
        let retriever = open_retriever(config, preparation, start.as_ref(), device)?;
        let steps = RunSteps {
            taken: state.step,
            total: preparation.total_steps,
        };
        let split = preparation.split.as_ref();
        let lock = run_files::begin(config, run_dir.path(), steps, split, inputs)?;
        run_dir.set_aside_after(state.step)?;
        selection::fix(config, &run_dir)?;
        let reporter = Reporter::open(config, &run_dir, start.as_ref(), preparation.total_steps)?;
        if let Some(flattened) = &preparation.flattened {
            run_files::write_flattened(flattened, run_dir.path())?;
        }
        let stopped_early = selection::stopped_early(config, reporter.evaluations())?;
        let evaluator = Evaluator::new(config, preparation.eval_inputs(), device)?;
        adapters.slots.shrink_to_fit();
        let mut run = Self {
            config,
            preparation,
            run_dir,
            lock,
            decoder,
            adapters,
            optimizer,
            kept_blocks,
            state,
            retriever,
            retriever_step: None,
            evaluator,
            reporter,
            interrupt: None,
            stopped_early,
            _plans: plans,
        };
        if let Some(checkpoint) = &start {
            let has_steps = run.state.step < preparation.total_steps && stopped_early.is_none();
            let is_over = !has_steps && !run.evaluation_is_due();
            run.reporter.resumed(checkpoint, is_over);
        }
        Ok(run)
    }

    /// One step, and what is due behind it.
    fn advance(&mut self, schedule: &LearningRateSchedule) -> Result<(), Error> {
        operation!("step");
        let started = Instant::now();
        let cpu_started = cpu_seconds();
        let (examples, next_cursor) = self.preparation.order.next(self.state.cursor);
        let batch = step_batch(&self.preparation.examples, &examples)?;
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
        self.reporter.timing(&timing, loss)?;
        self.log_step(grad_norm, learning_rate)?;
        self.lock.write_if_read()?;
        self.evaluate_and_save_if_due()?;
        if self.is_interrupted() && self.state.step < self.preparation.total_steps {
            return Err(self.save_and_stop()?);
        }
        Ok(())
    }

    /// The steps of the retriever that are due after this step of the model.
    fn advance_retriever(&mut self) -> Result<Option<RetrieverTiming>, Error> {
        let Some(retriever) = &mut self.retriever else {
            return Ok(None);
        };
        let due = retriever
            .preparation
            .due(self.state.step, self.preparation.total_steps);
        let started = Instant::now();
        let mut pairs = 0;
        while retriever.state.step < due {
            let step = retriever.step()?;
            pairs += step.pairs;
            self.retriever_step = Some(step);
        }
        Ok(Some(RetrieverTiming {
            retriever_seconds: started.elapsed().as_secs_f64(),
            retriever_pairs: pairs,
        }))
    }

    /// Loss sum and gradient of a step that began at `started`, or `None` if a signal came: nothing of
    /// the step is kept then.
    fn gradient(
        &mut self,
        batch: &StepBatch,
        started: Instant,
    ) -> Result<Option<(f64, Tensor<1>)>, Error> {
        let gradient_scale = 1.0 / batch.sum_loss_weights();
        let rate = DropoutRate::new(self.config.lora.lora_dropout);
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
            // Weights may leave a micro-batch without supervision while its step has some.
            if micro_batch.n_trained_tokens() == 0 {
                continue;
            }
            let step = self.state.step + 1;
            let dropout = rate.map(|rate| DropoutKey::new(rate, self.config.train.seed, step, i));
            let options = BackwardOptions {
                gradient_scale,
                dropout,
                noise: settings::embedding_noise(&self.config.train, step, i),
                n_kept_blocks: self.kept_blocks.count(micro_batch.n_tokens()),
                chunk_rows: loss_rows(&self.decoder.device()),
                distillation: settings::distillation(&self.config.train),
            };
            let (reporter, interrupt, before) =
                (&mut self.reporter, &self.interrupt, self.state.step as f64);
            let mut watch = |done: f64| {
                // A GPU has not done what it was given.
                if shows_parts {
                    let tokens = n_before as f64 + done * micro_batch.n_tokens() as f64;
                    // Short of the whole step, whose update is to come.
                    let part = (tokens / n_tokens).min(0.999);
                    reporter.within_step(before + part, started.elapsed().as_secs_f64());
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

    /// Counts skipped steps; the gradient norm of the step.
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
                if self.state.nonfinite_in_a_row >= self.config.train.max_nonfinite {
                    let last = self.run_dir.list()?.pop();
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
        if !state.step.is_multiple_of(self.config.train.logging_steps) && !is_last {
            return Ok(());
        }
        // Lines of a folder that is gone go nowhere, and a run must not end as if it had been there.
        self.run_dir.check_still_there()?;
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
            retriever.report(line.step, self.retriever_step, &mut self.reporter, false)?;
        }
        self.reporter.step(&line)
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.as_ref().is_some_and(Interrupt::is_set)
    }

    /// Whether something is due at the present step that is due at every `every`-th and the last.
    fn is_due(&self, every: u64) -> bool {
        let step = self.state.step;
        step.is_multiple_of(every) || step == self.preparation.total_steps
    }

    fn evaluation_is_due(&self) -> bool {
        let is_due = self.evaluator.is_some() && self.is_due(self.config.eval.eval_steps);
        is_due && !self.state.evaluated
    }

    fn evaluate_and_save_if_due(&mut self) -> Result<(), Error> {
        if self.evaluation_is_due() {
            return self.evaluate_and_save();
        }
        let step = self.state.step;
        // A run that was resumed at this step has it already.
        let is_saved = self.run_dir.checkpoint_path(step).exists();
        if step > 0 && self.is_due(self.config.checkpoint.save_steps) && !is_saved {
            self.save(BTreeMap::new())?;
            self.run_dir
                .rotate(self.config.checkpoint.save_total_limit)?;
        }
        Ok(())
    }

    /// Evaluates the present adapter, saves it with its results, moves `BEST`, and then drops old
    /// checkpoints. An evaluation that fails costs no step: what it was of is saved first.
    fn evaluate_and_save(&mut self) -> Result<(), Error> {
        let Some(evaluator) = &self.evaluator else {
            return Ok(());
        };
        operation!("evaluation");
        // Caches and texts take the place of the activations that the pool keeps for the next step;
        // both together would be the peak of the run.
        pool::release();
        let step = self.state.step;
        let interrupt = self.interrupt.as_ref();
        let reporter = &mut self.reporter;
        let mut watch = |progress| {
            reporter.generation(progress);
            !interrupt.is_some_and(Interrupt::is_set)
        };
        let retriever = self.retriever.as_ref().map(RetrieverRun::present);
        let present = EvalTarget {
            decoder: &self.decoder,
            base: &self.preparation.base,
            retriever: retriever.as_ref(),
        };
        let (metrics, files) = match evaluator.evaluate(present, &mut watch) {
            Ok(EvaluationOutcome::Done { metrics, files }) => (metrics, files),
            Ok(EvaluationOutcome::Interrupted) => return Err(self.save_and_stop()?),
            Err(error) if step == 0 => return Err(error),
            Err(error) => return Err(error.with_saved(self.save_if_absent())),
        };
        self.state.evaluated = true;
        self.reporter.evaluation(step, &metrics)?;
        self.save(files)?;
        selection::select(self.config, &self.run_dir)?;
        self.stopped_early = selection::stopped_early(self.config, self.reporter.evaluations())?;
        Ok(())
    }

    /// Saves the run as it stands, with further files; old checkpoints stay until the caller drops
    /// them.
    fn save(&mut self, mut extra: BTreeMap<String, Vec<u8>>) -> Result<Checkpoint, Error> {
        operation!("save");
        extra.insert(HISTORY_FILE.to_string(), self.reporter.history());
        extra.insert(LOCK_FILE.to_string(), self.lock.for_checkpoint()?);
        let base_model = self
            .config
            .language_model()?
            .model_name_or_path
            .display()
            .to_string();
        let snapshot = Snapshot {
            state: &self.state,
            adapters: &self.adapters,
            optimizer: &self.optimizer,
            lora: &self.preparation.lora,
            base_model: &base_model,
            prompts: &self.preparation.prompts,
            extra: &extra,
        };
        self.reporter.sync()?;
        // As before an evaluation: what is copied takes the place of what the step kept.
        pool::release();
        Ok(self.run_dir.save_checkpoint(self.state.step, |dir| {
            snapshot.write(dir)?;
            match &self.retriever {
                Some(retriever) => files::write(retriever, dir),
                None => Ok(()),
            }
        })?)
    }

    /// Saves where the run stands, unless that is saved already; answers the checkpoint.
    fn save_if_absent(&mut self) -> Result<PathBuf, Error> {
        let path = self.run_dir.checkpoint_path(self.state.step);
        if !path.exists() {
            self.save(BTreeMap::new())?;
            self.run_dir
                .rotate(self.config.checkpoint.save_total_limit)?;
        }
        Ok(path)
    }

    /// Saves where the run stands and gives the error that ends it.
    fn save_and_stop(&mut self) -> Result<Error, Error> {
        Ok(Error::Interrupted {
            checkpoint: self.save_if_absent()?.display().to_string(),
        })
    }

    fn finish(self) -> Result<RunSummary, Error> {
        let (steps, updates) = (self.state.step, self.state.optimizer_step);
        not_finite::refuse_without_updates(steps, updates, "train.learning_rate")?;
        if let Some(RetrieverRun { state, .. }) = &self.retriever {
            let (steps, updates) = (state.step, state.optimizer_step);
            not_finite::refuse_without_updates(steps, updates, "retriever.learning_rate")?;
        }
        let is_whole = self.state.step == self.preparation.total_steps;
        let stopped_early = self.stopped_early.filter(|_| !is_whole);
        RunSummary::of(&self.run_dir, self.state.step, stopped_early)
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

/// The retriever of a run, as its checkpoint has it.
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
