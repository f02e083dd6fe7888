//! The gated delta rule over packed documents: linear attention with a state that decays and
//! corrects itself.
//!
//! Each value head has a state, a matrix from keys to values. A token decays the state, reads the
//! value stored under its key, moves that value towards its own by the fraction `beta`, and reads
//! the new state with its query. Every document starts with an empty state.

pub mod chunked;
pub(crate) mod cpu;
pub(crate) mod cpu_backward;
mod cpu_chunk;
pub mod reference;
mod walk;
#[cfg(feature = "cube")]
pub(crate) mod walk_on_gpu;

use burn::backend::Flex;
use burn::tensor::{DType, Tensor};

use crate::Documents;
use crate::cpu::buffer::{plain, tensor};
use crate::cpu::number::with_element_type;
use crate::route::is_served_by_cpu;
use cpu::Inputs;

/// Heads of a gated delta rule; each key head serves the same number of consecutive value heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Number of query heads, and of key heads.
    pub key_heads: usize,
    /// Number of value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Size of a query or key head.
    pub key_dim: usize,
    /// Size of a value head.
    pub value_dim: usize,
}

impl DeltaHeads {
    /// Elements of all keys of a token.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of all values of a token.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Elements of all queries, keys and values of a token.
    pub fn width(&self) -> usize {
        2 * self.keys() + self.values()
    }
}

/// Inputs of a gated delta rule per token.
#[derive(Debug, Clone)]
pub struct DeltaInputs {
    /// Queries, keys and values concatenated, `[n, width]`, f32 or bf16.
    pub qkv: Tensor<2>,
    /// Log-decay of the state of each value head, `[n, value heads]`, f32, at most 0.
    pub log_decay: Tensor<2>,
    /// Fraction by which the stored value moves to the new value, `[n, value heads]`, f32, from 0
    /// to 1.
    pub beta: Tensor<2>,
}

/// Added to the sum of squares when queries and keys are normalised.
const NORM_EPS: f64 = 1e-6;

/// Processes the tokens of every document in order, starting with an empty state; padding rows are
/// zero.
///
/// Queries and keys are divided by their length, and queries also by `√key_dim`. The kernel runs on
/// the CPU for tensors without an autodiff graph; others use tensor operations, one chunk at a
/// time.
///
/// # Shapes
///
/// - `inputs`: see its fields
/// - returns: `[n, value heads, value_dim]`, the dtype of `qkv`
///
/// # Panics
///
/// If the shapes do not match `heads`, or `documents` has a different number of tokens.
///
/// # Source
///
/// Yang et al. 2025 ("Gated Delta Networks: Improving Mamba2 with Delta Rule");
/// `torch_chunk_gated_delta_rule` of transformers 5.23.
pub fn gated_delta(inputs: DeltaInputs, heads: DeltaHeads, documents: &Documents) -> Tensor<3> {
    check(&inputs, heads);
    check_tokens(&inputs, documents);
    match run_on_cpu(&inputs, heads, documents) {
        Some((read, _)) => read,
        None => chunked::gated_delta(inputs, heads, documents),
    }
}

/// [`gated_delta`] that also returns the final state of each non-empty document, `[documents, value
/// heads, key_dim, value_dim]`, f32.
pub fn gated_delta_states(
    inputs: DeltaInputs,
    heads: DeltaHeads,
    documents: &Documents,
) -> (Tensor<3>, Tensor<4>) {
    check(&inputs, heads);
    check_tokens(&inputs, documents);
    match run_on_cpu(&inputs, heads, documents) {
        Some(result) => result,
        None => chunked::gated_delta_states(inputs, heads, documents),
    }
}

/// Outputs and final states from the CPU kernel; `None` if it does not support the tensors.
fn run_on_cpu(
    inputs: &DeltaInputs,
    heads: DeltaHeads,
    documents: &Documents,
) -> Option<(Tensor<3>, Tensor<4>)> {
    let qkv_tensor = &inputs.qkv;
    let qkv = is_served_by_cpu(qkv_tensor).then(|| plain(qkv_tensor, qkv_tensor.dtype()))??;
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
    let (qkv_tensor, states) = with_element_type!(qkv_tensor.dtype(), T => {
        let inputs = Inputs::<T> {
            qkv: qkv.numbers(),
            log_decay: log_decay.numbers(),
            beta: beta.numbers(),
            heads,
        };
        let (qkv_tensor, states) = cpu::read_with_states(inputs, documents);
        (tensor(qkv_tensor, shape), tensor(states, states_shape))
    });
    Some((
        Tensor::from_primitive::<Flex>(qkv_tensor),
        Tensor::from_primitive::<Flex>(states),
    ))
}

/// Processes one new token per row, with the row's state.
///
/// # Shapes
///
/// - `inputs`: see its fields, with `b` rows
/// - `state`: `[b, value heads, key_dim, value_dim]`, f32
/// - returns: `[b, value heads, value_dim]`, the dtype of `qkv`, and the new state
///
/// # Panics
///
/// If the shapes do not match `heads`.
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
        "gated_delta: the state must have a matrix for each row and value head"
    );
    reference::decode(inputs, heads, state)
}

fn check(inputs: &DeltaInputs, heads: DeltaHeads) {
    assert!(
        heads.key_heads > 0 && heads.value_heads.is_multiple_of(heads.key_heads),
        "gated_delta: {} value heads are not a multiple of {} key heads",
        heads.value_heads,
        heads.key_heads
    );
    let n = inputs.qkv.dims()[0];
    assert!(
        inputs.qkv.dims() == [n, heads.width()]
            && [&inputs.log_decay, &inputs.beta].map(|x| x.dims()) == [[n, heads.value_heads]; 2],
        "gated_delta: inputs of shapes {:?}, {:?} and {:?} do not match {heads:?}",
        inputs.qkv.dims(),
        inputs.log_decay.dims(),
        inputs.beta.dims()
    );
}

fn check_tokens(inputs: &DeltaInputs, documents: &Documents) {
    assert_eq!(
        inputs.qkv.dims()[0],
        documents.n_tokens(),
        "gated_delta: the documents and the tensor have different numbers of tokens"
    );
}
