//! Grouped-query attention over packed documents: no token sees another document.
//!
//! Documents lie end to end, without padding; their borders are host integers, so that neither
//! the mask nor the scores of a whole pack ever exist.

pub mod reference;

use burn::tensor::Tensor;

/// Borders of the documents of a micro-batch, shared by all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documents {
    cu_seqlens: Vec<usize>,
    n_tokens: usize,
}

impl Documents {
    /// `cu_seqlens` rises from 0; document `i` is `cu_seqlens[i]..cu_seqlens[i + 1]`. Tokens from
    /// its last entry up to `n_tokens` are padding: they belong to no document.
    ///
    /// # Panics
    ///
    /// If the borders fall or exceed `n_tokens`: a bug of the caller, no data can cause it.
    pub fn new(cu_seqlens: &[usize], n_tokens: usize) -> Self {
        assert!(cu_seqlens.first() == Some(&0), "document borders start at 0");
        assert!(cu_seqlens.is_sorted(), "document borders rise");
        assert!(cu_seqlens.last() <= Some(&n_tokens), "document borders end within the tokens");
        Self { cu_seqlens: cu_seqlens.to_vec(), n_tokens }
    }

    /// One document of `n_tokens` tokens.
    pub fn single(n_tokens: usize) -> Self {
        Self { cu_seqlens: vec![0, n_tokens], n_tokens }
    }

    /// Start and length of each document that has tokens.
    pub fn spans(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.cu_seqlens.windows(2).map(|w| (w[0], w[1] - w[0])).filter(|&(_, length)| length > 0)
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
    /// All: encoders.
    Bidirectional,
}

/// `softmax(q kᵀ / √c) v` for each head within each document; padding rows are zero.
///
/// Query head `i` reads key/value head `i / (h / g)`.
///
/// # Shapes
///
/// - `q`: `[n, h, c]`, float; `k`, `v`: `[n, g, c]`, same dtype, `h` a multiple of `g`
/// - returns: `[n, h, c]`
///
/// # Source
///
/// Vaswani et al. 2017, equation 1; grouped as in Ainslie et al. 2023; `eager_attention_forward`
/// of transformers 5.23.
pub fn attention(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    documents: &Documents,
    causality: Causality,
) -> Tensor<3> {
    reference::attention(q, k, v, documents, causality)
}
