//! A linear-attention layer computed with the references of its steps.

use burn::tensor::Tensor;

use super::GatedDeltaNet;
use crate::{DeltaInputs, Documents, causal_conv, gated_delta, gated_norm};

/// Same contract as [`super::gated_delta_net`]; f64 inputs are computed in f64.
pub fn gated_delta_net(x: Tensor<2>, net: &GatedDeltaNet, documents: &Documents) -> Tensor<3> {
    let parts = net.parts(x);
    let inputs = DeltaInputs {
        qkv: causal_conv::reference::causal_conv(parts.qkv, &net.conv, documents),
        log_decay: parts.log_decay,
        beta: parts.beta,
    };
    let (read, _) = gated_delta::reference::gated_delta(inputs, net.heads, documents);
    gated_norm::reference::gated_norm(read, parts.gate, &net.norm)
}
