//! The gated delta rule over packed documents: linear attention with a state that forgets and corrects.
//!
//! Each value head has a state, a matrix from keys to values. A token lets it decay, reads what it holds
//! under the token's key, moves that by a share towards the token's value, and reads it under the
//! token's query. Every document begins with an empty state.

pub mod chunked;
pub(crate) mod cpu;
pub(crate) mod cpu_backward;
mod cpu_chunk;
pub mod reference;
mod walk;
#[cfg(all(feature = "cube", not(feature = "fusion")))]
pub(crate) mod walk_on_gpu;

use burn::backend::Flex;
use burn::tensor::{DType, Tensor};

use crate::Documents;
use crate::cpu::buffer::{plain, tensor};
use crate::cpu::number::with_number;
use crate::route::is_served_by_cpu;
use cpu::Inputs;

/// Heads of a gated delta rule; each key head serves as many value heads, which follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Heads of queries, and of keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of those of keys.
    pub value_heads: usize,
    /// Numbers of a query or a key.
    pub key_dim: usize,
    /// Numbers of a value.
    pub value_dim: usize,
}

impl DeltaHeads {
    /// Numbers of all keys of a token.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Numbers of all values of a token.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Numbers of all queries, keys and values of a token.
    pub fn width(&self) -> usize {
        2 * self.keys() + self.values()
    }
}

/// What a gated delta rule reads of each token.
#[derive(Debug, Clone)]
pub struct DeltaInputs {
    /// Queries, keys and values behind each other, `[n, width]`, f32 or bf16.
    pub qkv: Tensor<2>,
    /// Logarithm of what the state of each value head is multiplied with, `[n, value heads]`, f32, at
    /// most 0.
    pub log_decay: Tensor<2>,
    /// The share by which what the state holds moves to the value, `[n, value heads]`, f32, from 0 to 1.
    pub beta: Tensor<2>,
}

/// Added to the sum of squares by which queries and keys are normed.
const NORM_EPS: f64 = 1e-6;

/// Reads every document's tokens in order, from an empty state on; padding rows are zero.
///
/// Queries and keys are divided by their length, and queries by `√key_dim`. The kernel is the CPU's, for
/// tensors without a graph; others go to tensor operations, a chunk at a time.
///
/// # Shapes
///
/// - `inputs`: as its fields say
/// - returns: `[n, value heads, value_dim]`, the dtype of `qkv`
///
/// # Panics
///
/// If the shapes do not fit `heads`, or `documents` speak of another number of tokens.
///
/// # Source
///
/// Yang et al. 2025 ("Gated Delta Networks: Improving Mamba2 with Delta Rule");
/// `torch_chunk_gated_delta_rule` of transformers 5.23.
pub fn gated_delta(inputs: DeltaInputs, heads: DeltaHeads, documents: &Documents) -> Tensor<3> {
    check(&inputs, heads);
    check_tokens(&inputs, documents);
    match on_slices(&inputs, heads, documents) {
        Some((read, _)) => read,
        None => chunked::gated_delta(inputs, heads, documents),
    }
}

/// The same, with the state that each document with tokens ends with, `[documents, value heads,
/// key_dim, value_dim]`, f32.
pub fn gated_delta_states(
    inputs: DeltaInputs,
    heads: DeltaHeads,
    documents: &Documents,
) -> (Tensor<3>, Tensor<4>) {
    check(&inputs, heads);
    check_tokens(&inputs, documents);
    match on_slices(&inputs, heads, documents) {
        Some(found) => found,
        None => chunked::gated_delta_states(inputs, heads, documents),
    }
}

/// What the CPU's kernel reads, and the last states; `None` for tensors that are not its.
fn on_slices(
    inputs: &DeltaInputs,
    heads: DeltaHeads,
    documents: &Documents,
) -> Option<(Tensor<3>, Tensor<4>)> {
    let read = &inputs.qkv;
    let qkv = is_served_by_cpu(read).then(|| plain(read, read.dtype()))??;
    let [log_decay, beta] = [&inputs.log_decay, &inputs.beta].map(|x| plain(x, DType::F32));
    let (log_decay, beta) = (log_decay?, beta?);
    let DeltaHeads {
        value_heads,
        key_dim,
        value_dim,
        ..
    } = heads;
    let shape = [documents.n_tokens(), value_heads, value_dim];
    let states_shape = [documents.spans().count(), value_heads, key_dim, value_dim];
    let (read, states) = with_number!(read.dtype(), T => {
        let inputs = Inputs::<T> {
            qkv: qkv.numbers(),
            log_decay: log_decay.numbers(),
            beta: beta.numbers(),
            heads,
        };
        let (read, states) = cpu::read_with_states(inputs, documents);
        (tensor(read, shape), tensor(states, states_shape))
    });
    Some((
        Tensor::from_primitive::<Flex>(read),
        Tensor::from_primitive::<Flex>(states),
    ))
}

/// Reads one new token a row, with the state of its row.
///
/// # Shapes
///
/// - `inputs`: as its fields say, `b` rows
/// - `state`: `[b, value heads, key_dim, value_dim]`, f32
/// - returns: `[b, value heads, value_dim]`, the dtype of `qkv`, and the new state
///
/// # Panics
///
/// If the shapes do not fit `heads`.
pub fn decode(inputs: DeltaInputs, heads: DeltaHeads, state: Tensor<4>) -> (Tensor<3>, Tensor<4>) {
    crate::operation!("gated_delta decode");
    check(&inputs, heads);
    assert_eq!(
        state.dims(),
        [
            inputs.qkv.dims()[0],
            heads.value_heads,
            heads.key_dim,
            heads.value_dim
        ],
        "gated_delta: a state for each row and head"
    );
    reference::decode(inputs, heads, state)
}

fn check(inputs: &DeltaInputs, heads: DeltaHeads) {
    assert!(
        heads.key_heads > 0 && heads.value_heads.is_multiple_of(heads.key_heads),
        "gated_delta: {} value heads are no multiple of {} key heads",
        heads.value_heads,
        heads.key_heads
    );
    let n = inputs.qkv.dims()[0];
    assert!(
        inputs.qkv.dims() == [n, heads.width()]
            && [&inputs.log_decay, &inputs.beta].map(|x| x.dims()) == [[n, heads.value_heads]; 2],
        "gated_delta: {:?}, {:?} and {:?} do not fit {heads:?}",
        inputs.qkv.dims(),
        inputs.log_decay.dims(),
        inputs.beta.dims()
    );
}

fn check_tokens(inputs: &DeltaInputs, documents: &Documents) {
    assert_eq!(
        inputs.qkv.dims()[0],
        documents.n_tokens(),
        "gated_delta: the documents have other tokens than the tensor"
    );
}
