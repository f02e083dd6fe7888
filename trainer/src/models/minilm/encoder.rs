//! Token ids of many sentences to unit vectors.
//!
//! Sentences lie end to end like the documents of the decoder, so that no padding is computed and
//! mean pooling is over real tokens by construction. The stream between operations is f32; what
//! products and attention read has the compute type.

use burn::tensor::{Int, Tensor, TensorData};
use tooltune_kernels::attention::{Causality, Documents, attention};
use tooltune_kernels::dense::{Reading, dense};
use tooltune_kernels::layer_norm::layer_norm;
use tooltune_kernels::{ComputeDtype, Dense};

use super::MiniLmConfig;
use super::parameters::ParameterLayout;

/// Scale and shift of a layer norm.
#[derive(Debug, Clone)]
struct LayerNorm {
    weight: Tensor<1>,
    bias: Tensor<1>,
}

#[derive(Debug, Clone)]
struct EncoderBlock {
    /// Query, key and value, one above the other.
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
    word_embeddings: Tensor<2>,
    position_embeddings: Tensor<2>,
    token_type_embeddings: Tensor<2>,
    embedding_norm: LayerNorm,
    blocks: Vec<EncoderBlock>,
}

/// The pieces of the flat buffer, taken in order.
struct Pieces<'a> {
    taken: std::slice::Iter<'a, Tensor<2>>,
    dtype: ComputeDtype,
}

impl Pieces<'_> {
    fn matrix(&mut self) -> Tensor<2> {
        self.taken.next().expect("a piece for each use").clone()
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
    /// An encoder of the parameters `flat`, `[p]`, that multiplies in `dtype`.
    ///
    /// # Panics
    ///
    /// If `flat` has not as many elements as `layout`, or that is another encoder's: a bug of the
    /// caller.
    pub fn new(
        config: &MiniLmConfig,
        layout: &ParameterLayout,
        flat: &Tensor<1>,
        dtype: ComputeDtype,
    ) -> Self {
        Self::of_pieces(config, &cut(layout, flat), dtype)
    }

    /// An encoder of the pieces of a layout, in its order; they may be under autodiff.
    ///
    /// # Panics
    ///
    /// If there are fewer pieces than the encoder uses: a bug of the caller.
    pub fn of_pieces(config: &MiniLmConfig, pieces: &[Tensor<2>], dtype: ComputeDtype) -> Self {
        let mut pieces = Pieces {
            taken: pieces.iter(),
            dtype,
        };
        Self {
            config: config.clone(),
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

    /// Unit vectors of sentences given as token ids, `[sentences, d]`, f32.
    ///
    /// # Panics
    ///
    /// If a sentence has no token or more than `max_position_embeddings`: the tokenizer adds
    /// `[CLS]` and `[SEP]` and truncates, so no text can cause it.
    pub fn embed(&self, sentences: &[&[u32]]) -> Tensor<2> {
        let ids: Vec<u32> = sentences.concat();
        let positions: Vec<u32> = sentences
            .iter()
            .flat_map(|sentence| 0..sentence.len() as u32)
            .collect();
        let mut borders = vec![0];
        for sentence in sentences {
            assert!(
                !sentence.is_empty(),
                "a sentence has at least [CLS] and [SEP]"
            );
            borders.push(borders[borders.len() - 1] + sentence.len());
        }
        let documents = Documents::new(&borders, ids.len());
        let x = rows_of(&self.word_embeddings, &ids)
            .add(self.token_type_embeddings.clone().narrow(0, 0, 1))
            .add(rows_of(&self.position_embeddings, &positions));
        let mut x = self.norm(&self.embedding_norm, x);
        for block in &self.blocks {
            x = self.block(block, x, &documents);
        }
        normalize(means(x, &documents))
    }

    fn norm(&self, norm: &LayerNorm, x: Tensor<2>) -> Tensor<2> {
        layer_norm(x, &norm.weight, &norm.bias, self.config.layer_norm_eps)
    }

    fn block(&self, block: &EncoderBlock, x: Tensor<2>, documents: &Documents) -> Tensor<2> {
        let [n, d] = x.dims();
        let heads = self.config.num_attention_heads;
        let projected = dense(x.clone(), &block.projections, None, Reading::Plain);
        let projected = projected.reshape([n, 3 * heads, d / heads]);
        let attended = attention(projected, heads, documents, Causality::Bidirectional);
        let attended = attended.reshape([n, d]);
        let sum = dense(attended, &block.attention_output, Some(x), Reading::Plain);
        let x = self.norm(&block.attention_norm, sum);
        let inner = dense(x.clone(), &block.intermediate, None, Reading::Plain);
        let sum = dense(inner, &block.output, Some(x), Reading::Gelu);
        self.norm(&block.output_norm, sum)
    }
}

/// The pieces of a flat buffer, without copies.
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

/// A constant beside `x`: under autodiff if `x` is.
fn beside<const D: usize>(x: &Tensor<2>, constant: Tensor<D>) -> Tensor<D> {
    match x.is_autodiff() {
        true => Tensor::from_inner(constant),
        false => constant,
    }
}

/// The mean row of each document, `[documents, d]`, as one product.
fn means(x: Tensor<2>, documents: &Documents) -> Tensor<2> {
    let n = x.dims()[0];
    let mut shares = Vec::new();
    for (start, length) in documents.spans() {
        let row = shares.len();
        shares.resize(row + n, 0.0f32);
        shares[row + start..row + start + length].fill(1.0 / length as f32);
    }
    let n_documents = shares.len() / n.max(1);
    let device = x.device();
    let shares = Tensor::<2>::from_data(
        TensorData::new(shares, [n_documents, n]),
        &device.clone().inner(),
    );
    beside(&x, shares).matmul(x)
}

/// Rows divided by their length; `torch.nn.functional.normalize` with its floor of 1e-12.
fn normalize(x: Tensor<2>) -> Tensor<2> {
    let norms = x.clone().square().sum_dim(1).sqrt().clamp_min(1e-12);
    x.div(norms)
}

fn rows_of(table: &Tensor<2>, ids: &[u32]) -> Tensor<2> {
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let n = ids.len();
    let device = table.device();
    table.clone().select(
        0,
        Tensor::<1, Int>::from_data(TensorData::new(ids, [n]), &device),
    )
}
