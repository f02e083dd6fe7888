//! Computes the adapter gradient of a micro-batch. At any time, only one block has an autodiff
//! graph.
//!
//! The forward pass runs without autodiff and keeps each block's input. The loss gives the gradient
//! of the last hidden states. Then each block, from last to first, runs again under autodiff and
//! returns the gradient of its input. The peak memory is the block inputs, `layers * n * d`, and
//! the activations of one block. Blocks that keep their activations need more memory and a third
//! less compute.
//!
//! Unused values are not computed: after its attention, the last block processes only the
//! supervised rows, and the backward pass ends with the factors of the first adapted block.

use burn::tensor::{IndexingUpdateOp, Tensor, TensorData};
use thiserror::Error;
use tooltune_kernels::backward_with_gradient::backward_with_gradient;
use tooltune_kernels::host_memory::{BlockInputs, HostMemoryError};
use tooltune_kernels::linear_cross_entropy::distilled::distilled_cross_entropy;
use tooltune_kernels::linear_cross_entropy::linear_cross_entropy;
use tooltune_kernels::linear_cross_entropy::trained::trained_cross_entropy;
use tooltune_kernels::lora_linear::FlatGradient;
use tooltune_kernels::node_memory::Pass;
use tooltune_kernels::{Distillation, RowIndices, Supervision, operation};
use tooltune_rows::batches::MicroBatch;

use super::EmbeddingNoise;
use crate::lora::AdapterSlot;
use crate::models::decoder::Block;
use crate::models::{BatchContext, Decoder};
use tooltune_kernels::DropoutKey;

/// Options for differentiating a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackwardOptions {
    /// `1 / sum_loss_weights` of the whole optimizer step.
    pub gradient_scale: f64,
    /// Dropout of the micro-batch.
    pub dropout: Option<DropoutKey>,
    /// Noise on the embeddings.
    pub noise: Option<EmbeddingNoise>,
    /// Number of last blocks that keep their activations instead of recomputing them.
    pub n_kept_blocks: usize,
    /// Whether a CUDA GPU keeps the inputs of the other blocks in host memory.
    pub offloads_inputs: bool,
    /// Number of supervised rows whose logits are alive at once.
    pub chunk_rows: usize,
    /// Self-distillation from the model without its adapter, if enabled.
    pub distillation: Option<Distillation>,
}

/// Contribution of a micro-batch to the step.
#[derive(Debug, Clone)]
pub struct MicroBatchGradient {
    /// Weighted sum of the negative log-likelihoods, in nats; with distillation, mixed with the
    /// divergence.
    pub loss_sum: f64,
    /// Gradient of `loss_sum * gradient_scale` with respect to the flat adapter buffer, `[p]`.
    pub gradient: Tensor<1>,
}

/// Why a step has no gradient.
#[derive(Debug, Error)]
pub enum StepError {
    /// No token is supervised.
    #[error("the micro-batch of rows {0} has no supervised token; its gradient would be empty")]
    NoSupervision(String),
    /// Autodiff did not reach a factor. Without this error, the run would silently train less.
    #[error(
        "an adapter of block {layer} received no gradient in the backward pass; this is a bug, \
         please report it"
    )]
    NoGradient {
        /// Index of the block.
        layer: usize,
    },
    /// A block input does not fit in host memory.
    #[error(
        "train.gradient_checkpointing = \"offload\": {0}; free host memory, or set it to \"full\""
    )]
    HostMemory(#[from] HostMemoryError),
    /// Autodiff did not reach a parameter of the retriever.
    #[error(
        "a parameter of the retriever received no gradient in the backward pass; this is a bug, \
         please report it"
    )]
    NoEncoderGradient,
    /// A token ID has no embedding.
    #[error(
        "token id {id} is outside the model's vocabulary of {vocab_size}; \
         the tokenizer belongs to a different model"
    )]
    TokenOutsideVocabulary {
        /// The id.
        id: u32,
        /// Number of embeddings.
        vocab_size: usize,
    },
}

/// The state that the forward pass keeps for a block.
enum Kept {
    Input(Box<Tensor<2>>),
    /// The input is the last of [`BlockStates::offloaded`].
    Offloaded,
    Graph(Box<BlockGraph>),
}

/// The states of all blocks from the first adapted one on.
#[derive(Default)]
struct BlockStates {
    kept: Vec<Kept>,
    offloaded: BlockInputs,
}

/// A block's forward pass under autodiff.
struct BlockGraph {
    /// The input leaf, if its gradient is needed.
    input: Option<Tensor<2>>,
    output: Tensor<2>,
    /// Trained values of each stack with an adapter.
    factors: Vec<Tensor<1>>,
}

/// Called after each block with the finished share of the micro-batch, from 0 to 1. Returns whether
/// to continue.
pub type Watch<'a> = dyn FnMut(f64) -> bool + 'a;

/// Differentiates one micro-batch. The adapters must be attached to `decoder`; `slots` describes
/// them.
///
/// # Errors
///
/// No token is supervised, a token id is outside the vocabulary, or a factor has no gradient.
///
/// # Source
///
/// Chen et al. 2016 ("Training Deep Nets with Sublinear Memory Cost"), with one block per segment.
pub fn backward(
    decoder: &Decoder,
    slots: &[AdapterSlot],
    batch: &MicroBatch,
    options: BackwardOptions,
) -> Result<MicroBatchGradient, StepError> {
    let gradients = backward_watched(decoder, slots, batch, options, &mut |_| true)?;
    Ok(gradients.expect("the pass is never stopped"))
}

/// Like [`backward`], but reports progress to `watch`. Returns `None` if `watch` stopped the pass;
/// the partial result is discarded.
///
/// # Errors
///
/// As for [`backward`].
pub fn backward_watched(
    decoder: &Decoder,
    slots: &[AdapterSlot],
    batch: &MicroBatch,
    options: BackwardOptions,
    watch: &mut Watch<'_>,
) -> Result<Option<MicroBatchGradient>, StepError> {
    let supervision = Supervision::new(&batch.targets, &batch.loss_weights);
    check_batch(decoder, batch, &supervision)?;
    let context = BatchContext::new(decoder, &batch.position_ids, &batch.cu_seqlens);
    let rows = supervision.row_numbers();
    let teacher = options.distillation.map(|how| {
        let teacher = without_adapters(decoder);
        let hidden = teacher.forward_rows(&batch.input_ids, &context, &rows);
        Teacher { how, hidden }
    });
    let first_adapted = first_trained(decoder, slots);
    if let Some(node) = &decoder.node {
        node.begin(Pass::Training {
            first_trained: first_adapted,
        });
    }
    let pass = BlockwisePass {
        decoder,
        context: &context,
        dropout: options.dropout,
        noise: options
            .noise
            .map(|noise| (noise, batch.cu_seqlens.as_slice())),
        first_adapted,
        rows,
        slots,
        gradient: FlatGradient::new(slots.iter().map(AdapterSlot::n_values).sum()),
    };
    let mut progress = Progress::new(&pass, options.n_kept_blocks, watch);
    let Some((mut block_states, last)) = pass.forward(&batch.input_ids, options, &mut progress)?
    else {
        return Ok(None);
    };
    let HeadGradients {
        loss_sum,
        d_last,
        d_head,
    } = head(decoder, last, teacher, &supervision, options);

    let mut parts: Vec<Tensor<1>> = Vec::with_capacity(slots.len());
    let mut d_input = Some(d_last);
    for layer in (pass.first_adapted..decoder.blocks.len()).rev() {
        let recomputed = Progress::FORWARD + Progress::BACKWARD;
        let (graph, cost) = match block_states.kept.pop().expect(ONE_FOR_EACH) {
            Kept::Graph(graph) => (*graph, Progress::BACKWARD),
            Kept::Input(input) => (pass.recompute_graph(layer, *input), recomputed),
            Kept::Offloaded => {
                let input = block_states.offloaded.pop().expect(ONE_FOR_EACH);
                (pass.recompute_graph(layer, input), recomputed)
            }
        };
        let Some(d_output) = d_input.take() else {
            break;
        };
        d_input = block_backward(graph, d_output, layer, &mut parts)?;
        if !progress.add_cost(cost) {
            return Ok(None);
        }
    }
    parts.reverse();
    // Fully trained weights may be far larger than all factors, so their gradients are not
    // allocated in advance.
    let mut gradients = vec![pass.gradient.concatenate(parts)];
    gradients.extend(d_head);
    if decoder.trained.embed_tokens.is_some() {
        let d_embedded =
            d_input.expect("every block returns its input gradient if the embedding is trained");
        gradients.push(embedding_gradient(decoder, &batch.input_ids, d_embedded));
    }
    Ok(Some(MicroBatchGradient {
        loss_sum,
        gradient: match <[_; 1]>::try_from(gradients) {
            Ok([factors]) => factors,
            Err(all) => Tensor::cat(all, 0),
        },
    }))
}

/// The first block with trained values, or whose input gradient is needed.
fn first_trained(decoder: &Decoder, slots: &[AdapterSlot]) -> usize {
    match (&decoder.trained.embed_tokens, slots.first()) {
        (Some(_), _) => 0,
        (None, Some(slot)) => slot.layer,
        (None, None) => decoder.blocks.len(),
    }
}

/// Takes part in the gathers of a micro-batch that only other ranks of the node compute. `distills`
/// says whether they also compute a teacher.
pub(crate) fn skip(decoder: &Decoder, slots: &[AdapterSlot], distills: bool) {
    if let Some(node) = &decoder.node {
        if distills {
            node.skip(Pass::Forward);
        }
        let first_trained = first_trained(decoder, slots);
        node.skip(Pass::Training { first_trained });
    }
}

/// The number of states of a pass.
const ONE_FOR_EACH: &str = "one entry for each block";

/// Progress of the pass through the blocks, weighted by cost.
struct Progress<'a, 'w> {
    done: u32,
    all: u32,
    watch: &'a mut Watch<'w>,
}

impl<'a, 'w> Progress<'a, 'w> {
    /// Cost of a block's forward pass. The other costs are relative to it.
    const FORWARD: u32 = 1;
    const BACKWARD: u32 = 2;

    fn new(pass: &BlockwisePass<'_>, n_kept: usize, watch: &'a mut Watch<'w>) -> Self {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let n_blocks = count(pass.decoder.blocks.len());
        let n_adapted = n_blocks.saturating_sub(count(pass.first_adapted));
        let n_recomputed = n_adapted.saturating_sub(count(n_kept));
        let all = Self::FORWARD * (n_blocks + n_recomputed) + Self::BACKWARD * n_adapted;
        Self {
            done: 0,
            all: all.max(1),
            watch,
        }
    }

    /// Adds `cost` and returns whether to continue.
    fn add_cost(&mut self, cost: u32) -> bool {
        self.done += cost;
        (self.watch)(f64::from(self.done) / f64::from(self.all))
    }
}

fn check_batch(
    decoder: &Decoder,
    batch: &MicroBatch,
    supervision: &Supervision,
) -> Result<(), StepError> {
    if supervision.rows.is_empty() {
        return Err(StepError::NoSupervision(batch.example_ids.join(", ")));
    }
    let vocab_size = decoder.config.vocab_size;
    match batch
        .input_ids
        .iter()
        .find(|&&id| id as usize >= vocab_size)
    {
        Some(&id) => Err(StepError::TokenOutsideVocabulary { id, vocab_size }),
        None => Ok(()),
    }
}

/// Inputs of the forward and backward pass through the blocks.
struct BlockwisePass<'a> {
    decoder: &'a Decoder,
    context: &'a BatchContext,
    dropout: Option<DropoutKey>,
    /// Noise on the embeddings, with the document boundaries.
    noise: Option<(EmbeddingNoise, &'a [usize])>,
    /// First block with trained values.
    first_adapted: usize,
    /// The supervised rows.
    rows: RowIndices,
    slots: &'a [AdapterSlot],
    /// Collects the factor gradients.
    gradient: FlatGradient,
}

impl BlockwisePass<'_> {
    /// Runs all blocks. From the first adapted block on, stores the input of each block, or its
    /// graph if it is one of the last blocks that keep it. Also returns the output of the last block
    /// for the supervised rows, `[m, d]`. Returns `None` if the pass was stopped.
    fn forward(
        &self,
        input_ids: &[u32],
        options: BackwardOptions,
        progress: &mut Progress<'_, '_>,
    ) -> Result<Option<(BlockStates, Tensor<2>)>, StepError> {
        let n_blocks = self.decoder.blocks.len();
        let first_kept = n_blocks.saturating_sub(options.n_kept_blocks);
        let first_kept = first_kept.max(self.first_adapted);
        let mut states = BlockStates::default();
        let mut x = self.decoder.embed(input_ids);
        if let Some((noise, cu_seqlens)) = self.noise {
            x = noise.add_to(x, cu_seqlens);
        }
        for (layer, block) in self.decoder.blocks.iter().enumerate() {
            if layer >= first_kept {
                let graph = self.graph(layer, x, false);
                x = graph.output.clone().inner();
                states.kept.push(Kept::Graph(Box::new(graph)));
            } else {
                if layer >= self.first_adapted && options.offloads_inputs {
                    states.offloaded.push(x.clone())?;
                    states.kept.push(Kept::Offloaded);
                } else if layer >= self.first_adapted {
                    states.kept.push(Kept::Input(Box::new(x.clone())));
                }
                x = self.run(layer, block, x);
            }
            if !progress.add_cost(Progress::FORWARD) {
                return Ok(None);
            }
        }
        Ok(Some((states, x)))
    }

    /// The output of a block; for the last block, only the supervised rows.
    fn run(&self, layer: usize, block: &Block, x: Tensor<2>) -> Tensor<2> {
        operation!("block");
        let dropout = self.dropout.map(|key| key.layer(layer));
        if layer + 1 < self.decoder.blocks.len() {
            return block.forward(x, self.context, dropout);
        }
        block.forward_rows(x, self.context, dropout, &self.rows)
    }

    /// Runs a block again to compute its gradients. The output is not used: the forward pass has
    /// already computed it.
    fn recompute_graph(&self, layer: usize, input: Tensor<2>) -> BlockGraph {
        operation!("again");
        self.graph(layer, input, true)
    }

    /// Runs a block with its adapters as leaves. Its input is also a leaf if an earlier block is
    /// trained.
    fn graph(&self, layer: usize, input: Tensor<2>, unread: bool) -> BlockGraph {
        let is_first = layer == self.first_adapted && self.decoder.trained.embed_tokens.is_none();
        let input = if is_first {
            Tensor::from_inner(input)
        } else {
            leaf(input)
        };
        let mut tracked = self.decoder.blocks[layer].clone();
        tracked.unread = unread;
        let mut factors = Vec::new();
        for (stack, linear) in tracked.stacks.iter_mut().enumerate() {
            let Some(adapter) = &mut linear.adapter else {
                continue;
            };
            let start = self.gradient_offset(layer, stack);
            *adapter = adapter
                .tracked(leaf)
                .with_gradient_in(&self.gradient, start);
            factors.extend(adapter.trained());
        }
        let output = self.run(layer, &tracked, input.clone());
        BlockGraph {
            input: (!is_first).then_some(input),
            output,
            factors,
        }
    }

    /// Offset of a stack's factor gradients.
    fn gradient_offset(&self, layer: usize, stack: usize) -> usize {
        let mut slots = self.slots.iter();
        let first = slots.find(|slot| slot.location() == (layer, stack));
        let first = first.expect("each adapter of the decoder has its slots");
        first.offset - self.slots[0].offset
    }
}

/// A copy of the model without adapters, which shares the weights.
pub(crate) fn without_adapters(decoder: &Decoder) -> Decoder {
    let mut base = decoder.clone();
    for stack in base.blocks.iter_mut().flat_map(|block| &mut block.stacks) {
        stack.adapter = None;
    }
    base
}

/// The distillation target.
struct Teacher {
    how: Distillation,
    /// Normalized hidden states of the supervised rows, `[m, d]`.
    hidden: Tensor<2>,
}

/// Loss and gradients that the head returns for the supervised rows.
struct HeadGradients {
    loss_sum: f64,
    /// Gradient of the last block's output, `[m, d]`.
    d_last: Tensor<2>,
    /// Gradient of the head, flat, if it is trained.
    d_head: Option<Tensor<1>>,
}

/// Gradient of the embedding matrix, flat, computed from the gradient of the embedded tokens.
fn embedding_gradient(decoder: &Decoder, input_ids: &[u32], d_embedded: Tensor<2>) -> Tensor<1> {
    let device = decoder.device();
    let shape = decoder.embed_tokens.dims();
    let ids: Vec<i32> = input_ids.iter().map(|&id| id as i32).collect();
    let ids = Tensor::from_data(TensorData::new(ids, [input_ids.len()]), &device);
    let d_embedded = d_embedded.mul_scalar(decoder.embedding_multiplier());
    let zeros: Tensor<2> = Tensor::zeros(shape, &device);
    let sum = zeros.select_assign(0, ids, d_embedded, IndexingUpdateOp::Add);
    sum.flatten(0, 1)
}

/// Loss and gradients of the supervised rows.
fn head(
    decoder: &Decoder,
    last: Tensor<2>,
    teacher: Option<Teacher>,
    supervision: &Supervision,
    options: BackwardOptions,
) -> HeadGradients {
    operation!("head");
    let last = leaf(last);
    let hidden = decoder.final_norm(last.clone());
    let (head, scale, chunk_rows) = (&decoder.lm_head, options.gradient_scale, options.chunk_rows);
    let plain = hidden.clone().inner();
    let mut d_head = None;
    let (loss_sum, d_hidden) = match (teacher, &decoder.trained.lm_head) {
        (None, Some(trained)) => {
            let loss = trained_cross_entropy(plain, trained, supervision, scale, chunk_rows);
            d_head = Some(loss.d_head.flatten(0, 1));
            (loss.loss_sum, loss.d_hidden)
        }
        (None, None) => {
            let loss = linear_cross_entropy(plain, head, supervision, scale, chunk_rows);
            (loss.loss_sum, loss.d_hidden)
        }
        (Some(Teacher { how, hidden }), _) => {
            let both = [plain, hidden];
            let loss = distilled_cross_entropy(both, head, supervision, how, scale, chunk_rows);
            (loss.loss_sum(how), loss.d_hidden)
        }
    };
    let mut gradients = backward_with_gradient(hidden, d_hidden);
    let d_last = last
        .grad_remove(&mut gradients)
        .expect("the loss depends on the last block");
    HeadGradients {
        loss_sum,
        d_last,
        d_head,
    }
}

/// Collects the gradients of a block's factors in reverse order, and returns the gradient of its
/// input if it is needed.
fn block_backward(
    graph: BlockGraph,
    d_output: Tensor<2>,
    layer: usize,
    parts: &mut Vec<Tensor<1>>,
) -> Result<Option<Tensor<2>>, StepError> {
    operation!("block backward");
    let mut gradients = backward_with_gradient(graph.output, d_output);
    for factors in graph.factors.iter().rev() {
        let gradient = factors.grad_remove(&mut gradients);
        parts.push(gradient.ok_or(StepError::NoGradient { layer })?);
    }
    Ok(graph.input.map(|input| {
        input
            .grad_remove(&mut gradients)
            .expect("a block's output depends on its input")
    }))
}

/// Creates an autodiff leaf. No other function does.
pub(crate) fn leaf<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Tensor::from_inner(x).require_grad()
}
