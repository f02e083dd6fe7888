//! Grouped-query attention over packed documents: no token attends to another document.
//!
//! Documents are stored consecutively, without padding. Their borders are host integers, so neither
//! a mask nor the scores of a whole pack are ever materialised.

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

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, backend_extension};
use burn::tensor::Tensor;

use cached::{AppendOps, DecodeOps};
pub use cached::{
    Columns, DeviceColumns, PromptPositions, append, append_prompts, decode, decode_step,
    empty_cache,
};

use crate::route::{has_window_kernel, is_served, is_served_by_cpu};

/// Borders of the documents of a micro-batch, shared by all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documents {
    cu_seqlens: Vec<usize>,
    n_tokens: usize,
    /// GPU copies of lists derived from the borders, uploaded on first use.
    #[cfg(feature = "cube")]
    lists: cuda::BlockLists,
}

impl Documents {
    /// `cu_seqlens` increases from 0; document `i` is `cu_seqlens[i]..cu_seqlens[i + 1]`. Tokens
    /// from its last entry up to `n_tokens` are padding: they belong to no document.
    ///
    /// # Panics
    ///
    /// If the borders decrease or exceed `n_tokens`: a bug of the caller, no data can cause it.
    pub fn new(cu_seqlens: &[usize], n_tokens: usize) -> Self {
        assert!(
            cu_seqlens.first() == Some(&0),
            "document borders must start at 0"
        );
        assert!(cu_seqlens.is_sorted(), "document borders must not decrease");
        assert!(
            cu_seqlens.last() <= Some(&n_tokens),
            "document borders must not exceed the number of tokens"
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

    /// Start and length of each non-empty document.
    pub fn spans(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.cu_seqlens
            .windows(2)
            .map(|w| (w[0], w[1] - w[0]))
            .filter(|&(_, length)| length > 0)
    }

    /// End of the last document.
    pub fn end(&self) -> usize {
        self.cu_seqlens.last().copied().unwrap_or(0)
    }

    /// Tokens of the micro-batch, including padding.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }
}

/// Which tokens of its own document a token attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Causality {
    /// Itself and earlier tokens (decoders).
    Causal,
    /// Itself and the tokens before it, at most this number in total (decoders with a sliding
    /// window).
    Sliding(usize),
    /// All tokens (encoders).
    Bidirectional,
}

/// Number of query heads, and the multiplier of their scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Queries {
    /// Number of query heads, `h`.
    pub heads: usize,
    /// Multiplier of the scores; `None` means `1 / √c`.
    pub scale: Option<f64>,
}

impl From<usize> for Queries {
    fn from(heads: usize) -> Self {
        Self { heads, scale: None }
    }
}

impl Queries {
    /// The multiplier for head size `c`.
    pub(crate) fn scale(self, c: usize) -> f64 {
        self.scale.unwrap_or_else(|| 1.0 / (c as f64).sqrt())
    }
}

/// `softmax(q kᵀ / √c) v` for each head within each document; `queries` may set a multiplier other
/// than `1 / √c`. Padding rows are zero.
///
/// Query head `i` reads key/value head `i / (h / g)`.
///
/// # Shapes
///
/// - `qkv`: `[n, h + 2 g, c]`, f32 or bf16: `h` query heads (`queries`), a multiple of `g`, then
///   `g` key heads, then `g` value heads
/// - returns: `[n, h, c]`, same dtype
///
/// On a GPU, sliding windows in bf16 use cuDNN if it supports them; otherwise they use the
/// reference.
///
/// # Panics
///
/// If the heads do not divide as stated, or `documents` has a different number of tokens.
///
/// # Source
///
/// Vaswani et al. 2017, equation 1; grouped as in Ainslie et al. 2023; `eager_attention_forward` of
/// transformers 5.23.
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
        "attention: the documents and the tensor have different numbers of tokens"
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

/// Number of key/value heads of a tensor with `all` heads, of which `n_heads` are query heads.
fn check_heads(all: usize, n_heads: usize) -> usize {
    let n_kv_heads = all.saturating_sub(n_heads) / 2;
    assert!(
        n_kv_heads > 0 && n_heads + 2 * n_kv_heads == all && n_heads.is_multiple_of(n_kv_heads),
        "attention: {all} heads cannot be {n_heads} query heads plus equal numbers of key and \
         value heads that divide them"
    );
    n_kv_heads
}

/// Attention for training and prefill that a backend implements itself.
#[backend_extension(
    Autodiff,
    Flex,
    Cube: cfg(feature = "cube"),
)]
pub(crate) trait AttentionOps: Backend {
    /// Attention within documents.
    fn document_attention(
        qkv: FloatTensor<Self>,
        queries: Queries,
        documents: Documents,
        causality: Causality,
    ) -> FloatTensor<Self>;
}

/// Forward and backward passes, on tensors that are not part of an autodiff graph.
#[backend_extension(Flex, Cube: cfg(feature = "cube"))]
pub(crate) trait AttentionGradients: AttentionOps {
    /// Attention, with the results that its backward pass needs.
    fn attention_forward(
        qkv: FloatTensor<Self>,
        queries: Queries,
        documents: Documents,
        causality: Causality,
    ) -> Attention<Self>;

    /// Gradient of queries, keys and values, `[n, h + 2 g, c]`.
    fn attention_gradient(
        #[extension_type] saved: Attention<Self>,
        dy: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// Result of a forward pass of attention.
#[derive(Debug, Clone, ExtensionType)]
pub(crate) struct Attention<B: Backend> {
    /// Queries, keys and values.
    pub(crate) qkv: FloatTensor<B>,
    pub(crate) queries: Queries,
    pub(crate) documents: Documents,
    pub(crate) causality: Causality,
    /// `[n, h, c]`.
    pub(crate) out: FloatTensor<B>,
    /// Log-sum-exp of the scores, `[n, h]`, f32.
    pub(crate) log_sums: FloatTensor<B>,
}
