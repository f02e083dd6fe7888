//! A Llama-like causal decoder: computes hidden states from the token IDs of packed documents.
//!
//! All decoder families use this struct; [`super::families`] describes their differences. The
//! blocks are public because training runs them one by one, so that no autodiff graph spans the
//! whole model. The residual stream is f32; activations between two operations of a block have the
//! compute dtype.

use burn::tensor::{DType, Device, Tensor, TensorData, bf16};
use tooltune_kernels::attention::{Causality, Documents, Queries, attention};
use tooltune_kernels::embedding::embedding_of_device_ids;
use tooltune_kernels::geglu::geglu;
use tooltune_kernels::head_norm::head_norm;
use tooltune_kernels::linear_cross_entropy;
use tooltune_kernels::lora_linear::{InputTransform, LinearExtras, SharedGradient, lora_linear};
use tooltune_kernels::query_gate::{gated, without_gates};
use tooltune_kernels::rms_norm::rms_norm;
use tooltune_kernels::rope::{RopeTable, rope};
use tooltune_kernels::select_rows::select_rows;
use tooltune_kernels::{
    ComputeDtype, DeviceIntegers, FrozenWeight, GatedDeltaNet, GatedHeads, RowIndices, SpanNorm,
    StackedLinear,
};

use super::config::DecoderConfig;
use super::families::{Gate, Projections};
use super::layers::{LayerKind, Rotation};
use super::multipliers::QueryScaling;
use super::node_blocks::NodeBlocks;
use super::rotary::{Rotary, TokenFrequencies};
use tooltune_kernels::DropoutKey;

/// The network without autodiff, with the adapters of its projections.
#[derive(Debug, Clone)]
pub struct Decoder {
    /// Shape and constants.
    pub config: DecoderConfig,
    /// The embedding, `[v, d]`, frozen.
    pub embed_tokens: FrozenWeight,
    /// The blocks, in order.
    pub blocks: Vec<Block>,
    /// Weight of the final norm, `[d]`.
    pub norm: Tensor<1>,
    /// The head, `[v, d]`, frozen; the embedding itself if the head is tied.
    pub lm_head: FrozenWeight,
    /// Fully trained head and embedding.
    pub trained: TrainedMatrices,
    /// Gathers the weights of the blocks if the GPUs of a node divide them.
    pub node: Option<NodeBlocks>,
}

/// Head and embedding in f32, `[v, d]`, if they are trained.
#[derive(Debug, Clone, Default)]
pub struct TrainedMatrices {
    /// The head.
    pub lm_head: Option<Tensor<2>>,
    /// The embedding.
    pub embed_tokens: Option<Tensor<2>>,
}

/// One decoder block.
#[derive(Debug, Clone)]
pub struct Block {
    /// Norms of the attention branch.
    pub attention_norms: BranchNormWeights,
    /// Norms of the feed-forward branch.
    pub feed_forward_norms: BranchNormWeights,
    /// Norms of queries and keys before rotation.
    pub head_norm: Option<SpanNorm>,
    /// Linear attention, if the block has it instead of attention.
    pub linear: Option<GatedDeltaNet>,
    /// Attention kind.
    pub kind: LayerKind,
    /// The linear layers of the block.
    pub projections: &'static Projections,
    /// The weights of the linear layers. Layers that share an input are stacked, as in
    /// [`Projections::stacks`].
    pub stacks: [StackedLinear; 4],
    /// Whether the block runs only to compute gradients. Its output is then unused.
    pub unread: bool,
}

/// Norms of one branch of a block, `[d]` each, if the family has them.
#[derive(Debug, Clone, Default)]
pub struct BranchNormWeights {
    /// Norm of the branch input.
    pub before: Option<Tensor<1>>,
    /// Norm of the branch output.
    pub after: Option<Tensor<1>>,
}

/// Values shared by all blocks for one micro-batch.
#[derive(Debug, Clone)]
pub struct BatchContext {
    /// Rotary tables for the tokens' positions.
    pub rope: RopeTable,
    /// Rotary tables of sliding-window blocks, if they differ.
    pub local_rope: Option<RopeTable>,
    /// Factor on the queries of each token, `[n, 1, 1]`, if it is not 1.
    pub query_scaling: Option<Tensor<3>>,
    /// Boundaries of the documents.
    pub documents: Documents,
    /// Head counts and constants of the family.
    pub shape: BlockShape,
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
    /// Epsilon of RMSNorm.
    pub rms_norm_eps: f64,
    /// Factor on attention scores; `None` means the inverse square root of the head size.
    pub attention_multiplier: Option<f64>,
    /// Factor on branch outputs before they are added to the residual stream.
    pub residual_multiplier: f64,
    /// Activation of the feed-forward gate.
    pub gate: Gate,
    /// Whether each query head has a gate on the attention output.
    pub query_gate: bool,
}

/// Inputs of attention for each token.
#[derive(Debug, Clone)]
pub struct AttentionInputs {
    /// Rotated queries and keys, and values, concatenated by head: `[n, h + 2 g, c]`.
    pub qkv: Tensor<3>,
    /// Gates of the attention output, if any.
    pub gates: Option<(Tensor<2>, GatedHeads)>,
}

impl BatchContext {
    /// Creates the tables for tokens at `position_ids`, in documents with the boundaries
    /// `cu_seqlens`.
    pub fn new(decoder: &Decoder, position_ids: &[u32], cu_seqlens: &[usize]) -> Self {
        let mut is_long_context = Vec::new();
        if let Some(original) = decoder.config.short_context() {
            let longer = |document: &[usize]| {
                let n = document[1] - document[0];
                std::iter::repeat_n(n > original, n)
            };
            is_long_context.extend(cu_seqlens.windows(2).flat_map(longer));
        }
        Self::with_long_context(decoder, position_ids, cu_seqlens, &is_long_context)
    }

    /// Like [`Self::new`]. `is_long_context` marks tokens of texts longer than the context of pre-training;
    /// tokens without an entry are not marked.
    pub(super) fn with_long_context(
        decoder: &Decoder,
        position_ids: &[u32],
        cu_seqlens: &[usize],
        is_long_context: &[bool],
    ) -> Self {
        let (config, device) = (&decoder.config, decoder.device());
        let table = |rotary: &Rotary| rope_table(rotary, position_ids, is_long_context, &device);
        Self {
            rope: table(&config.rotary),
            local_rope: config.local_rotary.as_ref().map(table),
            query_scaling: config
                .query_scaling
                .and_then(|scaling| scaling.query_factors(position_ids, &device)),
            documents: Documents::new(cu_seqlens, position_ids.len()),
            shape: BlockShape::new(config),
        }
    }
}

impl BatchContext {
    /// Replaces the positions of [`Self::with_long_context`] in place, for recorded GPU launches. Their
    /// number must not change. `query_scaling` is not updated.
    pub(super) fn replace_positions(
        &mut self,
        config: &DecoderConfig,
        position_ids: &[u32],
        is_long_context: &[bool],
    ) {
        let replace = |table: &mut RopeTable, rotary: &Rotary| {
            let frequencies = TokenFrequencies::new(rotary, is_long_context);
            let factor = rotary.attention_factor();
            table.replace(position_ids, |token| frequencies.get(token), factor);
        };
        replace(&mut self.rope, &config.rotary);
        if let (Some(table), Some(rotary)) = (&mut self.local_rope, &config.local_rotary) {
            replace(table, rotary);
        }
    }
}

/// Cosines and sines of tokens at `position_ids`.
fn rope_table(
    rotary: &Rotary,
    position_ids: &[u32],
    is_long_context: &[bool],
    device: &Device,
) -> RopeTable {
    let (frequencies, factor) = (
        TokenFrequencies::new(rotary, is_long_context),
        rotary.attention_factor(),
    );
    let half = frequencies.half();
    let token_frequencies = |token| frequencies.get(token);
    RopeTable::with_token_frequencies(position_ids, half, token_frequencies, factor, device)
}

impl QueryScaling {
    /// Factor on the queries of each token, `[n, 1, 1]`; `None` if all factors are 1.
    fn query_factors(self, position_ids: &[u32], device: &Device) -> Option<Tensor<3>> {
        let scaling = |&position: &u32| {
            let contexts = (f64::from(position) / self.context).floor();
            (1.0 + self.beta * contexts.ln_1p()) as f32
        };
        let scaling: Vec<f32> = position_ids.iter().map(scaling).collect();
        let shape = [scaling.len(), 1, 1];
        let grows = scaling.iter().any(|&scaling| scaling != 1.0);
        grows.then(|| Tensor::from_data(TensorData::new(scaling, shape), device))
    }
}

impl BlockShape {
    fn new(config: &DecoderConfig) -> Self {
        Self {
            n_heads: config.num_attention_heads,
            n_kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            rms_norm_eps: config.rms_norm_eps,
            attention_multiplier: config.attention_multiplier,
            residual_multiplier: config.residual_multiplier,
            gate: config.family.gate,
            query_gate: config.family.query_gate,
        }
    }

    /// The query heads and the factor on their scores.
    pub(super) fn queries(&self) -> Queries {
        Queries {
            heads: self.n_heads,
            scale: self.attention_multiplier,
        }
    }
}

impl Block {
    /// Runs the block on the residual stream.
    ///
    /// # Shapes
    ///
    /// - `x`: `[n, d]`, f32
    /// - returns: `[n, d]`, f32; with autodiff if `x` or an adapter has it
    pub fn forward(
        &self,
        x: Tensor<2>,
        context: &BatchContext,
        dropout: Option<DropoutKey>,
    ) -> Tensor<2> {
        let shared = SharedGradient::default();
        let attended = self.mix_tokens(&x, context, dropout, Some(&shared));
        self.after_attention(x, attended, context.shape, dropout, Some(shared))
    }

    /// Like [`Block::forward`], but returns only the rows `rows`, in their order: `[n, d]` to `[m,
    /// d]`.
    ///
    /// The last block needs its other rows only for the keys and values of attention. Dropout after
    /// attention uses the new row numbers.
    pub fn forward_rows(
        &self,
        x: Tensor<2>,
        context: &BatchContext,
        dropout: Option<DropoutKey>,
        rows: &RowIndices,
    ) -> Tensor<2> {
        // From here, the residual stream contains only the selected rows.
        let attended = self.mix_tokens(&x, context, dropout, None);
        let [n, heads, size] = attended.dims();
        let attended = select_rows(attended.reshape([n, heads * size]), rows);
        let m = attended.dims()[0];
        let attended = attended.reshape([m, heads, size]);
        self.after_attention(select_rows(x, rows), attended, context.shape, dropout, None)
    }

    /// Output of attention or linear attention, per token: `[n, heads, size]`.
    fn mix_tokens(
        &self,
        x: &Tensor<2>,
        context: &BatchContext,
        dropout: Option<DropoutKey>,
        shared: Option<&SharedGradient>,
    ) -> Tensor<3> {
        match &self.linear {
            Some(net) => self.linear_attention(net, x, context, dropout, shared),
            None => {
                self.attention_output(self.attention_inputs(x, context, dropout, shared), context)
            }
        }
    }

    /// Attention output per token, `[n, h, c]`.
    pub(super) fn attention_output(
        &self,
        inputs: AttentionInputs,
        context: &BatchContext,
    ) -> Tensor<3> {
        let causality = match self.kind.window {
            None => Causality::Causal,
            Some(window) => Causality::Sliding(window),
        };
        let AttentionInputs { qkv, gates } = inputs;
        let attended = attention(qkv, context.shape.queries(), &context.documents, causality);
        with_gates(attended, gates)
    }

    /// Computes the inputs of attention from the residual stream. Pass the same `shared` to
    /// [`Block::after_attention`] if it adds to the same stream.
    pub fn attention_inputs(
        &self,
        x: &Tensor<2>,
        context: &BatchContext,
        dropout: Option<DropoutKey>,
        shared: Option<&SharedGradient>,
    ) -> AttentionInputs {
        let shape = context.shape;
        let (x, transform) = self.read(x, 0, &self.attention_norms, shape);
        let extras = LinearExtras {
            shared_gradient: shared.cloned(),
            ..self.extras(0, transform, dropout)
        };
        let qkv = lora_linear(x, &self.stacks[0], extras);
        let (heads, gates) = shape.heads_and_gates(qkv);
        let heads = match &self.head_norm {
            Some(norm) => head_norm(heads, norm),
            None => heads,
        };
        let local = context.local_rope.as_ref().unwrap_or(&context.rope);
        let n_rotated = shape.n_heads + shape.n_kv_heads;
        let heads = match self.kind.rotation {
            Rotation::Global => rope(heads, &context.rope, n_rotated),
            Rotation::Local => rope(heads, local, n_rotated),
            Rotation::None => heads,
        };
        let qkv = match &context.query_scaling {
            Some(scaling) => scale_queries(heads, shape.n_heads, scaling),
            None => heads,
        };
        AttentionInputs { qkv, gates }
    }

    /// Adds the attention output and the feed-forward block to the residual stream, `[n, d]`.
    pub fn after_attention(
        &self,
        x: Tensor<2>,
        attended: Tensor<3>,
        shape: BlockShape,
        dropout: Option<DropoutKey>,
        shared: Option<SharedGradient>,
    ) -> Tensor<2> {
        let [n, heads, head_dim] = attended.dims();
        let attended = attended.reshape([n, heads * head_dim]);
        let branch = Branch {
            input: attended,
            transform: InputTransform::Plain,
            stack: 1,
            norms: &self.attention_norms,
            shared,
        };
        let x = self.add_residual(x, branch, shape, dropout);
        let (input, transform) = self.read(&x, 2, &self.feed_forward_norms, shape);
        let shared = SharedGradient::default();
        let extras = LinearExtras {
            shared_gradient: Some(shared.clone()),
            ..self.extras(2, transform, dropout)
        };
        let gate_up = lora_linear(input, &self.stacks[2], extras);
        let (input, transform) = match shape.gate {
            Gate::Silu => (gate_up, InputTransform::Gated),
            Gate::GeluTanh => (geglu(gate_up), InputTransform::Plain),
        };
        let branch = Branch {
            input,
            transform,
            stack: 3,
            norms: &self.feed_forward_norms,
            shared: Some(shared),
        };
        self.add_residual(x, branch, shape, dropout)
    }

    /// Input of a stack that reads the residual stream, and the transform that the stack applies to
    /// it: the norm before the branch, if the family has one.
    pub(super) fn read(
        &self,
        x: &Tensor<2>,
        stack: usize,
        norms: &BranchNormWeights,
        shape: BlockShape,
    ) -> (Tensor<2>, InputTransform) {
        match &norms.before {
            Some(weight) => {
                let normed = InputTransform::Normed {
                    weight: Box::new(weight.clone()),
                    eps: shape.rms_norm_eps,
                };
                (x.clone(), normed)
            }
            None => {
                let dtype = self.stacks[stack].weight.compute_dtype().dtype();
                (x.clone().cast(dtype), InputTransform::Plain)
            }
        }
    }

    /// Adds a branch output to the residual stream.
    fn add_residual(
        &self,
        x: Tensor<2>,
        branch: Branch<'_>,
        shape: BlockShape,
        dropout: Option<DropoutKey>,
    ) -> Tensor<2> {
        let extras = self.extras(branch.stack, branch.transform, dropout);
        let linear = &self.stacks[branch.stack];
        let multiplier = shape.residual_multiplier;
        if branch.norms.after.is_none() && multiplier == 1.0 {
            let extras = LinearExtras {
                residual: Some(x),
                shared_gradient: branch.shared,
                unread: self.unread && branch.stack == 3,
                ..extras
            };
            return lora_linear(branch.input, linear, extras);
        }
        let added = lora_linear(branch.input, linear, extras).cast(DType::F32);
        let added = match &branch.norms.after {
            Some(weight) => rms_norm(added, weight, shape.rms_norm_eps, DType::F32),
            None => added,
        };
        match multiplier {
            1.0 => x.add(added),
            multiplier => x.add(added.mul_scalar(multiplier)),
        }
    }
}

/// The last stack of a branch, and the input of that stack.
struct Branch<'a> {
    input: Tensor<2>,
    transform: InputTransform,
    stack: usize,
    norms: &'a BranchNormWeights,
    /// Set if the first stack of the branch shares the gradient of the residual stream.
    shared: Option<SharedGradient>,
}

/// Multiplies the first `n_heads` heads by one factor per token, `[n, 1, 1]`.
fn scale_queries(heads: Tensor<3>, n_heads: usize, scaling: &Tensor<3>) -> Tensor<3> {
    let (dtype, all) = (heads.dtype(), heads.dims()[1]);
    let queries = heads.clone().narrow(1, 0, n_heads).cast(DType::F32);
    let queries = queries.mul(scaling.clone()).cast(dtype);
    Tensor::cat(vec![queries, heads.narrow(1, n_heads, all - n_heads)], 1)
}

/// Multiplies the attention output by its gates, if any.
pub(super) fn with_gates(attended: Tensor<3>, gates: Option<(Tensor<2>, GatedHeads)>) -> Tensor<3> {
    match gates {
        Some((outputs, heads)) => gated(attended, outputs, heads),
        None => attended,
    }
}

impl BlockShape {
    /// Splits the projection outputs into concatenated heads, `[n, h + 2 g, c]`, and their gates.
    fn heads_and_gates(self, outputs: Tensor<2>) -> (Tensor<3>, Option<(Tensor<2>, GatedHeads)>) {
        let heads = GatedHeads {
            queries: self.n_heads,
            key_values: 2 * self.n_kv_heads,
            dim: self.head_dim,
        };
        if self.query_gate {
            let qkv = without_gates(outputs.clone(), heads);
            return (qkv, Some((outputs, heads)));
        }
        let n = outputs.dims()[0];
        let qkv = outputs.reshape([n, heads.queries + heads.key_values, heads.dim]);
        (qkv, None)
    }
}

impl Block {
    /// Optional arguments of a stack's matmul.
    pub(super) fn extras(
        &self,
        stack: usize,
        transform: InputTransform,
        dropout: Option<DropoutKey>,
    ) -> LinearExtras {
        let projections = self.projections.stacks[stack].clone();
        let masks = |key: DropoutKey| projections.map(move |i| Some(key.projection(i)));
        LinearExtras {
            transform,
            dropout: dropout.map_or(Vec::new(), |key| masks(key).collect()),
            ..LinearExtras::default()
        }
    }
}

impl Decoder {
    /// Replaces the trained weight `name` (the head or the embedding) by `values`, `[v, d]`.
    pub fn replace(&mut self, name: &str, values: Tensor<2>) {
        let host: Vec<f32> = values.to_data().iter::<f32>().collect();
        let (dtype, device) = (self.compute_dtype(), self.device());
        let stored = FrozenWeight::new(host, values.dims(), dtype, &device);
        if name == "lm_head.weight" {
            self.lm_head = stored;
            self.trained.lm_head = Some(values);
        } else {
            self.embed_tokens = stored;
            self.trained.embed_tokens = Some(values);
        }
    }

    /// Factor on embeddings, rounded to the compute dtype as transformers does.
    pub fn embedding_multiplier(&self) -> f64 {
        let multiplier = self.config.embedding_multiplier;
        match self.compute_dtype() {
            ComputeDtype::Bf16 => bf16::from_f64(multiplier).to_f64(),
            ComputeDtype::F32 => multiplier,
        }
    }

    /// Embeddings of `input_ids`, `[n, d]`, f32. Ids must be below `vocab_size`.
    pub fn embed(&self, input_ids: &[u32]) -> Tensor<2> {
        self.embed_from_buffer(&DeviceIntegers::new(input_ids.to_vec()))
    }

    /// Like [`Self::embed`], for IDs in a fixed GPU buffer of recorded launches.
    pub(super) fn embed_from_buffer(&self, input_ids: &DeviceIntegers) -> Tensor<2> {
        let embedded = embedding_of_device_ids(&self.embed_tokens, input_ids);
        match self.embedding_multiplier() {
            1.0 => embedded,
            multiplier => embedded.mul_scalar(multiplier),
        }
    }

    /// Applies the final norm, `[n, d]`. The result has the input dtype of the head.
    pub fn final_norm(&self, x: Tensor<2>) -> Tensor<2> {
        let output = self.compute_dtype().dtype();
        rms_norm(x, &self.norm, self.config.rms_norm_eps, output)
    }

    /// Logits of normalized hidden states: `[m, d]` to `[m, v]`, f32.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        linear_cross_entropy::logits(hidden, &self.lm_head)
    }

    /// The dtype of matrix-multiplication inputs.
    pub fn compute_dtype(&self) -> ComputeDtype {
        self.lm_head.compute_dtype()
    }

    /// Normalized hidden states of every token, `[n, d]`, without dropout.
    pub fn forward(&self, input_ids: &[u32], context: &BatchContext) -> Tensor<2> {
        self.begin_forward();
        let x = self.embed(input_ids);
        let x = self
            .blocks
            .iter()
            .fold(x, |x, block| block.forward(x, context, None));
        self.final_norm(x)
    }

    /// Normalized hidden states of the rows `rows` only, `[m, d]`, without dropout. The last block
    /// computes only what these rows need.
    pub fn forward_rows(
        &self,
        input_ids: &[u32],
        context: &BatchContext,
        rows: &RowIndices,
    ) -> Tensor<2> {
        self.begin_forward();
        let mut x = self.embed(input_ids);
        let Some((last, blocks)) = self.blocks.split_last() else {
            return self.final_norm(select_rows(x, rows));
        };
        for block in blocks {
            x = block.forward(x, context, None);
        }
        self.final_norm(last.forward_rows(x, context, None, rows))
    }

    /// The device of the weights.
    pub fn device(&self) -> Device {
        self.embed_tokens.device().clone()
    }
}
