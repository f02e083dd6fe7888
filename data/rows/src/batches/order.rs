//! Lengths and a seed in, the examples of every optimizer step out.
//!
//! The order of an epoch is a pure function of the options and the epoch's number: nothing is
//! carried from one epoch to the next, so a run resumes from two integers, the [`Cursor`], at the
//! cost of planning one epoch. Every example comes exactly once an epoch; the last step may be
//! smaller than the others and is never dropped.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::packing::{self, Packing};
use super::{BatchError, SeededRandom};

/// Stream base of the shuffles; other uses of a run's seed have streams of their own.
const SHUFFLE_STREAM: u64 = 0x6F72_6465_7200_0000;

/// Micro-batches sorted by length together: enough for even lengths inside each, few enough
/// that neighbours change from epoch to epoch.
const GROUPED_MICRO_BATCHES: usize = 50;

/// Whether the examples of a micro-batch are of similar length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupByLength {
    /// As they come.
    #[default]
    Off,
    /// Similar lengths together, the micro-batch with the most tokens first: if memory does not
    /// suffice, the first step shows it.
    On,
}

/// Whether each epoch has an order of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shuffle {
    /// The order of the data set, every epoch.
    Off,
    /// An order drawn from (seed, epoch).
    #[default]
    On,
}

/// How examples become micro-batches and steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderOptions {
    /// The run's seed.
    pub seed: u64,
    /// Rows of a micro-batch: documents, or packs with [`Packing::BlockDiagonal`].
    pub per_device_train_batch_size: usize,
    /// Micro-batches of a step.
    pub gradient_accumulation_steps: usize,
    /// Whether short documents share a row.
    pub packing: Packing,
    /// Whether rows of similar length come together.
    pub group_by_length: GroupByLength,
    /// Whether each epoch has an order of its own.
    pub shuffle: Shuffle,
}

/// The next step to take; saved in checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// From 0.
    pub epoch: u64,
    /// Steps of this epoch already taken.
    pub step_in_epoch: u64,
}

/// All micro-batches of one epoch, in order.
type EpochPlan = Vec<Vec<usize>>;

/// Which examples each step of each epoch trains on.
#[derive(Debug)]
pub struct StepOrder {
    lengths: Vec<usize>,
    options: OrderOptions,
    /// The plan used last: steps are asked for in order, so one is enough.
    cached: Mutex<Option<(u64, Arc<EpochPlan>)>>,
}

impl StepOrder {
    /// Prepares the order of a data set whose example `i` has `lengths[i]` tokens.
    ///
    /// # Errors
    ///
    /// - `lengths` is empty
    /// - a batch size, the accumulation or the pack length is 0
    /// - an example is longer than a pack; [`BatchError::with_ids`] turns its position into its id
    /// - packing and grouping by length are both on
    pub fn new(lengths: &[usize], options: OrderOptions) -> Result<Self, BatchError> {
        if lengths.is_empty() {
            return Err(BatchError::NoExamples);
        }
        for (option, value) in [
            (
                "per_device_train_batch_size",
                options.per_device_train_batch_size,
            ),
            (
                "gradient_accumulation_steps",
                options.gradient_accumulation_steps,
            ),
        ] {
            if value == 0 {
                return Err(BatchError::ZeroOption { option });
            }
        }
        if let Packing::BlockDiagonal { max_length } = options.packing {
            check_packing(lengths, max_length, options.group_by_length)?;
        }
        Ok(Self {
            lengths: lengths.to_vec(),
            options,
            cached: Mutex::new(None),
        })
    }

    /// Optimizer steps of `epoch`; with packing, epochs can differ by a few.
    pub fn steps_in_epoch(&self, epoch: u64) -> usize {
        self.plan(epoch)
            .len()
            .div_ceil(self.options.gradient_accumulation_steps)
    }

    /// Optimizer steps of so many epochs, the last one perhaps in part; at least one.
    pub fn steps_in_epochs(&self, epochs: f64) -> u64 {
        let n_whole = epochs.floor() as u64;
        let whole = match self.options.packing {
            Packing::None => n_whole.saturating_mul(self.steps_in_epoch(0) as u64),
            Packing::BlockDiagonal { .. } => (0..n_whole)
                .map(|epoch| self.steps_in_epoch(epoch) as u64)
                .sum(),
        };
        let partial = self.steps_in_epoch(n_whole) as f64 * epochs.fract();
        whole.saturating_add(partial.ceil() as u64).max(1)
    }

    /// The micro-batches of one step, each a list of positions in the data set.
    ///
    /// # Panics
    ///
    /// If `step_in_epoch` is not below [`StepOrder::steps_in_epoch`].
    pub fn step(&self, epoch: u64, step_in_epoch: usize) -> Vec<Vec<usize>> {
        let plan = self.plan(epoch);
        let mut steps = plan.chunks(self.options.gradient_accumulation_steps);
        match steps.nth(step_in_epoch) {
            Some(micro_batches) => micro_batches.to_vec(),
            None => panic!("epoch {epoch} has no step {step_in_epoch}"),
        }
    }

    /// The step at `cursor` and the cursor of the step after it.
    ///
    /// A cursor at or past the end of its epoch means the first step of the next epoch.
    pub fn next(&self, cursor: Cursor) -> (Vec<Vec<usize>>, Cursor) {
        let n_steps = self.steps_in_epoch(cursor.epoch) as u64;
        if cursor.step_in_epoch >= n_steps {
            return self.next(Cursor {
                epoch: cursor.epoch + 1,
                step_in_epoch: 0,
            });
        }
        let step = self.step(cursor.epoch, cursor.step_in_epoch as usize);
        let after = if cursor.step_in_epoch + 1 < n_steps {
            Cursor {
                step_in_epoch: cursor.step_in_epoch + 1,
                ..cursor
            }
        } else {
            Cursor {
                epoch: cursor.epoch + 1,
                step_in_epoch: 0,
            }
        };
        (step, after)
    }

    fn plan(&self, epoch: u64) -> Arc<EpochPlan> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((cached_epoch, plan)) if *cached_epoch == epoch => Arc::clone(plan),
            _ => {
                let plan = Arc::new(self.plan_epoch(epoch));
                *cached = Some((epoch, Arc::clone(&plan)));
                plan
            }
        }
    }

    fn plan_epoch(&self, epoch: u64) -> EpochPlan {
        let mut random = SeededRandom::new(self.options.seed, SHUFFLE_STREAM.wrapping_add(epoch));
        let mut order: Vec<usize> = (0..self.lengths.len()).collect();
        self.shuffle(&mut random, &mut order);
        match (self.options.packing, self.options.group_by_length) {
            (Packing::BlockDiagonal { max_length }, _) => {
                self.plan_packed(&order, max_length, &mut random)
            }
            (Packing::None, GroupByLength::On) => self.plan_grouped(order, &mut random),
            (Packing::None, GroupByLength::Off) => self.chunk(&order),
        }
    }

    fn shuffle<T>(&self, random: &mut SeededRandom, items: &mut [T]) {
        if self.options.shuffle == Shuffle::On {
            random.shuffle(items);
        }
    }

    fn chunk(&self, order: &[usize]) -> EpochPlan {
        order
            .chunks(self.options.per_device_train_batch_size)
            .map(<[usize]>::to_vec)
            .collect()
    }

    fn plan_packed(
        &self,
        order: &[usize],
        max_length: usize,
        random: &mut SeededRandom,
    ) -> EpochPlan {
        let windows = order.chunks(packing::WINDOW);
        let mut packs: Vec<Vec<usize>> = windows
            .flat_map(|window| packing::pack(window, &self.lengths, max_length))
            .collect();
        // Packs leave a window longest document first, which is no order to train in.
        self.shuffle(random, &mut packs);
        packs
            .chunks(self.options.per_device_train_batch_size)
            .map(<[_]>::concat)
            .collect()
    }

    fn plan_grouped(&self, mut order: Vec<usize>, random: &mut SeededRandom) -> EpochPlan {
        let window = GROUPED_MICRO_BATCHES * self.options.per_device_train_batch_size;
        for group in order.chunks_mut(window) {
            group.sort_by_key(|&idx| std::cmp::Reverse(self.lengths[idx]));
        }
        let mut plan = self.chunk(&order);
        // Only the last micro-batch can be smaller than the others; it stays last.
        let n_full = self.lengths.len() / self.options.per_device_train_batch_size;
        self.shuffle(random, &mut plan[..n_full]);
        let n_tokens = |batch: &Vec<usize>| batch.iter().map(|&idx| self.lengths[idx]).sum();
        let largest = (0..n_full).max_by_key(|&i| -> usize { n_tokens(&plan[i]) });
        if let Some(largest) = largest {
            plan.swap(0, largest);
        }
        plan
    }
}

fn check_packing(
    lengths: &[usize],
    max_length: usize,
    group_by_length: GroupByLength,
) -> Result<(), BatchError> {
    if max_length == 0 {
        return Err(BatchError::ZeroOption {
            option: "max_length",
        });
    }
    if group_by_length == GroupByLength::On {
        return Err(BatchError::PackedAndGrouped);
    }
    match lengths.iter().position(|&n_tokens| n_tokens > max_length) {
        Some(example_idx) => Err(BatchError::LongerThanPack {
            example: format!("number {example_idx} (from 0)"),
            example_idx,
            n_tokens: lengths[example_idx],
            max_length,
        }),
        None => Ok(()),
    }
}
