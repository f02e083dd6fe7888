//! Generates completions with continuous batching.
//!
//! The queue is sorted by length. Completed rows are removed when they make up a quarter of the
//! batch, so that a long answer does not keep them in every matmul. Prompts from the queue then
//! join immediately. The completion of a row does not depend on the other rows.

mod batch;
mod choose;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tooltune_grammar::Constraint;
use tooltune_rows::text::{Specials, Tokenizer};

use self::batch::Batch;
use crate::config::Config;
pub use crate::config::Sampling;
use crate::error::Error;
use crate::models::Decoder;
pub use tooltune_terminal::{GenerationProgress, Waiting, Work};

/// Generation options.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationOptions {
    /// Maximum number of new tokens per completion.
    pub max_new_tokens: usize,
    /// Number of sequences decoded together.
    pub batch_size: usize,
    /// Maximum number of tokens in the key/value cache; a single sequence always fits.
    pub kv_cache_tokens: Option<usize>,
    /// Token ids that end a completion.
    pub stop_ids: Vec<u32>,
    /// Strings that end a completion; none is empty.
    pub stop_strings: Vec<String>,
    /// Maximum duration of a completion, starting when its prompt is processed.
    pub max_time: Option<Duration>,
    /// Sampling of tokens. Random numbers depend on `seed` and the prompt, not on the batch.
    pub sampling: Sampling,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl GenerationOptions {
    /// The options of a config, for a model with these stop tokens.
    pub fn from_config(config: &Config, stop_ids: &[u32]) -> Self {
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
    /// Greedy decoding without limits on time or memory.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum FinishReason {
    /// A stop token or stop string.
    Stop,
    /// `max_new_tokens` was reached, or the model's context is full.
    #[default]
    Length,
    /// The prompt already fills the model's context (`max_position_embeddings`).
    Context,
    /// `max_time` was reached.
    Time,
    /// The constraint reached a limit, so the completion is incomplete.
    Constraint,
}

impl FinishReason {
    /// The name used in `predictions.jsonl`.
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

/// A completion as token ids.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Generation {
    /// Tokens after the prompt, without the stop token but including the tokens of a stop string.
    pub ids: Vec<u32>,
    /// Why the completion ended.
    pub finish: FinishReason,
}

/// Decodes tokens up to the first stop string.
#[derive(Debug, Clone, Copy)]
pub struct StopStrings<'a> {
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Stop strings; none is empty.
    pub strings: &'a [String],
}

impl StopStrings<'_> {
    /// Decodes a completion up to the first stop string, with or without special tokens.
    ///
    /// # Errors
    ///
    /// The tokenizer does not know an id.
    pub fn text(&self, generation: &Generation, specials: Specials) -> Result<String, Error> {
        let mut text = self.tokenizer.decode(&generation.ids, specials)?;
        if let Some(end) = self.find_in(&text) {
            text.truncate(end);
        }
        Ok(text)
    }

    fn find_in(&self, text: &str) -> Option<usize> {
        let positions = self.strings.iter().filter_map(|stop| text.find(stop));
        positions.min()
    }

    /// Whether the last token completed a stop string.
    fn end(&self, ids: &[u32]) -> Result<bool, Error> {
        let Some(longest) = self.strings.iter().map(String::len).max() else {
            return Ok(false);
        };
        // Decode only the end: every token yields at least one byte, except parts of a multi-byte
        // character.
        let from = ids.len().saturating_sub(longest + 4);
        let tail = self.tokenizer.decode(&ids[from..], Specials::Skip)?;
        Ok(self.find_in(&tail).is_some())
    }
}

/// Prompts with their constraints.
#[derive(Debug, Clone, Copy)]
pub struct Jobs<'a> {
    /// Token ids.
    pub prompts: &'a [Vec<u32>],
    /// The constraint of each prompt; empty if no prompt is constrained.
    pub constraints: &'a [Option<Constraint>],
    /// The random stream of each prompt. If empty, each prompt uses its index.
    pub streams: &'a [u64],
    /// Stop strings.
    pub stop: Option<StopStrings<'a>>,
}

/// A prompt that joins a generation in progress.
#[derive(Debug, Clone)]
pub struct JoiningPrompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// The constraint of the completion.
    pub constraint: Option<Constraint>,
    /// The random stream.
    pub stream: u64,
}

/// Observes a generation.
pub trait Observer {
    /// Called when the batch has room for `_room` more prompts. The returned prompts join it; their
    /// numbers follow the numbers of earlier prompts.
    ///
    /// # Errors
    ///
    /// An error stops the work.
    fn joining(&mut self, _room: usize) -> Result<Vec<JoiningPrompt>, Error> {
        Ok(Vec::new())
    }

    /// Called after each token; `false` stops the work.
    fn progress(&mut self, progress: GenerationProgress) -> bool;

    /// Called when the unfinished completion of prompt `_prompt` has grown to these tokens.
    ///
    /// # Errors
    ///
    /// An error stops the work.
    fn token(&mut self, _prompt: usize, _ids: &[u32]) -> Result<(), Error> {
        Ok(())
    }

    /// Called when the completion of prompt `_prompt` has ended.
    ///
    /// # Errors
    ///
    /// An error stops the work.
    fn on_finished(&mut self, _prompt: usize, _generation: &Generation) -> Result<(), Error> {
        Ok(())
    }
}

impl<F: FnMut(GenerationProgress) -> bool + ?Sized> Observer for &mut F {
    fn progress(&mut self, progress: GenerationProgress) -> bool {
        self(progress)
    }
}

/// Completes each prompt and returns the completions in prompt order. `watch` is called after each
/// token; if it returns `false`, the result is `None`.
///
/// # Errors
///
/// The logits are not finite.
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

/// Completes each job and returns the completions in prompt order, or `None` if `observer` stopped
/// the work.
///
/// # Errors
///
/// Errors of `observer`, an id that the tokenizer does not know, or logits that are not finite.
pub fn complete(
    decoder: &Decoder,
    jobs: Jobs<'_>,
    options: &GenerationOptions,
    observer: &mut dyn Observer,
) -> Result<Option<Vec<Generation>>, Error> {
    let decoder = decoder.with_combined_adapters();
    let mut batch = Batch::new(&decoder, jobs, options);
    while batch.advance(observer)? {
        if !observer.progress(batch.progress()) {
            return Ok(None);
        }
    }
    Ok(Some(batch.into_generations()))
}
