//! A chunk of tokens: what its tokens correct of each other, find in the state and hand on to it.

use super::cpu::Inputs;
use super::{DeltaHeads, NORM_EPS};
use crate::cpu::exp::exp;
use crate::cpu::isa::for_each_isa;
use crate::cpu::matrix::Matrix;
use crate::cpu::number::Number;
use crate::cpu::small::{LINE, Shape, Target, multiply, row_stride, transpose};
use crate::cpu::sum::sum_of_pairs;

/// Tokens of a chunk.
pub(super) const CHUNK: usize = 32;

/// Tokens whose equations are solved one after the other; those before them come in by products.
const BLOCK: usize = 16;

const SQUARE: usize = CHUNK * CHUNK;

/// A number for each token of a chunk.
pub(super) type OfTokens = [f32; CHUNK];

/// Sizes of heads, and floats from row to row in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strides {
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    /// Of rows of keys.
    pub(super) key: usize,
    /// Of rows of values.
    pub(super) value: usize,
}

impl Strides {
    pub(super) fn new(heads: DeltaHeads) -> Self {
        Self {
            key_dim: heads.key_dim,
            value_dim: heads.value_dim,
            key: row_stride(heads.key_dim),
            value: row_stride(heads.value_dim),
        }
    }

    /// Floats of a state, `[key_dim, value_dim]`.
    pub(super) fn state(self) -> usize {
        self.key_dim * self.value
    }

    /// A state as lines of a product.
    pub(super) fn state_lines(self, state: &[f32]) -> Matrix<'_> {
        Matrix::strided(state, [self.key_dim, self.value_dim], self.value)
    }

    /// Writes a state as `[value_dim, key_dim]`.
    pub(super) fn turn_state(self, state: &[f32], to: &mut [f32]) {
        let shape = [self.key_dim, self.value_dim];
        transpose(state, self.value, shape, to, self.key);
    }

    /// What [`Strides::turn_state`] wrote as lines of a product.
    pub(super) fn turned(self, turned: &[f32]) -> Matrix<'_> {
        Matrix::strided(turned, [self.value_dim, self.key_dim], self.key)
    }

    /// `m` rows of keys.
    pub(super) fn keys(self, rows: &[f32], m: usize) -> Matrix<'_> {
        Matrix::strided(rows, [m, self.key_dim], self.key)
    }

    /// `m` rows of values.
    pub(super) fn values(self, rows: &[f32], m: usize) -> Matrix<'_> {
        Matrix::strided(rows, [m, self.value_dim], self.value)
    }

    /// Rows of keys to write.
    pub(super) fn to_keys(self, numbers: &mut [f32], adds: bool) -> Target<'_> {
        Target {
            numbers,
            stride: self.key,
            adds,
        }
    }

    /// Rows of values to write.
    pub(super) fn to_values(self, numbers: &mut [f32], adds: bool) -> Target<'_> {
        Target {
            numbers,
            stride: self.value,
            adds,
        }
    }
}

/// Numbers between tokens, `m` rows of them.
pub(super) fn between_tokens(numbers: &[f32], m: usize) -> Matrix<'_> {
    Matrix::strided(numbers, [m, m], CHUNK)
}

/// Numbers between tokens to write.
pub(super) fn to_tokens(numbers: &mut [f32]) -> Target<'_> {
    Target {
        numbers,
        stride: CHUNK,
        adds: false,
    }
}

/// What the value heads of a key head share.
#[derive(Debug)]
pub(super) struct KeyHead<'m> {
    strides: Strides,
    /// Tokens of this chunk.
    pub(super) m: usize,
    /// Queries of length `1 / √key_dim`, `[CHUNK, key_dim]`.
    pub(super) q: &'m mut [f32],
    /// Keys of length 1, `[CHUNK, key_dim]`.
    pub(super) k: &'m mut [f32],
    /// What queries and keys were multiplied with to have length 1.
    pub(super) factors: [OfTokens; 2],
    /// Products of queries, a row each, and keys, `[CHUNK, CHUNK]`.
    pub(super) qk: &'m mut [f32],
    /// Products of keys and keys, `[CHUNK, CHUNK]`.
    pub(super) kk: &'m mut [f32],
    /// Keys, a column each, `[key_dim, CHUNK]`.
    turned: &'m mut [f32],
}

impl<'m> KeyHead<'m> {
    pub(super) fn floats(strides: Strides) -> usize {
        2 * CHUNK * strides.key + 2 * SQUARE + strides.key_dim * CHUNK
    }

    /// In memory of [`KeyHead::floats`], whatever that holds.
    pub(super) fn in_memory(memory: &'m mut [f32], strides: Strides) -> Self {
        let (q, memory) = memory.split_at_mut(CHUNK * strides.key);
        let (k, memory) = memory.split_at_mut(CHUNK * strides.key);
        let (qk, memory) = memory.split_at_mut(SQUARE);
        let (kk, turned) = memory.split_at_mut(SQUARE);
        Self {
            strides,
            m: 0,
            q,
            k,
            factors: [[0.0; CHUNK]; 2],
            qk,
            kk,
            turned,
        }
    }

    /// Reads `m` tokens from token `first` on.
    pub(super) fn load<T: Number>(
        &mut self,
        inputs: Inputs<'_, T>,
        head: usize,
        first: usize,
        m: usize,
    ) {
        let Strides { key_dim, key, .. } = self.strides;
        let (heads, width) = (inputs.heads, inputs.heads.width());
        let scale = (key_dim as f32).sqrt().recip();
        let parts = [(&mut *self.q, 0, scale), (&mut *self.k, heads.keys(), 1.0)];
        for ((to, part, scale), factors) in parts.into_iter().zip(&mut self.factors) {
            for (i, factor) in factors.iter_mut().enumerate().take(m) {
                let from = &inputs.qkv[(first + i) * width + part + head * key_dim..][..key_dim];
                *factor = write_normed(from, scale, &mut to[i * key..][..key_dim]);
            }
        }
        self.m = m;
        transpose(self.k, key, [m, key_dim], self.turned, CHUNK);
        let turned = Matrix::strided(self.turned, [key_dim, m], CHUNK);
        for (rows, to) in [(&*self.q, &mut *self.qk), (&*self.k, &mut *self.kk)] {
            let rows = self.strides.keys(rows, m);
            multiply(to_tokens(to), rows, Shape::Full, turned);
        }
    }
}

/// A value head of the chunk.
#[derive(Debug)]
pub(super) struct ValueHead<'m> {
    strides: Strides,
    /// Values, `[CHUNK, value_dim]`.
    pub(super) v: &'m mut [f32],
    /// What the state before the chunk holds under the keys, `[CHUNK, value_dim]`; zeros for the first
    /// chunk.
    pub(super) held: &'m mut [f32],
    /// What each token changes under its key, `[CHUNK, value_dim]`.
    pub(super) change: &'m mut [f32],
    /// Decay between tokens, `[CHUNK, CHUNK]`; zeros behind the diagonal.
    pub(super) between: &'m mut [f32],
    /// What is added of each change to those behind it, `[CHUNK, CHUNK]`; zeros on the diagonal and
    /// behind it.
    pub(super) system: &'m mut [f32],
    /// What a token reads of each change, `[CHUNK, CHUNK]`; zeros behind the diagonal.
    pub(super) scores: &'m mut [f32],
    /// Changes as the chunk's end sees them.
    pub(super) handed_on: &'m mut [f32],
    pub(super) beta: OfTokens,
    /// Decay from the chunk's begin to each token.
    pub(super) from_begin: OfTokens,
    /// Decay from each token to the chunk's end.
    pub(super) to_end: OfTokens,
    /// Decay of the whole chunk.
    pub(super) whole: f32,
}

impl<'m> ValueHead<'m> {
    pub(super) fn floats(strides: Strides) -> usize {
        4 * CHUNK * strides.value + 3 * SQUARE
    }

    /// In memory of [`ValueHead::floats`], whatever that holds.
    pub(super) fn in_memory(memory: &'m mut [f32], strides: Strides) -> Self {
        let (v, memory) = memory.split_at_mut(CHUNK * strides.value);
        let (held, memory) = memory.split_at_mut(CHUNK * strides.value);
        let (change, memory) = memory.split_at_mut(CHUNK * strides.value);
        let (handed_on, memory) = memory.split_at_mut(CHUNK * strides.value);
        let (between, memory) = memory.split_at_mut(SQUARE);
        let (system, scores) = memory.split_at_mut(SQUARE);
        Self {
            strides,
            v,
            held,
            change,
            between,
            system,
            scores,
            handed_on,
            beta: [0.0; CHUNK],
            from_begin: [0.0; CHUNK],
            to_end: [0.0; CHUNK],
            whole: 0.0,
        }
    }

    /// Reads the chunk's tokens, from token `first` on.
    pub(super) fn load<T: Number>(
        &mut self,
        inputs: Inputs<'_, T>,
        head: usize,
        first: usize,
        keys: &KeyHead<'_>,
    ) {
        let (heads, m, dim) = (inputs.heads, keys.m, self.strides.value_dim);
        let mut sums = [0.0; CHUNK];
        let mut sum = 0.0;
        for (i, sum_here) in sums.iter_mut().enumerate().take(m) {
            let token = first + i;
            let from = token * heads.width() + 2 * heads.keys() + head * dim;
            let to = &mut self.v[i * self.strides.value..][..dim];
            widen(&inputs.qkv[from..][..dim], to);
            let at = token * heads.value_heads + head;
            sum += inputs.log_decay[at];
            (*sum_here, self.beta[i]) = (sum, inputs.beta[at]);
        }
        sums[m..].fill(sum);
        self.whole = exp(sum);
        for (i, &sum_here) in sums.iter().enumerate() {
            self.from_begin[i] = exp(sum_here);
            self.to_end[i] = exp(sum - sum_here);
        }
        decayed(self, keys, &sums);
    }

    /// What each token changes, given the state before the chunk.
    pub(super) fn solve(&mut self, keys: &KeyHead<'_>, before: Option<&[f32]>) {
        let (strides, m) = (self.strides, keys.m);
        match before {
            Some(state) => multiply(
                strides.to_values(self.held, false),
                strides.keys(keys.k, m),
                Shape::Full,
                strides.state_lines(state),
            ),
            None => self.held[..m * strides.value].fill(0.0),
        }
        for i in 0..m {
            let row = i * strides.value..i * strides.value + strides.value_dim;
            let factors = [self.beta[i], -self.beta[i] * self.from_begin[i]];
            let parts = [&self.v[row.clone()], &self.held[row.clone()]];
            write_sum(factors, parts, &mut self.change[row]);
        }
        solve(self.system, self.change, m, strides);
    }

    /// What each token reads, `[CHUNK, value_dim]`.
    pub(super) fn read(&self, keys: &KeyHead<'_>, before: Option<&[f32]>, to: &mut [f32]) {
        let (strides, m) = (self.strides, keys.m);
        if let Some(state) = before {
            let (q, state) = (strides.keys(keys.q, m), strides.state_lines(state));
            multiply(strides.to_values(to, false), q, Shape::Full, state);
            for (row, &decay) in to
                .chunks_exact_mut(strides.value)
                .zip(&self.from_begin[..m])
            {
                scale(&mut row[..strides.value_dim], decay);
            }
        }
        let target = strides.to_values(to, before.is_some());
        let scores = between_tokens(self.scores, m);
        multiply(target, scores, Shape::Lower, strides.values(self.change, m));
    }

    /// The state behind the chunk.
    pub(super) fn hand_on(
        &mut self,
        keys: &KeyHead<'_>,
        before: Option<&[f32]>,
        behind: &mut [f32],
    ) {
        if let Some(state) = before {
            write_scaled(state, self.whole, behind);
        }
        self.add_changes(keys, behind, before.is_some());
    }

    /// The same in place; before the first chunk `state` holds any numbers.
    pub(super) fn hand_on_in_place(
        &mut self,
        keys: &KeyHead<'_>,
        state: &mut [f32],
        is_first: bool,
    ) {
        if !is_first {
            scale(state, self.whole);
        }
        self.add_changes(keys, state, !is_first);
    }

    fn add_changes(&mut self, keys: &KeyHead<'_>, state: &mut [f32], adds: bool) {
        let (strides, m) = (self.strides, keys.m);
        self.weigh_changes(m);
        multiply(
            strides.to_values(state, adds),
            strides.keys(keys.k, m).transposed(),
            Shape::Full,
            strides.values(self.handed_on, m),
        );
    }

    /// Changes as the chunk's end sees them.
    pub(super) fn weigh_changes(&mut self, m: usize) {
        let Strides {
            value, value_dim, ..
        } = self.strides;
        for i in 0..m {
            let row = i * value..i * value + value_dim;
            write_scaled(
                &self.change[row.clone()],
                self.to_end[i],
                &mut self.handed_on[row],
            );
        }
    }
}

/// Changes the right sides of the equations of `m` tokens, rows of values, to their solution: to each
/// row those before it are added, times the factors of its row of `system`.
fn solve(system: &[f32], rows: &mut [f32], m: usize, strides: Strides) {
    for first in (0..m).step_by(BLOCK) {
        let end = m.min(first + BLOCK);
        let (earlier, block) = rows.split_at_mut(first * strides.value);
        if first > 0 {
            let factors = Matrix::strided(&system[first * CHUNK..], [end - first, first], CHUNK);
            let earlier = strides.values(earlier, first);
            multiply(
                strides.to_values(block, true),
                factors,
                Shape::Full,
                earlier,
            );
        }
        substitute(system, first..end, block, strides);
    }
}

/// The same of the transposed equations: to each row those behind it are added, times the factors of its
/// column of `system`.
pub(super) fn solve_back(system: &[f32], rows: &mut [f32], m: usize, strides: Strides) {
    for first in (0..m).step_by(BLOCK).rev() {
        let end = m.min(first + BLOCK);
        let (block, later) =
            rows[first * strides.value..].split_at_mut((end - first) * strides.value);
        if end < m {
            let factors = Matrix::strided(
                &system[end * CHUNK + first..],
                [m - end, end - first],
                CHUNK,
            );
            let later = strides.values(later, m - end);
            let factors = factors.transposed();
            multiply(strides.to_values(block, true), factors, Shape::Full, later);
        }
        substitute_back(system, first..end, block, strides);
    }
}

for_each_isa! {
    /// A row times a factor that gives it length `scale`; returns the one that gives it length 1.
    fn write_normed[T: Number](from: &[T], scale: f32, to: &mut [f32]) -> f32 {
        let squares = sum_of_pairs(from, from, |a, b| a.widen() * b.widen());
        let factor = (squares + NORM_EPS as f32).sqrt().recip();
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.widen() * factor * scale;
        }
        factor
    }
}

for_each_isa! {
    pub(super) fn widen[T: Number](from: &[T], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.widen();
        }
    }
}

for_each_isa! {
    pub(super) fn scale(row: &mut [f32], factor: f32) {
        for value in row {
            *value *= factor;
        }
    }
}

for_each_isa! {
    pub(super) fn write_scaled(from: &[f32], factor: f32, to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from * factor;
        }
    }
}

for_each_isa! {
    pub(super) fn write_sum(factors: [f32; 2], parts: [&[f32]; 2], to: &mut [f32]) {
        for ((to, a), b) in to.iter_mut().zip(parts[0]).zip(parts[1]) {
            *to = a * factors[0] + b * factors[1];
        }
    }
}

for_each_isa! {
    /// What the products of keys and queries are between tokens of a value head, given the sums of the
    /// logarithms of decays up to each token.
    fn decayed(head: &mut ValueHead<'_>, keys: &KeyHead<'_>, sums: &OfTokens) {
        for i in 0..keys.m {
            let row = i * CHUNK..(i + 1) * CHUNK;
            let between: &mut OfTokens = (&mut head.between[row.clone()]).try_into().expect("a row");
            let [qk, kk] = [&keys.qk[row.clone()], &keys.kk[row.clone()]];
            let [qk, kk]: [&OfTokens; 2] = [qk, kk].map(|row| row.try_into().expect("a row"));
            let scores: &mut OfTokens = (&mut head.scores[row.clone()]).try_into().expect("a row");
            let system: &mut OfTokens = (&mut head.system[row]).try_into().expect("a row");
            for j in 0..CHUNK {
                // A select, not a product: what lies behind the diagonal may be anything.
                let decay = exp(sums[i] - sums[j]);
                between[j] = if j <= i { decay } else { 0.0 };
                scores[j] = if j <= i { decay * qk[j] } else { 0.0 };
                system[j] = if j < i { -(head.beta[i] * decay * kk[j]) } else { 0.0 };
            }
        }
    }
}

for_each_isa! {
    /// Solves the equations of `tokens`, whose rows `block` begins with.
    fn substitute(
        system: &[f32],
        tokens: std::ops::Range<usize>,
        block: &mut [f32],
        strides: Strides,
    ) {
        for (i, token) in tokens.clone().enumerate() {
            let (earlier, row) = block.split_at_mut(i * strides.value);
            let factors = &system[token * CHUNK + tokens.start..][..i];
            let row = &mut row[..strides.value];
            let earlier = earlier.chunks_exact(strides.value);
            add_rows(factors.iter().copied(), earlier, row);
        }
    }
}

for_each_isa! {
    /// Solves the transposed equations of `tokens`, whose rows `block` begins with.
    fn substitute_back(
        system: &[f32],
        tokens: std::ops::Range<usize>,
        block: &mut [f32],
        strides: Strides,
    ) {
        for (i, token) in tokens.clone().enumerate().rev() {
            let (row, later) = block[i * strides.value..].split_at_mut(strides.value);
            let factors = (token + 1..tokens.end).map(|j| system[j * CHUNK + token]);
            add_rows(factors, later.chunks_exact(strides.value), row);
        }
    }
}

/// Adds rows, each times its factor, to one.
#[inline(always)]
fn add_rows<'a>(
    factors: impl Iterator<Item = f32> + Clone,
    rows: impl Iterator<Item = &'a [f32]> + Clone,
    to: &mut [f32],
) {
    for (column, to) in (0..).step_by(LINE).zip(to.chunks_exact_mut(LINE)) {
        let to: &mut [f32; LINE] = to.try_into().expect("whole vectors");
        let mut sums = *to;
        for (factor, row) in factors.clone().zip(rows.clone()) {
            let row: &[f32; LINE] = row[column..column + LINE]
                .try_into()
                .expect("whole vectors");
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += factor * value;
            }
        }
        *to = sums;
    }
}
