//! The fused operations for tensors in the memory of the CPU: unwraps tensors to slices.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;

use super::{Attention, KernelGradients, KernelOps};
use crate::attention::cpu::{Heads, Inputs, attention};
use crate::attention::cpu_backward::{InputGradients, Outputs, attention_gradients};
use crate::attention::{Causality, Documents};
use crate::cpu::buffer::{contiguous, dims, floats, tensor};
use crate::rms_norm::cpu::{rms_norm, rms_norm_dx};
use crate::rope::cpu::{Tables, Turn, rotate};
use crate::swiglu::cpu::{swiglu, swiglu_gradients};

impl KernelOps for Flex {
    fn frozen_rms_norm(x: FlexTensor, weight: FlexTensor, eps: f32) -> FlexTensor {
        let (x, weight) = (contiguous(x), contiguous(weight));
        tensor(rms_norm(floats(&x), floats(&weight), eps), dims::<2>(&x))
    }

    fn rotate(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, turn: Turn) -> FlexTensor {
        let [x, cos, sin] = [x, cos, sin].map(contiguous);
        let [n, heads, c] = dims(&x);
        assert_eq!(
            dims(&cos),
            [n, 1, c / 2],
            "one row of the rotary table a token"
        );
        let tables = Tables {
            cos: floats(&cos),
            sin: floats(&sin),
            half: c / 2,
        };
        tensor(rotate(floats(&x), heads, tables, turn), [n, heads, c])
    }

    fn gated_silu(gate: FlexTensor, up: FlexTensor) -> FlexTensor {
        let (gate, up) = (contiguous(gate), contiguous(up));
        tensor(swiglu(floats(&gate), floats(&up)), dims::<2>(&gate))
    }

    fn document_attention(
        q: FlexTensor,
        k: FlexTensor,
        v: FlexTensor,
        documents: Documents,
        causality: Causality,
    ) -> FlexTensor {
        Self::attention_forward([q, k, v], documents, causality).out
    }
}

impl KernelGradients for Flex {
    fn rms_norm_dx(x: FlexTensor, weight: FlexTensor, eps: f32, dy: FlexTensor) -> FlexTensor {
        let [x, weight, dy] = [x, weight, dy].map(contiguous);
        tensor(
            rms_norm_dx(floats(&x), floats(&weight), floats(&dy), eps),
            dims::<2>(&x),
        )
    }

    fn gated_silu_gradients(gate: FlexTensor, up: FlexTensor, dy: FlexTensor) -> [FlexTensor; 2] {
        let [gate, up, dy] = [gate, up, dy].map(contiguous);
        let (d_gate, d_up) = swiglu_gradients(floats(&gate), floats(&up), floats(&dy));
        [d_gate, d_up].map(|values| tensor(values, dims::<2>(&gate)))
    }

    fn attention_forward(
        inputs: [FlexTensor; 3],
        documents: Documents,
        causality: Causality,
    ) -> Attention<Self> {
        let inputs = inputs.map(contiguous);
        let [n, h, c] = dims(&inputs[0]);
        let attended = attention(attention_inputs(&inputs, causality), &documents);
        let out = tensor(attended.out, [n, h, c]);
        let log_sums = tensor(attended.log_sums, [n, h]);
        Attention {
            inputs,
            documents,
            causality,
            out,
            log_sums,
        }
    }

    fn attention_gradients(saved: Attention<Self>, dy: FlexTensor) -> [FlexTensor; 3] {
        let dy = contiguous(dy);
        let inputs = attention_inputs(&saved.inputs, saved.causality);
        let outputs = Outputs {
            out: floats(&saved.out),
            log_sums: floats(&saved.log_sums),
            d_out: floats(&dy),
        };
        let InputGradients { dq, dk, dv } = attention_gradients(inputs, outputs, &saved.documents);
        let [q_shape, k_shape, v_shape] = saved.inputs.each_ref().map(dims::<3>);
        [
            tensor(dq, q_shape),
            tensor(dk, k_shape),
            tensor(dv, v_shape),
        ]
    }
}

/// Queries, keys and values that went through [`contiguous`].
fn attention_inputs(inputs: &[FlexTensor; 3], causality: Causality) -> Inputs<'_> {
    let [q, k, v] = inputs;
    let ([_, h, c], [_, g, _]) = (dims(q), dims(k));
    let heads = Heads { h, g, c };
    Inputs {
        q: floats(q),
        k: floats(k),
        v: floats(v),
        heads,
        causality,
    }
}
