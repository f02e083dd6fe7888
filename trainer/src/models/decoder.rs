//! A Llama-like causal decoder: token ids of packed documents to hidden states.
//!
//! Llama, Mistral and Qwen2 are this struct with other constants. The blocks are public because
//! training walks them one by one: no graph ever spans the model.

use burn::tensor::{Device, Int, Tensor, TensorData};
use tooltune_kernels::attention::{Causality, Documents, attention};
use tooltune_kernels::rms_norm::rms_norm;
use tooltune_kernels::rope::{RopeTable, rope};
use tooltune_kernels::swiglu::swiglu;

use super::config::ModelConfig;
use super::projection::Projection;
use crate::lora::DropoutKey;

/// The whole network without autodiff; adapters sit in its projections.
#[derive(Debug, Clone)]
pub struct Decoder {
    /// Shape and constants.
    pub config: ModelConfig,
    /// `[v, d]`, frozen.
    pub embed_tokens: Tensor<2>,
    /// In order of application.
    pub blocks: Vec<Block>,
    /// Weight of the last norm, `[d]`.
    pub norm: Tensor<1>,
    /// `[v, d]`, frozen; the embedding itself when the head is tied.
    pub lm_head: Tensor<2>,
}

/// One decoder block.
#[derive(Debug, Clone)]
pub struct Block {
    /// `[d]`, before attention.
    pub input_layernorm: Tensor<1>,
    /// `[d]`, before the feed-forward block.
    pub post_attention_layernorm: Tensor<1>,
    /// The seven projections, in the order of [`PROJECTIONS`].
    pub projections: [Projection; 7],
}

/// Module paths of the projections of a block, in the order of [`Block::projections`].
pub const PROJECTIONS: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

/// What all blocks share for one micro-batch.
#[derive(Debug, Clone)]
pub struct BatchContext {
    /// Rotary tables of the tokens' positions.
    pub rope: RopeTable,
    /// Borders of the documents.
    pub documents: Documents,
    /// Heads and epsilon.
    pub shape: BlockShape,
}

/// The constants that a block needs.
#[derive(Debug, Clone, Copy)]
pub struct BlockShape {
    /// Size of one head.
    pub head_dim: usize,
    /// Added to the mean square.
    pub rms_norm_eps: f64,
}

impl BatchContext {
    /// Tables for tokens at `position_ids` in documents with borders `cu_seqlens`.
    pub fn new(
        config: &ModelConfig,
        position_ids: &[u32],
        cu_seqlens: &[usize],
        device: &Device,
    ) -> Self {
        let frequencies = config.inverse_frequencies();
        Self {
            rope: RopeTable::new(position_ids, &frequencies, 1.0, device),
            documents: Documents::new(cu_seqlens, position_ids.len()),
            shape: BlockShape {
                head_dim: config.head_dim,
                rms_norm_eps: config.rms_norm_eps,
            },
        }
    }
}

impl Block {
    /// # Shapes
    ///
    /// - `x`: `[n, d]` to `[n, d]`; under autodiff when `x` or an adapter is
    pub fn forward(
        &self,
        x: Tensor<2>,
        context: &BatchContext,
        dropout: Option<DropoutKey>,
    ) -> Tensor<2> {
        let (q, k, v) = self.queries_keys_values(&x, context, dropout);
        let attended = attention(q, k, v, &context.documents, Causality::Causal);
        self.after_attention(x, attended, context.shape, dropout)
    }

    /// Rotated queries and keys, and values: `[n, h, c]`, `[n, g, c]`, `[n, g, c]`.
    pub fn queries_keys_values(
        &self,
        x: &Tensor<2>,
        context: &BatchContext,
        dropout: Option<DropoutKey>,
    ) -> (Tensor<3>, Tensor<3>, Tensor<3>) {
        let normed = rms_norm(x.clone(), &self.input_layernorm, context.shape.rms_norm_eps);
        let heads = |projection: usize| {
            let y = self.project(projection, normed.clone(), dropout);
            let [n, width] = y.dims();
            y.reshape([n, width / context.shape.head_dim, context.shape.head_dim])
        };
        (
            rope(heads(0), &context.rope),
            rope(heads(1), &context.rope),
            heads(2),
        )
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
        let x = x.add(self.project(3, attended, dropout));
        let normed = rms_norm(
            x.clone(),
            &self.post_attention_layernorm,
            shape.rms_norm_eps,
        );
        let gate = self.project(4, normed.clone(), dropout);
        let up = self.project(5, normed, dropout);
        x.add(self.project(6, swiglu(gate, up), dropout))
    }

    fn project(&self, index: usize, x: Tensor<2>, dropout: Option<DropoutKey>) -> Tensor<2> {
        self.projections[index].forward(x, dropout.map(|key| key.projection(index)))
    }
}

impl Decoder {
    /// Embeddings of `input_ids`, `[n, d]`. Ids must lie below `vocab_size`.
    pub fn embed(&self, input_ids: &[u32]) -> Tensor<2> {
        let ids: Vec<i32> = input_ids.iter().map(|&id| id as i32).collect();
        let ids = Tensor::<1, Int>::from_data(
            TensorData::new(ids, [input_ids.len()]),
            &self.embed_tokens.device(),
        );
        self.embed_tokens.clone().select(0, ids)
    }

    /// The last norm, `[n, d]`.
    pub fn final_norm(&self, x: Tensor<2>) -> Tensor<2> {
        rms_norm(x, &self.norm, self.config.rms_norm_eps)
    }

    /// Logits of normed hidden states: `[m, d]` to `[m, v]`.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        hidden.matmul(self.lm_head.clone().transpose())
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

    /// The device that holds the weights.
    pub fn device(&self) -> Device {
        self.embed_tokens.device()
    }
}
