//! Linear attention by the gated delta rule, from what a layer's first product gives to what its last
//! one reads: a short convolution of queries, keys and values, gates of the state, the rule itself, and
//! a norm with a gate.

mod backend;
mod cpu;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor, activation};

use crate::causal_conv::{causal_conv, turned};
use crate::gated_delta::gated_delta;
use crate::gated_norm::{GatedNorm, gated_norm};
use crate::route::is_served_by_cpu;
use crate::{DeltaHeads, DeltaInputs, Documents};
use backend::{DeltaNetOps, Form};

/// What a layer has beside its products; frozen.
#[derive(Debug, Clone)]
pub struct GatedDeltaNet {
    /// Its heads.
    pub heads: DeltaHeads,
    /// The convolution of queries, keys and values, `[width, kernel]`, f32.
    pub conv: Tensor<2>,
    /// What a head's step is multiplied with to be the logarithm of its decay, `[1, value heads]`, f32,
    /// below 0.
    pub rate: Tensor<2>,
    /// Added to a head's step before it is made positive, `[1, value heads]`, f32.
    pub step_bias: Tensor<2>,
    /// Of what is read of the states.
    pub norm: GatedNorm,
}

/// What the first product says of each token.
#[derive(Debug, Clone)]
pub struct DeltaParts {
    /// Queries, keys and values before the convolution, `[n, width]`.
    pub qkv: Tensor<2>,
    /// The gate of what is read, `[n, value heads * value_dim]`.
    pub gate: Tensor<2>,
    /// As [`DeltaInputs::log_decay`].
    pub log_decay: Tensor<2>,
    /// As [`DeltaInputs::beta`].
    pub beta: Tensor<2>,
}

impl DeltaHeads {
    /// Columns of what the first product gives: queries, keys and values, the gate, and of each value
    /// head its share and its step.
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
    /// Of `x`, `[n, columns]`, the dtype of whose first two parts stays.
    ///
    /// # Panics
    ///
    /// If `x` has other columns than [`DeltaHeads::columns`].
    pub fn parts(&self, x: Tensor<2>) -> DeltaParts {
        let columns = self.heads.columns();
        assert_eq!(
            x.dims()[1],
            columns.iter().sum::<usize>(),
            "gated_delta_net: columns of the first product"
        );
        let mut first = 0;
        let [qkv, gate, share, step] = columns.map(|width| {
            first += width;
            x.clone().narrow(1, first - width, width)
        });
        let dtype = self.rate.dtype();
        let step = step.cast(dtype).add(self.step_bias.clone());
        // The logarithm of 1 + exp(step), which no step overflows.
        let step = activation::log_sigmoid(step.neg()).neg();
        DeltaParts {
            qkv,
            gate,
            log_decay: step.mul(self.rate.clone()),
            beta: activation::sigmoid(share.cast(dtype)),
        }
    }
}

/// What is read of the states of the documents, normed and gated; padding rows are zero.
///
/// # Shapes
///
/// - `x`: `[n, columns]` as [`DeltaHeads::columns`] says, f32 or bf16
/// - returns: `[n, value heads, value_dim]`, the dtype of `x`
///
/// On a GPU its steps are operations of their own.
///
/// # Panics
///
/// If the shapes do not fit each other, or `documents` speak of another number of tokens.
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
        "gated_delta_net: {:?} does not fit {} tokens, {heads:?}, weights of {:?} and gates of {gates:?}",
        x.dims(),
        documents.n_tokens(),
        net.conv.dims(),
    );
    let is_plain = |x: &Tensor<2>| x.dtype() == DType::F32 && is_served_by_cpu(x);
    let frozen = [&net.conv, &net.rate, &net.step_bias];
    let has_kernel = is_served_by_cpu(&x) && frozen.into_iter().all(is_plain);
    if !(has_kernel && norm.weight.dtype() == DType::F32) {
        return in_steps(x, net, documents);
    }
    Tensor::from_dispatch(Dispatch::delta_net(
        x.into_dispatch(),
        turned(&net.conv).into_dispatch(),
        net.rate.clone().into_dispatch(),
        net.step_bias.clone().into_dispatch(),
        norm.weight.clone().into_dispatch(),
        Form {
            heads: *heads,
            eps: norm.eps as f32,
            documents: documents.clone(),
        },
    ))
}

/// The contract is [`gated_delta_net`]'s, by the functions for each step.
fn in_steps(x: Tensor<2>, net: &GatedDeltaNet, documents: &Documents) -> Tensor<3> {
    let parts = net.parts(x);
    let inputs = DeltaInputs {
        qkv: causal_conv(parts.qkv, &net.conv, documents),
        log_decay: parts.log_decay,
        beta: parts.beta,
    };
    let read = gated_delta(inputs, net.heads, documents);
    gated_norm(read, parts.gate, &net.norm)
}
