//! Caches the keys and values of earlier tokens and the states of linear attention, so that a new
//! token computes only one row per layer.
//!
//! Rows of keys and values are right-aligned. Prompts of different lengths can therefore append
//! every new token at the same column, and one mask hides the columns left of shorter rows.

use std::ops::Range;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use tooltune_kernels::PromptPositions;
use tooltune_kernels::attention::{append_prompts, empty_cache};

use super::decoder::{BatchContext, Decoder};
use super::decoding::Route;
use super::layers::Mixer;
use super::linear_attention::{LinearShape, LinearState};

/// Maximum number of tokens in one prefill pass, which limits its activations.
pub(crate) const PREFILL_TOKENS: usize = 2048;

/// The cache of a batch of sequences.
#[derive(Debug)]
pub struct KvCache {
    pub(super) layers: Vec<LayerCache>,
    /// First used column of each row.
    pub(super) starts: Vec<usize>,
    /// Columns in use.
    pub(super) filled: usize,
    /// Marks rows whose prompts are longer than the context of pre-training; empty if the length
    /// has no effect.
    pub(super) is_long_context: Vec<bool>,
    /// How the next token is computed.
    pub(super) route: Route,
}

/// Cache of one layer.
#[derive(Debug)]
pub(super) enum LayerCache {
    /// Keys and values, `[b, g, capacity, c]` each.
    Attention([Tensor<4>; 2]),
    /// State after the last token.
    Linear(LinearState),
}

/// Rows that a new cache takes over, in this order.
struct KeptRows<'a> {
    cache: KvCache,
    rows: &'a [usize],
}

impl KvCache {
    /// Creates a cache for rows of `lens` tokens, with room for `n_new` more. The first rows are
    /// copied from `old`, if given; the others are empty.
    fn new(decoder: &Decoder, lens: &[usize], n_new: usize, old: Option<KeptRows<'_>>) -> Self {
        let (config, device) = (&decoder.config, decoder.device());
        let dtype = decoder.compute_dtype().dtype();
        let longest = lens.iter().copied().max().unwrap_or(0);
        let shape = [
            lens.len(),
            config.num_key_value_heads,
            longest + n_new,
            config.head_dim,
        ];
        let moved = old
            .as_ref()
            .map(|old| old.cache.row_copy(old.rows, longest, shape, &device));
        let is_long_context = match config.short_context() {
            Some(context) => {
                let kept = old.iter().flat_map(|old| {
                    let is_long_context = |&row: &usize| old.cache.is_long_context[row];
                    old.rows.iter().map(is_long_context)
                });
                let kept: Vec<bool> = kept.collect();
                let new = lens[kept.len()..].iter().map(|&len| len > context);
                kept.iter().copied().chain(new).collect()
            }
            None => Vec::new(),
        };
        let old = old.map_or(Vec::new(), |old| old.cache.layers);
        // Copy one layer at a time, so that at most one layer is in memory twice.
        let mut old = old.into_iter();
        let layers = config.layers.iter().map(|kind| {
            let old = old.next().zip(moved.as_ref());
            let empty = || empty_cache(shape, dtype, &device);
            match (kind.mixer, config.linear, old) {
                (Mixer::Linear, Some(linear), old) => {
                    let empty = empty_state(linear, lens.len(), (&device, dtype));
                    LayerCache::Linear(match old {
                        Some((LayerCache::Linear(old), moved)) => moved.copy_state(old, empty),
                        _ => empty,
                    })
                }
                (_, _, Some((LayerCache::Attention(old), moved))) => {
                    LayerCache::Attention(old.map(|layer| moved.copy(layer, empty())))
                }
                _ => LayerCache::Attention([empty(), empty()]),
            }
        });
        Self {
            layers: layers.collect(),
            starts: lens.iter().map(|len| longest - len).collect(),
            filled: longest,
            is_long_context,
            route: Route::for_tokens(decoder, n_new),
        }
    }

    /// Describes how to copy `rows` to a cache of `shape` whose rows end at column `end`. All rows
    /// are shifted by the same number of columns, because both caches are right-aligned.
    fn row_copy(&self, rows: &[usize], end: usize, shape: [usize; 4], device: &Device) -> RowCopy {
        let width = self.longest(rows);
        let ids: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        RowCopy {
            rows: Tensor::from_data(TensorData::new(ids, [rows.len()]), device),
            columns: self.filled - width..self.filled,
            to: [0..rows.len(), 0..shape[1], end - width..end, 0..shape[3]],
        }
    }

    /// Number of tokens in the longest of `rows`.
    pub fn longest(&self, rows: &[usize]) -> usize {
        let lens = rows.iter().map(|&row| self.filled - self.starts[row]);
        lens.max().unwrap_or(0)
    }
}

/// States of empty rows.
fn empty_state(
    LinearShape { heads, kernel }: LinearShape,
    rows: usize,
    (device, dtype): (&Device, DType),
) -> LinearState {
    let shape = [rows, heads.value_heads, heads.key_dim, heads.value_dim];
    LinearState {
        head_states: Tensor::zeros(shape, (device, DType::F32)),
        tokens: Tensor::zeros([rows, kernel - 1, heads.width()], (device, dtype)),
    }
}

/// Writes the states of prompts to the rows from index `first_row`.
fn fill_states(all: &mut LinearState, first_row: usize, read: LinearState) {
    let [n, heads, key_dim, value_dim] = read.head_states.dims();
    let [_, n_kept, width] = read.tokens.dims();
    let rows = first_row..first_row + n;
    let ranges = [rows.clone(), 0..heads, 0..key_dim, 0..value_dim];
    all.head_states
        .inplace(|state| state.slice_assign(ranges, read.head_states));
    let ranges = [rows, 0..n_kept, 0..width];
    all.tokens
        .inplace(|tokens| tokens.slice_assign(ranges, read.tokens));
}

/// Rows to copy from one cache to another.
struct RowCopy {
    rows: Tensor<1, Int>,
    columns: Range<usize>,
    to: [Range<usize>; 4],
}

impl RowCopy {
    fn copy(&self, layer: Tensor<4>, empty: Tensor<4>) -> Tensor<4> {
        let columns = layer.narrow(2, self.columns.start, self.columns.len());
        empty.slice_assign(self.to.clone(), columns.select(0, self.rows.clone()))
    }

    fn copy_state(&self, old: LinearState, mut empty: LinearState) -> LinearState {
        let rows = || self.rows.clone();
        let selected = LinearState {
            head_states: old.head_states.select(0, rows()),
            tokens: old.tokens.select(0, rows()),
        };
        fill_states(&mut empty, 0, selected);
        empty
    }
}

impl Decoder {
    /// Creates a cache with the rows `kept` of `cache`, followed by new rows for `prompts`, which
    /// are prefilled. Each row has room for `n_new` tokens. Also returns the normalized hidden
    /// state of each prompt's last token, `[prompts, d]`, if there are prompts.
    pub fn refill(
        &self,
        cache: Option<KvCache>,
        kept: &[usize],
        prompts: &[&[u32]],
        n_new: usize,
    ) -> (KvCache, Option<Tensor<2>>) {
        let mut old = cache.filter(|_| !kept.is_empty());
        // A recording refers to the old buffers.
        if let Some(old) = &mut old {
            old.route = Route::Plain;
        }
        let len_of = |old: &KvCache, row: usize| old.filled - old.starts[row];
        let kept_lens = old
            .iter()
            .flat_map(|old| kept.iter().map(|&row| len_of(old, row)));
        let mut lens: Vec<usize> = kept_lens.collect();
        let n_kept = lens.len();
        lens.extend(prompts.iter().map(|prompt| prompt.len()));
        let old = old.map(|cache| KeptRows { cache, rows: kept });
        let mut cache = KvCache::new(self, &lens, n_new, old);
        if prompts.is_empty() {
            return (cache, None);
        }
        let hidden = self.read_prompts(prompts, n_kept, &mut cache);
        (cache, Some(hidden))
    }

    /// Prefills prompts into the rows from index `first_row`.
    fn read_prompts(&self, prompts: &[&[u32]], first_row: usize, cache: &mut KvCache) -> Tensor<2> {
        let lens: Vec<usize> = prompts.iter().map(|prompt| prompt.len()).collect();
        let mut last_rows = Vec::with_capacity(prompts.len());
        let mut first = 0;
        while first < prompts.len() {
            let mut end = first + 1;
            let mut n_tokens = lens[first];
            while end < prompts.len() && n_tokens + lens[end] <= PREFILL_TOKENS {
                n_tokens += lens[end];
                end += 1;
            }
            last_rows.push(self.prefill_part(&prompts[first..end], first_row + first, cache));
            first = end;
        }
        self.final_norm(Tensor::cat(last_rows, 0))
    }

    fn prefill_part(&self, prompts: &[&[u32]], first_row: usize, cache: &mut KvCache) -> Tensor<2> {
        let device = self.device();
        let input_ids: Vec<u32> = prompts.concat();
        let positions: Vec<u32> = prompts
            .iter()
            .flat_map(|prompt| 0..prompt.len() as u32)
            .collect();
        let mut borders = vec![0];
        for prompt in prompts {
            borders.push(borders[borders.len() - 1] + prompt.len());
        }
        let context = BatchContext::new(self, &positions, &borders);
        let lasts: Vec<i32> = borders[1..].iter().map(|&end| end as i32 - 1).collect();
        let n_lasts = lasts.len();
        let lasts: Tensor<1, Int> = Tensor::from_data(TensorData::new(lasts, [n_lasts]), &device);
        let places = PromptPositions::new(&borders, first_row, cache.filled);
        self.begin_forward();
        let mut x = self.embed(&input_ids);
        for (layer, block) in self.blocks.iter().enumerate() {
            let mut attended = match (&mut cache.layers[layer], &block.linear) {
                (LayerCache::Linear(states), Some(net)) => {
                    let (attended, read) = block.linear_attention_with_states(net, &x, &context);
                    fill_states(states, first_row, read);
                    attended
                }
                (LayerCache::Attention(cache), _) => {
                    let inputs = block.attention_inputs(&x, &context, None, None);
                    append_prompts(&inputs.qkv, cache, &places);
                    block.attention_output(inputs, &context)
                }
                (LayerCache::Linear(_), None) => unreachable!("a cache is created for its blocks"),
            };
            // After the last attention, only the last token of each prompt is needed.
            if layer + 1 == self.blocks.len() {
                x = x.select(0, lasts.clone());
                attended = attended.select(0, lasts.clone());
            }
            x = block.after_attention(x, attended, context.shape, None, None);
        }
        x
    }
}
