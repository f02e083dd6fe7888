//! The gated delta rule in tensor operations, a chunk of tokens at a time.
//!
//! Within a chunk the corrections of all tokens are one triangular system; between chunks the state is
//! handed on. All chunks of all documents prepare their systems together, and the first chunks of all
//! documents hand on their states together, then the second ones, and so on.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::reference::Prepared;
use super::{DeltaHeads, DeltaInputs};
use crate::Documents;

/// Tokens of a chunk, a power of two.
pub const CHUNK: usize = 64;

/// The contract is [`super::gated_delta_states`]'s, differentiable; f64 is computed in f64.
///
/// # Source
///
/// Yang et al. 2025, section 3.3.
pub fn gated_delta(
    inputs: DeltaInputs,
    heads: DeltaHeads,
    documents: &Documents,
) -> (Tensor<3>, Tensor<4>) {
    let dtype = inputs.qkv.dtype();
    let prepared = Prepared::new(inputs, heads);
    let layout = Layout::new(documents);
    if layout.widths.is_empty() {
        let options = (&prepared.v.device(), prepared.v.dtype());
        let [n, h, dv] = prepared.v.dims();
        let states = Tensor::zeros([0, h, heads.key_dim, dv], options);
        let read = Tensor::<3>::zeros([n, h, dv], options);
        return (read.cast(dtype), states);
    }
    let chunks = Chunks::new(prepared, &layout);
    let (read, states) = chunks.walk(&layout, heads);
    (layout.of_tokens(read).cast(dtype), states)
}

/// Where tokens lie in the chunks.
struct Layout {
    /// Of each place in the chunks its token, or the number of tokens for none.
    tokens: Vec<i32>,
    /// Of each token its place in the chunks, or their number for padding.
    places: Vec<i32>,
    /// How many documents have a first chunk, a second one, and so on.
    widths: Vec<usize>,
    /// Of each document the place of its last state among those of all, which lie by the number of
    /// their chunks.
    last_states: Vec<i32>,
}

impl Layout {
    fn new(documents: &Documents) -> Self {
        let spans: Vec<(usize, usize)> = documents.spans().collect();
        let mut longest_first: Vec<usize> = (0..spans.len()).collect();
        longest_first.sort_by_key(|&i| std::cmp::Reverse(spans[i].1));
        let n_chunks = |i: usize| spans[i].1.div_ceil(CHUNK);
        let most = longest_first.first().map_or(0, |&i| n_chunks(i));
        let none = documents.n_tokens();
        let total: usize = (0..spans.len()).map(n_chunks).sum();
        let mut tokens = vec![none as i32; total * CHUNK];
        let mut places = vec![(total * CHUNK) as i32; none];
        let (mut widths, mut place) = (Vec::with_capacity(most), 0);
        for number in 0..most {
            let has_it = longest_first.iter().filter(|&&i| number < n_chunks(i));
            let mut width = 0;
            for &i in has_it {
                let (start, length) = spans[i];
                let first = number * CHUNK;
                for t in first..length.min(first + CHUNK) {
                    let at = place + t - first;
                    tokens[at] = (start + t) as i32;
                    places[start + t] = at as i32;
                }
                place += CHUNK;
                width += 1;
            }
            widths.push(width);
        }
        // States are put aside when their documents end: the shortest first, and within the same number of
        // chunks in the order of the longest first.
        let mut aside: Vec<usize> = longest_first.clone();
        aside.sort_by_key(|&i| n_chunks(i));
        let mut last_states = vec![0; spans.len()];
        for (place, &i) in aside.iter().enumerate() {
            last_states[i] = place as i32;
        }
        Self {
            tokens,
            places,
            widths,
            last_states,
        }
    }

    /// Rows of tokens, `[n, h, d]`, as chunks, `[chunks, h, CHUNK, d]`; rows of no token are zero.
    fn in_chunks(&self, x: Tensor<3>) -> Tensor<4> {
        let [_, h, d] = x.dims();
        let none = Tensor::zeros([1, h, d], (&x.device(), x.dtype()));
        let device = x.device();
        let x = Tensor::cat(vec![x, none], 0);
        let chunks = self.tokens.len() / CHUNK;
        x.select(0, indices(&self.tokens, &device))
            .reshape([chunks, CHUNK, h, d])
            .swap_dims(1, 2)
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

/// All chunks, `[chunks, h, CHUNK, …]` each.
struct Chunks {
    /// Queries, decayed from the chunk's begin to their token.
    q_decayed: Tensor<4>,
    /// Keys, decayed from their token to the chunk's end.
    k_decayed: Tensor<4>,
    /// Scores of tokens within the chunk, decayed between them.
    scores: Tensor<4>,
    /// Values as the chunk would write them into an empty state.
    values: Tensor<4>,
    /// What of the values the state before the chunk already holds, to be multiplied with it.
    held: Tensor<4>,
    /// Decay of the whole chunk, `[chunks, h, 1, 1]`.
    decay: Tensor<4>,
}

impl Chunks {
    fn new(prepared: Prepared, layout: &Layout) -> Self {
        let device = prepared.q.device();
        let dtype = prepared.q.dtype();
        let [q, k, v] = [prepared.q, prepared.k, prepared.v].map(|x| layout.in_chunks(x));
        let [log_decay, beta] = [prepared.log_decay, prepared.beta].map(|x| {
            let [n, h] = x.dims();
            layout.in_chunks(x.reshape([n, h, 1]))
        });
        let below = Tensor::<2>::ones([CHUNK; 2], (&device, dtype)).tril(0);
        let sums = below.unsqueeze().matmul(log_decay);
        let [chunks, h, _, _] = sums.dims();
        let between = sums.clone().sub(sums.clone().swap_dims(2, 3));
        let later = Tensor::<2, Bool>::tril_mask([CHUNK; 2], 0, &device);
        let later = later.unsqueeze::<4>().expand([chunks, h, CHUNK, CHUNK]);
        let between = between.mask_fill(later, f32::NEG_INFINITY).exp();
        let keys = k.clone().swap_dims(2, 3);
        let system = k.clone().matmul(keys.clone()).mul(between.clone());
        let inverse = inverse(system.mul(beta.clone()));
        let from_begin = sums.clone().exp();
        let last = sums.clone().narrow(2, CHUNK - 1, 1);
        Self {
            scores: q.clone().matmul(keys).mul(between),
            values: inverse.clone().matmul(v.mul(beta.clone())),
            held: inverse.matmul(k.clone().mul(beta.mul(from_begin.clone()))),
            q_decayed: q.mul(from_begin),
            k_decayed: k.mul(last.clone().sub(sums).exp()),
            decay: last.exp(),
        }
    }

    /// What every token reads, `[chunks, h, CHUNK, value_dim]`, and the last states of the documents.
    fn walk(self, layout: &Layout, heads: DeltaHeads) -> (Tensor<4>, Tensor<4>) {
        let device = self.values.device();
        let h = heads.value_heads;
        let shape = [layout.widths[0], h, heads.key_dim, heads.value_dim];
        let mut state = Tensor::<4>::zeros(shape, (&device, self.values.dtype()));
        let (mut read, mut aside, mut first) = (Vec::new(), Vec::new(), 0);
        for &width in &layout.widths {
            let n = state.dims()[0];
            if width < n {
                aside.push(state.clone().narrow(0, width, n - width));
                state = state.narrow(0, 0, width);
            }
            let of = |x: &Tensor<4>| x.clone().narrow(0, first, width);
            let change = of(&self.values).sub(of(&self.held).matmul(state.clone()));
            let before = of(&self.q_decayed).matmul(state.clone());
            read.push(before.add(of(&self.scores).matmul(change.clone())));
            let written = of(&self.k_decayed).swap_dims(2, 3).matmul(change);
            state = state.mul(of(&self.decay)).add(written);
            first += width;
        }
        aside.push(state);
        let states = Tensor::cat(aside, 0).select(0, indices(&layout.last_states, &device));
        (Tensor::cat(read, 0), states)
    }
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
