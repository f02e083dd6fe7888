//! Prompts to completions, in a batch that runs on while rows leave it and others join.
//!
//! The queue is sorted by length. Rows that have ended leave as soon as a quarter of the batch has,
//! so that one long answer does not keep the others' rows in every product; prompts from the queue
//! take their places at once. What a row becomes does not depend on the rows beside it.

mod batch;
mod choose;

use std::time::Duration;

use tooltune_grammar::Constraint;
use tooltune_rows::text::{Specials, Tokenizer};

use self::batch::Batch;
use crate::config::Config;
pub use crate::config::Sampling;
use crate::error::Error;
use crate::models::Decoder;
pub use crate::progress::{GenerationProgress, Waiting, Work};

/// How completions are made.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationOptions {
    /// Tokens after which a completion is cut.
    pub max_new_tokens: usize,
    /// Sequences that are decoded together.
    pub batch_size: usize,
    /// Tokens that their keys and values may have room for; a single sequence always has its own.
    pub kv_cache_tokens: Option<usize>,
    /// Any of these ends a completion.
    pub stop_ids: Vec<u32>,
    /// Texts that end a completion, none of them empty.
    pub stop_strings: Vec<String>,
    /// Time after which a completion is cut, from when its prompt is read.
    pub max_time: Option<Duration>,
    /// How a token is chosen; draws follow `seed` and the job, not the batch.
    pub sampling: Sampling,
    /// Where draws begin.
    pub seed: u64,
}

impl GenerationOptions {
    /// Those of a config, for a model that ends its texts with `stop_ids`.
    pub fn of(config: &Config, stop_ids: &[u32]) -> Self {
        let eval = &config.eval;
        Self {
            max_new_tokens: eval.max_new_tokens,
            batch_size: eval.batch_size,
            kv_cache_tokens: eval.kv_cache_tokens,
            stop_ids: stop_ids.to_vec(),
            stop_strings: eval.stop_strings.clone(),
            max_time: eval.max_time.map(Duration::from_secs_f64),
            sampling: eval.sampling(),
            seed: config.train.seed,
        }
    }
}

impl GenerationOptions {
    /// The most likely tokens, without limits of time or memory.
    pub fn greedy(max_new_tokens: usize, batch_size: usize, stop_ids: Vec<u32>) -> Self {
        Self {
            max_new_tokens,
            batch_size,
            kv_cache_tokens: None,
            stop_ids,
            stop_strings: Vec::new(),
            max_time: None,
            sampling: Sampling {
                temperature: 0.0,
                top_k: None,
                top_p: 1.0,
            },
            seed: 0,
        }
    }
}

/// Why a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FinishReason {
    /// By a stop token or a stop string.
    Stop,
    /// At `max_new_tokens`, or where the model's context is full.
    #[default]
    Length,
    /// Before it began: the prompt fills the model's context (`max_position_embeddings`).
    Context,
    /// At `max_time`.
    Time,
    /// At a limit of its constraint: the text is not complete.
    Constraint,
}

impl FinishReason {
    /// Its name in `predictions.jsonl`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Context => "context",
            Self::Time => "time",
            Self::Constraint => "constraint",
        }
    }
}

/// One completion.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Generation {
    /// Tokens after the prompt, without the stop token; those of a stop string are among them.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: FinishReason,
}

/// Tokens as text, up to the texts that end a completion.
#[derive(Debug, Clone, Copy)]
pub struct StopStrings<'a> {
    /// What writes tokens as text.
    pub tokenizer: &'a Tokenizer,
    /// None of them empty.
    pub strings: &'a [String],
}

impl StopStrings<'_> {
    /// The text of a completion up to the first of the strings.
    ///
    /// # Errors
    ///
    /// An id that the tokenizer does not know.
    pub fn text(&self, generation: &Generation) -> Result<String, Error> {
        let mut text = self.tokenizer.decode(&generation.ids, Specials::Skip)?;
        if let Some(end) = self.first_in(&text) {
            text.truncate(end);
        }
        Ok(text)
    }

    fn first_in(&self, text: &str) -> Option<usize> {
        let found = self.strings.iter().filter_map(|stop| text.find(stop));
        found.min()
    }

    /// Whether the last token has completed one of the strings.
    fn end(&self, ids: &[u32]) -> Result<bool, Error> {
        let Some(longest) = self.strings.iter().map(String::len).max() else {
            return Ok(false);
        };
        // Each token but those that are parts of a character writes at least a byte.
        let from = ids.len().saturating_sub(longest + 4);
        let tail = self.tokenizer.decode(&ids[from..], Specials::Skip)?;
        Ok(self.first_in(&tail).is_some())
    }
}

/// Prompts with what their completions keep to.
#[derive(Debug, Clone, Copy)]
pub struct Jobs<'a> {
    /// Token ids.
    pub prompts: &'a [Vec<u32>],
    /// One for each prompt, or none at all.
    pub constraints: &'a [Option<Constraint>],
    /// The random numbers that each prompt draws from; by its place where there are none.
    pub streams: &'a [u64],
    /// Texts that end a completion.
    pub stop: Option<StopStrings<'a>>,
}

/// Who is told of a generation.
pub trait Observer {
    /// After each token; `false` ends the work.
    fn progress(&mut self, progress: GenerationProgress) -> bool;

    /// A completion of the prompt with this number has ended.
    ///
    /// # Errors
    ///
    /// Any ends the work.
    fn finished(&mut self, _prompt: usize, _generation: &Generation) -> Result<(), Error> {
        Ok(())
    }
}

impl<F: FnMut(GenerationProgress) -> bool + ?Sized> Observer for &mut F {
    fn progress(&mut self, progress: GenerationProgress) -> bool {
        self(progress)
    }
}

/// Completes each prompt; the result is in the order of `prompts`, or `None` where `watch`, which
/// is called after each token, ended the work by returning `false`.
///
/// # Errors
///
/// Logits that are not finite.
pub fn generate(
    decoder: &Decoder,
    prompts: &[Vec<u32>],
    options: &GenerationOptions,
    mut watch: &mut dyn FnMut(GenerationProgress) -> bool,
) -> Result<Option<Vec<Generation>>, Error> {
    let jobs = Jobs {
        prompts,
        constraints: &[],
        streams: &[],
        stop: None,
    };
    complete(decoder, jobs, options, &mut watch)
}

/// Completes each job; the result is in the order of the prompts, or `None` where `observer` ended
/// the work.
///
/// # Errors
///
/// What `observer` says of a completion, a tokenizer that does not know an id, or logits that are
/// not finite.
pub fn complete(
    decoder: &Decoder,
    jobs: Jobs<'_>,
    options: &GenerationOptions,
    observer: &mut dyn Observer,
) -> Result<Option<Vec<Generation>>, Error> {
    let decoder = decoder.joined();
    let mut batch = Batch::new(&decoder, jobs, options);
    while batch.advance(observer)? {
        if !observer.progress(batch.progress()) {
            return Ok(None);
        }
    }
    Ok(Some(batch.into_generations()))
}
