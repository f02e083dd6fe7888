//! The walk over chunks on a GPU: a cube has some columns of the state of one head of one document, which
//! know nothing of the others. Arithmetic is f32.
//!
//! Backward it is the same walk from the last chunk to the first: the gradient of the state takes the
//! place of the state, and what was held and what was written change places.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, TensorMetadata, backend_extension};
use burn::tensor::{Slice, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::walk::{Order, Walk};
use crate::cube::launch::{argument, contiguous, output, upload};

/// Units on a side of a cube.
const SIDE: usize = 16;

/// Columns of a cube: each unit has two, so far apart as a cube has units in a row.
const COLUMNS: usize = 2 * SIDE;

/// Tokens of what is written under keys that a cube has in shared memory at once.
const WRITTEN: usize = 8;

/// Sizes that the kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Form {
    /// Of a chunk, a multiple of [`SIDE`].
    tokens: usize,
    key_dim: usize,
    /// Whether it walks backward, with gradients.
    gradient: bool,
}

impl Form {
    /// Rows of the state that a unit has.
    fn own_rows(&self) -> usize {
        self.key_dim.div_ceil(SIDE)
    }

    /// Tokens of a chunk that a unit has.
    fn own_tokens(&self) -> usize {
        self.tokens / SIDE
    }

    /// Rows of the state in shared memory.
    fn rows(&self) -> usize {
        self.own_rows() * SIDE
    }

    /// Numbers of the shared part of what is multiplied with the state, or written into it.
    fn part(&self) -> usize {
        (self.tokens * (SIDE + 1)).max(WRITTEN * (self.rows() + 1))
    }
}

/// Contracts are those of [`Walk::run`] and of its gradient.
#[cube(launch, create_dummy_kernel)]
fn walk_chunks(
    // Values, `[chunks, h, tokens, value_dim]`; backward the gradient of what the walk gave.
    given: &[f32],
    // What is multiplied with the state, and what is multiplied with the changes and written.
    read: &[f32],
    written: &[f32],
    decay: &[f32],
    // Of each number of chunks the place of the first document's chunk, and behind them their count.
    firsts: &[u32],
    out: &mut [f32],
    h: u32,
    value_dim: u32,
    #[comptime] form: Form,
) {
    let key_dim = comptime!(form.key_dim);
    let tokens = comptime!(form.tokens);
    let own_rows = comptime!(form.own_rows());
    let own_tokens = comptime!(form.own_tokens());
    let value_dim = value_dim as usize;
    let h = h as usize;
    let rank = CUBE_POS_Z as usize;
    let head = CUBE_POS_Y as usize;
    let y = UNIT_POS as usize / SIDE;
    let x = UNIT_POS as usize % SIDE;
    let column = CUBE_POS_X as usize * COLUMNS + x;

    let mut shared_state = Shared::<[f32]>::new_slice(comptime!(form.rows() * COLUMNS));
    let mut changes = Shared::<[f32]>::new_slice(comptime!(form.tokens * COLUMNS));
    let mut part = Shared::<[f32]>::new_slice(comptime!(form.part()));
    let mut state = Array::<f32>::new(comptime!(2 * own_rows));
    let mut sums = Array::<f32>::new(comptime!(2 * own_tokens));
    #[unroll]
    for i in 0..comptime!(2 * own_rows) {
        state[i] = 0.0f32;
    }

    // Chunks of the document.
    let most = firsts.len() - 1;
    let mut count = 0usize.runtime();
    while count < most && rank < (firsts[count + 1] - firsts[count]) as usize {
        count += 1;
    }
    let mut step = 0usize.runtime();
    while step < count {
        let mut number = step;
        if comptime!(form.gradient) {
            number = count - 1 - step;
        }
        let chunk = (firsts[number] as usize + rank) * h + head;
        let to = chunk * comptime!(form.key_dim + form.tokens) * value_dim;

        // What the state is, to all units and to the result.
        #[unroll]
        for j in 0..own_rows {
            let row = y + comptime!(j * SIDE);
            #[unroll]
            for i in 0..2 {
                let own = state[comptime!(2 * j + i)];
                shared_state[row * COLUMNS + x + comptime!(i * SIDE)] = own;
                let column = column + comptime!(i * SIDE);
                if row < key_dim && column < value_dim {
                    out[to + row * value_dim + column] = own;
                }
            }
        }
        sync_cube();

        add_read(read, chunk, &shared_state, &mut part, &mut sums, form);
        // What they change.
        let mut from = chunk * tokens * value_dim;
        if comptime!(form.gradient) {
            from = to + key_dim * value_dim;
        }
        let behind = to + key_dim * value_dim;
        #[unroll]
        for j in 0..own_tokens {
            let token = y * own_tokens + j;
            #[unroll]
            for i in 0..2 {
                let column = column + comptime!(i * SIDE);
                let mut change = 0.0f32;
                if column < value_dim {
                    change = given[from + token * value_dim + column];
                    if comptime!(form.gradient) {
                        change += sums[comptime!(2 * j + i)];
                    } else {
                        change -= sums[comptime!(2 * j + i)];
                    }
                    out[behind + token * value_dim + column] = change;
                }
                changes[token * COLUMNS + x + comptime!(i * SIDE)] = change;
            }
        }

        // The state of the next chunk.
        let decay = decay[chunk];
        #[unroll]
        for j in 0..own_rows {
            let row = y + comptime!(j * SIDE);
            #[unroll]
            for i in 0..2 {
                let mut own = state[comptime!(2 * j + i)] * decay;
                if comptime!(form.gradient) {
                    let column = column + comptime!(i * SIDE);
                    if row < key_dim && column < value_dim {
                        own += given[to + row * value_dim + column];
                    }
                }
                state[comptime!(2 * j + i)] = own;
            }
        }
        add_written(written, chunk, &changes, &mut part, &mut state, form);
        step += 1;
    }
}

/// What the unit's tokens of a chunk read of the state, in `sums`.
#[cube]
fn add_read(
    read: &[f32],
    chunk: usize,
    shared_state: &Shared<[f32]>,
    part: &mut Shared<[f32]>,
    sums: &mut Array<f32>,
    #[comptime] form: Form,
) {
    let key_dim = comptime!(form.key_dim);
    let own_tokens = comptime!(form.own_tokens());
    let y = UNIT_POS as usize / SIDE;
    let x = UNIT_POS as usize % SIDE;
    #[unroll]
    for i in 0..comptime!(2 * own_tokens) {
        sums[i] = 0.0f32;
    }
    let mut first = 0usize.runtime();
    while first < key_dim {
        let mut i = UNIT_POS as usize;
        while i < comptime!(form.tokens * SIDE) {
            let token = i / SIDE;
            let row = first + i % SIDE;
            let mut value = 0.0f32;
            if row < key_dim {
                value = read[(chunk * comptime!(form.tokens) + token) * key_dim + row];
            }
            part[token * comptime!(SIDE + 1) + i % SIDE] = value;
            i += comptime!(SIDE * SIDE);
        }
        sync_cube();
        #[unroll]
        for k in 0..SIDE {
            let at = (first + k) * COLUMNS + x;
            let a = shared_state[at];
            let b = shared_state[at + SIDE];
            #[unroll]
            for i in 0..own_tokens {
                let factor = part[(y * own_tokens + i) * comptime!(SIDE + 1) + k];
                sums[comptime!(2 * i)] += factor * a;
                sums[comptime!(2 * i + 1)] += factor * b;
            }
        }
        sync_cube();
        first += SIDE;
    }
}

/// Adds what the tokens of a chunk write into the unit's part of the state; takes it away backward.
#[cube]
fn add_written(
    written: &[f32],
    chunk: usize,
    changes: &Shared<[f32]>,
    part: &mut Shared<[f32]>,
    state: &mut Array<f32>,
    #[comptime] form: Form,
) {
    let key_dim = comptime!(form.key_dim);
    let own_rows = comptime!(form.own_rows());
    let pitch = comptime!(form.rows() + 1);
    let y = UNIT_POS as usize / SIDE;
    let x = UNIT_POS as usize % SIDE;
    let mut first = 0usize.runtime();
    while first < comptime!(form.tokens) {
        let mut i = UNIT_POS as usize;
        while i < comptime!(WRITTEN * form.rows()) {
            let token = i / comptime!(form.rows());
            let row = i % comptime!(form.rows());
            let mut value = 0.0f32;
            if row < key_dim {
                value = written[(chunk * comptime!(form.tokens) + first + token) * key_dim + row];
            }
            part[token * pitch + row] = value;
            i += comptime!(SIDE * SIDE);
        }
        // Of the changes, too, which other units wrote.
        sync_cube();
        #[unroll]
        for k in 0..WRITTEN {
            let at = (first + k) * COLUMNS + x;
            let mut a = changes[at];
            let mut b = changes[at + SIDE];
            if comptime!(form.gradient) {
                a = 0.0 - a;
                b = 0.0 - b;
            }
            #[unroll]
            for j in 0..own_rows {
                let factor = part[comptime!(k * (form.rows() + 1)) + y + comptime!(j * SIDE)];
                state[comptime!(2 * j)] += factor * a;
                state[comptime!(2 * j + 1)] += factor * b;
            }
        }
        sync_cube();
        first += WRITTEN;
    }
}

/// Tensors of a walk, in the shapes of [`Walk`].
#[derive(Debug, Clone)]
pub(crate) struct Walked<B: Backend> {
    held: FloatTensor<B>,
    keys: FloatTensor<B>,
    decay: FloatTensor<B>,
    /// What the walk gave.
    given: FloatTensor<B>,
    order: Order,
}

/// What backends implement themselves.
#[backend_extension(Autodiff, Cube)]
pub(crate) trait WalkOps: Backend {
    /// The contract is [`Walk::run`]'s.
    fn walk_states(
        values: FloatTensor<Self>,
        held: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        decay: FloatTensor<Self>,
        order: Order,
    ) -> FloatTensor<Self>;
}

/// The backward pass, on tensors without a graph.
pub(crate) trait WalkGradients: WalkOps {
    /// The gradient of the state behind each chunk, and behind its rows those of the values, `[chunks,
    /// h, key_dim + tokens, value_dim]`.
    fn walk_back(walked: &Walked<Self>, d_given: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// The contract is [`Walk::run`]'s, for tensors of f32 on a GPU.
pub(super) fn run(walk: Walk, order: Order) -> Tensor<4> {
    Tensor::from_dispatch(Dispatch::walk_states(
        walk.values.into_dispatch(),
        walk.held.into_dispatch(),
        walk.keys.into_dispatch(),
        walk.decay.into_dispatch(),
        order,
    ))
}

fn launch(
    given: CubeTensor,
    [read, written, decay]: [CubeTensor; 3],
    order: &Order,
    gradient: bool,
) -> CubeTensor {
    let (given, [chunks, h, _, value_dim]) = contiguous(given);
    let (read, [_, _, tokens, key_dim]) = contiguous(read);
    let (written, [_, _, _, _]) = contiguous(written);
    let (decay, [_, _, _, _]) = contiguous(decay);
    let out = output(
        &given,
        [chunks, h, key_dim + tokens, value_dim],
        given.dtype,
    );
    let documents = order.widths.first().copied().unwrap_or(0);
    if documents * h * value_dim == 0 {
        return out;
    }
    let mut firsts = vec![0u32];
    for &width in &order.widths {
        firsts.push(firsts[firsts.len() - 1] + width as u32);
    }
    let firsts = upload(&given, &firsts);
    let sizes = [value_dim.div_ceil(COLUMNS), h, documents].map(|n| n as u32);
    walk_chunks::launch(
        &given.client,
        CubeCount::new_3d(sizes[0], sizes[1], sizes[2]),
        CubeDim::new_1d((SIDE * SIDE) as u32),
        argument(&given),
        argument(&read),
        argument(&written),
        argument(&decay),
        argument(&firsts),
        argument(&out),
        h as u32,
        value_dim as u32,
        Form {
            tokens,
            key_dim,
            gradient,
        },
    );
    out
}

impl WalkOps for CubeBackend {
    fn walk_states(
        values: CubeTensor,
        held: CubeTensor,
        keys: CubeTensor,
        decay: CubeTensor,
        order: Order,
    ) -> CubeTensor {
        launch(values, [held, keys, decay], &order, false)
    }
}

impl WalkGradients for CubeBackend {
    fn walk_back(walked: &Walked<Self>, d_given: CubeTensor) -> CubeTensor {
        let Walked {
            held, keys, decay, ..
        } = walked.clone();
        launch(d_given, [keys, held, decay], &walked.order, true)
    }
}

#[derive(Debug)]
struct WalkBackward;

impl<B: WalkGradients> Backward<B, 4> for WalkBackward {
    type State = Walked<B>;

    fn backward(self, ops: Ops<Self::State, 4>, gradients: &mut Gradients, _: &mut Checkpointer) {
        crate::operation!("gated_delta backward");
        let d_given = gradients.consume::<B>(&ops.node);
        let walked = ops.state;
        let back = B::walk_back(&walked, d_given);
        let [_, _, tokens, key_dim] = walked.keys.shape().dims();
        let part = |x: FloatTensor<B>, first: usize, n: usize| {
            let all = Slice::from(..);
            let rows = Slice::from(first..first + n);
            B::float_slice(x, &[all, all, rows, all])
        };
        let parts = |x: FloatTensor<B>| [part(x.clone(), 0, key_dim), part(x, key_dim, tokens)];
        let [states, changes] = parts(walked.given);
        let [d_behind, d_values] = parts(back);
        let along = B::float_mul(states.clone(), d_behind.clone());
        let d_decay = B::float_sum_dim(B::float_sum_dim(along, 3), 2);
        let d_keys = B::float_matmul(changes, B::float_swap_dims(d_behind, 2, 3));
        let d_held = B::float_matmul(d_values.clone(), B::float_swap_dims(states, 2, 3));
        let found = [d_values, B::float_neg(d_held), d_keys, d_decay];
        for (parent, gradient) in ops.parents.into_iter().zip(found) {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

impl<B: WalkGradients, C: CheckpointStrategy> WalkOps for Autodiff<B, C> {
    fn walk_states(
        values: FloatTensor<Self>,
        held: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        decay: FloatTensor<Self>,
        order: Order,
    ) -> FloatTensor<Self> {
        let prepared = WalkBackward
            .prepare::<C>([values.node(), held.node(), keys.node(), decay.node()])
            .compute_bound()
            .stateful();
        let [values, held, keys, decay] =
            [values, held, keys, decay].map(|tensor| tensor.into_primitive());
        let given = B::walk_states(
            values,
            held.clone(),
            keys.clone(),
            decay.clone(),
            order.clone(),
        );
        let walked = Walked::<B> {
            held,
            keys,
            decay,
            given: given.clone(),
            order,
        };
        match prepared {
            OpsKind::Tracked(prep) => prep.finish(walked, given),
            OpsKind::UnTracked(prep) => prep.finish(given),
        }
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(texts: &mut crate::cube::source::Texts) {
    let dim = CubeDim::new_1d((SIDE * SIDE) as u32);
    for (gradient, name) in [(false, "forward"), (true, "gradient")] {
        for key_dim in [128, 256] {
            let form = Form {
                tokens: super::chunked::CHUNK,
                key_dim,
                gradient,
            };
            let [given, read, written, decay, firsts, out] = [0; 6].map(|_| texts.buffer());
            let (device, target, count) = texts.device();
            let kernel = walk_chunks::create_dummy_kernel(
                device, target, count, dim, given, read, written, decay, firsts, out, 1, 1, form,
            );
            texts.add(&format!("{name}, keys of {key_dim}"), dim, kernel);
        }
    }
}
