//! Weights, adapter and optimizer of a run, and the computation of its steps.
//!
//! Every process of a run has a learner with the same values. Each computes the gradients of its
//! own micro-batches, and all apply the same update.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};
use tooltune_checkpoints::run_dir::Checkpoint;
use tooltune_kernels::gradient_sum::GradientSum;
use tooltune_kernels::{DropoutKey, DropoutRate, operation};
use tooltune_rows::batches::{Cursor, Example, MicroBatch, Padding, StepBatch, collate};
use tooltune_rows::examples::Examples;

use super::attention_plan_prefetch;
use super::data_plane::DataPlane;
use super::kept_blocks::KeptBlocks;
use super::preparation::Training;
use super::starting;
use super::trainer_state::{TrainerState, load_adapters, load_state};
use crate::config::Config;
use crate::device::{PlanPrefetch, loss_rows};
use crate::error::Error;
use crate::lora::Adapters;
use crate::lora::LoraLayout as _;
use crate::models::Decoder;
use crate::optim::backward::{MicroBatchGradient, Watch};
use crate::optim::{BackwardOptions, Optimizer, StepError, StepOutcome, backward};
use crate::settings;

/// The state that every process of a run has.
pub(crate) struct Learner<'a> {
    pub(super) config: &'a Config,
    pub(super) training: &'a Training,
    pub(super) decoder: Decoder,
    pub(crate) adapters: Adapters,
    pub(super) optimizer: Optimizer,
    pub(super) data_plane: DataPlane,
    kept_blocks: KeptBlocks,
    /// Threads that prepare attention plans for the device.
    _plans: PlanPrefetch,
}

/// The micro-batches of a step, and how many supervised tokens they have.
#[derive(Debug)]
pub(crate) struct StepInput {
    /// The micro-batches.
    pub(crate) batch: StepBatch,
    /// Supervised tokens of each.
    trained_tokens: Vec<usize>,
}

impl StepInput {
    /// Counts the supervised tokens.
    pub(crate) fn new(batch: StepBatch) -> Self {
        let micro_batches = batch.micro_batches.iter();
        Self {
            trained_tokens: micro_batches.map(MicroBatch::n_trained_tokens).collect(),
            batch,
        }
    }

    /// Supervised tokens of the step.
    pub(crate) fn n_trained_tokens(&self) -> usize {
        self.trained_tokens.iter().sum()
    }

    /// Positions of the micro-batches that have a supervised token. A micro-batch may have none
    /// although its step has some.
    pub(super) fn supervised(&self) -> impl Iterator<Item = usize> + '_ {
        let counts = self.trained_tokens.iter().enumerate();
        counts.filter_map(|(i, n)| (*n > 0).then_some(i))
    }

    /// The error of a step without any supervised token.
    pub(super) fn no_supervision(&self) -> Error {
        Error::Step(StepError::NoSupervision(row_ids(&self.batch)))
    }
}

/// What the micro-batches of this process contribute to a step.
#[derive(Debug)]
pub(crate) struct Contribution {
    /// The summed loss of each micro-batch, by its position in the step.
    pub(crate) losses: BTreeMap<usize, f64>,
    /// The sum of the gradients.
    pub(crate) gradient: GradientSum,
}

impl<'a> Learner<'a> {
    /// Loads the weights, and the adapter and optimizer of the checkpoint `start`. Without a
    /// checkpoint they are those of step 0. Gradients are added by `data_plane`.
    ///
    /// # Errors
    ///
    /// A weight or a checkpoint cannot be read.
    pub(crate) fn open(
        config: &'a Config,
        training: &'a Training,
        start: Option<&Checkpoint>,
        device: &Device,
        data_plane: DataPlane,
    ) -> Result<(Self, TrainerState), Error> {
        let compute_dtype =
            settings::compute_dtype(config.language_model()?.compute_dtype, device)?;
        let (base, lora) = (&training.base, &training.lora);
        let slots = lora.slots(&base.config)?;
        let kept_blocks =
            training.kept_blocks(config, compute_dtype, device, data_plane.n_node_ranks())?;
        let plans = attention_plan_prefetch::begin(training, compute_dtype, device);
        let mut adapters = match start {
            Some(checkpoint) => {
                let whole_weights = lora.whole_weights(&base.config)?;
                load_adapters(&checkpoint.path, lora, slots, whole_weights, device)?
            }
            None => starting::begin(config, training, slots, device)?,
        };
        let node = data_plane.node();
        let mut decoder = base.residual_decoder(&adapters, compute_dtype, device, node)?;
        let max_grad_norm = config.train.max_grad_norm;
        let adamw = settings::adamw(&config.train);
        let mut optimizer = Optimizer::new(adamw, max_grad_norm, &adapters.flat);
        let ratio = config.train.loraplus_lr_ratio;
        optimizer.rate_scales = ratio.map(|ratio| adapters.rate_scales(ratio));
        let state = match start {
            Some(checkpoint) => load_state(&checkpoint.path, &mut optimizer, device)?,
            None => TrainerState::new(),
        };
        if start.is_none() && training.starting_adapter.is_none() {
            adapters.init_dora_magnitudes(&mut decoder)?;
        }
        adapters.attach(&mut decoder);
        adapters.slots.shrink_to_fit();
        let learner = Self {
            config,
            training,
            decoder,
            adapters,
            optimizer,
            data_plane,
            kept_blocks,
            _plans: plans,
        };
        Ok((learner, state))
    }

    /// The micro-batches of the step at `cursor`, and the position of the next step.
    pub(super) fn read_step(&self, cursor: Cursor) -> (Result<StepInput, Error>, Cursor) {
        operation!("batch");
        let (micro_batches, next) = self.training.order.next(cursor);
        let read = |ids: &Vec<usize>| micro_batch(&self.training.examples, ids);
        let micro_batches = micro_batches.iter().map(read).collect::<Result<_, _>>();
        let input = micro_batches.map(|micro_batches| StepInput::new(StepBatch { micro_batches }));
        (input, next)
    }

    /// Computes the gradients of the micro-batches `own` of step number `step`, in order. Returns
    /// `None` if `watch` ended the computation. `watch` gets the finished share of the own tokens.
    /// If the ranks of a node divide the frozen weights, all of them compute or gather `n_rounds`
    /// micro-batches, and all of them end if one does.
    ///
    /// # Errors
    ///
    /// As [`backward::backward`], or a gather was refused.
    pub(crate) fn contribute(
        &self,
        input: &StepInput,
        step: u64,
        (own, n_rounds): (&[usize], usize),
        watch: &mut Watch<'_>,
    ) -> Result<Option<Contribution>, Error> {
        let batch = &input.batch;
        let gradient_scale = 1.0 / batch.sum_loss_weights();
        let n_tokens = |i: &usize| batch.micro_batches[*i].n_tokens();
        let n_own = own.iter().map(n_tokens).sum::<usize>() as f64;
        let n_parts = input.supervised().count();
        let mut contribution = Contribution {
            losses: BTreeMap::new(),
            gradient: self
                .data_plane
                .gradient_sum(self.adapters.flat.dims()[0], n_parts),
        };
        let mut n_done = 0;
        for round in 0..n_rounds {
            let part = match own.get(round) {
                Some(&i) => {
                    let (n_before, n_here) = (n_done as f64, n_tokens(&i) as f64);
                    n_done += n_tokens(&i);
                    let mut watch_block = |done: f64| watch((n_before + done * n_here) / n_own);
                    let micro_batch = &batch.micro_batches[i];
                    let part = self.differentiate(
                        micro_batch,
                        gradient_scale,
                        (step, i),
                        &mut watch_block,
                    );
                    part.map(|part| part.map(|part| Some((i, part))))
                }
                None => {
                    let distills = settings::distillation(&self.config.train).is_some();
                    backward::skip(&self.decoder, &self.adapters.slots, distills);
                    Ok(Some(None))
                }
            };
            let continues = matches!(part, Ok(Some(_)));
            let all_continue = match &self.decoder.node {
                Some(node) => node.all_continue(continues),
                None => Ok(continues),
            };
            // The error of this micro-batch explains why the others stop.
            if let Some(Some((i, part))) = part? {
                contribution.losses.insert(i, part.loss_sum);
                contribution.gradient.add(part.gradient);
            }
            if !all_continue? {
                return Ok(None);
            }
        }
        Ok(Some(contribution))
    }

    /// Loss and gradient of micro-batch `i` of step `step`; `None` if `watch` ended the computation.
    fn differentiate(
        &self,
        micro_batch: &MicroBatch,
        gradient_scale: f64,
        (step, i): (u64, usize),
        watch: &mut Watch<'_>,
    ) -> Result<Option<MicroBatchGradient>, StepError> {
        if !watch(0.0) {
            return Ok(None);
        }
        let rate = DropoutRate::new(self.config.lora.lora_dropout);
        let options = BackwardOptions {
            gradient_scale,
            dropout: rate.map(|rate| DropoutKey::new(rate, self.config.train.seed, step, i)),
            noise: settings::embedding_noise(&self.config.train, step, i),
            n_kept_blocks: self.kept_blocks.count(micro_batch.n_tokens()),
            offloads_inputs: self.kept_blocks.offloads_inputs(),
            chunk_rows: loss_rows(&self.decoder.device()),
            distillation: settings::distillation(&self.config.train),
        };
        backward::backward_watched(
            &self.decoder,
            &self.adapters.slots,
            micro_batch,
            options,
            watch,
        )
    }

    /// Applies the gradient of a step with the mean loss `loss`.
    pub(crate) fn update(
        &mut self,
        gradient: Tensor<1>,
        loss: f64,
        learning_rate: f64,
    ) -> StepOutcome {
        let flat = &mut self.adapters.flat;
        let outcome = self.optimizer.step(flat, gradient, loss, learning_rate);
        self.adapters.attach(&mut self.decoder);
        outcome
    }

    /// Frees the tensors that autodiff stores for the adapters' current leaves. With SmolLM2-135M and
    /// four rows these are 130 MiB, which would otherwise add to the peak of a retriever's step.
    pub(super) fn free_graph(&mut self) {
        self.adapters.attach(&mut self.decoder);
    }

    /// Parameters and moments, each `[p]`.
    pub(super) fn vectors(&self) -> [&Tensor<1>; 3] {
        let state = &self.optimizer.state;
        [
            &self.adapters.flat,
            &state.first_moment,
            &state.second_moment,
        ]
    }

    /// Replaces parameters and moments by those after `optimizer_step` updates.
    pub(super) fn set_vectors(&mut self, vectors: [Tensor<1>; 3], optimizer_step: u64) {
        let state = &mut self.optimizer.state;
        [self.adapters.flat, state.first_moment, state.second_moment] = vectors;
        state.step = optimizer_step;
        self.adapters.attach(&mut self.decoder);
    }
}

/// The row ids of a step, separated by commas.
pub(super) fn row_ids(batch: &StepBatch) -> String {
    let ids = batch.micro_batches.iter().flat_map(|b| &b.example_ids);
    ids.map(String::as_str).collect::<Vec<&str>>().join(", ")
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
