//! Attention for tensors in CPU memory, and its backward pass for any backend.

use burn::backend::Flex;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;

use super::cpu::{Heads, Inputs};
use super::cpu_backward::{Results, attention_gradient};
use super::cpu_forward::attention;
use super::{
    AppendOps, Attention, AttentionGradients, AttentionOps, Causality, DecodeOps, DeviceColumns,
    Documents, Queries, cpu_decode,
};
use crate::cpu::buffer::{contiguous, dims, floats, modify, numbers, tensor};
use crate::cpu::number::with_element_type;
use crate::with_backward::with_backward;

impl AttentionOps for Flex {
    fn document_attention(
        qkv: FlexTensor,
        queries: Queries,
        documents: Documents,
        causality: Causality,
    ) -> FlexTensor {
        Self::attention_forward(qkv, queries, documents, causality).out
    }
}

impl AttentionGradients for Flex {
    fn attention_forward(
        qkv: FlexTensor,
        queries: Queries,
        documents: Documents,
        causality: Causality,
    ) -> Attention<Self> {
        let qkv = contiguous(qkv);
        let heads = heads(&qkv, queries);
        let n = documents.n_tokens();
        let (out, log_sums) = with_element_type!(qkv.dtype(), T => {
            let inputs = Inputs { qkv: numbers::<T>(&qkv), heads, causality };
            let attended = attention(&inputs, &documents);
            (tensor(attended.out, [n, heads.h, heads.c]), attended.log_sums)
        });
        Attention {
            qkv,
            queries,
            documents,
            causality,
            out,
            log_sums: tensor(log_sums, [n, heads.h]),
        }
    }

    fn attention_gradient(saved: Attention<Self>, dy: FlexTensor) -> FlexTensor {
        let dy = contiguous(dy);
        let heads = heads(&saved.qkv, saved.queries);
        with_element_type!(dy.dtype(), T => {
            let inputs = Inputs {
                qkv: numbers::<T>(&saved.qkv),
                heads,
                causality: saved.causality,
            };
            let results = Results {
                out: numbers(&saved.out),
                log_sums: floats(&saved.log_sums),
                d_out: numbers(&dy),
            };
            let gradient = attention_gradient(&inputs, &results, &saved.documents);
            tensor(gradient, dims::<3>(&saved.qkv))
        })
    }
}

impl DecodeOps for Flex {
    fn attend_to_cache(
        qkv: FlexTensor,
        keys: FlexTensor,
        values: FlexTensor,
        queries: Queries,
        columns: DeviceColumns,
        appends: bool,
    ) -> FlexTensor {
        assert!(!appends, "the CPU appends in a separate operation");
        let (starts, end) = (columns.starts(), columns.end());
        let [qkv, keys, values] = [qkv, keys, values].map(contiguous);
        let heads = heads(&qkv, queries);
        let [b, _, capacity, _] = dims(&keys);
        let shape = [b, heads.h, heads.c];
        with_element_type!(qkv.dtype(), T => with_element_type!(keys.dtype(), U => {
            let cache = cpu_decode::Cache::<U> {
                keys: numbers(&keys),
                values: numbers(&values),
                heads,
                capacity,
            };
            tensor(cpu_decode::decode::<T, U>(numbers(&qkv), &cache, &starts, end), shape)
        }))
    }
}

impl AppendOps for Flex {
    fn append_column(
        cache: FlexTensor,
        qkv: FlexTensor,
        first_head: usize,
        column: usize,
    ) -> FlexTensor {
        let qkv = contiguous(qkv);
        let ([_, g, capacity, c], [_, heads, _]) = (dims(&cache), dims::<3>(&qkv));
        with_element_type!(qkv.dtype(), T => with_element_type!(cache.dtype(), U => {
            modify::<U>(cache, |cache| {
                let qkv = numbers::<T>(&qkv);
                cpu_decode::append(cache, [g, capacity, c], qkv, first_head, heads, column);
            })
        }))
    }
}

fn heads(qkv: &FlexTensor, queries: Queries) -> Heads {
    let [_, all, c] = dims(qkv);
    Heads {
        h: queries.heads,
        g: (all - queries.heads) / 2,
        c,
        scale: queries.scale(c) as f32,
    }
}

impl<B: AttentionGradients, C: CheckpointStrategy> AttentionOps for Autodiff<B, C> {
    fn document_attention(
        qkv: FloatTensor<Self>,
        queries: Queries,
        documents: Documents,
        causality: Causality,
    ) -> FloatTensor<Self> {
        let inputs = [qkv.node()];
        let qkv = qkv.into_primitive();
        let attention = B::attention_forward(qkv, queries, documents, causality);
        let out = attention.out.clone();
        with_backward::<B, C, _, _>(inputs, out, move |dy, _| {
            crate::operation!("attention backward");
            [Some(B::attention_gradient(attention, dy))]
        })
    }
}
