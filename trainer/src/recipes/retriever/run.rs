//! Trains a retriever step by step on the pairs of a config.
//!
//! The loop is in the callers: [`crate::recipes::sft`] and [`crate::recipes::retriever`]. A
//! checkpoint contains everything that the next retriever step needs.

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use tooltune_agents::pairs::PairBatch;
use tooltune_kernels::{AdamW, operation};
use tooltune_ranks::Ranks;
use tooltune_rows::batches::Cursor;

use super::division::RankDivision;
use super::mining::hardest_negatives;
use super::preparation::RetrieverPreparation;
use crate::config::{Config, RetrieverConfig};
use crate::encoder::MiniLmEncoder;
use crate::error::Error;
use crate::models::minilm::ParameterLayout;
use crate::optim::{LearningRateSchedule, Optimizer, StepOutcome};
use crate::recipes::data_plane::DataPlane;
use crate::recipes::ranks::{Order, order};
use crate::recipes::reporter::{Reporter, RetrieverLine};
use crate::retriever::{Alone, Division, Encoder, InfoNce, RetrieverLora, Trained};
use crate::settings;

/// Counters after `step` updates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RetrieverState {
    /// Optimizer steps taken, skipped ones included.
    pub step: u64,
    /// Position of the next step's pairs.
    pub cursor: Cursor,
    /// Updates applied to the optimizer's moments.
    pub optimizer_step: u64,
    /// Consecutive skipped steps.
    pub nonfinite_in_a_row: usize,
    /// Pairs seen so far.
    pub pairs: u64,
    /// The epoch in which [`Self::mined`] was computed.
    pub mined_epoch: Option<u64>,
    /// Mined hard negatives of each pair; empty if none are mined.
    pub mined: Vec<Vec<usize>>,
    /// Sum of the losses since the last metrics line, and the number of steps in that sum.
    pub window: (f64, u64),
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetrieverStep {
    /// Mean over the pairs, in nats.
    pub loss: f64,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Pairs of the step.
    pub pairs: usize,
    /// Tokens of the distinct texts in the step.
    pub tokens: usize,
}

/// State of a retriever run between two steps.
#[derive(Debug)]
pub struct RetrieverRun<'a> {
    /// Training data.
    pub preparation: &'a RetrieverPreparation,
    /// Counters.
    pub state: RetrieverState,
    /// All trained parameters, `[p]`, f32, without autodiff.
    pub parameters: Tensor<1>,
    /// AdamW with its moments.
    pub optimizer: Optimizer,
    encoder: Encoder,
    loss: InfoNce,
    schedule: LearningRateSchedule,
    mini_batch_size: Option<usize>,
    hard_negatives: usize,
    max_nonfinite: usize,
    /// Weight-decay mask of the parameters, `[p]`, and the weight-decay coefficient; `None` without
    /// weight decay.
    decay: Option<(Tensor<1>, f64)>,
}

impl<'a> RetrieverRun<'a> {
    /// Loads the retriever before its first step.
    ///
    /// # Errors
    ///
    /// The weights are missing, damaged or for a different encoder.
    pub fn new(
        config: &Config,
        training: &RetrieverConfig,
        preparation: &'a RetrieverPreparation,
        device: &Device,
    ) -> Result<Self, Error> {
        let files = &preparation.files;
        let dtype = settings::compute_dtype(training.compute_dtype, device)?;
        let mut encoder = Encoder::new(files.config.clone(), files.comparison_head(), dtype);
        let mut parameters = files.parameters(&files.dir, device)?;
        if let Some(lora) = &training.lora {
            let layout = &encoder.layout;
            let (r, alpha, targets) = (lora.r, lora.lora_alpha, &lora.target_modules[..]);
            let lora = RetrieverLora::new(layout, parameters, r, alpha, targets)?;
            parameters = lora.initial_factors(config.train.seed, device);
            encoder.trained = Trained::Lora(Box::new(lora));
        }
        let adamw = AdamW {
            weight_decay: 0.0,
            ..settings::adamw(&config.train)
        };
        let decay = (training.weight_decay > 0.0)
            .then(|| (matrices(&encoder, &parameters), training.weight_decay));
        Ok(Self {
            optimizer: Optimizer::new(adamw, training.max_grad_norm, &parameters),
            state: RetrieverState::default(),
            loss: settings::info_nce(training, files.comparison_head()),
            schedule: LearningRateSchedule::for_retriever(training, preparation.total_steps),
            mini_batch_size: training.mini_batch_size,
            hard_negatives: training.hard_negatives,
            max_nonfinite: config.train.max_nonfinite,
            preparation,
            parameters,
            encoder,
            decay,
        })
    }

    /// Offsets of the parameters.
    pub fn layout(&self) -> &ParameterLayout {
        &self.encoder.layout
    }

    /// Whether LoRA factors are trained instead of all parameters.
    pub fn has_factors(&self) -> bool {
        matches!(self.encoder.trained, Trained::Lora(_))
    }

    /// Whether all steps are done.
    pub fn is_done(&self) -> bool {
        self.state.step >= self.preparation.total_steps
    }

    /// Passes over the pairs so far; can be fractional.
    pub fn epoch(&self) -> f64 {
        let Cursor {
            epoch,
            step_in_epoch,
        } = self.state.cursor;
        let steps = self.preparation.order.steps_in_epoch(epoch).max(1);
        epoch as f64 + step_in_epoch as f64 / steps as f64
    }

    /// The encoder with the current parameters, in f32.
    pub fn current_encoder(&self) -> MiniLmEncoder {
        self.preparation.files.encoder(&self.merged_parameters())
    }

    /// The current parameters of the encoder, with LoRA factors merged.
    pub fn merged_parameters(&self) -> Tensor<1> {
        self.encoder
            .trained
            .merged_parameters(&self.encoder.layout, &self.parameters)
    }

    /// Trains on the next batch. Returns the result, and whether a signal has arrived at a rank.
    ///
    /// If the config has a mini-batch size, the ranks divide the step: the others run
    /// [`follow_step`](Self::follow_step). `is_interrupted` tells whether a signal has arrived at
    /// this rank.
    ///
    /// # Errors
    ///
    /// - Loss or gradient is NaN or infinite in too many consecutive steps.
    /// - A rank was lost. Parameters and counters are then as before the step.
    pub(in crate::recipes) fn step(
        &mut self,
        (ranks, data_plane): (&mut Ranks, &DataPlane),
        is_interrupted: bool,
    ) -> Result<(RetrieverStep, bool), Error> {
        let (trained, is_any_interrupted) = if self.is_divisible() {
            order(ranks, &Order::RetrieverStep)?;
            let (ranks, step) = ((ranks, data_plane), self.state.step + 1);
            let mut division = RankDivision::new(ranks, step, is_interrupted);
            let trained = self.train_on_next_batch(&mut division)?;
            (trained, division.is_any_interrupted)
        } else {
            (self.train_on_next_batch(&mut Alone)?, is_interrupted)
        };
        let (step, outcome, rows) = trained;
        self.note_outcome(outcome, step.loss, &rows)?;
        Ok((step, is_any_interrupted))
    }

    /// Computes a share of [`step`](Self::step) of the first rank, which reports the outcome.
    ///
    /// # Errors
    ///
    /// A rank was lost.
    pub(in crate::recipes) fn follow_step(
        &mut self,
        ranks: (&mut Ranks, &DataPlane),
        is_interrupted: bool,
    ) -> Result<(), Error> {
        let mut division = RankDivision::new(ranks, self.state.step + 1, is_interrupted);
        self.train_on_next_batch(&mut division).map(|_| ())
    }

    /// Updates the parameters. Returns the pairs of the batch in addition to the result.
    fn train_on_next_batch(
        &mut self,
        division: &mut dyn Division,
    ) -> Result<(RetrieverStep, StepOutcome, Vec<usize>), Error> {
        operation!("retriever step");
        let preparation = self.preparation;
        let (rows, next) = preparation.order.next(self.state.cursor);
        self.mine_if_due(division)?;
        let batch = PairBatch::new(&preparation.set, &rows, &self.state.mined);
        let sentences = preparation.sentences(&batch);
        let pass = self.encoder.gradient(
            &self.parameters,
            &sentences,
            &batch,
            &self.loss,
            self.mini_batch_size.unwrap_or(usize::MAX),
            division,
        )?;
        let step = self.state.step + 1;
        let learning_rate = self.schedule.at(step);
        let before = self.parameters.clone();
        let outcome = self.optimizer.step(
            &mut self.parameters,
            pass.gradient,
            pass.loss,
            learning_rate,
        );
        if let (Some((matrices, decay)), StepOutcome::Updated { .. }) = (&self.decay, outcome) {
            // AdamW's update does not depend on the parameters, so the decay can be applied
            // afterwards.
            let decayed = before
                .mul(matrices.clone())
                .mul_scalar(-learning_rate * decay);
            self.parameters = self.parameters.clone().add(decayed);
        }
        self.state.step = step;
        self.state.cursor = next;
        self.state.optimizer_step = self.optimizer.state.step;
        self.state.pairs += batch.rows.len() as u64;
        let (StepOutcome::Updated { grad_norm } | StepOutcome::NonFinite { grad_norm }) = outcome;
        let step = RetrieverStep {
            loss: pass.loss,
            grad_norm,
            learning_rate,
            pairs: batch.rows.len(),
            tokens: sentences.n_tokens(),
        };
        Ok((step, outcome, rows))
    }

    /// Writes the metrics line for the steps since the last line, if there were any.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn report(
        &mut self,
        run_step: u64,
        last: Option<RetrieverStep>,
        reporter: &mut Reporter,
        is_alone: bool,
    ) -> Result<(), Error> {
        let (Some(last), (loss_sum, n)) = (last, std::mem::take(&mut self.state.window)) else {
            return Ok(());
        };
        if n == 0 && !is_alone {
            return Ok(());
        }
        let line = RetrieverLine {
            step: run_step,
            retriever_step: self.state.step,
            epoch: self.epoch(),
            loss: loss_sum / n as f64,
            grad_norm: last.grad_norm,
            learning_rate: last.learning_rate,
            pairs: self.state.pairs,
        };
        reporter.record_retriever(&line, is_alone)
    }

    /// Counts skipped steps.
    fn note_outcome(
        &mut self,
        outcome: StepOutcome,
        loss: f64,
        rows: &[usize],
    ) -> Result<(), Error> {
        match outcome {
            StepOutcome::Updated { .. } => {
                self.state.nonfinite_in_a_row = 0;
                self.state.window.0 += loss;
                self.state.window.1 += 1;
                Ok(())
            }
            StepOutcome::NonFinite { grad_norm } => {
                self.state.nonfinite_in_a_row += 1;
                let (step, in_a_row) = (self.state.step, self.state.nonfinite_in_a_row);
                let pairs = self.preparation.set.pairs();
                let ids: Vec<&str> = rows.iter().map(|&row| pairs[row].id.as_str()).collect();
                let rows = ids.join(", ");
                tracing::warn!(
                    "retriever step {step}: loss {loss}, gradient norm {grad_norm}: no update \
                     (pairs {rows})"
                );
                if in_a_row >= self.max_nonfinite {
                    return Err(Error::NonFinite {
                        in_a_row,
                        step,
                        rows,
                        checkpoint: "the last one of the run".to_string(),
                        learning_rate_key: "retriever.learning_rate",
                    });
                }
                Ok(())
            }
        }
    }

    /// Whether the processes of a run can divide the steps.
    pub(in crate::recipes) fn is_divisible(&self) -> bool {
        self.mini_batch_size.is_some()
    }

    /// Mines hard negatives with the current parameters at the start of each epoch.
    fn mine_if_due(&mut self, division: &mut dyn Division) -> Result<(), Error> {
        let epoch = self.state.cursor.epoch;
        if self.hard_negatives == 0 || self.state.mined_epoch == Some(epoch) {
            return Ok(());
        }
        let set = &self.preparation.set;
        let (queries, documents) = self.preparation.ids();
        let (encoder, n) = (self.current_encoder(), self.hard_negatives);
        self.state.mined = hardest_negatives(set, queries, documents, &encoder, n, division)?;
        self.state.mined_epoch = Some(epoch);
        Ok(())
    }
}

/// The weight-decay mask, `[p]`: 1 for elements of matrices (including LoRA factors), 0 for biases
/// and norms.
///
/// # Source
///
/// `Trainer.get_decay_parameter_names`, transformers 5.23.
fn matrices(encoder: &Encoder, parameters: &Tensor<1>) -> Tensor<1> {
    if matches!(encoder.trained, Trained::Lora(_)) {
        return parameters.ones_like();
    }
    let mut mask = vec![0.0f32; encoder.layout.len()];
    for slot in encoder
        .layout
        .slots
        .iter()
        .filter(|slot| slot.shape.len() == 2)
    {
        mask[slot.range.clone()].fill(1.0);
    }
    let n = mask.len();
    Tensor::from_data(TensorData::new(mask, [n]), &parameters.device())
}
