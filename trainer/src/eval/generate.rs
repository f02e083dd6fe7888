//! Prompts to greedy completions, in batches over a queue sorted by length.
//!
//! Rows that have stopped leave the batch as soon as a quarter of it has, so that one long answer
//! does not keep the others' rows in every product.

use burn::tensor::Tensor;

use crate::models::Decoder;
use crate::models::kv_cache::KvCache;

/// How completions are made; decoding is greedy, temperature 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerationOptions {
    /// Tokens after which a completion is cut.
    pub max_new_tokens: usize,
    /// Sequences that are decoded together.
    pub batch_size: usize,
    /// Any of these ends a completion.
    pub stop_ids: Vec<u32>,
}

/// One completion.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Generation {
    /// Tokens after the prompt, without the stop token.
    pub ids: Vec<u32>,
    /// Whether a stop token ended it; otherwise the limit did.
    pub stopped: bool,
}

/// Where a generation stands, told after each token.
#[derive(Debug, Clone, Copy)]
pub struct GenerationProgress {
    /// Completions that are done.
    pub n_done: usize,
    /// All completions.
    pub n_total: usize,
    /// Tokens so far.
    pub n_tokens: usize,
}

/// Completes each prompt; the result is in the order of `prompts`.
///
/// `watch` is called after each token and may end the work by returning `false`: the result is
/// then `None`.
pub fn generate(
    decoder: &Decoder,
    prompts: &[Vec<u32>],
    options: &GenerationOptions,
    watch: &mut dyn FnMut(GenerationProgress) -> bool,
) -> Option<Vec<Generation>> {
    let mut order: Vec<usize> = (0..prompts.len()).collect();
    order.sort_by_key(|&i| (prompts[i].len(), i));
    let mut generations = vec![Generation::default(); prompts.len()];
    let mut progress = GenerationProgress {
        n_done: 0,
        n_total: prompts.len(),
        n_tokens: 0,
    };
    for ids in order.chunks(options.batch_size.max(1)) {
        generate_batch(decoder, prompts, ids, options, &mut |finished| {
            progress.n_tokens += finished.n_tokens;
            for (i, generation) in finished.done {
                progress.n_done += 1;
                generations[i] = generation;
            }
            watch(progress)
        })?;
    }
    Some(generations)
}

struct Finished {
    n_tokens: usize,
    done: Vec<(usize, Generation)>,
}

fn generate_batch(
    decoder: &Decoder,
    prompts: &[Vec<u32>],
    ids: &[usize],
    options: &GenerationOptions,
    report: &mut dyn FnMut(Finished) -> bool,
) -> Option<()> {
    let batch: Vec<&[u32]> = ids.iter().map(|&i| prompts[i].as_slice()).collect();
    let (mut cache, mut hidden) = decoder.prefill(&batch, options.max_new_tokens);
    // Rows of the cache: which prompt each is, and its tokens so far.
    let mut rows: Vec<(usize, Generation)> =
        ids.iter().map(|&i| (i, Generation::default())).collect();
    let mut live = vec![true; rows.len()];
    for n_generated in 1..=options.max_new_tokens {
        let tokens = most_likely(decoder, hidden);
        let mut done = Vec::new();
        let mut n_tokens = 0;
        for (row, &token) in tokens.iter().enumerate().filter(|&(row, _)| live[row]) {
            let generation = &mut rows[row].1;
            n_tokens += 1;
            generation.stopped = options.stop_ids.contains(&token);
            if !generation.stopped {
                generation.ids.push(token);
            }
            if generation.stopped || n_generated == options.max_new_tokens {
                done.push((rows[row].0, std::mem::take(&mut rows[row].1)));
            }
        }
        done.iter().for_each(|(i, _)| {
            let row = rows.iter().position(|(id, _)| id == i).expect("a live row");
            live[row] = false;
        });
        if !report(Finished { n_tokens, done }) {
            return None;
        }
        if n_generated == options.max_new_tokens || !live.contains(&true) {
            break;
        }
        let tokens = drop_finished(&mut cache, &mut rows, &mut live, tokens);
        hidden = decoder.decode(&mut cache, &tokens);
    }
    Some(())
}

/// Removes finished rows once they are a quarter of the batch; returns the remaining tokens.
fn drop_finished(
    cache: &mut KvCache,
    rows: &mut Vec<(usize, Generation)>,
    live: &mut Vec<bool>,
    tokens: Vec<u32>,
) -> Vec<u32> {
    let kept: Vec<usize> = (0..live.len()).filter(|&row| live[row]).collect();
    if 4 * kept.len() > 3 * live.len() {
        return tokens;
    }
    cache.retain(&kept);
    *rows = kept
        .iter()
        .map(|&row| std::mem::take(&mut rows[row]))
        .collect();
    *live = vec![true; kept.len()];
    kept.iter().map(|&row| tokens[row]).collect()
}

fn most_likely(decoder: &Decoder, hidden: Tensor<2>) -> Vec<u32> {
    let ids = decoder.logits(hidden).argmax(1).into_data();
    ids.iter::<i64>().map(|id| id as u32).collect()
}
