//! The gated delta rule in tensor operations, one chunk of tokens at a time.
//!
//! Within a chunk, the corrections of all tokens form one triangular system; between chunks the
//! state is passed on. The systems of all chunks of all documents are prepared together. Then the
//! first chunks of all documents pass on their states together, then the second chunks, and so on.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::walk::{Order, Walk, states_after};
use super::{DeltaHeads, DeltaInputs, NORM_EPS};
use crate::Documents;
use crate::head_norm::{SpanNorm, head_norm};
use crate::route::arithmetic;

/// Tokens per chunk, a power of two.
pub const CHUNK: usize = 64;

/// Same contract as [`super::gated_delta`], differentiable; f64 inputs are computed in f64.
///
/// # Source
///
/// Yang et al. 2025, section 3.3.
pub fn gated_delta(inputs: DeltaInputs, heads: DeltaHeads, documents: &Documents) -> Tensor<3> {
    read(inputs, heads, documents, |_, _| ()).0
}

/// Same contract as [`super::gated_delta_states`], differentiable; f64 inputs are computed in f64.
pub fn gated_delta_states(
    inputs: DeltaInputs,
    heads: DeltaHeads,
    documents: &Documents,
) -> (Tensor<3>, Tensor<4>) {
    let (dtype, device) = (inputs.qkv.dtype(), inputs.qkv.device());
    let (read, states) = read(inputs, heads, documents, |chunks, layout| {
        let last = indices(&layout.last_chunks, &chunks.walk.keys.device());
        let [walked, keys, decay] = [&chunks.walked, &chunks.walk.keys, &chunks.walk.decay]
            .map(|x| x.clone().select(0, last.clone()));
        states_after(walked, keys, decay)
    });
    let none = || {
        let shape = [0, heads.value_heads, heads.key_dim, heads.value_dim];
        Tensor::zeros(shape, (&device, arithmetic(dtype)))
    };
    (read, states.unwrap_or_else(none))
}

/// The outputs, and the result of `of` for the chunks, if there are any.
fn read<R>(
    inputs: DeltaInputs,
    heads: DeltaHeads,
    documents: &Documents,
    extra: impl FnOnce(&Chunks, &Layout) -> R,
) -> (Tensor<3>, Option<R>) {
    let (dtype, device) = (inputs.qkv.dtype(), inputs.qkv.device());
    let layout = Layout::new(documents);
    if layout.order.widths.is_empty() {
        let [n, h, dv] = [documents.n_tokens(), heads.value_heads, heads.value_dim];
        return (Tensor::zeros([n, h, dv], (&device, dtype)), None);
    }
    let chunks = Chunks::new(inputs, heads, &layout);
    let extra_result = extra(&chunks, &layout);
    let output = chunks.readers.matmul(chunks.walked);
    (
        layout.to_token_order(output).cast(dtype),
        Some(extra_result),
    )
}

/// Queries normalised to length `1 / √key_dim` and keys to length 1; values unchanged.
fn normalize_heads(qkv: Tensor<2>, heads: DeltaHeads) -> Tensor<2> {
    let [n, width] = qkv.dims();
    // A mean is a sum divided by the number of terms, so the epsilon must be divided as well.
    let dim = heads.key_dim as f64;
    let weights = |scale: f64| std::iter::repeat_n((scale / dim.sqrt()) as f32, heads.keys());
    let weights: Vec<f32> = weights(dim.powf(-0.5)).chain(weights(1.0)).collect();
    let norm = SpanNorm {
        weight: Tensor::from_data(TensorData::new(weights, [2 * heads.keys()]), &qkv.device()),
        spans: vec![heads.key_dim; 2 * heads.key_heads].into(),
        eps: NORM_EPS / dim,
    };
    head_norm(qkv.reshape([n, 1, width]), &norm).reshape([n, width])
}

/// Mapping between tokens and chunk positions.
struct Layout {
    /// Token of each chunk position, or the number of tokens for padding.
    tokens: Vec<i32>,
    /// Chunk position of each token, or the number of positions for padding.
    places: Vec<i32>,
    order: Order,
    /// Index of each document's last chunk.
    last_chunks: Vec<i32>,
}

impl Layout {
    fn new(documents: &Documents) -> Self {
        let spans: Vec<(usize, usize)> = documents.spans().collect();
        let n_chunks = |i: usize| spans[i].1.div_ceil(CHUNK);
        let mut longest_first: Vec<usize> = (0..spans.len()).collect();
        longest_first.sort_by_key(|&i| std::cmp::Reverse(n_chunks(i)));
        let most = longest_first.first().map_or(0, |&i| n_chunks(i));
        let none = documents.n_tokens();
        let total: usize = (0..spans.len()).map(n_chunks).sum();
        let mut tokens = vec![none as i32; total * CHUNK];
        let mut places = vec![(total * CHUNK) as i32; none];
        let mut last_chunks = vec![0; spans.len()];
        let (mut widths, mut place) = (Vec::with_capacity(most), 0);
        for number in 0..most {
            let has_it = longest_first.iter().filter(|&&i| number < n_chunks(i));
            let mut width = 0;
            for &i in has_it {
                let (start, length) = spans[i];
                let first = number * CHUNK;
                for t in first..length.min(first + CHUNK) {
                    let position = place * CHUNK + t - first;
                    tokens[position] = (start + t) as i32;
                    places[start + t] = position as i32;
                }
                last_chunks[i] = place as i32;
                place += 1;
                width += 1;
            }
            widths.push(width);
        }
        Self {
            tokens,
            places,
            order: Order { widths },
            last_chunks,
        }
    }

    /// Converts rows of tokens, `[n, d]`, to chunks, `[chunks, CHUNK, d]`, padded with zero rows.
    fn split_into_chunks(&self, x: Tensor<2>) -> Tensor<3> {
        let (device, d) = (x.device(), x.dims()[1]);
        let none = Tensor::zeros([1, d], (&device, x.dtype()));
        let chunks = self.tokens.len() / CHUNK;
        Tensor::cat(vec![x, none], 0)
            .select(0, indices(&self.tokens, &device))
            .reshape([chunks, CHUNK, d])
    }

    /// Converts chunks, `[chunks, h, CHUNK, d]`, to rows of tokens, `[n, h, d]`; padding is zero.
    fn to_token_order(&self, x: Tensor<4>) -> Tensor<3> {
        let [chunks, h, _, d] = x.dims();
        let device = x.device();
        let none = Tensor::zeros([1, h, d], (&device, x.dtype()));
        let rows = x.swap_dims(1, 2).reshape([chunks * CHUNK, h, d]);
        Tensor::cat(vec![rows, none], 0).select(0, indices(&self.places, &device))
    }
}

fn indices(values: &[i32], device: &Device) -> Tensor<1, Int> {
    // Indices are on the inner device, also under autodiff.
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), device)
}

/// Splits adjacent heads: `[chunks, CHUNK, h d]` to `[chunks, h, CHUNK, d]`.
fn split_heads(x: Tensor<3>, h: usize) -> Tensor<4> {
    let [chunks, tokens, width] = x.dims();
    x.reshape([chunks, tokens, h, width / h]).swap_dims(1, 2)
}

/// Repeats a tensor of the key heads, `[chunks, key heads, …]`, for each of their value heads.
fn repeat_for_value_heads(x: Tensor<4>, heads: DeltaHeads) -> Tensor<4> {
    let [chunks, h, a, b] = x.dims();
    let group = heads.value_heads / h;
    if group == 1 {
        return x;
    }
    x.reshape([chunks, h, 1, a, b])
        .expand([chunks, h, group, a, b])
        .reshape([chunks, h * group, a, b])
}

/// All chunks.
struct Chunks {
    /// Left operand whose product with states and updates is the output, `[chunks, value heads,
    /// CHUNK, key_dim + CHUNK]`: queries decayed from the start of the chunk, and scores within the
    /// chunk decayed between the tokens.
    readers: Tensor<4>,
    walk: Walk,
    /// Result of [`Walk::run`].
    walked: Tensor<4>,
}

impl Chunks {
    fn new(inputs: DeltaInputs, heads: DeltaHeads, layout: &Layout) -> Self {
        let (device, dtype) = (inputs.qkv.device(), arithmetic(inputs.qkv.dtype()));
        let h = heads.value_heads;
        let qkv = layout.split_into_chunks(normalize_heads(inputs.qkv.cast(dtype), heads));
        let part = |first: usize, width: usize, h: usize| {
            split_heads(qkv.clone().narrow(2, first, width), h)
        };
        let queries = part(0, heads.keys(), heads.key_heads);
        let keys = part(heads.keys(), heads.keys(), heads.key_heads);
        let values = part(2 * heads.keys(), heads.values(), h);
        let [log_decay, beta] = [inputs.log_decay, inputs.beta]
            .map(|x| split_heads(layout.split_into_chunks(x.cast(dtype)), h));
        let below = Tensor::<2>::ones([CHUNK; 2], (&device, dtype)).tril(0);
        let sums = below.unsqueeze().matmul(log_decay);
        let chunks = sums.dims()[0];
        let between = sums.clone().sub(sums.clone().swap_dims(2, 3));
        let later = Tensor::<2, Bool>::tril_mask([CHUNK; 2], 0, &device);
        let later = later.unsqueeze::<4>().expand([chunks, h, CHUNK, CHUNK]);
        let between = between.mask_fill(later, f32::NEG_INFINITY).exp();
        let products_with_keys = |x: &Tensor<4>| {
            let products = x.clone().matmul(keys.clone().swap_dims(2, 3));
            repeat_for_value_heads(products, heads).mul(between.clone())
        };
        let system = products_with_keys(&keys).mul(beta.clone());
        let inverse = differentiable_inverse(system).mul(beta.swap_dims(2, 3));
        let scores = products_with_keys(&queries);
        let last = sums.clone().narrow(2, CHUNK - 1, 1);
        let from_begin = sums.clone().exp();
        let [queries, keys] = [queries, keys].map(|x| repeat_for_value_heads(x, heads));
        let corrected = inverse.clone().mul(from_begin.clone().swap_dims(2, 3));
        let walk = Walk {
            values: inverse.matmul(values),
            state_coefficients: corrected.matmul(keys.clone()),
            keys: keys.mul(last.clone().sub(sums).exp()),
            decay: last.exp(),
        };
        Self {
            readers: Tensor::cat(vec![queries.mul(from_begin), scores], 3),
            walked: walk.clone().run(&layout.order),
            walk,
        }
    }
}

/// [`inverse`] with the gradient of a single Newton step at the inverse itself: two products,
/// without storing intermediate results.
fn differentiable_inverse(system: Tensor<4>) -> Tensor<4> {
    if !system.is_autodiff() {
        return inverse(system);
    }
    let inverted = Tensor::from_inner(inverse(system.clone().inner()));
    let twice = inverted.clone().mul_scalar(2.0);
    let options = (&system.device(), system.dtype());
    let below = Tensor::<2>::ones([CHUNK; 2], options).tril(-1);
    let identity = Tensor::<2>::eye(CHUNK, options.0).cast(options.1);
    let whole = system.mul(below.unsqueeze()).add(identity.unsqueeze());
    twice.sub(inverted.clone().matmul(whole).matmul(inverted))
}

/// Inverse of the identity plus the strictly lower triangle of `system`, `[…, CHUNK, CHUNK]`.
///
/// Inverts diagonal blocks and repeatedly combines two of them into one of twice the size, with the
/// products of a forward substitution. A series of matrix powers would lose all precision if keys
/// are similar.
fn inverse(system: Tensor<4>) -> Tensor<4> {
    let options = (&system.device(), system.dtype());
    let mut inverse = Tensor::<2>::eye(CHUNK, &system.device())
        .cast(options.1)
        .unsqueeze::<4>();
    let mut size = 1;
    while size < CHUNK {
        let lower_left = |index: usize| {
            let [i, j] = [index / CHUNK / size, index % CHUNK / size];
            if i % 2 == 1 && j + 1 == i { 1.0 } else { 0.0 }
        };
        let mask: Vec<f32> = (0..CHUNK * CHUNK).map(lower_left).collect();
        let mask = Tensor::<4>::from_data(TensorData::new(mask, [1, 1, CHUNK, CHUNK]), options);
        let block = system.clone().mul(mask);
        let joined = match size {
            1 => block,
            _ => inverse.clone().matmul(block).matmul(inverse.clone()),
        };
        inverse = inverse.sub(joined);
        size *= 2;
    }
    inverse
}
