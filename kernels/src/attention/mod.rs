//! Grouped-query attention over packed documents: no token sees another document.
//!
//! Documents lie end to end, without padding; their borders are host integers, so that neither
//! the mask nor the scores of a whole pack ever exist.

mod backend;
mod cached;
mod cpu;
mod cpu_backward;
mod cpu_decode;
#[cfg(target_arch = "x86_64")]
mod cpu_decode_avx2;
#[cfg(target_arch = "x86_64")]
mod cpu_decode_avx512;
mod cpu_forward;
mod cpu_operands;
#[cfg(target_arch = "x86_64")]
mod cpu_operands_avx512;
mod cpu_softmax;
#[cfg(target_arch = "x86_64")]
mod cpu_softmax_avx2;
#[cfg(target_arch = "x86_64")]
mod cpu_softmax_avx512;
mod cpu_tile;
#[cfg(target_arch = "x86_64")]
mod cpu_tile_avx512;
#[cfg(feature = "cube")]
pub(crate) mod cuda;
pub mod reference;

#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, backend_extension};
use burn::tensor::Tensor;

use cached::{AppendOps, DecodeOps};
pub use cached::{
    Columns, HeldColumns, PromptPlaces, append, append_prompts, decode, decode_step, empty_cache,
};

use crate::route::{has_window_kernel, is_served, is_served_by_cpu};

/// Borders of the documents of a micro-batch, shared by all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documents {
    cu_seqlens: Vec<usize>,
    n_tokens: usize,
    /// What the kernels of a GPU read of them, once it is there.
    #[cfg(feature = "cube")]
    lists: cuda::BlockLists,
}

impl Documents {
    /// `cu_seqlens` rises from 0; document `i` is `cu_seqlens[i]..cu_seqlens[i + 1]`. Tokens from
    /// its last entry up to `n_tokens` are padding: they belong to no document.
    ///
    /// # Panics
    ///
    /// If the borders fall or exceed `n_tokens`: a bug of the caller, no data can cause it.
    pub fn new(cu_seqlens: &[usize], n_tokens: usize) -> Self {
        assert!(
            cu_seqlens.first() == Some(&0),
            "document borders start at 0"
        );
        assert!(cu_seqlens.is_sorted(), "document borders rise");
        assert!(
            cu_seqlens.last() <= Some(&n_tokens),
            "document borders end within the tokens"
        );
        Self {
            cu_seqlens: cu_seqlens.to_vec(),
            n_tokens,
            #[cfg(feature = "cube")]
            lists: cuda::BlockLists::default(),
        }
    }

    /// One document of `n_tokens` tokens.
    pub fn single(n_tokens: usize) -> Self {
        Self::new(&[0, n_tokens], n_tokens)
    }

    /// Start and length of each document that has tokens.
    pub fn spans(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.cu_seqlens
            .windows(2)
            .map(|w| (w[0], w[1] - w[0]))
            .filter(|&(_, length)| length > 0)
    }

    /// Token after the last document.
    pub fn end(&self) -> usize {
        self.cu_seqlens.last().copied().unwrap_or(0)
    }

    /// Tokens of the micro-batch, padding included.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }
}

/// Which tokens of its own document a token attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Causality {
    /// Itself and earlier ones: decoders.
    Causal,
    /// Itself and the tokens before it, so many in all: decoders with a window.
    Sliding(usize),
    /// All: encoders.
    Bidirectional,
}

/// Query heads, and what their scores are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Queries {
    /// Their number, `h`.
    pub heads: usize,
    /// The multiplier of scores; `None` is `1 / √c`.
    pub scale: Option<f64>,
}

impl From<usize> for Queries {
    fn from(heads: usize) -> Self {
        Self { heads, scale: None }
    }
}

impl Queries {
    /// The multiplier for heads of `c`.
    pub(crate) fn scale(self, c: usize) -> f64 {
        self.scale.unwrap_or_else(|| 1.0 / (c as f64).sqrt())
    }
}

/// `softmax(q kᵀ / √c) v` for each head within each document, or with another multiplier than
/// `1 / √c`; padding rows are zero.
///
/// Query head `i` reads key/value head `i / (h / g)`.
///
/// # Shapes
///
/// - `qkv`: `[n, h + 2 g, c]`, f32 or bf16: `h` query heads (`queries`), a multiple of `g`, then
///   `g` key heads, then `g` value heads
/// - returns: `[n, h, c]`, same dtype
///
/// A GPU has a kernel for windows where cuDNN has one, for bf16: else they go to the reference there.
///
/// # Panics
///
/// If the heads do not divide as stated, or `documents` speak of another number of tokens.
///
/// # Source
///
/// Vaswani et al. 2017, equation 1; grouped as in Ainslie et al. 2023; `eager_attention_forward`
/// of transformers 5.23.
pub fn attention(
    qkv: Tensor<3>,
    queries: impl Into<Queries>,
    documents: &Documents,
    causality: Causality,
) -> Tensor<3> {
    crate::operation!("attention");
    let queries = queries.into();
    check_heads(qkv.dims()[1], queries.heads);
    assert_eq!(
        qkv.dims()[0],
        documents.n_tokens(),
        "attention: the documents have other tokens than the tensor"
    );
    let has_kernel = match causality {
        Causality::Causal | Causality::Bidirectional => is_served(&qkv),
        Causality::Sliding(_) => {
            is_served_by_cpu(&qkv) || has_window_kernel(&qkv, (queries, documents, causality))
        }
    };
    if !has_kernel {
        return reference::attention(qkv, queries, documents, causality);
    }
    Tensor::from_dispatch(Dispatch::document_attention(
        qkv.into_dispatch(),
        queries,
        documents.clone(),
        causality,
    ))
}

/// Key/value heads of a tensor of `all` heads, `n_heads` of which are queries.
fn check_heads(all: usize, n_heads: usize) -> usize {
    let n_kv_heads = all.saturating_sub(n_heads) / 2;
    assert!(
        n_kv_heads > 0 && n_heads + 2 * n_kv_heads == all && n_heads.is_multiple_of(n_kv_heads),
        "attention: {all} heads are not {n_heads} query heads with key and value heads that \
         divide them"
    );
    n_kv_heads
}

/// What backends implement themselves of attention in training and prefill.
#[backend_extension(
    Autodiff,
    Flex,
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "fusion"),
)]
pub(crate) trait AttentionOps: Backend {
    /// Attention within documents.
    #[fusion(dtype = qkv, shape = burn::tensor::Shape::new([qkv[0], queries.heads, qkv[2]]))]
    fn document_attention(
        qkv: FloatTensor<Self>,
        queries: Queries,
        documents: Documents,
        causality: Causality,
    ) -> FloatTensor<Self>;
}

/// Pieces of the backward pass, on tensors without a graph.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Fusion: cfg(feature = "fusion"))]
pub(crate) trait AttentionGradients: AttentionOps {
    /// Attention, and what its backward pass needs of it.
    #[fusion(meta = described)]
    fn attention_forward(
        qkv: FloatTensor<Self>,
        queries: Queries,
        documents: Documents,
        causality: Causality,
    ) -> Attention<Self>;

    /// Gradient of queries, keys and values, `[n, h + 2 g, c]`.
    #[fusion(meta = |saved, _dy| saved.qkv.clone())]
    fn attention_gradient(
        #[extension_type] saved: Attention<Self>,
        dy: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// A forward pass of attention.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct Attention<B: Backend> {
    /// Queries, keys and values.
    pub(crate) qkv: FloatTensor<B>,
    pub(crate) queries: Queries,
    pub(crate) documents: Documents,
    pub(crate) causality: Causality,
    /// `[n, h, c]`.
    pub(crate) out: FloatTensor<B>,
    /// Logarithms of the sums of exponentials, `[n, h]`, f32.
    pub(crate) log_sums: FloatTensor<B>,
}

/// What [`AttentionGradients::attention_forward`] will give, before it is run.
#[cfg(feature = "fusion")]
fn described(
    qkv: &TensorSpec,
    queries: &Queries,
    documents: &Documents,
    causality: &Causality,
) -> AttentionMetadata {
    let [n, h, c] = [qkv.shape[0], queries.heads, qkv.shape[2]];
    AttentionMetadata {
        qkv: qkv.clone(),
        queries: *queries,
        documents: documents.clone(),
        causality: *causality,
        out: TensorSpec::new([n, h, c].into(), qkv.dtype),
        log_sums: TensorSpec::new([n, h].into(), burn::tensor::DType::F32),
    }
}
