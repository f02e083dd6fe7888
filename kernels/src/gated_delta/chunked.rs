//! The gated delta rule in tensor operations, a chunk of tokens at a time.
//!
//! Within a chunk the corrections of all tokens are one triangular system; between chunks the state is
//! handed on. All chunks of all documents prepare their systems together, and the first chunks of all
//! documents hand on their states together, then the second ones, and so on.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::walk::{Order, Walk, states_behind};
use super::{DeltaHeads, DeltaInputs, NORM_EPS};
use crate::Documents;
use crate::head_norm::{SpanNorm, head_norm};
use crate::route::arithmetic;

/// Tokens of a chunk, a power of two.
pub const CHUNK: usize = 64;

/// The contract is [`super::gated_delta`]'s, differentiable; f64 is computed in f64.
///
/// # Source
///
/// Yang et al. 2025, section 3.3.
pub fn gated_delta(inputs: DeltaInputs, heads: DeltaHeads, documents: &Documents) -> Tensor<3> {
    read(inputs, heads, documents, |_, _| ()).0
}

/// The contract is [`super::gated_delta_states`]'s, differentiable; f64 is computed in f64.
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
        states_behind(walked, keys, decay)
    });
    let none = || {
        let shape = [0, heads.value_heads, heads.key_dim, heads.value_dim];
        Tensor::zeros(shape, (&device, arithmetic(dtype)))
    };
    (read, states.unwrap_or_else(none))
}

/// What is read, and what `of` makes of the chunks, if there are any.
fn read<R>(
    inputs: DeltaInputs,
    heads: DeltaHeads,
    documents: &Documents,
    of: impl FnOnce(&Chunks, &Layout) -> R,
) -> (Tensor<3>, Option<R>) {
    let (dtype, device) = (inputs.qkv.dtype(), inputs.qkv.device());
    let layout = Layout::new(documents);
    if layout.order.widths.is_empty() {
        let [n, h, dv] = [documents.n_tokens(), heads.value_heads, heads.value_dim];
        return (Tensor::zeros([n, h, dv], (&device, dtype)), None);
    }
    let chunks = Chunks::new(inputs, heads, &layout);
    let found = of(&chunks, &layout);
    let read = chunks.readers.matmul(chunks.walked);
    (layout.of_tokens(read).cast(dtype), Some(found))
}

/// Queries of length `1 / √key_dim` and keys of length 1; values as they are.
fn normed(qkv: Tensor<2>, heads: DeltaHeads) -> Tensor<2> {
    let [n, width] = qkv.dims();
    // A mean is a sum divided by the number of its terms, and so must be what is added to it.
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

/// Where tokens lie in the chunks.
struct Layout {
    /// Of each place in the chunks its token, or the number of tokens for none.
    tokens: Vec<i32>,
    /// Of each token its place in the chunks, or their number for padding.
    places: Vec<i32>,
    order: Order,
    /// Of each document the place of its last chunk.
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
                    let at = place * CHUNK + t - first;
                    tokens[at] = (start + t) as i32;
                    places[start + t] = at as i32;
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

    /// Rows of tokens, `[n, d]`, as chunks, `[chunks, CHUNK, d]`; rows of no token are zero.
    fn in_chunks(&self, x: Tensor<2>) -> Tensor<3> {
        let (device, d) = (x.device(), x.dims()[1]);
        let none = Tensor::zeros([1, d], (&device, x.dtype()));
        let chunks = self.tokens.len() / CHUNK;
        Tensor::cat(vec![x, none], 0)
            .select(0, indices(&self.tokens, &device))
            .reshape([chunks, CHUNK, d])
    }

    /// Chunks, `[chunks, h, CHUNK, d]`, as rows of tokens, `[n, h, d]`; padding is zero.
    fn of_tokens(&self, x: Tensor<4>) -> Tensor<3> {
        let [chunks, h, _, d] = x.dims();
        let device = x.device();
        let none = Tensor::zeros([1, h, d], (&device, x.dtype()));
        let rows = x.swap_dims(1, 2).reshape([chunks * CHUNK, h, d]);
        Tensor::cat(vec![rows, none], 0).select(0, indices(&self.places, &device))
    }
}

fn indices(of: &[i32], device: &Device) -> Tensor<1, Int> {
    // Under autodiff, too, indices are those of the device below.
    Tensor::from_data(TensorData::new(of.to_vec(), [of.len()]), device)
}

/// Heads beside each other, `[chunks, CHUNK, h d]`, as `[chunks, h, CHUNK, d]`.
fn by_heads(x: Tensor<3>, h: usize) -> Tensor<4> {
    let [chunks, tokens, width] = x.dims();
    x.reshape([chunks, tokens, h, width / h]).swap_dims(1, 2)
}

/// What is the same for the value heads of a key head, `[chunks, key heads, …]`, for each of them.
fn for_value_heads(x: Tensor<4>, heads: DeltaHeads) -> Tensor<4> {
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
    /// What is multiplied with states and changes to be read, `[chunks, value heads, CHUNK, key_dim +
    /// CHUNK]`: queries, decayed from the chunk's begin, and scores of tokens within the chunk, decayed
    /// between them.
    readers: Tensor<4>,
    walk: Walk,
    /// What [`Walk::run`] gave.
    walked: Tensor<4>,
}

impl Chunks {
    fn new(inputs: DeltaInputs, heads: DeltaHeads, layout: &Layout) -> Self {
        let (device, dtype) = (inputs.qkv.device(), arithmetic(inputs.qkv.dtype()));
        let h = heads.value_heads;
        let qkv = layout.in_chunks(normed(inputs.qkv.cast(dtype), heads));
        let part =
            |first: usize, width: usize, h: usize| by_heads(qkv.clone().narrow(2, first, width), h);
        let queries = part(0, heads.keys(), heads.key_heads);
        let keys = part(heads.keys(), heads.keys(), heads.key_heads);
        let values = part(2 * heads.keys(), heads.values(), h);
        let [log_decay, beta] =
            [inputs.log_decay, inputs.beta].map(|x| by_heads(layout.in_chunks(x.cast(dtype)), h));
        let below = Tensor::<2>::ones([CHUNK; 2], (&device, dtype)).tril(0);
        let sums = below.unsqueeze().matmul(log_decay);
        let chunks = sums.dims()[0];
        let between = sums.clone().sub(sums.clone().swap_dims(2, 3));
        let later = Tensor::<2, Bool>::tril_mask([CHUNK; 2], 0, &device);
        let later = later.unsqueeze::<4>().expand([chunks, h, CHUNK, CHUNK]);
        let between = between.mask_fill(later, f32::NEG_INFINITY).exp();
        let of_keys = |x: &Tensor<4>| {
            let products = x.clone().matmul(keys.clone().swap_dims(2, 3));
            for_value_heads(products, heads).mul(between.clone())
        };
        let system = of_keys(&keys).mul(beta.clone());
        let inverse = differentiable_inverse(system).mul(beta.swap_dims(2, 3));
        let scores = of_keys(&queries);
        let last = sums.clone().narrow(2, CHUNK - 1, 1);
        let from_begin = sums.clone().exp();
        let [queries, keys] = [queries, keys].map(|x| for_value_heads(x, heads));
        let corrected = inverse.clone().mul(from_begin.clone().swap_dims(2, 3));
        let walk = Walk {
            values: inverse.matmul(values),
            held: corrected.matmul(keys.clone()),
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

/// [`inverse`], whose gradient is that of one step of Newton's method from the inverse itself: two
/// products, and nothing is kept of how it was found.
fn differentiable_inverse(system: Tensor<4>) -> Tensor<4> {
    if !system.is_autodiff() {
        return inverse(system);
    }
    let found = Tensor::from_inner(inverse(system.clone().inner()));
    let twice = found.clone().mul_scalar(2.0);
    let options = (&system.device(), system.dtype());
    let below = Tensor::<2>::ones([CHUNK; 2], options).tril(-1);
    let identity = Tensor::<2>::eye(CHUNK, options.0).cast(options.1);
    let whole = system.mul(below.unsqueeze()).add(identity.unsqueeze());
    twice.sub(found.clone().matmul(whole).matmul(found))
}

/// The inverse of the identity and what lies strictly below the diagonal of `system`, `[…, CHUNK, CHUNK]`.
///
/// Blocks on the diagonal are inverted, two of which give one of twice the size: the products are those
/// of a forward substitution, which powers of the matrix are not, whose sums would lose every digit
/// where keys are alike.
fn inverse(system: Tensor<4>) -> Tensor<4> {
    let options = (&system.device(), system.dtype());
    let mut inverse = Tensor::<2>::eye(CHUNK, &system.device())
        .cast(options.1)
        .unsqueeze::<4>();
    let mut size = 1;
    while size < CHUNK {
        let lower_left = |at: usize| {
            let [i, j] = [at / CHUNK / size, at % CHUNK / size];
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
