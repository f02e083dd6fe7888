//! Grouped-query attention over packed documents: no token sees another document.
//!
//! Documents lie end to end, without padding; their borders are host integers, so that neither
//! the mask nor the scores of a whole pack ever exist.

pub(crate) mod cpu;
pub(crate) mod cpu_backward;
mod cpu_decode;
#[cfg(feature = "cube")]
pub mod cuda;
pub mod reference;
mod softmax;

use burn::backend::Dispatch;
use burn::tensor::{Tensor, TensorData};

use crate::cpu::buffer::plain;
use crate::ops::{KernelOps, is_fused};

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
        }
    }

    /// One document of `n_tokens` tokens.
    pub fn single(n_tokens: usize) -> Self {
        Self {
            cu_seqlens: vec![0, n_tokens],
            n_tokens,
        }
    }

    /// Start and length of each document that has tokens.
    pub fn spans(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.cu_seqlens
            .windows(2)
            .map(|w| (w[0], w[1] - w[0]))
            .filter(|&(_, length)| length > 0)
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
    if !(is_fused(&q) && is_fused(&k) && is_fused(&v)) {
        return reference::attention(q, k, v, documents, causality);
    }
    let (q, k, v) = (q.into_dispatch(), k.into_dispatch(), v.into_dispatch());
    Tensor::from_dispatch(Dispatch::document_attention(
        q,
        k,
        v,
        documents.clone(),
        causality,
    ))
}

/// Attention of one new query a row to the cached keys of its row.
///
/// Row `i` sees the columns from `starts[i]` up to `n_columns`, at least one. Nothing is
/// differentiated.
///
/// # Shapes
///
/// - `q`: `[b, h, c]`, float
/// - `keys`, `values`: `[b, g, capacity, c]`, same dtype, `h` a multiple of `g`
/// - returns: `[b, h, c]`
///
/// # Source
///
/// As [`attention`], for the last token of each row.
pub fn decode(
    q: Tensor<3>,
    keys: &Tensor<4>,
    values: &Tensor<4>,
    starts: &[usize],
    n_columns: usize,
) -> Tensor<3> {
    let (shape, device) = (q.dims(), q.device());
    match (plain(&q), plain(keys), plain(values)) {
        (Some(q), Some(keys), Some(values)) => {
            let [_, g, capacity, _] = keys.dims();
            let cache = cpu_decode::Cache {
                keys: keys.floats(),
                values: values.floats(),
                heads: cpu::Heads {
                    h: shape[1],
                    g,
                    c: shape[2],
                },
                capacity,
                n_columns,
            };
            let attended = cpu_decode::decode(q.floats(), &cache, starts);
            Tensor::from_data(TensorData::new(attended, shape), &device)
        }
        _ => reference::decode(q, keys, values, starts, n_columns),
    }
}
