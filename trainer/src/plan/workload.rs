//! Finds the shapes that determine the memory and time of a prepared run.
//!
//! Every micro-batch is examined, not only an average one: otherwise a run could fail hours later
//! on its longest batch.

use tooltune_rows::batches::Cursor;
use tooltune_rows::examples::ExampleLength;
use tooltune_rows::text::{DataError, TokenizedExample, prompt_ids};
use tooltune_suites::SuiteInfo;

use crate::config::{Config, EvalStrategy};
use crate::error::Error;
use crate::recipes::preparation::Preparation;

/// Maximum number of steps that are simulated, which takes seconds.
pub(super) const MAX_SIMULATED_STEPS: u64 = 1_000_000;

/// The sizes of a micro-batch that determine its memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchShape {
    /// Total tokens.
    pub n_tokens: usize,
    /// Supervised tokens.
    pub n_trained_tokens: usize,
}

impl BatchShape {
    fn from_example(example: &TokenizedExample) -> Self {
        Self {
            n_tokens: example.input_ids.len(),
            n_trained_tokens: example.n_trained_tokens(),
        }
    }

    fn from_lengths(examples: &[ExampleLength], batch: &[usize]) -> Self {
        let examples = batch.iter().map(|&idx| &examples[idx]);
        examples.fold(Self::default(), |shape, example| Self {
            n_tokens: shape.n_tokens + example.n_tokens as usize,
            n_trained_tokens: shape.n_trained_tokens + example.n_trained_tokens as usize,
        })
    }
}

/// Work of all training steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrainingWork {
    /// Tokens of all steps.
    pub n_tokens: u64,
    /// Supervised tokens of all steps.
    pub n_trained_tokens: u64,
    /// Micro-batches of all steps.
    pub n_micro_batches: u64,
    /// Passes over the examples; the last one may be partial.
    pub epochs: f64,
    /// The largest micro-batch shapes: no other shape is at least as large in both counts.
    pub largest: Vec<BatchShape>,
    /// Examples in the micro-batch with the most tokens.
    pub longest_batch: Vec<usize>,
}

/// Simulates the first [`MAX_SIMULATED_STEPS`] steps of a run exactly as training runs them, and
/// extrapolates to the rest.
pub(super) fn training_work(preparation: &Preparation) -> TrainingWork {
    let lengths = preparation.training.examples.lengths();
    let n_simulated = preparation.training.total_steps.min(MAX_SIMULATED_STEPS);
    let mut work = TrainingWork::default();
    let mut most_tokens = 0;
    let mut cursor = Cursor {
        epoch: 0,
        step_in_epoch: 0,
    };
    for _ in 0..n_simulated {
        let (micro_batches, next) = preparation.training.order.next(cursor);
        cursor = next;
        for batch in micro_batches {
            let shape = BatchShape::from_lengths(lengths, &batch);
            work.n_tokens += shape.n_tokens as u64;
            work.n_trained_tokens += shape.n_trained_tokens as u64;
            work.n_micro_batches += 1;
            keep_if_largest(&mut work.largest, shape);
            if shape.n_tokens > most_tokens {
                most_tokens = shape.n_tokens;
                work.longest_batch = batch;
            }
        }
    }
    let steps_in_epoch = preparation
        .training
        .order
        .steps_in_epoch(cursor.epoch)
        .max(1);
    work.epochs = cursor.epoch as f64 + cursor.step_in_epoch as f64 / steps_in_epoch as f64;
    if n_simulated < preparation.training.total_steps {
        let times = preparation.training.total_steps as f64 / n_simulated as f64;
        let extrapolate = |n: u64| (n as f64 * times) as u64;
        work.n_tokens = extrapolate(work.n_tokens);
        work.n_trained_tokens = extrapolate(work.n_trained_tokens);
        work.n_micro_batches = extrapolate(work.n_micro_batches);
        work.epochs *= times;
    }
    work
}

fn keep_if_largest(largest: &mut Vec<BatchShape>, shape: BatchShape) {
    let covers = |a: &BatchShape, b: &BatchShape| {
        a.n_tokens >= b.n_tokens && a.n_trained_tokens >= b.n_trained_tokens
    };
    if !largest.iter().any(|kept| covers(kept, &shape)) {
        largest.retain(|kept| !covers(&shape, kept));
        largest.push(shape);
    }
}

/// Work of a run's evaluations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EvaluationWork {
    /// Number of evaluations: at step 0, every `eval.eval_steps`, and at the end.
    pub n_evaluations: u64,
    /// Suites by name, each with its number of rows or queries.
    pub suites: Vec<(&'static str, usize)>,
    /// Number of rows for the held-out loss.
    pub n_loss_rows: usize,
    /// The longest row for the held-out loss.
    pub longest_loss_row: BatchShape,
    /// Total prompt tokens of one evaluation of `suite_of_rows`.
    pub n_prompt_tokens: usize,
    /// Name of the suite that uses the evaluation rows; empty if there is none.
    pub suite_of_rows: &'static str,
    /// Limit of new tokens per completion.
    pub max_new_tokens: usize,
    /// Prompt lengths of each generation batch, shortest prompts first.
    pub batches: Vec<Vec<usize>>,
    /// Whether an encoder embeds texts.
    pub encodes: bool,
}

/// Tokenizes the inputs of the evaluations; `None` if the run does not evaluate.
///
/// # Errors
///
/// The template refuses a row.
pub(super) fn evaluation_work(
    config: &Config,
    preparation: &Preparation,
) -> Result<Option<EvaluationWork>, Error> {
    if config.eval.eval_strategy == EvalStrategy::No {
        return Ok(None);
    }
    let held_out = preparation.held_out.iter();
    let held_out = held_out.flat_map(|prepared| &prepared.examples);
    let held_out: Vec<BatchShape> = held_out.map(BatchShape::from_example).collect();
    let longest = held_out.iter().max_by_key(|shape| shape.n_tokens);
    let mut suites = preparation.suites.sizes();
    let mut batches = other_batches(config, preparation, &suites);
    let (mut n_prompt_tokens, mut suite_of_rows) = (0, "");
    let configured = || config.eval.suites.iter();
    if configured().any(|suite| suite.needs().rows.is_some()) {
        let lengths = prompt_lengths(preparation)?;
        let batch = lengths.chunks(config.eval.batch_size.max(1));
        batches.extend(batch.map(<[usize]>::to_vec));
        if let Some(suite) = configured().find(|suite| suite.needs().rows_are_samples()) {
            n_prompt_tokens = lengths.iter().sum();
            suite_of_rows = suite.as_str();
            suites.insert(0, (suite_of_rows, lengths.len()));
        }
    }
    let steps = preparation.training.total_steps;
    Ok(Some(EvaluationWork {
        n_evaluations: 1 + steps.div_ceil(config.eval.eval_steps),
        suites,
        n_loss_rows: held_out.len(),
        longest_loss_row: longest.copied().unwrap_or_default(),
        n_prompt_tokens,
        suite_of_rows,
        max_new_tokens: config.eval.longest_answer(),
        batches,
        encodes: encodes(config),
    }))
}

/// Whether the suites compare texts or rank documents.
pub(super) fn encodes(config: &Config) -> bool {
    let mut suites = config.eval.suites.iter();
    suites.any(|suite| suite.needs().encoder || suite.needs().retriever)
}

/// Token counts of the evaluation prompts, shortest first.
fn prompt_lengths(preparation: &Preparation) -> Result<Vec<usize>, DataError> {
    let base = &preparation.training.base;
    let mut lengths = preparation
        .eval_rows
        .iter()
        .map(|row| Ok(prompt_ids(row, &base.template, &base.tokenizer)?.len()))
        .collect::<Result<Vec<usize>, DataError>>()?;
    lengths.sort_unstable();
    Ok(lengths)
}

/// One batch for each suite whose prompts are created during the evaluation, estimated from the
/// longest example.
fn other_batches(
    config: &Config,
    preparation: &Preparation,
    suites: &[(&'static str, usize)],
) -> Vec<Vec<usize>> {
    let longest = preparation.training.examples.longest();
    let others = suites.iter().filter(|(name, _)| {
        let needs = SuiteInfo::from_name(name).map(|suite| suite.needs);
        needs.is_some_and(|needs| needs.generator && needs.rows.is_none())
    });
    others
        .map(|&(_, n_queries)| vec![longest; n_queries.min(config.eval.batch_size.max(1))])
        .collect()
}
