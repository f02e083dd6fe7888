//! A prepared run to the shapes that its memory and time follow from.
//!
//! Every micro-batch of the run is looked at, not a typical one: what fits on average and not at
//! the longest batch ends a run in its second hour.

use tooltune_data::batches::Cursor;
use tooltune_data::text::{DataError, TokenizedExample, prompt_ids};

use crate::config::{Config, EvalStrategy};
use crate::recipes::sft::Preparation;

/// The size of one micro-batch, as far as memory depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchShape {
    /// Tokens of all documents.
    pub n_tokens: usize,
    /// Tokens that are learned.
    pub n_trained_tokens: usize,
}

impl BatchShape {
    fn of(examples: &[TokenizedExample], batch: &[usize]) -> Self {
        let examples = batch.iter().map(|&idx| &examples[idx]);
        examples.fold(Self::default(), |shape, example| Self {
            n_tokens: shape.n_tokens + example.input_ids.len(),
            n_trained_tokens: shape.n_trained_tokens
                + example
                    .loss_weights
                    .iter()
                    .filter(|&&weight| weight > 0.0)
                    .count(),
        })
    }
}

/// What the whole run reads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrainingWork {
    /// Tokens of all steps.
    pub n_tokens: u64,
    /// Learned tokens of all steps.
    pub n_trained_tokens: u64,
    /// Micro-batches of all steps.
    pub n_micro_batches: u64,
    /// Passes over the examples, the last one perhaps in part.
    pub epochs: f64,
    /// Shapes of the micro-batches, each shape that is not smaller than another in every respect.
    pub largest: Vec<BatchShape>,
    /// Examples of the micro-batch with the most tokens.
    pub longest_batch: Vec<usize>,
}

/// Walks the steps of a run as training will.
pub(super) fn training_work(preparation: &Preparation) -> TrainingWork {
    let mut work = TrainingWork::default();
    let mut most_tokens = 0;
    let mut cursor = Cursor {
        epoch: 0,
        step_in_epoch: 0,
    };
    for _ in 0..preparation.total_steps {
        let (micro_batches, next) = preparation.order.next(cursor);
        cursor = next;
        for batch in micro_batches {
            let shape = BatchShape::of(&preparation.examples, &batch);
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
    let steps_in_epoch = preparation.order.steps_in_epoch(cursor.epoch).max(1);
    work.epochs = cursor.epoch as f64 + cursor.step_in_epoch as f64 / steps_in_epoch as f64;
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

/// What the evaluations of a run generate.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EvaluationWork {
    /// Evaluations of the run: at step 0, every `eval.eval_steps`, and at the end.
    pub n_evaluations: u64,
    /// Rows of each.
    pub n_rows: usize,
    /// Tokens of all prompts of one evaluation.
    pub n_prompt_tokens: usize,
    /// Most new tokens of a completion.
    pub max_new_tokens: usize,
    /// Prompt lengths of the batches that are generated together, shortest prompts first.
    pub batches: Vec<Vec<usize>>,
}

/// Tokenizes the prompts of the evaluation rows; `None` where the run does not evaluate.
///
/// # Errors
///
/// A row that the template refuses.
pub(super) fn evaluation_work(
    config: &Config,
    preparation: &Preparation,
) -> Result<Option<EvaluationWork>, DataError> {
    if config.eval.eval_strategy == EvalStrategy::No {
        return Ok(None);
    }
    let base = &preparation.base;
    let mut lengths = preparation
        .eval_rows
        .iter()
        .map(|row| Ok(prompt_ids(row, &base.template, &base.tokenizer)?.len()))
        .collect::<Result<Vec<usize>, DataError>>()?;
    lengths.sort_unstable();
    let steps = preparation.total_steps;
    Ok(Some(EvaluationWork {
        n_evaluations: 1 + steps.div_ceil(config.eval.eval_steps),
        n_rows: lengths.len(),
        n_prompt_tokens: lengths.iter().sum(),
        max_new_tokens: config.eval.max_new_tokens,
        batches: match config.eval.suites.is_empty() {
            true => Vec::new(),
            false => lengths
                .chunks(config.eval.batch_size.max(1))
                .map(<[usize]>::to_vec)
                .collect(),
        },
    }))
}
