//! Gradients of the gated delta rule on slices.
//!
//! A task processes its document once forward, to recompute the state before each chunk, and once
//! backward, with the gradient of the state after each chunk. Only the inputs of the forward pass
//! are stored.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::DeltaHeads;
use super::cpu::{Inputs, Task};
use super::cpu_chunk::{
    CHUNK, KeyHead, PerToken, Strides, ValueHead, scale, solve_transposed, to_tokens, token_matrix,
    widen, write_scaled,
};
use crate::Documents;
use crate::cpu::isa::for_each_isa;
use crate::cpu::matrix::Matrix;
use crate::cpu::number::Number;
use crate::cpu::packed::convert::narrow_slice;
use crate::cpu::pool::Buffer;
use crate::cpu::rows::for_tasks;
use crate::cpu::scratch::with_scratch;
use crate::cpu::shared::Shared;
use crate::cpu::small::{Shape, multiply, transpose};
use crate::cpu::sum::sum_of_pairs;

/// Gradients of [`Inputs`], with the same shapes.
#[derive(Debug)]
pub(crate) struct Found<T> {
    pub(crate) qkv: Buffer<T>,
    pub(crate) log_decay: Buffer<f32>,
    pub(crate) beta: Buffer<f32>,
}

/// Gradients from the gradient of the outputs, `[n, value heads, value_dim]`; padding rows are
/// zero.
pub(crate) fn gradients<T: Number>(
    inputs: Inputs<'_, T>,
    d_output: &[T],
    documents: &Documents,
) -> Found<T> {
    let heads = inputs.heads;
    let (n, end) = (documents.n_tokens(), documents.end());
    let [mut log_decay, mut beta] =
        [0.0; 2].map(|zero| Buffer::repeated(zero, n * heads.value_heads));
    // SAFETY: tasks write the tokens of all documents for all heads; the padding is written here.
    let qkv = unsafe {
        Buffer::filled(n * heads.width(), |qkv| {
            qkv[end * heads.width()..].fill(MaybeUninit::new(T::narrow(0.0)));
            let to = Targets {
                heads,
                qkv: Shared::new(qkv),
                log_decay: Shared::new(&mut log_decay),
                beta: Shared::new(&mut beta),
            };
            let tasks = Task::all(documents, heads);
            for_tasks(&tasks, |task| walk_document(inputs, d_output, task, &to));
        })
    };
    Found {
        qkv,
        log_decay,
        beta,
    }
}

struct Targets<'a, T> {
    heads: DeltaHeads,
    qkv: Shared<'a, MaybeUninit<T>>,
    log_decay: Shared<'a>,
    beta: Shared<'a>,
}

impl<T: Number> Targets<'_, T> {
    /// Writes rows (`stride` apart) to a part of queries, keys and values, starting at token
    /// `first`.
    ///
    /// # Safety
    ///
    /// No one else accesses that part of these tokens.
    unsafe fn write(&self, first: usize, part: Range<usize>, rows: &[f32], stride: usize) {
        for (i, row) in rows.chunks_exact(stride).enumerate() {
            let index = (first + i) * self.heads.width() + part.start;
            // SAFETY: guaranteed by the caller.
            narrow_slice(&row[..part.len()], unsafe {
                self.qkv.slice(index, part.len())
            });
        }
    }

    /// Writes the decay and beta gradients of a value head.
    ///
    /// # Safety
    ///
    /// No one else accesses those gradients of these tokens.
    unsafe fn write_gates(&self, first: usize, head: usize, gates: &Gates, m: usize) {
        let mut sum = 0.0;
        for i in (0..m).rev() {
            // A decay is part of the sums of its own token and all later ones.
            sum += gates.sums[i];
            let index = (first + i) * self.heads.value_heads + head;
            // SAFETY: guaranteed by the caller.
            unsafe {
                self.log_decay.slice(index, 1)[0] = sum;
                self.beta.slice(index, 1)[0] = gates.beta[i];
            }
        }
    }
}

/// Gradients of per-token scalars.
#[derive(Debug)]
struct Gates {
    /// Gradient of the cumulative log-decay up to the token.
    sums: PerToken,
    beta: PerToken,
}

/// # Safety
///
/// No one else accesses the gradients of the task's heads for its tokens.
unsafe fn walk_document<T: Number>(
    inputs: Inputs<'_, T>,
    d_output: &[T],
    task: &Task,
    to: &Targets<'_, T>,
) {
    let heads = inputs.heads;
    let strides = Strides::new(heads);
    let group = task.value_heads(heads);
    let n_chunks = task.chunks().count();
    let sizes = [
        KeyHead::floats(strides),
        ValueHead::floats(strides),
        Memory::floats(strides),
        group.len() * strides.state(),
    ];
    let all = group.len() * strides.state();
    let mut states = Buffer::repeated(0.0, n_chunks * all);
    with_scratch(sizes.iter().sum(), |memory| {
        let (keys, memory) = memory.split_at_mut(sizes[0]);
        let (values, memory) = memory.split_at_mut(sizes[1]);
        let (own, d_states) = memory.split_at_mut(sizes[2]);
        let mut key_head = KeyHead::from_memory(keys, strides);
        let mut value_head = ValueHead::from_memory(values, strides);
        let mut memory = Memory::from_memory(own, strides);
        for (chunk, (first, m)) in task.chunks().enumerate().take(n_chunks - 1) {
            key_head.load(inputs, task.key_head, first, m);
            let (before, behind) = states[chunk * all..].split_at_mut(all);
            for (i, head) in group.clone().enumerate() {
                let range = i * strides.state()..(i + 1) * strides.state();
                let before = (chunk > 0).then_some(&before[range.clone()]);
                value_head.load(inputs, head, first, &key_head);
                value_head.solve(&key_head, before);
                value_head.write_next_state(&key_head, before, &mut behind[range]);
            }
        }
        for (chunk, (first, m)) in task.chunks().enumerate().rev() {
            key_head.load(inputs, task.key_head, first, m);
            memory.clear(m);
            for (i, head) in group.clone().enumerate() {
                let range = i * strides.state()..(i + 1) * strides.state();
                let before = &states[chunk * all..][range.clone()];
                let context = ChunkContext {
                    before: (chunk > 0).then_some(before),
                    is_last: chunk + 1 == n_chunks,
                };
                for (i, row) in memory
                    .d_output
                    .chunks_exact_mut(strides.value)
                    .take(m)
                    .enumerate()
                {
                    let index = ((first + i) * heads.value_heads + head) * heads.value_dim;
                    widen(&d_output[index..index + heads.value_dim], row);
                }
                value_head.load(inputs, head, first, &key_head);
                value_head.solve(&key_head, context.before);
                let gates =
                    memory.head_gradient(&key_head, &mut value_head, context, &mut d_states[range]);
                let part = 2 * heads.keys() + head * heads.value_dim;
                let rows = &memory.d_change[..m * strides.value];
                // SAFETY: guaranteed by the caller.
                unsafe {
                    to.write(first, part..part + heads.value_dim, rows, strides.value);
                    to.write_gates(first, head, &gates, m);
                }
            }
            memory.product_gradients(&key_head);
            for (i, rows) in [&memory.d_q, &memory.d_k].into_iter().enumerate() {
                let part = i * heads.keys() + task.key_head * heads.key_dim;
                // SAFETY: guaranteed by the caller.
                unsafe {
                    to.write(
                        first,
                        part..part + heads.key_dim,
                        &rows[..m * strides.key],
                        strides.key,
                    );
                }
            }
        }
    });
}

/// The chunk's initial state and position in the document.
#[derive(Debug, Clone, Copy)]
struct ChunkContext<'a> {
    /// The state before the chunk, except for the first chunk.
    before: Option<&'a [f32]>,
    /// Whether this is the last chunk, whose state is not used.
    is_last: bool,
}

/// Gradients of a chunk, and working memory.
#[derive(Debug)]
struct Memory<'m> {
    strides: Strides,
    /// Gradient of the head's outputs, `[CHUNK, value_dim]`; at the end multiplied by the decay
    /// from the start of the chunk.
    d_output: &'m mut [f32],
    /// Gradient of the updates, then of the right-hand sides of the equations, finally of the
    /// values, `[CHUNK, value_dim]`.
    d_change: &'m mut [f32],
    /// Gradient of the state's values under the keys, `[CHUNK, value_dim]`.
    d_state_values: &'m mut [f32],
    /// Gradients of normalised queries and keys, summed over the value heads, `[CHUNK, key_dim]`.
    d_q: &'m mut [f32],
    d_k: &'m mut [f32],
    /// A summand of one of these.
    part: &'m mut [f32],
    /// Gradients of the products of queries and keys, and of keys and keys, summed over the value
    /// heads, `[CHUNK, CHUNK]`.
    d_qk: &'m mut [f32],
    d_kk: &'m mut [f32],
    /// Gradients of the scores and of the system, `[CHUNK, CHUNK]`.
    d_scores: &'m mut [f32],
    d_system: &'m mut [f32],
    /// Transposed updates, `[value_dim, CHUNK]`.
    changes: &'m mut [f32],
    /// The transposed state or its gradient, `[value_dim, key_dim]`.
    transposed: &'m mut [f32],
}

impl<'m> Memory<'m> {
    fn floats(strides: Strides) -> usize {
        let rows = CHUNK * (3 * strides.value + 3 * strides.key);
        rows + 4 * CHUNK * CHUNK + strides.value_dim * (CHUNK + strides.key)
    }

    /// Splits memory of size [`Memory::floats`]; contents are arbitrary.
    fn from_memory(mut memory: &'m mut [f32], strides: Strides) -> Self {
        let mut take = |n: usize| {
            let (part, rest) = std::mem::take(&mut memory).split_at_mut(n);
            memory = rest;
            part
        };
        let [d_output, d_change, d_state_values] = [CHUNK * strides.value; 3].map(&mut take);
        let [d_q, d_k, part] = [CHUNK * strides.key; 3].map(&mut take);
        let [d_qk, d_kk, d_scores, d_system] = [CHUNK * CHUNK; 4].map(&mut take);
        Self {
            strides,
            d_output,
            d_change,
            d_state_values,
            d_q,
            d_k,
            part,
            d_qk,
            d_kk,
            d_scores,
            d_system,
            changes: take(strides.value_dim * CHUNK),
            transposed: take(strides.value_dim * strides.key),
        }
    }

    /// Starts a chunk, before its value heads.
    fn clear(&mut self, m: usize) {
        for rows in [&mut *self.d_q, &mut *self.d_k] {
            rows[..m * self.strides.key].fill(0.0);
        }
        for rows in [&mut *self.d_qk, &mut *self.d_kk] {
            rows[..m * CHUNK].fill(0.0);
        }
    }

    /// Adds a value head's contributions to the query and key gradients. Leaves the gradient of its
    /// values in `d_change`; `d_state` must hold the gradient of the state after the chunk and is
    /// replaced by the gradient of the state before it.
    fn head_gradient(
        &mut self,
        keys: &KeyHead<'_>,
        head: &mut ValueHead<'_>,
        context: ChunkContext<'_>,
        d_state: &mut [f32],
    ) -> Gates {
        let (strides, m) = (self.strides, keys.m);
        let mut gates = Gates {
            sums: [0.0; CHUNK],
            beta: [0.0; CHUNK],
        };
        if !context.is_last {
            self.init_change_gradient(keys, head, d_state, &mut gates);
            strides.transpose_state(d_state, self.transposed);
            let decayed_changes = strides.values(head.decayed_changes, m);
            multiply(
                strides.to_keys(self.d_k, true),
                decayed_changes,
                Shape::Full,
                strides.transposed_state(self.transposed),
            );
        }
        let d_output = strides.values(self.d_output, m);
        let scores = token_matrix(head.scores, m).transposed();
        multiply(
            strides.to_values(self.d_change, !context.is_last),
            scores,
            Shape::Upper,
            d_output,
        );
        let changes = [m, strides.value_dim];
        transpose(head.change, strides.value, changes, self.changes, CHUNK);
        let changes = Matrix::strided(self.changes, [strides.value_dim, m], CHUNK);
        multiply(to_tokens(self.d_scores), d_output, Shape::Full, changes);
        solve_transposed(head.system, self.d_change, m, strides);
        let d_right = strides.values(self.d_change, m);
        multiply(to_tokens(self.d_system), d_right, Shape::Full, changes);
        self.right_side_gradients(head, m, &mut gates);
        if let Some(before) = context.before {
            if !context.is_last {
                let projection = sum_of_rows(before, d_state, strides);
                gates.sums[m - 1] += head.whole * projection;
                scale(d_state, head.whole);
            }
            for (row, &decay) in self
                .d_output
                .chunks_exact_mut(strides.value)
                .zip(&head.from_begin[..m])
            {
                scale(&mut row[..strides.value_dim], decay);
            }
            strides.transpose_state(before, self.transposed);
            let transposed = strides.transposed_state(self.transposed);
            let d_output = strides.values(self.d_output, m);
            multiply(
                strides.to_keys(self.part, false),
                d_output,
                Shape::Full,
                transposed,
            );
            for i in 0..m {
                let row = i * strides.key..i * strides.key + strides.key_dim;
                let part = &self.part[row.clone()];
                gates.sums[i] += dot(part, &keys.q[row.clone()]);
                add(part, &mut self.d_q[row]);
            }
            let d_state_values = strides.values(self.d_state_values, m);
            multiply(
                strides.to_keys(self.d_k, true),
                d_state_values,
                Shape::Full,
                transposed,
            );
            for (rows, d_rows, adds) in [
                (&*keys.q, d_output, !context.is_last),
                (&*keys.k, d_state_values, true),
            ] {
                let rows = strides.keys(rows, m).transposed();
                multiply(strides.to_values(d_state, adds), rows, Shape::Full, d_rows);
            }
        }
        decay_gradients(self, head, keys, &mut gates);
        gates
    }

    /// Initialises the gradient of the updates with the part from the state after the chunk.
    fn init_change_gradient(
        &mut self,
        keys: &KeyHead<'_>,
        head: &mut ValueHead<'_>,
        d_state: &[f32],
        gates: &mut Gates,
    ) {
        let (strides, m) = (self.strides, keys.m);
        head.decay_changes(m);
        let lines = strides.state_lines(d_state);
        let target = strides.to_values(self.d_change, false);
        multiply(target, strides.keys(keys.k, m), Shape::Full, lines);
        for i in 0..m {
            let row = i * strides.value..i * strides.value + strides.value_dim;
            let d_row = &mut self.d_change[row.clone()];
            let projection = dot(d_row, &head.decayed_changes[row]);
            gates.sums[m - 1] += projection;
            gates.sums[i] -= projection;
            scale(d_row, head.to_end[i]);
        }
    }

    /// Computes the gradients of values, beta and the state's values under the keys from the
    /// gradient of the right-hand sides.
    fn right_side_gradients(&mut self, head: &ValueHead<'_>, m: usize, gates: &mut Gates) {
        let strides = self.strides;
        for i in 0..m {
            let row = i * strides.value..i * strides.value + strides.value_dim;
            let (beta, decay) = (head.beta[i], head.from_begin[i]);
            let d_right = &mut self.d_change[row.clone()];
            let state_product = dot(d_right, &head.state_values[row.clone()]);
            gates.beta[i] += dot(d_right, &head.v[row.clone()]) - decay * state_product;
            gates.sums[i] -= beta * decay * state_product;
            write_scaled(d_right, -beta * decay, &mut self.d_state_values[row]);
            scale(d_right, beta);
        }
    }

    /// Computes the gradients of queries and keys from the gradients of the products and of the
    /// normalised rows.
    fn product_gradients(&mut self, keys: &KeyHead<'_>) {
        let (strides, m) = (self.strides, keys.m);
        let (q, k) = (strides.keys(keys.q, m), strides.keys(keys.k, m));
        let (qk, kk) = (token_matrix(self.d_qk, m), token_matrix(self.d_kk, m));
        multiply(strides.to_keys(self.d_q, true), qk, Shape::Lower, k);
        for (products, shape, rows) in [
            (qk.transposed(), Shape::Upper, q),
            (kk, Shape::Lower, k),
            (kk.transposed(), Shape::Upper, k),
        ] {
            multiply(strides.to_keys(self.d_k, true), products, shape, rows);
        }
        let scale = (strides.key_dim as f32).sqrt().recip();
        for ((d_rows, rows), (factors, scale)) in
            [(&mut *self.d_q, &*keys.q), (&mut *self.d_k, &*keys.k)]
                .into_iter()
                .zip(keys.factors.iter().zip([scale, 1.0]))
        {
            for (i, &factor) in factors.iter().enumerate().take(m) {
                let row = i * strides.key..i * strides.key + strides.key_dim;
                norm_gradient(&rows[row.clone()], factor, scale, &mut d_rows[row]);
            }
        }
    }
}

/// `Σ a b` over the elements of two states.
fn sum_of_rows(a: &[f32], b: &[f32], strides: Strides) -> f32 {
    let rows = a
        .chunks_exact(strides.value)
        .zip(b.chunks_exact(strides.value));
    let dim = strides.value_dim;
    rows.map(|(a, b)| dot(&a[..dim], &b[..dim])).sum()
}

for_each_isa! {
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        sum_of_pairs(a, b, |a, b| a * b)
    }
}

for_each_isa! {
    fn add(from: &[f32], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += from;
        }
    }
}

for_each_isa! {
    /// Converts the gradient of a row normalised to length `scale` to the gradient of the original
    /// row; `factor` normalises the row to length 1.
    fn norm_gradient(row: &[f32], factor: f32, scale: f32, d_row: &mut [f32]) {
        // Dot product of the scaled row and its gradient, in units of length 1.
        let projection = sum_of_pairs(row, &*d_row, |a, b| a * b) / scale;
        for (d, value) in d_row.iter_mut().zip(row) {
            *d = (*d * scale - value * projection) * factor;
        }
    }
}

for_each_isa! {
    /// Computes the gradients of products, decays and beta from the gradients of scores and of the
    /// system.
    fn decay_gradients(
        memory: &mut Memory<'_>,
        head: &ValueHead<'_>,
        keys: &KeyHead<'_>,
        gates: &mut Gates,
    ) {
        let mut columns: PerToken = [0.0; CHUNK];
        for i in 0..keys.m {
            let row = i * CHUNK..(i + 1) * CHUNK;
            let [between, scores, system, kk, d_scores, d_system] = [
                &head.between[row.clone()],
                &head.scores[row.clone()],
                &head.system[row.clone()],
                &keys.kk[row.clone()],
                &memory.d_scores[row.clone()],
                &memory.d_system[row.clone()],
            ]
            .map(|row| <&PerToken>::try_from(row).expect("a row"));
            let d_qk: &mut PerToken = (&mut memory.d_qk[row.clone()]).try_into().expect("a row");
            let d_kk: &mut PerToken = (&mut memory.d_kk[row]).try_into().expect("a row");
            let [mut along, mut shares] = [[0.0; CHUNK]; 2];
            for j in 0..CHUNK {
                // A select instead of a product, because elements above the diagonal are arbitrary.
                let d_score = if j <= i { d_scores[j] } else { 0.0 };
                let d_factor = if j < i { d_system[j] } else { 0.0 };
                let kk = if j < i { kk[j] } else { 0.0 };
                d_qk[j] += d_score * between[j];
                d_kk[j] -= d_factor * head.beta[i] * between[j];
                shares[j] = d_factor * between[j] * kk;
                along[j] = d_score * scores[j] + d_factor * system[j];
                columns[j] += along[j];
            }
            gates.beta[i] -= sum_of_pairs(&shares, &shares, |a, _| a);
            gates.sums[i] += sum_of_pairs(&along, &along, |a, _| a);
        }
        for (sum, column) in gates.sums.iter_mut().zip(columns) {
            *sum -= column;
        }
    }
}
