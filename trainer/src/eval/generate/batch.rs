//! Decodes a batch of rows that is refilled from a queue of prompts.

use std::collections::VecDeque;
use std::time::Instant;

use burn::tensor::Tensor;
use rayon::prelude::*;
use tooltune_grammar::{Constraint, Mask};
use tooltune_kernels::cpu::spin_scope::with_spinning_threads;
use tooltune_kernels::is_cpu;
use tooltune_kernels::masked_argmax::masked_argmax;
use tooltune_rows::batches::SeededRandom;

use super::choose::{most_likely, sample_token};
use super::{
    FinishReason, Generation, GenerationOptions, GenerationProgress, Jobs, JoiningPrompt, Observer,
    Work,
};
use crate::config::Sampling;
use crate::error::Error;
use crate::models::Decoder;
use crate::models::kv_cache::KvCache;

/// A running batch and the prompts waiting to join it.
pub(super) struct Batch<'a> {
    decoder: &'a Decoder,
    jobs: Jobs<'a>,
    /// Prompts that joined later; their numbers follow those of `jobs`.
    joined: Vec<JoiningPrompt>,
    options: &'a GenerationOptions,
    queue: VecDeque<usize>,
    cache: Option<KvCache>,
    /// Rows of the cache, in cache order.
    rows: Vec<Row>,
    /// One completion per prompt, in prompt order.
    generations: Vec<Generation>,
    n_done: usize,
    n_tokens: usize,
}

/// A row of the cache.
struct Row {
    prompt: usize,
    generation: Generation,
    constraint: Option<Constraint>,
    random: SeededRandom,
    /// The last selected token.
    token: u32,
    since: Instant,
    /// Number of tokens that still fit into the model's context.
    room: usize,
    is_live: bool,
    /// Whether the constraint reached a limit, so that no further token is possible.
    is_stuck: bool,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        decoder: &'a Decoder,
        jobs: Jobs<'a>,
        options: &'a GenerationOptions,
    ) -> Self {
        let mut order: Vec<usize> = (0..jobs.prompts.len()).collect();
        order.sort_by_key(|&i| (jobs.prompts[i].len(), i));
        let mut batch = Self {
            decoder,
            jobs,
            joined: Vec::new(),
            options,
            queue: order.into(),
            cache: None,
            rows: Vec::new(),
            generations: vec![Generation::default(); jobs.prompts.len()],
            n_done: 0,
            n_tokens: 0,
        };
        if options.max_new_tokens == 0 {
            batch.n_done = batch.queue.len();
            batch.queue.clear();
        }
        batch
    }

    pub(super) fn progress(&self) -> GenerationProgress {
        GenerationProgress {
            work: Work::Generating,
            n_done: self.n_done,
            n_total: self.generations.len(),
            n_tokens: self.n_tokens,
            waiting: None,
        }
    }

    pub(super) fn into_generations(self) -> Vec<Generation> {
        self.generations
    }

    /// Adds a token to each row, or adds prompts with their first tokens to the batch. Returns
    /// `false` when every prompt is complete.
    pub(super) fn advance(&mut self, observer: &mut dyn Observer) -> Result<bool, Error> {
        let n_live = self.rows.iter().filter(|row| row.is_live).count();
        let has_joined = self.queue_joining(n_live, observer)?;
        let joins = 4 * n_live <= 3 * self.rows.len() || has_joined;
        self.drop_overlong(observer)?;
        let (first, logits) = if joins {
            let Some((first, hidden)) = self.refill(n_live) else {
                return Ok(n_live > 0);
            };
            (first, self.decoder.logits(hidden))
        } else {
            let Some(cache) = &mut self.cache else {
                return Ok(false);
            };
            let tokens: Vec<u32> = self.rows.iter().map(|row| row.token).collect();
            let device = self.decoder.device();
            let decode = || self.decoder.next_logits(cache, &tokens);
            (0, with_spinning_threads(&device, decode)?)
        };
        self.decoder.check_gathers()?;
        // A model that computes NaN does so from the first token, so later tokens are not checked.
        if joins && !logits.clone().sum().into_scalar::<f32>().is_finite() {
            return Err(Error::NonFiniteLogits);
        }
        self.choose(first, logits);
        self.take_tokens(first, observer)?;
        Ok(true)
    }

    /// If the queue is empty and a quarter of the batch is free, adds further prompts of the
    /// observer to the queue. Returns whether there are any.
    fn queue_joining(&mut self, n_live: usize, observer: &mut dyn Observer) -> Result<bool, Error> {
        let batch_size = self.options.batch_size.max(1);
        let is_full = !self.queue.is_empty() || 4 * n_live > 3 * batch_size;
        if is_full || self.options.max_new_tokens == 0 {
            return Ok(false);
        }
        let first = self.generations.len();
        self.joined.extend(observer.joining(batch_size - n_live)?);
        let n_prompts = self.jobs.prompts.len() + self.joined.len();
        self.generations.resize(n_prompts, Generation::default());
        let mut joining: Vec<usize> = (first..n_prompts).collect();
        joining.sort_by_key(|&prompt| (self.prompt_ids(prompt).len(), prompt));
        self.queue = joining.into();
        Ok(n_prompts > first)
    }

    fn prompt_ids(&self, prompt: usize) -> &[u32] {
        match prompt.checked_sub(self.jobs.prompts.len()) {
            None => &self.jobs.prompts[prompt],
            Some(joined) => &self.joined[joined].ids,
        }
    }

    /// Ends prompts that leave no room in the context. They are at the end of the queue, which is
    /// sorted by length.
    fn drop_overlong(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        while let Some(&prompt) = self.queue.back()
            && self.room_after(prompt) == 0
        {
            self.queue.pop_back();
            self.generations[prompt].finish = FinishReason::Context;
            self.n_done += 1;
            observer.on_finished(prompt, &self.generations[prompt])?;
        }
        Ok(())
    }

    fn room_after(&self, prompt: usize) -> usize {
        let context = self.decoder.config.max_position_embeddings;
        context.saturating_sub(self.prompt_ids(prompt).len())
    }

    /// Removes completed rows and adds prompts from the queue. Returns the index of the first new
    /// row and the last hidden states of the new prompts, if any.
    fn refill(&mut self, n_live: usize) -> Option<(usize, Tensor<2>)> {
        let kept_rows: Vec<usize> = (0..self.rows.len())
            .filter(|&row| self.rows[row].is_live)
            .collect();
        let mut longest = match &self.cache {
            Some(cache) if n_live > 0 => cache.longest(&kept_rows),
            _ => 0,
        };
        let mut new_row = Vec::new();
        while let Some(&prompt) = self.queue.front() {
            let n_rows = kept_rows.len() + new_row.len() + 1;
            let with_it = longest.max(self.prompt_ids(prompt).len());
            let room = n_rows * (with_it + self.options.max_new_tokens);
            let is_over = self.options.kv_cache_tokens.is_some_and(|most| room > most);
            if n_rows > self.options.batch_size.max(1) || (is_over && n_rows > 1) {
                break;
            }
            longest = with_it;
            new_row.push(prompt);
            self.queue.pop_front();
        }
        self.rows.retain(|row| row.is_live);
        if kept_rows.is_empty() && new_row.is_empty() {
            self.cache = None;
            return None;
        }
        let cache = self.cache.take();
        let prompts: Vec<&[u32]> = new_row
            .iter()
            .map(|&prompt| self.prompt_ids(prompt))
            .collect();
        let since = Instant::now();
        let n_new = self.options.max_new_tokens;
        let (cache, hidden) = self.decoder.refill(cache, &kept_rows, &prompts, n_new);
        self.cache = Some(cache);
        let joined = new_row.iter().map(|&prompt| self.new_row(prompt, since));
        let joined: Vec<Row> = joined.collect();
        self.rows.extend(joined);
        hidden.map(|hidden| (kept_rows.len(), hidden))
    }

    fn new_row(&self, prompt: usize, since: Instant) -> Row {
        let joined = prompt.checked_sub(self.jobs.prompts.len());
        let (stream, constraint) = match joined.map(|joined| &self.joined[joined]) {
            Some(joined) => (Some(joined.stream), joined.constraint.clone()),
            None => (
                self.jobs.streams.get(prompt).copied(),
                self.jobs.constraints.get(prompt).cloned().flatten(),
            ),
        };
        Row {
            prompt,
            generation: Generation::default(),
            constraint,
            random: SeededRandom::new(self.options.seed, stream.unwrap_or(prompt as u64)),
            token: 0,
            since,
            room: self.room_after(prompt),
            is_live: true,
            is_stuck: false,
        }
    }

    /// Selects the next token of the rows from index `first`; their logits have shape `[b, v]`.
    fn choose(&mut self, first: usize, logits: Tensor<2>) {
        let rows = &mut self.rows[first..];
        let sampling = self.options.sampling;
        let draws = sampling.temperature > 0.0;
        if !draws && !is_cpu(&logits.device()) {
            choose_on_device(rows, logits);
            return;
        }
        if !draws && rows.iter().all(|row| row.constraint.is_none()) {
            let ids = logits.argmax(1).into_data();
            for (row, id) in rows.iter_mut().zip(ids.iter::<i64>()) {
                row.token = id as u32;
            }
            return;
        }
        let [_, vocabulary] = logits.dims();
        let data = logits.into_data().convert::<f32>();
        let logits: &[f32] = data.as_slice().expect("converted to f32 above");
        // Use all threads: computing masks is slow here, because the forward pass evicted the
        // grammars from the CPU caches.
        let logits = logits.par_chunks_exact(vocabulary);
        rows.par_iter_mut().zip(logits).for_each(|(row, logits)| {
            if row.is_live {
                row.choose(logits, draws.then_some(sampling));
            }
        });
    }

    /// Appends the selected tokens to the rows from index `first`, and ends completed rows.
    fn take_tokens(&mut self, first: usize, observer: &mut dyn Observer) -> Result<(), Error> {
        for row in self.rows[first..].iter_mut().filter(|row| row.is_live) {
            let Some(finish) = row.finish(self.options, self.jobs)? else {
                self.n_tokens += 1;
                observer.token(row.prompt, &row.generation.ids)?;
                continue;
            };
            self.n_tokens += usize::from(!row.is_stuck);
            row.is_live = false;
            row.generation.finish = finish;
            self.n_done += 1;
            observer.on_finished(row.prompt, &row.generation)?;
            self.generations[row.prompt] = std::mem::take(&mut row.generation);
        }
        Ok(())
    }
}

/// Selects the most likely allowed token of each row on the device of the logits, because masks are
/// a few kilobytes and logits are megabytes.
fn choose_on_device(rows: &mut [Row], logits: Tensor<2>) {
    let masks: Vec<Option<Mask<'_>>> = rows.par_iter_mut().map(Row::mask).collect();
    let words: Vec<Option<&[u32]>> = masks
        .iter()
        .map(|mask| Some(mask.as_ref()?.words()))
        .collect();
    let tokens = masked_argmax(logits, &words);
    for (row, token) in rows.iter_mut().zip(tokens) {
        if row.is_live {
            row.take(token);
        }
    }
}

impl Row {
    /// The tokens that the constraint allows next; `None` without a working constraint.
    fn mask(&mut self) -> Option<Mask<'_>> {
        if !self.is_live {
            return None;
        }
        let mask = self.constraint.as_mut()?.mask();
        self.is_stuck |= mask.is_err();
        mask.ok()
    }

    /// Selects the next token among the allowed tokens.
    fn choose(&mut self, logits: &[f32], sampling: Option<Sampling>) {
        // Not `self.mask()`, which would borrow the whole row.
        let mask = self.constraint.as_mut().map(Constraint::mask);
        self.is_stuck |= matches!(mask, Some(Err(_)));
        let mask = mask.and_then(Result::ok);
        let token = match (sampling, mask) {
            (None, Some(mask)) => mask.argmax(logits),
            (None, None) => most_likely(logits),
            (Some(sampling), None) => sample_token(logits, sampling, &mut self.random),
            (Some(sampling), Some(mask)) => {
                let mut allowed = logits.to_vec();
                mask.apply(&mut allowed);
                sample_token(&allowed, sampling, &mut self.random)
            }
        };
        self.take(token);
    }

    /// Advances the constraint by the selected token.
    fn take(&mut self, token: u32) {
        self.token = token;
        if let Some(constraint) = &mut self.constraint {
            self.is_stuck |= constraint.consume(self.token).is_err();
        }
    }

    /// Appends the selected token. Returns the finish reason if the completion is done.
    fn finish(
        &mut self,
        options: &GenerationOptions,
        jobs: Jobs<'_>,
    ) -> Result<Option<FinishReason>, Error> {
        if self.is_stuck {
            return Ok(Some(FinishReason::Constraint));
        }
        if options.stop_ids.contains(&self.token) {
            return Ok(Some(FinishReason::Stop));
        }
        self.generation.ids.push(self.token);
        let ids = &self.generation.ids;
        if jobs.stop.map_or(Ok(false), |stop| stop.end(ids))? {
            return Ok(Some(FinishReason::Stop));
        }
        let is_late = |most| self.since.elapsed() >= most;
        Ok(if ids.len() == options.max_new_tokens.min(self.room) {
            Some(FinishReason::Length)
        } else if options.max_time.is_some_and(is_late) {
            Some(FinishReason::Time)
        } else {
            None
        })
    }
}
