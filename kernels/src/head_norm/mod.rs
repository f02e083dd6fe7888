//! RMSNorm of the queries and keys of each token, before rotary embedding.
//!
//! Some families normalise each head, others all queries and all keys of a token: in both cases a
//! row is split into spans that are normalised separately. The values, which follow queries and
//! keys, are copied unchanged: a single projection computes all three, and they share one gradient.

mod backend;
mod cpu;
#[cfg(feature = "cube")]
pub(crate) mod cuda;
pub mod reference;

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};

use crate::route::{is_served, is_served_by_cpu};
use backend::HeadNormOps;

/// Frozen parameters of the norm: the spans of a row and their weights.
#[derive(Debug, Clone)]
pub struct SpanNorm {
    /// One weight per element of the spans, f32.
    pub weight: Tensor<1>,
    /// Length of each span, starting at the first column of a row.
    pub spans: Arc<[usize]>,
    /// Added to the mean square of a span.
    pub eps: f64,
}

/// Divides each span of a row by its root mean square and multiplies it by its weights.
///
/// # Shapes
///
/// - `qkv`: `[n, heads, c]`, f32 or bf16; a row has `heads * c` elements, and those after the spans
///   are copied
/// - returns: `[n, heads, c]`, same dtype
///
/// A GPU has a kernel for at most two consecutive runs of equal-length spans, as in all supported
/// families. Other spans use the reference.
///
/// # Panics
///
/// If the spans are longer than a row, a span is empty, or the number of weights differs from the
/// length of the spans.
///
/// # Source
///
/// `q_norm` and `k_norm` of `Qwen3Attention` (each head) and `Olmo3Attention` (all heads) of
/// transformers 5.23.
pub fn head_norm(qkv: Tensor<3>, norm: &SpanNorm) -> Tensor<3> {
    crate::operation!("head_norm");
    let [n, heads, c] = qkv.dims();
    let normed: usize = norm.spans.iter().sum();
    assert!(
        normed <= heads * c && norm.spans.iter().all(|&span| span > 0),
        "head_norm: spans of lengths {:?} do not fit into rows of [{n}, {heads}, {c}]",
        norm.spans
    );
    assert!(
        norm.weight.dims() == [normed],
        "head_norm: {normed} normalised elements need the same number of weights, found {:?}",
        norm.weight.dims()
    );
    let has_kernel = match is_served_by_cpu(&qkv) {
        true => is_served_by_cpu(&norm.weight),
        false => is_served(&qkv) && runs(&norm.spans).is_some(),
    };
    if !(has_kernel && norm.weight.dtype() == DType::F32) {
        return reference::head_norm(qkv, norm);
    }
    Tensor::from_dispatch(Dispatch::norm_spans(
        qkv.into_dispatch(),
        norm.weight.clone().into_dispatch(),
        norm.spans.clone(),
        norm.eps as f32,
    ))
}

/// Spans of one length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Run {
    spans: usize,
    length: usize,
}

/// The spans as two runs of equal lengths, of which the second may be empty; `None` if there are
/// more.
fn runs(spans: &[usize]) -> Option<[Run; 2]> {
    let mut runs = spans.chunk_by(|a, b| a == b).map(|run| Run {
        spans: run.len(),
        length: run[0],
    });
    let two = [runs.next(), runs.next()].map(Option::unwrap_or_default);
    runs.next().is_none().then_some(two)
}

#[cfg(test)]
mod tests {
    use super::{Run, runs};

    #[test]
    fn spans_form_at_most_two_runs() {
        let run = |spans, length| Run { spans, length };
        assert_eq!(runs(&[]), Some([run(0, 0); 2]));
        assert_eq!(runs(&[64; 3]), Some([run(3, 64), run(0, 0)]));
        assert_eq!(runs(&[32, 8]), Some([run(1, 32), run(1, 8)]));
        assert_eq!(runs(&[32, 8, 8]), Some([run(1, 32), run(2, 8)]));
        assert_eq!(runs(&[32, 8, 32]), None);
    }
}
