//! Selects the examples of every optimizer step from the lengths of all examples and a seed.
//!
//! The order of an epoch is a pure function of the options and the epoch number. No state is
//! carried between epochs, so a run resumes from two integers, the [`Cursor`], at the cost of
//! planning one epoch. Every example occurs exactly once per epoch; the last step may be smaller
//! than the others and is never dropped.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::packing::{self, Packing};
use super::{BatchError, SeededRandom};

/// Base of the random streams for shuffling; other uses of a run's seed have their own streams.
const SHUFFLE_STREAM: u64 = 0x6F72_6465_7200_0000;

/// Base of the random streams that sample parts with a fractional weight.
const DRAW_STREAM: u64 = 0x6472_6177_6E00_0000;

/// Maximum number of epochs in which the uses of parts are counted; no run has more.
const MAX_COUNTED_EPOCHS: u64 = 100_000;

/// Number of micro-batches whose examples are sorted by length together: enough for similar lengths
/// in each micro-batch, and few enough that an example's neighbours change between epochs.
const GROUPED_MICRO_BATCHES: usize = 50;

/// Whether the examples of a micro-batch have similar lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupByLength {
    /// Keeps the shuffled order.
    #[default]
    Off,
    /// Groups similar lengths, with the largest micro-batch first, so that the first step shows
    /// whether memory is sufficient.
    On,
}

/// Whether each epoch has its own order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shuffle {
    /// Order of the data set in every epoch.
    Off,
    /// Order drawn from (seed, epoch).
    #[default]
    On,
}

/// How examples are grouped into micro-batches and steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderOptions {
    /// Seed of the run.
    pub seed: u64,
    /// Rows per micro-batch: documents, or packs with [`Packing::BlockDiagonal`].
    pub per_device_train_batch_size: usize,
    /// Micro-batches per step (gradient accumulation).
    pub gradient_accumulation_steps: usize,
    /// Whether short documents share a row.
    pub packing: Packing,
    /// Whether rows are grouped by length.
    pub group_by_length: GroupByLength,
    /// Whether each epoch has its own order.
    pub shuffle: Shuffle,
}

/// The next step to run; saved in checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Completed steps of this epoch.
    pub step_in_epoch: u64,
}

/// All micro-batches of one epoch, in order.
#[derive(Debug)]
struct EpochPlan {
    /// Data-set positions of the examples of all micro-batches, concatenated.
    examples: Vec<u32>,
    /// End offset of each micro-batch.
    ends: Vec<u32>,
}

impl EpochPlan {
    /// Builds a plan from a list of micro-batches.
    fn new<'b>(micro_batches: impl Iterator<Item = &'b [u32]>) -> Self {
        let (mut examples, mut ends) = (Vec::new(), Vec::new());
        for micro_batch in micro_batches {
            examples.extend_from_slice(micro_batch);
            ends.push(examples.len() as u32);
        }
        Self { examples, ends }
    }

    /// Builds micro-batches of `n` examples each.
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

/// Consecutive examples with a sampling weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// Number of examples.
    pub n_examples: usize,
    /// How often each example is used per epoch: 1 uses it once, 2 twice. With 0.5, each epoch
    /// draws half of the examples. Fractions of an example are carried over to the next epoch.
    pub weight: f64,
}

/// The examples of each step of each epoch.
#[derive(Debug)]
pub struct StepOrder {
    lengths: Vec<u32>,
    /// Parts with a weight other than 1; empty if every example occurs once.
    parts: Vec<Part>,
    options: OrderOptions,
    /// The last plan; one is enough because steps are requested in order.
    cached: Mutex<Option<(u64, Arc<EpochPlan>)>>,
}

impl StepOrder {
    /// Creates the order of a data set whose example `i` has `lengths[i]` tokens.
    ///
    /// # Errors
    ///
    /// - `lengths` is empty
    /// - a batch size, the accumulation or the pack length is 0
    /// - an example is longer than a pack; [`BatchError::with_ids`] replaces its position by its id
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

    /// Repeats or samples the examples of each part by its weight. The parts must cover all
    /// examples.
    ///
    /// # Errors
    ///
    /// - an epoch would have fewer than one example on average, or more than can be counted
    pub fn with_parts(self, parts: &[Part]) -> Result<Self, BatchError> {
        if parts.iter().all(|part| part.weight == 1.0) {
            return Ok(self);
        }
        let n: f64 = parts.iter().map(Part::n_per_epoch).sum();
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

    /// Optimizer steps of `epoch`. With packing or weights the number varies slightly between
    /// epochs, and an epoch of only small parts can have none.
    pub fn steps_in_epoch(&self, epoch: u64) -> usize {
        let n_micro_batches = match self.options.packing {
            Packing::None => self
                .n_drawn(epoch)
                .div_ceil(self.options.per_device_train_batch_size),
            Packing::BlockDiagonal { .. } => self.plan(epoch).len(),
        };
        n_micro_batches.div_ceil(self.options.gradient_accumulation_steps)
    }

    /// Optimizer steps of `epochs` epochs, including a partial last one; at least one.
    pub fn steps_in_epochs(&self, epochs: f64) -> u64 {
        let n_whole = epochs.floor() as u64;
        let is_even = self.options.packing == Packing::None && !self.epochs_differ();
        let n_steps = if is_even {
            n_whole.saturating_mul(self.steps_in_epoch(0) as u64)
        } else {
            (0..n_whole)
                .map(|epoch| self.steps_in_epoch(epoch) as u64)
                .sum()
        };
        let partial = self.steps_in_epoch(n_whole) as f64 * epochs.fract();
        n_steps.saturating_add(partial.ceil() as u64).max(1)
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

    /// Number of tokens of an example, by its position in the data set.
    ///
    /// # Panics
    ///
    /// If there is no such example.
    pub fn length(&self, example: usize) -> usize {
        self.lengths[example] as usize
    }

    /// Number of uses of each part's examples ([`StepOrder::with_parts`]) in the first `n_steps`
    /// steps of a run; empty if every example occurs once per epoch. Steps after 100,000 epochs are
    /// not counted.
    pub fn n_seen_of_parts(&self, n_steps: u64) -> Vec<u64> {
        let mut n_seen = vec![0; self.parts.len()];
        if n_seen.is_empty() {
            return n_seen;
        }
        let (mut left, mut epoch) = (n_steps, 0);
        while epoch < MAX_COUNTED_EPOCHS {
            let in_epoch = self.steps_in_epoch(epoch) as u64;
            if in_epoch > left {
                break;
            }
            for (n_seen, part) in n_seen.iter_mut().zip(&self.parts) {
                *n_seen += part.n_drawn(epoch) as u64;
            }
            left -= in_epoch;
            epoch += 1;
        }
        let ends = self.parts.iter().scan(0, |end, part| {
            *end += part.n_examples;
            Some(*end)
        });
        let ends: Vec<usize> = ends.collect();
        for step in 0..self.steps_in_epoch(epoch).min(left as usize) {
            for example in self.step(epoch, step).concat() {
                n_seen[ends.partition_point(|&end| end <= example)] += 1;
            }
        }
        n_seen
    }

    /// The step at `cursor` and the cursor of the following step.
    ///
    /// A cursor at or after the end of its epoch refers to the first step of the next epoch that
    /// has one.
    pub fn next(&self, mut cursor: Cursor) -> (Vec<Vec<usize>>, Cursor) {
        let mut n_steps = self.steps_in_epoch(cursor.epoch) as u64;
        // Fractions of parts are carried over, so an empty epoch is eventually followed by one with
        // steps.
        while cursor.step_in_epoch >= n_steps {
            cursor = Cursor {
                epoch: cursor.epoch + 1,
                step_in_epoch: 0,
            };
            n_steps = self.steps_in_epoch(cursor.epoch) as u64;
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
        let mut order = self.draw_examples(epoch);
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

    /// Whether the number of examples depends on the epoch.
    fn epochs_differ(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| part.n_per_epoch().fract() != 0.0)
    }

    /// Number of examples in an epoch.
    fn n_drawn(&self, epoch: u64) -> usize {
        if self.parts.is_empty() {
            return self.lengths.len();
        }
        self.parts.iter().map(|part| part.n_drawn(epoch)).sum()
    }

    /// The examples of an epoch, in data-set order; examples of a part with a weight above 1 are
    /// repeated.
    fn draw_examples(&self, epoch: u64) -> Vec<u32> {
        if self.parts.is_empty() {
            return (0..self.lengths.len() as u32).collect();
        }
        // Uses a separate stream to be independent of the shuffle.
        let mut random = SeededRandom::new(self.options.seed, DRAW_STREAM.wrapping_add(epoch));
        let mut drawn = Vec::new();
        let mut begin = 0;
        for part in &self.parts {
            let examples: Vec<u32> = (begin..begin + part.n_examples as u32).collect();
            begin += part.n_examples as u32;
            let n_drawn = part.n_drawn(epoch);
            let n_whole = n_drawn.checked_div(part.n_examples).unwrap_or(0);
            for _ in 0..n_whole {
                drawn.extend_from_slice(&examples);
            }
            let n_more = n_drawn - n_whole * part.n_examples;
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
        // Packing emits the longest documents of a window first, so shuffle the packs.
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
        // Only the last micro-batch can be smaller than the others, so it stays last.
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
    /// Average number of examples per epoch.
    fn n_per_epoch(&self) -> f64 {
        self.n_examples as f64 * self.weight
    }

    /// Number of examples in this epoch. The running total is within one half of its exact value,
    /// so fractions of an example are carried over, and the number depends only on the epoch.
    fn n_drawn(&self, epoch: u64) -> usize {
        let n_before = |epoch: u64| (self.n_per_epoch() * epoch as f64).round();
        (n_before(epoch.saturating_add(1)) - n_before(epoch)) as usize
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
