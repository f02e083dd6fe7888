//! The core of a linear-attention layer with the gated delta rule, between its input and output
//! projections: a short convolution of queries, keys and values, the gates of the state, the rule
//! itself, and a gated norm.

mod backend;
mod cpu;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor, activation};

use crate::causal_conv::{causal_conv, transposed_weight};
use crate::gated_delta::gated_delta;
use crate::gated_norm::{GatedNorm, gated_norm};
use crate::route::is_served_by_cpu;
use crate::{DeltaHeads, DeltaInputs, Documents};
use backend::{Arguments, DeltaNetOps, Frozen};

/// Frozen parameters of a layer other than its projections.
#[derive(Debug, Clone)]
pub struct GatedDeltaNet {
    /// Heads of the layer.
    pub heads: DeltaHeads,
    /// Convolution weights of queries, keys and values, `[width, kernel]`, f32.
    pub conv: Tensor<2>,
    /// Log-decay per unit of a head's step, `[1, value heads]`, f32, below 0.
    pub rate: Tensor<2>,
    /// Added to a head's step before softplus, `[1, value heads]`, f32.
    pub step_bias: Tensor<2>,
    /// Norm of the outputs of the states.
    pub norm: GatedNorm,
}

/// Parts of the input projection's output, per token.
#[derive(Debug, Clone)]
pub struct DeltaParts {
    /// Queries, keys and values before the convolution, `[n, width]`.
    pub qkv: Tensor<2>,
    /// Gate of the outputs, `[n, value heads * value_dim]`.
    pub gate: Tensor<2>,
    /// See [`DeltaInputs::log_decay`].
    pub log_decay: Tensor<2>,
    /// See [`DeltaInputs::beta`].
    pub beta: Tensor<2>,
}

impl DeltaHeads {
    /// Columns of the input projection's output: queries, keys and values, the gate, and beta and
    /// step of each value head.
    pub fn columns(&self) -> [usize; 4] {
        [
            self.width(),
            self.values(),
            self.value_heads,
            self.value_heads,
        ]
    }
}

impl GatedDeltaNet {
    /// Splits `x`, `[n, columns]`; the first two parts keep its dtype.
    ///
    /// # Panics
    ///
    /// If the number of columns of `x` is not [`DeltaHeads::columns`].
    pub fn parts(&self, x: Tensor<2>) -> DeltaParts {
        let columns = self.heads.columns();
        assert_eq!(
            x.dims()[1],
            columns.iter().sum::<usize>(),
            "gated_delta_net: the input has the wrong number of columns"
        );
        let mut first = 0;
        let [qkv, gate, share, step] = columns.map(|width| {
            first += width;
            x.clone().narrow(1, first - width, width)
        });
        let dtype = self.rate.dtype();
        let step = step.cast(dtype).add(self.step_bias.clone());
        // `ln(1 + exp(step))`, without overflow.
        let step = activation::log_sigmoid(step.neg()).neg();
        DeltaParts {
            qkv,
            gate,
            log_decay: step.mul(self.rate.clone()),
            beta: activation::sigmoid(share.cast(dtype)),
        }
    }
}

/// The outputs of the documents' states, normalised and gated; padding rows are zero.
///
/// # Shapes
///
/// - `x`: `[n, columns]`, see [`DeltaHeads::columns`], f32 or bf16
/// - returns: `[n, value heads, value_dim]`, the dtype of `x`
///
/// On a GPU, each step is a separate operation.
///
/// # Panics
///
/// If the shapes do not match, or `documents` has a different number of tokens.
///
/// # Source
///
/// `Qwen3_5GatedDeltaNet` of transformers 5.23.
pub fn gated_delta_net(x: Tensor<2>, net: &GatedDeltaNet, documents: &Documents) -> Tensor<3> {
    crate::operation!("gated_delta_net");
    let GatedDeltaNet { heads, norm, .. } = net;
    let gates = [&net.rate, &net.step_bias].map(|gate| gate.dims());
    assert!(
        x.dims() == [documents.n_tokens(), heads.columns().iter().sum()]
            && net.conv.dims()[0] == heads.width()
            && net.conv.dims()[1] > 0
            && gates == [[1, heads.value_heads]; 2]
            && norm.weight.dims() == [heads.value_dim],
        "gated_delta_net: an input of shape {:?} does not match {} tokens, {heads:?}, weights of {:?} and gates of {gates:?}",
        x.dims(),
        documents.n_tokens(),
        net.conv.dims(),
    );
    let is_plain = |x: &Tensor<2>| x.dtype() == DType::F32 && is_served_by_cpu(x);
    let frozen = [&net.conv, &net.rate, &net.step_bias];
    let has_kernel = is_served_by_cpu(&x) && frozen.into_iter().all(is_plain);
    if !(has_kernel && norm.weight.dtype() == DType::F32) {
        return compute_stepwise(x, net, documents);
    }
    let frozen = Frozen {
        conv: transposed_weight(&net.conv).into_dispatch(),
        rate: net.rate.clone().into_dispatch(),
        step_bias: net.step_bias.clone().into_dispatch(),
        norm: norm.weight.clone().into_dispatch(),
        arguments: Arguments {
            heads: *heads,
            eps: norm.eps as f32,
            documents: documents.clone(),
        },
    };
    Tensor::from_dispatch(Dispatch::delta_net(x.into_dispatch(), frozen))
}

/// Same contract as [`gated_delta_net`], computed with the functions of each step.
fn compute_stepwise(x: Tensor<2>, net: &GatedDeltaNet, documents: &Documents) -> Tensor<3> {
    let parts = net.parts(x);
    let inputs = DeltaInputs {
        qkv: causal_conv(parts.qkv, &net.conv, documents),
        log_decay: parts.log_decay,
        beta: parts.beta,
    };
    let output = gated_delta(inputs, net.heads, documents);
    gated_norm(output, parts.gate, &net.norm)
}
