//! Gradients of the gated delta rule on slices.
//!
//! A task walks its document once forward, to find the state before each chunk, and once backward, with
//! the gradient of the state behind each chunk. Nothing of the forward pass is kept but what it read.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::DeltaHeads;
use super::cpu::{Inputs, Task};
use super::cpu_chunk::{
    CHUNK, KeyHead, OfTokens, Strides, ValueHead, between_tokens, scale, solve_back, to_tokens,
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

/// Gradients of what [`Inputs`] has, each in its shape.
#[derive(Debug)]
pub(crate) struct Found<T> {
    pub(crate) qkv: Buffer<T>,
    pub(crate) log_decay: Buffer<f32>,
    pub(crate) beta: Buffer<f32>,
}

/// Gradients, given that of what was read, `[n, value heads, value_dim]`; those of padding are zero.
pub(crate) fn gradients<T: Number>(
    inputs: Inputs<'_, T>,
    d_read: &[T],
    documents: &Documents,
) -> Found<T> {
    let heads = inputs.heads;
    let (n, end) = (documents.n_tokens(), documents.end());
    let [mut log_decay, mut beta] =
        [0.0; 2].map(|zero| Buffer::repeated(zero, n * heads.value_heads));
    // SAFETY: tasks write the tokens of all documents for all heads, the rest is written here.
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
            for_tasks(&tasks, |task| walk_document(inputs, d_read, task, &to));
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
    /// Rows from token `first` on, `stride` apart, to a part of queries, keys and values.
    ///
    /// # Safety
    ///
    /// Nobody else touches that part of these tokens.
    unsafe fn write(&self, first: usize, part: Range<usize>, rows: &[f32], stride: usize) {
        for (i, row) in rows.chunks_exact(stride).enumerate() {
            let at = (first + i) * self.heads.width() + part.start;
            // SAFETY: as the caller promises.
            narrow_slice(&row[..part.len()], unsafe {
                self.qkv.slice(at, part.len())
            });
        }
    }

    /// Gradients of a value head's decays and shares.
    ///
    /// # Safety
    ///
    /// Nobody else touches those of these tokens.
    unsafe fn write_gates(&self, first: usize, head: usize, gates: &Gates, m: usize) {
        let mut sum = 0.0;
        for i in (0..m).rev() {
            // A decay is in the sums of all tokens from its own on.
            sum += gates.sums[i];
            let at = (first + i) * self.heads.value_heads + head;
            // SAFETY: as the caller promises.
            unsafe {
                self.log_decay.slice(at, 1)[0] = sum;
                self.beta.slice(at, 1)[0] = gates.beta[i];
            }
        }
    }
}

/// Gradients of numbers of each token.
#[derive(Debug)]
struct Gates {
    /// Of the sum of the logarithms of decays up to it.
    sums: OfTokens,
    beta: OfTokens,
}

/// # Safety
///
/// Nobody else touches the gradients of the task's heads for its tokens.
unsafe fn walk_document<T: Number>(
    inputs: Inputs<'_, T>,
    d_read: &[T],
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
        let mut key_head = KeyHead::in_memory(keys, strides);
        let mut value_head = ValueHead::in_memory(values, strides);
        let mut memory = Memory::in_memory(own, strides);
        for (chunk, (first, m)) in task.chunks().enumerate().take(n_chunks - 1) {
            key_head.load(inputs, task.key_head, first, m);
            let (before, behind) = states[chunk * all..].split_at_mut(all);
            for (i, head) in group.clone().enumerate() {
                let place = i * strides.state()..(i + 1) * strides.state();
                let before = (chunk > 0).then_some(&before[place.clone()]);
                value_head.load(inputs, head, first, &key_head);
                value_head.solve(&key_head, before);
                value_head.hand_on(&key_head, before, &mut behind[place]);
            }
        }
        for (chunk, (first, m)) in task.chunks().enumerate().rev() {
            key_head.load(inputs, task.key_head, first, m);
            memory.clear(m);
            for (i, head) in group.clone().enumerate() {
                let place = i * strides.state()..(i + 1) * strides.state();
                let before = &states[chunk * all..][place.clone()];
                let around = Around {
                    before: (chunk > 0).then_some(before),
                    is_last: chunk + 1 == n_chunks,
                };
                for (i, row) in memory
                    .d_read
                    .chunks_exact_mut(strides.value)
                    .take(m)
                    .enumerate()
                {
                    let at = ((first + i) * heads.value_heads + head) * heads.value_dim;
                    widen(&d_read[at..at + heads.value_dim], row);
                }
                value_head.load(inputs, head, first, &key_head);
                value_head.solve(&key_head, around.before);
                let gates =
                    memory.of_head(&key_head, &mut value_head, around, &mut d_states[place]);
                let part = 2 * heads.keys() + head * heads.value_dim;
                let rows = &memory.d_change[..m * strides.value];
                // SAFETY: as the caller promises.
                unsafe {
                    to.write(first, part..part + heads.value_dim, rows, strides.value);
                    to.write_gates(first, head, &gates, m);
                }
            }
            memory.of_products(&key_head);
            for (i, rows) in [&memory.d_q, &memory.d_k].into_iter().enumerate() {
                let part = i * heads.keys() + task.key_head * heads.key_dim;
                // SAFETY: as the caller promises.
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

/// What lies around a chunk.
#[derive(Debug, Clone, Copy)]
struct Around<'a> {
    /// The state before it, unless it is the first one.
    before: Option<&'a [f32]>,
    /// Whether it is the last one, whose state nobody reads.
    is_last: bool,
}

/// Gradients of a chunk, and room for what they are made of.
#[derive(Debug)]
struct Memory<'m> {
    strides: Strides,
    /// Of what the head's tokens read, `[CHUNK, value_dim]`; in the end decayed from the chunk's begin.
    d_read: &'m mut [f32],
    /// Of changes, then of the equations' right sides, in the end of values, `[CHUNK, value_dim]`.
    d_change: &'m mut [f32],
    /// Of what the state holds under keys, `[CHUNK, value_dim]`.
    d_held: &'m mut [f32],
    /// Of queries and keys of unit length, over the value heads, `[CHUNK, key_dim]`.
    d_q: &'m mut [f32],
    d_k: &'m mut [f32],
    /// Part of one of them.
    part: &'m mut [f32],
    /// Of the products of queries and keys, and of keys and keys, over the value heads,
    /// `[CHUNK, CHUNK]`.
    d_qk: &'m mut [f32],
    d_kk: &'m mut [f32],
    /// Of scores and of the system, `[CHUNK, CHUNK]`.
    d_scores: &'m mut [f32],
    d_system: &'m mut [f32],
    /// Changes as columns, `[value_dim, CHUNK]`.
    changes: &'m mut [f32],
    /// The state or its gradient, `[value_dim, key_dim]`.
    turned: &'m mut [f32],
}

impl<'m> Memory<'m> {
    fn floats(strides: Strides) -> usize {
        let rows = CHUNK * (3 * strides.value + 3 * strides.key);
        rows + 4 * CHUNK * CHUNK + strides.value_dim * (CHUNK + strides.key)
    }

    /// In memory of [`Memory::floats`], whatever that holds.
    fn in_memory(mut memory: &'m mut [f32], strides: Strides) -> Self {
        let mut take = |n: usize| {
            let (part, rest) = std::mem::take(&mut memory).split_at_mut(n);
            memory = rest;
            part
        };
        let [d_read, d_change, d_held] = [CHUNK * strides.value; 3].map(&mut take);
        let [d_q, d_k, part] = [CHUNK * strides.key; 3].map(&mut take);
        let [d_qk, d_kk, d_scores, d_system] = [CHUNK * CHUNK; 4].map(&mut take);
        Self {
            strides,
            d_read,
            d_change,
            d_held,
            d_q,
            d_k,
            part,
            d_qk,
            d_kk,
            d_scores,
            d_system,
            changes: take(strides.value_dim * CHUNK),
            turned: take(strides.value_dim * strides.key),
        }
    }

    /// Begins with the value heads of a chunk.
    fn clear(&mut self, m: usize) {
        for rows in [&mut *self.d_q, &mut *self.d_k] {
            rows[..m * self.strides.key].fill(0.0);
        }
        for rows in [&mut *self.d_qk, &mut *self.d_kk] {
            rows[..m * CHUNK].fill(0.0);
        }
    }

    /// Adds what a value head says of queries and keys; leaves the gradient of its values in `d_change`
    /// and that of the state before the chunk in `d_state`, which held that of the state behind it.
    fn of_head(
        &mut self,
        keys: &KeyHead<'_>,
        head: &mut ValueHead<'_>,
        around: Around<'_>,
        d_state: &mut [f32],
    ) -> Gates {
        let (strides, m) = (self.strides, keys.m);
        let mut gates = Gates {
            sums: [0.0; CHUNK],
            beta: [0.0; CHUNK],
        };
        if !around.is_last {
            self.of_state_behind(keys, head, d_state, &mut gates);
            strides.turn_state(d_state, self.turned);
            let handed_on = strides.values(head.handed_on, m);
            multiply(
                strides.to_keys(self.d_k, true),
                handed_on,
                Shape::Full,
                strides.turned(self.turned),
            );
        }
        let d_read = strides.values(self.d_read, m);
        let scores = between_tokens(head.scores, m).transposed();
        multiply(
            strides.to_values(self.d_change, !around.is_last),
            scores,
            Shape::Upper,
            d_read,
        );
        let changes = [m, strides.value_dim];
        transpose(head.change, strides.value, changes, self.changes, CHUNK);
        let changes = Matrix::strided(self.changes, [strides.value_dim, m], CHUNK);
        multiply(to_tokens(self.d_scores), d_read, Shape::Full, changes);
        solve_back(head.system, self.d_change, m, strides);
        let d_right = strides.values(self.d_change, m);
        multiply(to_tokens(self.d_system), d_right, Shape::Full, changes);
        self.of_right_sides(head, m, &mut gates);
        if let Some(before) = around.before {
            if !around.is_last {
                let along = sum_of_rows(before, d_state, strides);
                gates.sums[m - 1] += head.whole * along;
                scale(d_state, head.whole);
            }
            for (row, &decay) in self
                .d_read
                .chunks_exact_mut(strides.value)
                .zip(&head.from_begin[..m])
            {
                scale(&mut row[..strides.value_dim], decay);
            }
            strides.turn_state(before, self.turned);
            let turned = strides.turned(self.turned);
            let d_read = strides.values(self.d_read, m);
            multiply(
                strides.to_keys(self.part, false),
                d_read,
                Shape::Full,
                turned,
            );
            for i in 0..m {
                let row = i * strides.key..i * strides.key + strides.key_dim;
                let part = &self.part[row.clone()];
                gates.sums[i] += dot(part, &keys.q[row.clone()]);
                add(part, &mut self.d_q[row]);
            }
            let d_held = strides.values(self.d_held, m);
            multiply(strides.to_keys(self.d_k, true), d_held, Shape::Full, turned);
            for (rows, d_rows, adds) in [
                (&*keys.q, d_read, !around.is_last),
                (&*keys.k, d_held, true),
            ] {
                let rows = strides.keys(rows, m).transposed();
                multiply(strides.to_values(d_state, adds), rows, Shape::Full, d_rows);
            }
        }
        of_decays(self, head, keys, &mut gates);
        gates
    }

    /// Begins the gradient of changes with what the state behind the chunk has of them.
    fn of_state_behind(
        &mut self,
        keys: &KeyHead<'_>,
        head: &mut ValueHead<'_>,
        d_state: &[f32],
        gates: &mut Gates,
    ) {
        let (strides, m) = (self.strides, keys.m);
        head.weigh_changes(m);
        let lines = strides.state_lines(d_state);
        let target = strides.to_values(self.d_change, false);
        multiply(target, strides.keys(keys.k, m), Shape::Full, lines);
        for i in 0..m {
            let row = i * strides.value..i * strides.value + strides.value_dim;
            let d_row = &mut self.d_change[row.clone()];
            let along = dot(d_row, &head.handed_on[row]);
            gates.sums[m - 1] += along;
            gates.sums[i] -= along;
            scale(d_row, head.to_end[i]);
        }
    }

    /// From the gradient of the equations' right sides to those of values, shares and what the state
    /// held.
    fn of_right_sides(&mut self, head: &ValueHead<'_>, m: usize, gates: &mut Gates) {
        let strides = self.strides;
        for i in 0..m {
            let row = i * strides.value..i * strides.value + strides.value_dim;
            let (beta, decay) = (head.beta[i], head.from_begin[i]);
            let d_right = &mut self.d_change[row.clone()];
            let held = dot(d_right, &head.held[row.clone()]);
            gates.beta[i] += dot(d_right, &head.v[row.clone()]) - decay * held;
            gates.sums[i] -= beta * decay * held;
            write_scaled(d_right, -beta * decay, &mut self.d_held[row]);
            scale(d_right, beta);
        }
    }

    /// Makes gradients of queries and keys of those of their products and of unit length.
    fn of_products(&mut self, keys: &KeyHead<'_>) {
        let (strides, m) = (self.strides, keys.m);
        let (q, k) = (strides.keys(keys.q, m), strides.keys(keys.k, m));
        let (qk, kk) = (between_tokens(self.d_qk, m), between_tokens(self.d_kk, m));
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
                of_norm(&rows[row.clone()], factor, scale, &mut d_rows[row]);
            }
        }
    }
}

/// `Σ a b` over the numbers of two states.
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
    /// From the gradient of a row of length `scale` to that of the row, which a factor gave length 1.
    fn of_norm(row: &[f32], factor: f32, scale: f32, d_row: &mut [f32]) {
        // A scaled row times the scaled row's gradient, in units of length 1.
        let along = sum_of_pairs(row, &*d_row, |a, b| a * b) / scale;
        for (d, value) in d_row.iter_mut().zip(row) {
            *d = (*d * scale - value * along) * factor;
        }
    }
}

for_each_isa! {
    /// From gradients of scores and of the system to those of products, decays and shares.
    fn of_decays(
        memory: &mut Memory<'_>,
        head: &ValueHead<'_>,
        keys: &KeyHead<'_>,
        gates: &mut Gates,
    ) {
        let mut columns: OfTokens = [0.0; CHUNK];
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
            .map(|row| <&OfTokens>::try_from(row).expect("a row"));
            let d_qk: &mut OfTokens = (&mut memory.d_qk[row.clone()]).try_into().expect("a row");
            let d_kk: &mut OfTokens = (&mut memory.d_kk[row]).try_into().expect("a row");
            let [mut along, mut shares] = [[0.0; CHUNK]; 2];
            for j in 0..CHUNK {
                // Selects: what lies behind the diagonal may be anything.
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
