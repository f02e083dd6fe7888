//! Computes the embeddings of tokenized sentences.
//!
//! Sentences are concatenated like the decoder's documents, so there is no padding. The residual
//! stream is f32; inputs of matmuls and attention have the compute dtype.

use std::ops::Range;

use burn::tensor::{Int, Tensor, TensorData};
use tooltune_checkpoints::sentence_transformers::Pooling;
use tooltune_kernels::attention::{Causality, Documents, attention};
use tooltune_kernels::dense::{InputTransform, dense};
use tooltune_kernels::layer_norm::layer_norm;
use tooltune_kernels::{ComputeDtype, Dense};

use super::MiniLmConfig;
use super::parameters::ParameterLayout;

/// How the last hidden states of a sentence are combined into its embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingHead {
    /// Pooling over the tokens.
    pub pooling: Pooling,
    /// Whether embeddings are normalised to length 1.
    pub normalize: bool,
}

impl EmbeddingHead {
    /// Head of all-MiniLM-L6-v2: mean pooling, normalised.
    pub const MEAN: Self = Self {
        pooling: Pooling::Mean,
        normalize: true,
    };
}

/// Token ids of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sentence<'a> {
    /// Ids, including special tokens.
    pub ids: &'a [u32],
    /// Number of leading tokens excluded from pooling, such as a prompt.
    pub n_unpooled: usize,
}

impl<'a> From<&'a [u32]> for Sentence<'a> {
    /// A sentence whose tokens are all pooled.
    fn from(ids: &'a [u32]) -> Self {
        Self { ids, n_unpooled: 0 }
    }
}

/// Scale and shift of a layer norm.
#[derive(Debug, Clone)]
struct LayerNorm {
    weight: Tensor<1>,
    bias: Tensor<1>,
}

#[derive(Debug, Clone)]
struct EncoderBlock {
    /// Query, key and value projections, stacked by rows.
    projections: Dense,
    attention_output: Dense,
    attention_norm: LayerNorm,
    intermediate: Dense,
    output: Dense,
    output_norm: LayerNorm,
}

/// The encoder with its weights.
#[derive(Debug, Clone)]
pub struct MiniLm {
    /// Shape.
    pub config: MiniLmConfig,
    head: EmbeddingHead,
    word_embeddings: Tensor<2>,
    position_embeddings: Tensor<2>,
    token_type_embeddings: Tensor<2>,
    embedding_norm: LayerNorm,
    blocks: Vec<EncoderBlock>,
}

/// Iterates over the pieces of the flat buffer.
struct Pieces<'a> {
    remaining: std::slice::Iter<'a, Tensor<2>>,
    dtype: ComputeDtype,
}

impl Pieces<'_> {
    fn matrix(&mut self) -> Tensor<2> {
        self.remaining.next().expect("a piece for each use").clone()
    }

    fn vector(&mut self) -> Tensor<1> {
        self.matrix().flatten(0, 1)
    }

    fn norm(&mut self) -> LayerNorm {
        LayerNorm {
            weight: self.vector(),
            bias: self.vector(),
        }
    }

    fn linear(&mut self) -> Dense {
        let weight = self.matrix();
        Dense::new(weight, self.vector(), self.dtype)
    }
}

impl MiniLm {
    /// Creates an encoder from the parameters `flat`, `[p]`, with matmuls in `dtype`.
    ///
    /// # Panics
    ///
    /// Panics if `flat` does not have the size of `layout`, or `layout` belongs to a different
    /// encoder. Both are bugs in the caller.
    pub fn new(
        config: &MiniLmConfig,
        head: EmbeddingHead,
        layout: &ParameterLayout,
        flat: &Tensor<1>,
        dtype: ComputeDtype,
    ) -> Self {
        Self::from_pieces(config, head, &cut(layout, flat), dtype)
    }

    /// Creates an encoder from the pieces of a layout, in order, with or without autodiff.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer pieces than the encoder uses, which is a bug in the caller.
    pub fn from_pieces(
        config: &MiniLmConfig,
        head: EmbeddingHead,
        pieces: &[Tensor<2>],
        dtype: ComputeDtype,
    ) -> Self {
        let mut pieces = Pieces {
            remaining: pieces.iter(),
            dtype,
        };
        Self {
            config: config.clone(),
            head,
            word_embeddings: pieces.matrix(),
            position_embeddings: pieces.matrix(),
            token_type_embeddings: pieces.matrix(),
            embedding_norm: pieces.norm(),
            blocks: (0..config.num_hidden_layers)
                .map(|_| EncoderBlock {
                    projections: pieces.linear(),
                    attention_output: pieces.linear(),
                    attention_norm: pieces.norm(),
                    intermediate: pieces.linear(),
                    output: pieces.linear(),
                    output_norm: pieces.norm(),
                })
                .collect(),
        }
    }

    /// Embeds sentences: `[sentences, d]`, f32.
    ///
    /// # Panics
    ///
    /// Panics if a sentence has no token, or more than `max_position_embeddings`. No text can cause
    /// this, because the tokenizer adds `[CLS]` and `[SEP]` and truncates.
    pub fn embed(&self, sentences: &[Sentence<'_>]) -> Tensor<2> {
        let all: Vec<&[u32]> = sentences.iter().map(|sentence| sentence.ids).collect();
        let ids: Vec<u32> = all.concat();
        let positions: Vec<u32> = all.iter().flat_map(|ids| 0..ids.len() as u32).collect();
        let mut borders = vec![0];
        for ids in all {
            assert!(!ids.is_empty(), "a sentence has at least [CLS] and [SEP]");
            borders.push(borders[borders.len() - 1] + ids.len());
        }
        let documents = Documents::new(&borders, ids.len());
        let x = select_rows(&self.word_embeddings, &ids)
            .add(self.token_type_embeddings.clone().narrow(0, 0, 1))
            .add(select_rows(&self.position_embeddings, &positions));
        let mut x = self.norm(&self.embedding_norm, x);
        for block in &self.blocks {
            x = self.block(block, x, &documents);
        }
        let pooled_rows: Vec<Range<usize>> = documents
            .spans()
            .zip(sentences)
            .map(|((start, length), sentence)| {
                start + sentence.n_unpooled.min(length - 1)..start + length
            })
            .collect();
        let pooled = pool(x, self.head.pooling, &pooled_rows);
        if self.head.normalize {
            normalize(pooled)
        } else {
            pooled
        }
    }

    fn norm(&self, norm: &LayerNorm, x: Tensor<2>) -> Tensor<2> {
        layer_norm(x, &norm.weight, &norm.bias, self.config.layer_norm_eps)
    }

    fn block(&self, block: &EncoderBlock, x: Tensor<2>, documents: &Documents) -> Tensor<2> {
        let [n, d] = x.dims();
        let heads = self.config.num_attention_heads;
        let projected = dense(x.clone(), &block.projections, None, InputTransform::Plain);
        let projected = projected.reshape([n, 3 * heads, d / heads]);
        let attended = attention(projected, heads, documents, Causality::Bidirectional);
        let attended = attended.reshape([n, d]);
        let sum = dense(
            attended,
            &block.attention_output,
            Some(x),
            InputTransform::Plain,
        );
        let x = self.norm(&block.attention_norm, sum);
        let inner = dense(x.clone(), &block.intermediate, None, InputTransform::Plain);
        let sum = dense(inner, &block.output, Some(x), InputTransform::Gelu);
        self.norm(&block.output_norm, sum)
    }
}

/// Slices a flat buffer into its pieces, without copies.
pub fn cut(layout: &ParameterLayout, flat: &Tensor<1>) -> Vec<Tensor<2>> {
    assert_eq!(flat.dims(), [layout.len()], "parameters of the layout");
    layout
        .pieces
        .iter()
        .map(|piece| {
            let part = flat.clone().narrow(0, piece.range.start, piece.range.len());
            part.reshape(piece.shape)
        })
        .collect()
}

/// Moves a constant to the backend of `x`: with autodiff if `x` has autodiff.
fn on_backend_of<const D: usize>(x: &Tensor<2>, constant: Tensor<D>) -> Tensor<D> {
    if x.is_autodiff() {
        Tensor::from_inner(constant)
    } else {
        constant
    }
}

/// Pools each range of rows to one row, `[ranges, d]`.
///
/// # Source
///
/// sentence-transformers 6.2, `Pooling._forward_padded`.
fn pool(x: Tensor<2>, pooling: Pooling, ranges: &[Range<usize>]) -> Tensor<2> {
    let rows = |edge: fn(&Range<usize>) -> usize| -> Vec<u32> {
        ranges.iter().map(|range| edge(range) as u32).collect()
    };
    match pooling {
        Pooling::Cls => select_rows(&x, &rows(|range| range.start)),
        Pooling::LastToken => select_rows(&x, &rows(|range| range.end - 1)),
        Pooling::Max => {
            let largest = |range: &Range<usize>| {
                let own = x.clone().narrow(0, range.start, range.len());
                own.max_dim(0)
            };
            Tensor::cat(ranges.iter().map(largest).collect(), 0)
        }
        Pooling::Mean => sums(x, ranges, |n| 1.0 / n),
        Pooling::MeanSqrtLen => sums(x, ranges, |n| 1.0 / n.sqrt()),
    }
}

/// Sums each range of rows with one matmul, and multiplies the sum by `share` of the range's
/// length.
fn sums(x: Tensor<2>, ranges: &[Range<usize>], share: fn(f32) -> f32) -> Tensor<2> {
    let n = x.dims()[0];
    let mut shares = vec![0.0f32; ranges.len() * n];
    for (row, range) in shares.chunks_mut(n.max(1)).zip(ranges) {
        row[range.clone()].fill(share(range.len() as f32));
    }
    let device = x.device();
    let shares = Tensor::<2>::from_data(
        TensorData::new(shares, [ranges.len(), n]),
        &device.clone().inner(),
    );
    on_backend_of(&x, shares).matmul(x)
}

/// Normalises rows to length 1 like `torch.nn.functional.normalize`, with its floor of 1e-12.
fn normalize(x: Tensor<2>) -> Tensor<2> {
    let norms = x.clone().square().sum_dim(1).sqrt().clamp_min(1e-12);
    x.div(norms)
}

fn select_rows(table: &Tensor<2>, ids: &[u32]) -> Tensor<2> {
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let n = ids.len();
    let device = table.device();
    table.clone().select(
        0,
        Tensor::<1, Int>::from_data(TensorData::new(ids, [n]), &device),
    )
}
