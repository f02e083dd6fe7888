//! A Llama-like causal decoder: token ids of packed documents to hidden states.
//!
//! Every family of decoders is this struct; what differs between them stands in [`super::families`]. The blocks are public because
//! training walks them one by one: no graph ever spans the model. The residual stream is f32; what
//! lies between two operations of a block is in the dtype that the model computes in.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor};
use tooltune_kernels::attention::{Causality, Documents, attention};
use tooltune_kernels::embedding::embedding;
use tooltune_kernels::linear_cross_entropy;
use tooltune_kernels::lora_linear::{InputTransform, LinearExtras, lora_linear};
use tooltune_kernels::rms_norm::rms_norm;
use tooltune_kernels::rope::RopeTable;
use tooltune_kernels::{ComputeDtype, FrozenWeight, StackedLinear};

use super::config::DecoderConfig;
use super::families::Family;
use crate::lora::DropoutKey;

/// The whole network without autodiff; adapters sit in its projections.
#[derive(Debug, Clone)]
pub struct Decoder {
    /// Shape and constants.
    pub config: DecoderConfig,
    /// `[v, d]`, frozen.
    pub embed_tokens: FrozenWeight,
    /// In order of application.
    pub blocks: Vec<Block>,
    /// Weight of the last norm, `[d]`.
    pub norm: Tensor<1>,
    /// `[v, d]`, frozen; the embedding itself when the head is tied.
    pub lm_head: FrozenWeight,
}

/// One decoder block.
#[derive(Debug, Clone)]
pub struct Block {
    /// `[d]`, before attention.
    pub input_layernorm: Tensor<1>,
    /// `[d]`, before the feed-forward block.
    pub post_attention_layernorm: Tensor<1>,
    /// `[c]` each, in the order of [`Family::head_norms`].
    pub head_norms: Vec<Tensor<1>>,
    /// The projections, those that share an input stacked: see [`STACKS`].
    pub stacks: [StackedLinear; 4],
}

/// Module paths of the projections of a block, in the order of their adapters' parameters.
pub const PROJECTIONS: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

/// Which of [`PROJECTIONS`] each of [`Block::stacks`] holds.
pub const STACKS: [Range<usize>; 4] = [0..3, 3..4, 4..6, 6..7];

/// What all blocks share for one micro-batch.
#[derive(Debug, Clone)]
pub struct BatchContext {
    /// Rotary tables of the tokens' positions.
    pub rope: RopeTable,
    /// Borders of the documents.
    pub documents: Documents,
    /// Heads and epsilon.
    pub shape: BlockShape,
    /// What its blocks compute.
    pub family: &'static Family,
}

/// The constants that a block needs.
#[derive(Debug, Clone, Copy)]
pub struct BlockShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Size of one head.
    pub head_dim: usize,
    /// Added to the mean square.
    pub rms_norm_eps: f64,
}

impl BatchContext {
    /// Tables for tokens at `position_ids` in documents with borders `cu_seqlens`.
    pub fn new(decoder: &Decoder, position_ids: &[u32], cu_seqlens: &[usize]) -> Self {
        let config = &decoder.config;
        let frequencies = config.inverse_frequencies();
        Self {
            rope: RopeTable::new(position_ids, &frequencies, 1.0, &decoder.device()),
            documents: Documents::new(cu_seqlens, position_ids.len()),
            family: config.family,
            shape: BlockShape {
                n_heads: config.num_attention_heads,
                n_kv_heads: config.num_key_value_heads,
                head_dim: config.head_dim,
                rms_norm_eps: config.rms_norm_eps,
            },
        }
    }
}

impl Block {
    /// # Shapes
    ///
    /// - `x`: `[n, d]` to `[n, d]`, f32; under autodiff when `x` or an adapter is
    pub fn forward(
        &self,
        x: Tensor<2>,
        context: &BatchContext,
        dropout: Option<DropoutKey>,
    ) -> Tensor<2> {
        let attended = self.attended(&x, context, dropout);
        self.after_attention(x, attended, context.shape, dropout)
    }

    /// [`Block::forward`] of the rows `rows` alone, in their order: `[n, d]` to `[m, d]`.
    ///
    /// Of the last block no one reads the others: they are looked at by attention, and that is all.
    /// Dropout counts rows behind attention as they come.
    pub fn forward_rows(
        &self,
        x: Tensor<2>,
        context: &BatchContext,
        dropout: Option<DropoutKey>,
        rows: Tensor<1, Int>,
    ) -> Tensor<2> {
        let attended = self.attended(&x, context, dropout).select(0, rows.clone());
        self.after_attention(x.select(0, rows), attended, context.shape, dropout)
    }

    /// Attention's output for each token, `[n, h, c]`.
    fn attended(
        &self,
        x: &Tensor<2>,
        context: &BatchContext,
        dropout: Option<DropoutKey>,
    ) -> Tensor<3> {
        let qkv = self.queries_keys_values(x, context, dropout);
        let (documents, shape) = (&context.documents, context.shape);
        attention(qkv, shape.n_heads, documents, Causality::Causal)
    }

    /// Turned queries and keys, and values, heads beside heads: `[n, h + 2 g, c]`.
    pub fn queries_keys_values(
        &self,
        x: &Tensor<2>,
        context: &BatchContext,
        dropout: Option<DropoutKey>,
    ) -> Tensor<3> {
        let shape = context.shape;
        let normed = shape.norm(&self.input_layernorm);
        let qkv = lora_linear(x.clone(), &self.stacks[0], extras(0, normed, dropout));
        let n = qkv.dims()[0];
        let heads = qkv.reshape([n, shape.n_heads + 2 * shape.n_kv_heads, shape.head_dim]);
        (context.family.attention_input)(self, heads, context)
    }

    /// The residual stream after attention's output and the feed-forward block, `[n, d]`.
    pub fn after_attention(
        &self,
        x: Tensor<2>,
        attended: Tensor<3>,
        shape: BlockShape,
        dropout: Option<DropoutKey>,
    ) -> Tensor<2> {
        let [n, heads, head_dim] = attended.dims();
        let attended = attended.reshape([n, heads * head_dim]);
        let added = |stack, transform, x| LinearExtras {
            residual: Some(x),
            ..extras(stack, transform, dropout)
        };
        let x = lora_linear(
            attended,
            &self.stacks[1],
            added(1, InputTransform::Plain, x),
        );
        let normed = shape.norm(&self.post_attention_layernorm);
        let gate_up = lora_linear(x.clone(), &self.stacks[2], extras(2, normed, dropout));
        lora_linear(gate_up, &self.stacks[3], added(3, InputTransform::Gated, x))
    }
}

impl BlockShape {
    /// What projections read of the residual stream.
    fn norm(self, weight: &Tensor<1>) -> InputTransform {
        InputTransform::Normed {
            weight: Box::new(weight.clone()),
            eps: self.rms_norm_eps,
        }
    }
}

/// What goes beside stack `stack` of [`STACKS`].
fn extras(stack: usize, transform: InputTransform, dropout: Option<DropoutKey>) -> LinearExtras {
    let masks = |key: DropoutKey| STACKS[stack].clone().map(move |i| Some(key.projection(i)));
    LinearExtras {
        transform,
        residual: None,
        dropout: dropout.map_or(Vec::new(), |key| masks(key).collect()),
    }
}

impl Decoder {
    /// Embeddings of `input_ids`, `[n, d]`, f32. Ids must lie below `vocab_size`.
    pub fn embed(&self, input_ids: &[u32]) -> Tensor<2> {
        embedding(&self.embed_tokens, input_ids)
    }

    /// The last norm, `[n, d]`, in the dtype that the head computes in.
    pub fn final_norm(&self, x: Tensor<2>) -> Tensor<2> {
        let output = self.compute_dtype().dtype();
        rms_norm(x, &self.norm, self.config.rms_norm_eps, output)
    }

    /// Logits of normed hidden states: `[m, d]` to `[m, v]`, f32.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        linear_cross_entropy::logits(hidden, &self.lm_head)
    }

    /// The dtype of matrix products.
    pub fn compute_dtype(&self) -> ComputeDtype {
        self.lm_head.compute_dtype()
    }

    /// Normed hidden states of every token, `[n, d]`, without dropout.
    pub fn forward(&self, input_ids: &[u32], context: &BatchContext) -> Tensor<2> {
        let x = self.embed(input_ids);
        let x = self
            .blocks
            .iter()
            .fold(x, |x, block| block.forward(x, context, None));
        self.final_norm(x)
    }

    /// Normed hidden states of the rows `rows` alone, `[m, d]`, without dropout: the last block does
    /// no more than they need.
    pub fn forward_rows(
        &self,
        input_ids: &[u32],
        context: &BatchContext,
        rows: Tensor<1, Int>,
    ) -> Tensor<2> {
        let mut x = self.embed(input_ids);
        let Some((last, blocks)) = self.blocks.split_last() else {
            return self.final_norm(x.select(0, rows));
        };
        for block in blocks {
            x = block.forward(x, context, None);
        }
        self.final_norm(last.forward_rows(x, context, None, rows))
    }

    /// The device that holds the weights.
    pub fn device(&self) -> Device {
        self.embed_tokens.device().clone()
    }
}
