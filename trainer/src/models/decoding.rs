//! Computes one new token per row. A GPU records the kernel launches once and replays them for each
//! token.
//!
//! Only token IDs, positions and cache columns change between tokens. They are in fixed buffers
//! ([`StepInputs`]).

use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Tensor;
use tooltune_kernels::DeviceIntegers;
use tooltune_kernels::attention::{self, DeviceColumns};
use tooltune_kernels::recording::{
    Inputs, Recordable, Recording, RecordingError, can_record, record,
};

use super::decoder::{AttentionInputs, BatchContext, Decoder, with_gates};
use super::kv_cache::{KvCache, LayerCache};
use super::layers::Mixer;

/// Minimum number of tokens per row for which launches are recorded. Recording takes as long as
/// computing two tokens, so it pays off only for longer rows.
const MIN_RECORDED_TOKENS: usize = 8;

/// Set after a replay returned wrong results; this process then stops recording.
static REPLAY_FAILED: AtomicBool = AtomicBool::new(false);

/// How the next token of a cache is computed.
#[derive(Debug)]
pub(super) enum Route {
    /// Kernels are launched individually.
    Plain,
    /// Kernels are launched and recorded.
    Recording,
    /// Recorded launches are replayed.
    Recorded(Box<RecordedStep>),
}

/// A recorded token with its inputs and outputs.
#[derive(Debug)]
pub(super) struct RecordedStep {
    recording: Recording,
    inputs: StepInputs,
    logits: Tensor<2>,
}

impl Route {
    /// Route for a cache with room for `n_new` tokens per row.
    pub(super) fn for_tokens(decoder: &Decoder, n_new: usize) -> Self {
        let config = &decoder.config;
        let is_attention = |layer: &super::layers::LayerKind| layer.mixer == Mixer::Attention;
        // Recording needs fixed buffers. Linear attention creates new state tensors for each token,
        // and query scaling depends on positions, so neither can be recorded.
        // Copies from host memory and gathers are not recorded either.
        let is_fixed = config.layers.iter().all(is_attention)
            && config.query_scaling.is_none()
            && !decoder.streams_weights();
        let is_worthwhile =
            is_fixed && n_new >= MIN_RECORDED_TOKENS && !REPLAY_FAILED.load(Ordering::Relaxed);
        match is_worthwhile && can_record(&decoder.device()) {
            true => Self::Recording,
            false => Self::Plain,
        }
    }
}

/// Inputs of the next token in each row, apart from weights and cache.
#[derive(Debug)]
struct StepInputs {
    token_ids: DeviceIntegers,
    context: BatchContext,
    /// Visible columns, for each window size.
    columns: Vec<(Option<usize>, DeviceColumns)>,
}

impl StepInputs {
    fn new(decoder: &Decoder, bounds: RowBounds<'_>, token_ids: &[u32]) -> Self {
        let end = bounds.filled + 1;
        let mut columns: Vec<(Option<usize>, DeviceColumns)> = Vec::new();
        for layer in &decoder.config.layers {
            if columns.iter().all(|(window, _)| *window != layer.window) {
                let starts = bounds.first_visible(layer.window);
                columns.push((layer.window, DeviceColumns::new(&starts, end)));
            }
        }
        Self {
            token_ids: DeviceIntegers::new(token_ids.to_vec()),
            context: BatchContext::with_long_context(
                decoder,
                &bounds.positions(),
                &[0],
                bounds.is_long_context,
            ),
            columns,
        }
    }

    /// Sets the inputs for the next token of the same rows.
    fn replace(&mut self, decoder: &Decoder, bounds: RowBounds<'_>, token_ids: &[u32]) {
        self.token_ids.replace(token_ids.to_vec());
        self.context.replace_positions(
            &decoder.config,
            &bounds.positions(),
            bounds.is_long_context,
        );
        for (window, columns) in &mut self.columns {
            columns.replace(&bounds.first_visible(*window), bounds.filled + 1);
        }
    }

    fn columns(&self, sliding_window: Option<usize>) -> &DeviceColumns {
        let entry = self
            .columns
            .iter()
            .find(|(window, _)| *window == sliding_window);
        &entry.expect("columns are made for every window").1
    }
}

/// Start and end columns of a cache's rows.
#[derive(Clone, Copy)]
struct RowBounds<'a> {
    starts: &'a [usize],
    filled: usize,
    is_long_context: &'a [bool],
}

impl RowBounds<'_> {
    /// Position of each row's next token in its text.
    fn positions(self) -> Vec<u32> {
        let position = |&start: &usize| (self.filled - start) as u32;
        self.starts.iter().map(position).collect()
    }

    /// First column that the next token of each row can attend to in a block with this window.
    fn first_visible(self, window: Option<usize>) -> Vec<usize> {
        let end = self.filled + 1;
        let first = end - window.unwrap_or(end).min(end);
        self.starts.iter().map(|&start| start.max(first)).collect()
    }
}

impl KvCache {
    /// Number of columns; `None` if no layer has a cache of columns.
    fn capacity(&self) -> Option<usize> {
        self.layers.iter().find_map(|layer| match layer {
            LayerCache::Attention([keys, _]) => Some(keys.dims()[2]),
            LayerCache::Linear(_) => None,
        })
    }

    fn bounds(&self) -> RowBounds<'_> {
        RowBounds {
            starts: &self.starts,
            filled: self.filled,
            is_long_context: &self.is_long_context,
        }
    }
}

/// The computation of one token per row, to be recorded.
struct TokenStep<'a> {
    decoder: &'a Decoder,
    layers: &'a mut [LayerCache],
    inputs: &'a mut StepInputs,
    bounds: RowBounds<'a>,
    token_ids: &'a [u32],
}

impl Recordable for TokenStep<'_> {
    type Output = Tensor<2>;

    fn launch(&mut self) -> Tensor<2> {
        let hidden = self.decoder.decode_blocks(self.layers, self.inputs);
        self.decoder.logits(hidden)
    }

    fn place_inputs(&mut self, inputs: Inputs) {
        let (mut bounds, mut token_ids) = (self.bounds, self.token_ids.to_vec());
        if inputs == Inputs::Different {
            // The next token writes the following column.
            bounds.filled += 1;
            let vocab_size = self.decoder.config.vocab_size as u32;
            token_ids
                .iter_mut()
                .for_each(|id| *id = (*id + 1) % vocab_size);
        }
        self.inputs.replace(self.decoder, bounds, &token_ids);
    }

    /// Returns the logits of the first and last row only. All rows use their inputs in the same
    /// way, and reading the logits of many rows takes longer than computing a token.
    fn numbers(logits: &Tensor<2>) -> Vec<f32> {
        let [rows, _] = logits.dims();
        let both = [0, rows - 1].map(|row| logits.clone().narrow(0, row, 1).into_data());
        both.iter().flat_map(|row| row.iter::<f32>()).collect()
    }
}

impl Decoder {
    /// Copy of the network for inference, whose adapters need fewer matmuls
    /// ([`StackedLinear::with_combined_adapter`](tooltune_kernels::StackedLinear::with_combined_adapter)).
    #[must_use]
    pub fn with_combined_adapters(&self) -> Self {
        let mut combined = self.clone();
        for block in &mut combined.blocks {
            block.stacks = block
                .stacks
                .each_ref()
                .map(|stack| stack.with_combined_adapter());
        }
        combined
    }

    /// Computes one new token per row and returns its normalized hidden state, `[b, d]`.
    pub fn decode(&self, cache: &mut KvCache, token_ids: &[u32]) -> Tensor<2> {
        let inputs = StepInputs::new(self, cache.bounds(), token_ids);
        let hidden = self.decode_blocks(&mut cache.layers, &inputs);
        cache.filled += 1;
        hidden
    }

    /// Computes one new token per row and returns its logits, `[b, v]`, f32.
    ///
    /// On a GPU, the result overwrites the logits of the previous token.
    ///
    /// # Errors
    ///
    /// A GPU replay does not reproduce the recorded results.
    ///
    /// # Panics
    ///
    /// Panics if the cache is full, which is a bug in the caller.
    pub fn next_logits(
        &self,
        cache: &mut KvCache,
        token_ids: &[u32],
    ) -> Result<Tensor<2>, RecordingError> {
        let n_free = cache
            .capacity()
            .map_or(usize::MAX, |all| all - cache.filled);
        assert!(n_free > 0, "next_logits: {} columns are full", cache.filled);
        // Not `KvCache::bounds`, which would borrow the whole cache.
        let bounds = RowBounds {
            starts: &cache.starts,
            filled: cache.filled,
            is_long_context: &cache.is_long_context,
        };
        let (route, layers) = (&mut cache.route, &mut cache.layers);
        if let Route::Recorded(step) = route {
            step.inputs.replace(self, bounds, token_ids);
            step.recording.replay()?;
            cache.filled += 1;
            return Ok(step.logits.clone());
        }
        // A recording also needs room for the column of the next token.
        if matches!(route, Route::Recording) && n_free > 1 {
            let mut inputs = StepInputs::new(self, bounds, token_ids);
            let mut token_step = TokenStep {
                decoder: self,
                layers,
                inputs: &mut inputs,
                bounds,
                token_ids,
            };
            match record(&self.device(), &mut token_step) {
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
                    if error == RecordingError::ResultsDiffer {
                        REPLAY_FAILED.store(true, Ordering::Relaxed);
                    }
                    tracing::warn!(
                        "generation uses individual kernel launches and is several times slower: recording \
                         a CUDA graph failed: {error}; set TOOLTUNE_CUDA_GRAPHS=0 to disable recording"
                    );
                }
            }
        }
        cache.route = Route::Plain;
        let hidden = self.decode(cache, token_ids);
        Ok(self.logits(hidden))
    }

    /// Computes the normalized hidden states of one new token per row, and adds its keys and values
    /// to the cache.
    fn decode_blocks(&self, layers: &mut [LayerCache], inputs: &StepInputs) -> Tensor<2> {
        self.begin_forward();
        let context = &inputs.context;
        let mut x = self.embed_from_buffer(&inputs.token_ids);
        for (cache, block) in layers.iter_mut().zip(&self.blocks) {
            let attended = match (cache, &block.linear) {
                (LayerCache::Linear(state), Some(net)) => {
                    let state_before = state.clone();
                    let (attended, next) =
                        block.decode_linear_attention(net, &x, context, state_before);
                    *state = next;
                    attended
                }
                (LayerCache::Attention(cache), _) => {
                    let AttentionInputs { qkv, gates } =
                        block.attention_inputs(&x, context, None, None);
                    let queries = context.shape.queries();
                    let columns = inputs.columns(block.kind.window);
                    let attended = attention::decode_step(qkv, queries, cache, columns);
                    with_gates(attended, gates)
                }
                (LayerCache::Linear(_), None) => unreachable!("a cache is created for its blocks"),
            };
            x = block.after_attention(x, attended, context.shape, None, None);
        }
        self.final_norm(x)
    }
}
