//! A chunk of tokens: the corrections between its tokens, their outputs, and the update of the
//! state.

use super::cpu::Inputs;
use super::{DeltaHeads, NORM_EPS};
use crate::cpu::exp::exp;
use crate::cpu::isa::for_each_isa;
use crate::cpu::matrix::Matrix;
use crate::cpu::number::Number;
use crate::cpu::small::{LINE, Shape, Target, multiply, row_stride, transpose};
use crate::cpu::sum::sum_of_pairs;

/// Tokens per chunk.
pub(super) const CHUNK: usize = 32;

/// Tokens whose equations are solved sequentially; earlier tokens contribute through matmuls.
const BLOCK: usize = 16;

const SQUARE: usize = CHUNK * CHUNK;

/// One value per token of a chunk.
pub(super) type PerToken = [f32; CHUNK];

/// Head sizes, and row strides in floats.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strides {
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    /// Row stride of keys.
    pub(super) key: usize,
    /// Row stride of values.
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

    /// Floats per state, `[key_dim, value_dim]`.
    pub(super) fn state(self) -> usize {
        self.key_dim * self.value
    }

    /// A state as the lines of a right operand.
    pub(super) fn state_lines(self, state: &[f32]) -> Matrix<'_> {
        Matrix::strided(state, [self.key_dim, self.value_dim], self.value)
    }

    /// Writes the transposed state, `[value_dim, key_dim]`.
    pub(super) fn transpose_state(self, state: &[f32], to: &mut [f32]) {
        let shape = [self.key_dim, self.value_dim];
        transpose(state, self.value, shape, to, self.key);
    }

    /// The result of [`Strides::transpose_state`] as the lines of a right operand.
    pub(super) fn transposed_state(self, transposed: &[f32]) -> Matrix<'_> {
        Matrix::strided(transposed, [self.value_dim, self.key_dim], self.key)
    }

    /// `m` rows of keys.
    pub(super) fn keys(self, rows: &[f32], m: usize) -> Matrix<'_> {
        Matrix::strided(rows, [m, self.key_dim], self.key)
    }

    /// `m` rows of values.
    pub(super) fn values(self, rows: &[f32], m: usize) -> Matrix<'_> {
        Matrix::strided(rows, [m, self.value_dim], self.value)
    }

    /// Rows of keys, as the target of a product.
    pub(super) fn to_keys(self, numbers: &mut [f32], adds: bool) -> Target<'_> {
        Target {
            numbers,
            stride: self.key,
            adds,
        }
    }

    /// Rows of values, as the target of a product.
    pub(super) fn to_values(self, numbers: &mut [f32], adds: bool) -> Target<'_> {
        Target {
            numbers,
            stride: self.value,
            adds,
        }
    }
}

/// `m` rows of a token-by-token matrix.
pub(super) fn token_matrix(numbers: &[f32], m: usize) -> Matrix<'_> {
    Matrix::strided(numbers, [m, m], CHUNK)
}

/// A token-by-token matrix, as the target of a product.
pub(super) fn to_tokens(numbers: &mut [f32]) -> Target<'_> {
    Target {
        numbers,
        stride: CHUNK,
        adds: false,
    }
}

/// Data shared by the value heads of a key head.
#[derive(Debug)]
pub(super) struct KeyHead<'m> {
    strides: Strides,
    /// Tokens of this chunk.
    pub(super) m: usize,
    /// Queries normalised to length `1 / √key_dim`, `[CHUNK, key_dim]`.
    pub(super) q: &'m mut [f32],
    /// Keys normalised to length 1, `[CHUNK, key_dim]`.
    pub(super) k: &'m mut [f32],
    /// Factors that normalised queries and keys to length 1.
    pub(super) factors: [PerToken; 2],
    /// Products of queries (rows) and keys, `[CHUNK, CHUNK]`.
    pub(super) qk: &'m mut [f32],
    /// Products of keys and keys, `[CHUNK, CHUNK]`.
    pub(super) kk: &'m mut [f32],
    /// Transposed keys, `[key_dim, CHUNK]`.
    transposed: &'m mut [f32],
}

impl<'m> KeyHead<'m> {
    pub(super) fn floats(strides: Strides) -> usize {
        2 * CHUNK * strides.key + 2 * SQUARE + strides.key_dim * CHUNK
    }

    /// Splits memory of size [`KeyHead::floats`]; contents are arbitrary.
    pub(super) fn from_memory(memory: &'m mut [f32], strides: Strides) -> Self {
        let (q, memory) = memory.split_at_mut(CHUNK * strides.key);
        let (k, memory) = memory.split_at_mut(CHUNK * strides.key);
        let (qk, memory) = memory.split_at_mut(SQUARE);
        let (kk, transposed) = memory.split_at_mut(SQUARE);
        Self {
            strides,
            m: 0,
            q,
            k,
            factors: [[0.0; CHUNK]; 2],
            qk,
            kk,
            transposed,
        }
    }

    /// Reads `m` tokens starting at `first`.
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
        transpose(self.k, key, [m, key_dim], self.transposed, CHUNK);
        let transposed = Matrix::strided(self.transposed, [key_dim, m], CHUNK);
        for (rows, to) in [(&*self.q, &mut *self.qk), (&*self.k, &mut *self.kk)] {
            let rows = self.strides.keys(rows, m);
            multiply(to_tokens(to), rows, Shape::Full, transposed);
        }
    }
}

/// A value head of the chunk.
#[derive(Debug)]
pub(super) struct ValueHead<'m> {
    strides: Strides,
    /// Values, `[CHUNK, value_dim]`.
    pub(super) v: &'m mut [f32],
    /// The state's values under the keys before the chunk, `[CHUNK, value_dim]`; zeros for the
    /// first chunk.
    pub(super) state_values: &'m mut [f32],
    /// Each token's update under its key, `[CHUNK, value_dim]`.
    pub(super) change: &'m mut [f32],
    /// Decay between tokens, `[CHUNK, CHUNK]`; zeros above the diagonal.
    pub(super) between: &'m mut [f32],
    /// Coefficients with which each update is added to later ones, `[CHUNK, CHUNK]`; zeros on and
    /// above the diagonal.
    pub(super) system: &'m mut [f32],
    /// Coefficients with which each token reads the updates, `[CHUNK, CHUNK]`; zeros above the
    /// diagonal.
    pub(super) scores: &'m mut [f32],
    /// Updates, decayed to the end of the chunk.
    pub(super) decayed_changes: &'m mut [f32],
    pub(super) beta: PerToken,
    /// Decay from the start of the chunk to each token.
    pub(super) from_begin: PerToken,
    /// Decay from each token to the end of the chunk.
    pub(super) to_end: PerToken,
    /// Decay of the whole chunk.
    pub(super) whole: f32,
}

impl<'m> ValueHead<'m> {
    pub(super) fn floats(strides: Strides) -> usize {
        4 * CHUNK * strides.value + 3 * SQUARE
    }

    /// Splits memory of size [`ValueHead::floats`]; contents are arbitrary.
    pub(super) fn from_memory(memory: &'m mut [f32], strides: Strides) -> Self {
        let (v, memory) = memory.split_at_mut(CHUNK * strides.value);
        let (state_values, memory) = memory.split_at_mut(CHUNK * strides.value);
        let (change, memory) = memory.split_at_mut(CHUNK * strides.value);
        let (decayed_changes, memory) = memory.split_at_mut(CHUNK * strides.value);
        let (between, memory) = memory.split_at_mut(SQUARE);
        let (system, scores) = memory.split_at_mut(SQUARE);
        Self {
            strides,
            v,
            state_values,
            change,
            between,
            system,
            scores,
            decayed_changes,
            beta: [0.0; CHUNK],
            from_begin: [0.0; CHUNK],
            to_end: [0.0; CHUNK],
            whole: 0.0,
        }
    }

    /// Reads the chunk's tokens, starting at `first`.
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
            let index = token * heads.value_heads + head;
            sum += inputs.log_decay[index];
            (*sum_here, self.beta[i]) = (sum, inputs.beta[index]);
        }
        sums[m..].fill(sum);
        self.whole = exp(sum);
        for (i, &sum_here) in sums.iter().enumerate() {
            self.from_begin[i] = exp(sum_here);
            self.to_end[i] = exp(sum - sum_here);
        }
        apply_decays(self, keys, &sums);
    }

    /// The update of each token, from the state before the chunk.
    pub(super) fn solve(&mut self, keys: &KeyHead<'_>, before: Option<&[f32]>) {
        let (strides, m) = (self.strides, keys.m);
        match before {
            Some(state) => multiply(
                strides.to_values(self.state_values, false),
                strides.keys(keys.k, m),
                Shape::Full,
                strides.state_lines(state),
            ),
            None => self.state_values[..m * strides.value].fill(0.0),
        }
        for i in 0..m {
            let row = i * strides.value..i * strides.value + strides.value_dim;
            let factors = [self.beta[i], -self.beta[i] * self.from_begin[i]];
            let parts = [&self.v[row.clone()], &self.state_values[row.clone()]];
            write_sum(factors, parts, &mut self.change[row]);
        }
        solve(self.system, self.change, m, strides);
    }

    /// The output of each token, `[CHUNK, value_dim]`.
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
        let scores = token_matrix(self.scores, m);
        multiply(target, scores, Shape::Lower, strides.values(self.change, m));
    }

    /// The state after the chunk.
    pub(super) fn write_next_state(
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

    /// Updates `state` in place; before the first chunk its contents are arbitrary.
    pub(super) fn update_state_in_place(
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
        self.decay_changes(m);
        multiply(
            strides.to_values(state, adds),
            strides.keys(keys.k, m).transposed(),
            Shape::Full,
            strides.values(self.decayed_changes, m),
        );
    }

    /// Updates, decayed to the end of the chunk.
    pub(super) fn decay_changes(&mut self, m: usize) {
        let Strides {
            value, value_dim, ..
        } = self.strides;
        for i in 0..m {
            let row = i * value..i * value + value_dim;
            write_scaled(
                &self.change[row.clone()],
                self.to_end[i],
                &mut self.decayed_changes[row],
            );
        }
    }
}

/// Replaces the right-hand sides of the equations of `m` tokens (rows of values) by the solution:
/// adds the earlier rows to each row, times the coefficients in its row of `system`.
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

/// Solves the transposed equations: adds the later rows to each row, times the coefficients in its
/// column of `system`.
pub(super) fn solve_transposed(system: &[f32], rows: &mut [f32], m: usize, strides: Strides) {
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
        substitute_transposed(system, first..end, block, strides);
    }
}

for_each_isa! {
    /// Scales a row to length `scale`; returns the factor that would scale it to length 1.
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
    /// Applies the decays between tokens of a value head to the products of queries and keys, given
    /// the cumulative log-decay up to each token.
    fn apply_decays(head: &mut ValueHead<'_>, keys: &KeyHead<'_>, sums: &PerToken) {
        for i in 0..keys.m {
            let row = i * CHUNK..(i + 1) * CHUNK;
            let between: &mut PerToken = (&mut head.between[row.clone()]).try_into().expect("a row");
            let [qk, kk] = [&keys.qk[row.clone()], &keys.kk[row.clone()]];
            let [qk, kk]: [&PerToken; 2] = [qk, kk].map(|row| row.try_into().expect("a row"));
            let scores: &mut PerToken = (&mut head.scores[row.clone()]).try_into().expect("a row");
            let system: &mut PerToken = (&mut head.system[row]).try_into().expect("a row");
            for j in 0..CHUNK {
                // A select instead of a product, because elements above the diagonal are arbitrary.
                let decay = exp(sums[i] - sums[j]);
                between[j] = if j <= i { decay } else { 0.0 };
                scores[j] = if j <= i { decay * qk[j] } else { 0.0 };
                system[j] = if j < i { -(head.beta[i] * decay * kk[j]) } else { 0.0 };
            }
        }
    }
}

for_each_isa! {
    /// Solves the equations of `tokens`; `block` starts with their rows.
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
    /// Solves the transposed equations of `tokens`; `block` starts with their rows.
    fn substitute_transposed(
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

/// Adds rows, each multiplied by its factor, to one row.
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
