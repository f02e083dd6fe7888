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

/// Stream base of the draws from parts of a weight that is no whole number.
const DRAW_STREAM: u64 = 0x6472_6177_6E00_0000;

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
#[derive(Debug)]
struct EpochPlan {
    /// Their examples, end to end.
    examples: Vec<u32>,
    /// Where each of them ends.
    ends: Vec<u32>,
}

impl EpochPlan {
    /// Of micro-batches that are given one by one.
    fn new<'b>(micro_batches: impl Iterator<Item = &'b [u32]>) -> Self {
        let (mut examples, mut ends) = (Vec::new(), Vec::new());
        for micro_batch in micro_batches {
            examples.extend_from_slice(micro_batch);
            ends.push(examples.len() as u32);
        }
        Self { examples, ends }
    }

    /// Of so many examples a micro-batch.
    fn chunked(examples: Vec<u32>, n: usize) -> Self {
        let ends = (1..=examples.len().div_ceil(n)).map(|i| (i * n).min(examples.len()) as u32);
        let ends = ends.collect();
        Self { examples, ends }
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn micro_batch(&self, i: usize) -> &[u32] {
        let begin = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.examples[begin as usize..self.ends[i] as usize]
    }
}

/// Examples that follow each other, and how often each comes in an epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// How many they are.
    pub n_examples: usize,
    /// How often: 1 is once, 2 twice, and 0.5 one half of them, another one in each epoch.
    pub weight: f64,
}

/// Which examples each step of each epoch trains on.
#[derive(Debug)]
pub struct StepOrder {
    lengths: Vec<u32>,
    /// Parts with a weight other than 1; none where every example comes once.
    parts: Vec<Part>,
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
    pub fn new(lengths: Vec<u32>, options: OrderOptions) -> Result<Self, BatchError> {
        if lengths.is_empty() {
            return Err(BatchError::NoExamples);
        }
        if u32::try_from(lengths.len()).is_err() {
            return Err(BatchError::TooManyExamples { n: lengths.len() });
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
            check_packing(&lengths, max_length, options.group_by_length)?;
        }
        Ok(Self {
            lengths,
            parts: Vec::new(),
            options,
            cached: Mutex::new(None),
        })
    }

    /// Has the examples of each part come as often as it says; together the parts are all examples.
    ///
    /// # Errors
    ///
    /// - an epoch would have no example, or more than are counted
    pub fn with_parts(self, parts: &[Part]) -> Result<Self, BatchError> {
        if parts.iter().all(|part| part.weight == 1.0) {
            return Ok(self);
        }
        let n: f64 = parts.iter().map(|part| part.n_drawn() as f64).sum();
        if n < 1.0 {
            return Err(BatchError::NoExamples);
        }
        if n >= f64::from(u32::MAX) {
            return Err(BatchError::TooManyExamples { n: n as usize });
        }
        Ok(Self {
            parts: parts.to_vec(),
            ..self
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
        let n = self.options.gradient_accumulation_steps;
        let begin = step_in_epoch * n;
        if begin >= plan.len() {
            panic!("epoch {epoch} has no step {step_in_epoch}");
        }
        (begin..plan.len().min(begin + n))
            .map(|i| {
                plan.micro_batch(i)
                    .iter()
                    .map(|&idx| idx as usize)
                    .collect()
            })
            .collect()
    }

    /// Tokens of an example, by its position in the data set.
    ///
    /// # Panics
    ///
    /// If there is no such example.
    pub fn length(&self, example: usize) -> usize {
        self.lengths[example] as usize
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
        let mut order = self.drawn(epoch);
        self.shuffle(&mut random, &mut order);
        let n = self.options.per_device_train_batch_size;
        match (self.options.packing, self.options.group_by_length) {
            (Packing::BlockDiagonal { max_length }, _) => {
                self.plan_packed(&order, max_length, &mut random)
            }
            (Packing::None, GroupByLength::On) => self.plan_grouped(order, &mut random),
            (Packing::None, GroupByLength::Off) => EpochPlan::chunked(order, n),
        }
    }

    /// The examples of an epoch, in the order of the data set; those of a part with a weight above 1
    /// several times.
    fn drawn(&self, epoch: u64) -> Vec<u32> {
        if self.parts.is_empty() {
            return (0..self.lengths.len() as u32).collect();
        }
        // A stream of its own, so that it does not depend on the shuffle.
        let mut random = SeededRandom::new(self.options.seed, DRAW_STREAM.wrapping_add(epoch));
        let mut drawn = Vec::new();
        let mut begin = 0;
        for part in &self.parts {
            let examples: Vec<u32> = (begin..begin + part.n_examples as u32).collect();
            begin += part.n_examples as u32;
            for _ in 0..part.weight as usize {
                drawn.extend_from_slice(&examples);
            }
            let n_more = part.n_drawn() - part.weight as usize * part.n_examples;
            let mut more = examples;
            random.shuffle(&mut more);
            more.truncate(n_more);
            more.sort_unstable();
            drawn.extend(more);
        }
        drawn
    }

    fn shuffle<T>(&self, random: &mut SeededRandom, items: &mut [T]) {
        if self.options.shuffle == Shuffle::On {
            random.shuffle(items);
        }
    }

    fn plan_packed(
        &self,
        order: &[u32],
        max_length: usize,
        random: &mut SeededRandom,
    ) -> EpochPlan {
        let mut packs = EpochPlan {
            examples: Vec::with_capacity(order.len()),
            ends: Vec::new(),
        };
        for window in order.chunks(packing::WINDOW) {
            for pack in packing::pack(window, &self.lengths, max_length) {
                packs.examples.extend(pack);
                packs.ends.push(packs.examples.len() as u32);
            }
        }
        // Packs leave a window longest document first, which is no order to train in.
        let mut shuffled: Vec<u32> = (0..packs.len() as u32).collect();
        self.shuffle(random, &mut shuffled);
        let micro_batches = shuffled.chunks(self.options.per_device_train_batch_size);
        let micro_batches: Vec<Vec<u32>> = micro_batches
            .map(|chunk| {
                chunk
                    .iter()
                    .flat_map(|&i| packs.micro_batch(i as usize))
                    .copied()
                    .collect()
            })
            .collect();
        EpochPlan::new(micro_batches.iter().map(Vec::as_slice))
    }

    fn plan_grouped(&self, mut order: Vec<u32>, random: &mut SeededRandom) -> EpochPlan {
        let n = self.options.per_device_train_batch_size;
        let window = GROUPED_MICRO_BATCHES * n;
        for group in order.chunks_mut(window) {
            group.sort_by_key(|&idx| std::cmp::Reverse(self.lengths[idx as usize]));
        }
        // Only the last micro-batch can be smaller than the others; it stays last.
        let n_full = order.len() / n;
        let plan = EpochPlan::chunked(order, n);
        let mut shuffled: Vec<u32> = (0..plan.len() as u32).collect();
        self.shuffle(random, &mut shuffled[..n_full]);
        let n_tokens = |i: usize| -> u64 {
            let batch = plan.micro_batch(shuffled[i] as usize).iter();
            batch
                .map(|&idx| u64::from(self.lengths[idx as usize]))
                .sum()
        };
        let largest = (0..n_full).max_by_key(|&i| n_tokens(i));
        if let Some(largest) = largest {
            shuffled.swap(0, largest);
        }
        EpochPlan::new(shuffled.iter().map(|&i| plan.micro_batch(i as usize)))
    }
}

impl Part {
    /// Examples of an epoch.
    fn n_drawn(&self) -> usize {
        (self.n_examples as f64 * self.weight).round() as usize
    }
}

fn check_packing(
    lengths: &[u32],
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
    match lengths
        .iter()
        .position(|&n_tokens| n_tokens as usize > max_length)
    {
        Some(example_idx) => Err(BatchError::LongerThanPack {
            example: format!("number {example_idx} (from 0)"),
            example_idx,
            n_tokens: lengths[example_idx] as usize,
            max_length,
        }),
        None => Ok(()),
    }
}
