//! One new token a row: the same work for each token, which a GPU records once and does again.
//!
//! What changes from token to token, ids, positions and columns, lies where the work finds it
//! ([`StepInputs`]), and nothing else does.

use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;
use tooltune_kernels::HeldNumbers;
use tooltune_kernels::attention::{self, HeldColumns};
use tooltune_kernels::recording::{Inputs, Recordable, Recording, RecordingError, record, records};

use super::decoder::{AttentionInputs, BatchContext, Decoder, with_gates};
use super::kv_cache::{KvCache, LayerCache};
use super::layers::Mixer;

/// Tokens a row below which a recording, which takes as long as two of them, is not worth it.
const RECORDED_TOKENS: usize = 8;

/// Whether a recording gave other tokens here: nothing is recorded any more.
static IS_WRONG: AtomicBool = AtomicBool::new(false);

/// How the next token of a cache is computed.
#[derive(Debug)]
pub(super) enum Route {
    /// By launches of its own.
    Plain,
    /// By launches that are recorded.
    Records,
    /// By those that were recorded.
    Recorded(Box<RecordedStep>),
}

/// A token that was recorded, with what it reads and gives.
#[derive(Debug)]
pub(super) struct RecordedStep {
    recording: Recording,
    inputs: StepInputs,
    logits: Tensor<2>,
}

impl Route {
    /// That of a cache with room for `n_new` tokens a row.
    pub(super) fn for_tokens(decoder: &Decoder, n_new: usize) -> Self {
        let config = &decoder.config;
        let is_same = |layer: &super::layers::LayerKind| layer.mixer == Mixer::Attention;
        // The state of linear attention is another tensor after each token, and growth begins anywhere.
        let is_fixed = config.layers.iter().all(is_same) && config.query_growth.is_none();
        let is_tried = is_fixed && n_new >= RECORDED_TOKENS && !IS_WRONG.load(Ordering::Relaxed);
        match is_tried && records(&decoder.device()) {
            true => Self::Records,
            false => Self::Plain,
        }
    }
}

/// What a token of each row is computed from, beside weights and cache.
#[derive(Debug)]
struct StepInputs {
    token_ids: HeldNumbers,
    context: BatchContext,
    /// The columns that blocks with each window see.
    columns: Vec<(Option<usize>, HeldColumns)>,
}

impl StepInputs {
    fn new(decoder: &Decoder, ends: Ends<'_>, token_ids: &[u32]) -> Self {
        let end = ends.filled + 1;
        let mut columns: Vec<(Option<usize>, HeldColumns)> = Vec::new();
        for layer in &decoder.config.layers {
            if columns.iter().all(|(window, _)| *window != layer.window) {
                let starts = ends.seen(layer.window);
                columns.push((layer.window, HeldColumns::new(&starts, end)));
            }
        }
        Self {
            token_ids: HeldNumbers::new(token_ids.to_vec()),
            context: BatchContext::with_long(decoder, &ends.positions(), &[0], ends.is_long),
            columns,
        }
    }

    /// The next token of the same rows.
    fn replace(&mut self, decoder: &Decoder, ends: Ends<'_>, token_ids: &[u32]) {
        self.token_ids.replace(token_ids.to_vec());
        self.context
            .replace_positions(&decoder.config, &ends.positions(), ends.is_long);
        for (window, columns) in &mut self.columns {
            columns.replace(&ends.seen(*window), ends.filled + 1);
        }
    }

    fn columns(&self, of: Option<usize>) -> &HeldColumns {
        let found = self.columns.iter().find(|(window, _)| *window == of);
        &found.expect("columns are made for every window").1
    }
}

/// Where the rows of a cache begin and end.
#[derive(Clone, Copy)]
struct Ends<'a> {
    starts: &'a [usize],
    filled: usize,
    is_long: &'a [bool],
}

impl Ends<'_> {
    /// Where the next token of each row stands in its text.
    fn positions(self) -> Vec<u32> {
        let position = |&start: &usize| (self.filled - start) as u32;
        self.starts.iter().map(position).collect()
    }

    /// The first columns that the rows see from the next one, within a window.
    fn seen(self, window: Option<usize>) -> Vec<usize> {
        let end = self.filled + 1;
        let first = end - window.unwrap_or(end).min(end);
        self.starts.iter().map(|&start| start.max(first)).collect()
    }
}

impl KvCache {
    /// Columns that there is room for; `None` where no layer has a cache of columns.
    fn capacity(&self) -> Option<usize> {
        self.layers.iter().find_map(|layer| match layer {
            LayerCache::Attention([keys, _]) => Some(keys.dims()[2]),
            LayerCache::Linear(_) => None,
        })
    }

    fn ends(&self) -> Ends<'_> {
        Ends {
            starts: &self.starts,
            filled: self.filled,
            is_long: &self.is_long,
        }
    }
}

/// A token of each row, which is recorded.
struct NewToken<'a> {
    decoder: &'a Decoder,
    layers: &'a mut [LayerCache],
    inputs: &'a mut StepInputs,
    ends: Ends<'a>,
    token_ids: &'a [u32],
}

impl Recordable for NewToken<'_> {
    type Given = Tensor<2>;

    fn launch(&mut self) -> Tensor<2> {
        let hidden = self.decoder.decoded(self.layers, self.inputs);
        self.decoder.logits(hidden)
    }

    fn place_inputs(&mut self, inputs: Inputs) {
        let (mut ends, mut token_ids) = (self.ends, self.token_ids.to_vec());
        if inputs == Inputs::Other {
            // The column behind, which the next token writes.
            ends.filled += 1;
            let others = self.decoder.config.vocab_size as u32;
            token_ids.iter_mut().for_each(|id| *id = (*id + 1) % others);
        }
        self.inputs.replace(self.decoder, ends, &token_ids);
    }

    /// Logits of the first and the last row: all rows find their inputs in the same way, and those of many
    /// rows take longer to read than a token to compute.
    fn numbers(logits: &Tensor<2>) -> Vec<f32> {
        let [rows, _] = logits.dims();
        let both = [0, rows - 1].map(|row| logits.clone().narrow(0, row, 1).into_data());
        both.iter().flat_map(|row| row.iter::<f32>()).collect()
    }
}

impl Decoder {
    /// The same network for texts that are only read and written: its adapters are computed by fewer
    /// products ([`StackedLinear::joined`](tooltune_kernels::StackedLinear::joined)).
    #[must_use]
    pub fn joined(&self) -> Self {
        let mut joined = self.clone();
        for block in &mut joined.blocks {
            block.stacks = block.stacks.each_ref().map(|stack| stack.joined());
        }
        joined
    }

    /// Reads one new token a row and returns its normed hidden state, `[b, d]`.
    pub fn decode(&self, cache: &mut KvCache, token_ids: &[u32]) -> Tensor<2> {
        let inputs = StepInputs::new(self, cache.ends(), token_ids);
        let hidden = self.decoded(&mut cache.layers, &inputs);
        cache.filled += 1;
        hidden
    }

    /// Reads one new token a row and returns the logits behind it, `[b, v]`, f32 or bf16.
    ///
    /// On a GPU they lie where those of the last token lay, which are gone then.
    ///
    /// # Errors
    ///
    /// A GPU that does not do again what it has recorded.
    ///
    /// # Panics
    ///
    /// If the cache has no room left: a bug of the caller.
    pub fn next_logits(
        &self,
        cache: &mut KvCache,
        token_ids: &[u32],
    ) -> Result<Tensor<2>, RecordingError> {
        let room = cache
            .capacity()
            .map_or(usize::MAX, |all| all - cache.filled);
        assert!(room > 0, "next_logits: {} columns are full", cache.filled);
        // As `KvCache::ends`, which would borrow all of the cache.
        let ends = Ends {
            starts: &cache.starts,
            filled: cache.filled,
            is_long: &cache.is_long,
        };
        let (route, layers) = (&mut cache.route, &mut cache.layers);
        if let Route::Recorded(step) = route {
            step.inputs.replace(self, ends, token_ids);
            step.recording.replay()?;
            cache.filled += 1;
            return Ok(step.logits.clone());
        }
        // A recording needs room for the column of the next token, too.
        if matches!(route, Route::Records) && room > 1 {
            let mut inputs = StepInputs::new(self, ends, token_ids);
            let mut token = NewToken {
                decoder: self,
                layers,
                inputs: &mut inputs,
                ends,
                token_ids,
            };
            match record(&self.device(), &mut token) {
                Ok((logits, recording)) => {
                    *route = match recording {
                        Some(recording) => Route::Recorded(Box::new(RecordedStep {
                            recording,
                            inputs,
                            logits: logits.clone(),
                        })),
                        None => Route::Plain,
                    };
                    cache.filled += 1;
                    return Ok(logits);
                }
                Err(error) => {
                    if error == RecordingError::OtherResults {
                        IS_WRONG.store(true, Ordering::Relaxed);
                    }
                    tracing::warn!(
                        "tokens are computed by launches of their own, several times slower: the GPU did not \
                         record them: {error}; TOOLTUNE_CUDA_GRAPHS=0 does not ask it to"
                    );
                }
            }
        }
        cache.route = Route::Plain;
        let hidden = self.decode(cache, token_ids);
        Ok(self.logits(hidden))
    }

    /// The normed hidden states of one new token a row, whose keys and values go into the cache.
    fn decoded(&self, layers: &mut [LayerCache], inputs: &StepInputs) -> Tensor<2> {
        let context = &inputs.context;
        let mut x = self.embed_held(&inputs.token_ids);
        for (kept, block) in layers.iter_mut().zip(&self.blocks) {
            let attended = match (kept, &block.linear) {
                (LayerCache::Linear(state), Some(net)) => {
                    let state_before = state.clone();
                    let (attended, next) = block.decoded_linearly(net, &x, context, state_before);
                    *state = next;
                    attended
                }
                (LayerCache::Attention(kept), _) => {
                    let AttentionInputs { qkv, gates } =
                        block.attention_inputs(&x, context, None, None);
                    let queries = context.shape.queries();
                    let columns = inputs.columns(block.kind.window);
                    let attended = attention::decode_step(qkv, queries, kept, columns);
                    with_gates(attended, gates)
                }
                (LayerCache::Linear(_), None) => unreachable!("a cache is made for its blocks"),
            };
            x = block.after_attention(x, attended, context.shape, None, None);
        }
        self.final_norm(x)
    }
}
