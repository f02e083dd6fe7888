//! The walk over chunks on a GPU: a cube owns some columns of the state of one head of one
//! document, which are independent of the others. Arithmetic is f32.
//!
//! The backward pass is the same walk from the last chunk to the first: the gradient of the state
//! replaces the state, and the operands that read and write the state are swapped.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::{Slice, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::walk::{Order, Walk};
use crate::cube::launch::{argument, contiguous, output, upload};

/// Units per side of a cube.
const SIDE: usize = 16;

/// Columns per cube: two per unit, one row of units apart.
const COLUMNS: usize = 2 * SIDE;

/// Tokens of the written operand that are in shared memory at a time.
const WRITTEN: usize = 8;

/// Compile-time sizes of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct KernelSizes {
    /// Tokens per chunk, a multiple of [`SIDE`].
    tokens: usize,
    key_dim: usize,
    /// Whether this is the backward walk, with gradients.
    gradient: bool,
}

impl KernelSizes {
    /// Rows of the state per unit.
    fn own_rows(&self) -> usize {
        self.key_dim.div_ceil(SIDE)
    }

    /// Tokens of a chunk per unit.
    fn own_tokens(&self) -> usize {
        self.tokens / SIDE
    }

    /// Rows of the state in shared memory.
    fn rows(&self) -> usize {
        self.own_rows() * SIDE
    }

    /// Elements of the shared-memory tile of the operand that reads or writes the state.
    fn part(&self) -> usize {
        (self.tokens * (SIDE + 1)).max(WRITTEN * (self.rows() + 1))
    }
}

/// Same contracts as [`Walk::run`] and its gradient.
#[cube(launch, create_dummy_kernel)]
fn walk_chunks(
    // Values, `[chunks, h, tokens, value_dim]`; in the backward pass the gradient of the walk's
    // result.
    values: &[f32],
    // The operand multiplied with the state, and the operand multiplied with the updates and added
    // to the state.
    readers: &[f32],
    writers: &[f32],
    decay: &[f32],
    // For each chunk number, the index of the first document's chunk; after the last, the total
    // count.
    firsts: &[u32],
    out: &mut [f32],
    h: u32,
    value_dim: u32,
    #[comptime] sizes: KernelSizes,
) {
    let key_dim = comptime!(sizes.key_dim);
    let tokens = comptime!(sizes.tokens);
    let own_rows = comptime!(sizes.own_rows());
    let own_tokens = comptime!(sizes.own_tokens());
    let value_dim = value_dim as usize;
    let h = h as usize;
    let rank = CUBE_POS_Z as usize;
    let head = CUBE_POS_Y as usize;
    let y = UNIT_POS as usize / SIDE;
    let x = UNIT_POS as usize % SIDE;
    let column = CUBE_POS_X as usize * COLUMNS + x;

    let mut shared_state = Shared::<[f32]>::new_slice(comptime!(sizes.rows() * COLUMNS));
    let mut changes = Shared::<[f32]>::new_slice(comptime!(sizes.tokens * COLUMNS));
    let mut part = Shared::<[f32]>::new_slice(comptime!(sizes.part()));
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
        if comptime!(sizes.gradient) {
            number = count - 1 - step;
        }
        let chunk = (firsts[number] as usize + rank) * h + head;
        let to = chunk * comptime!(sizes.key_dim + sizes.tokens) * value_dim;

        // Share the state with all units and store it in the result.
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

        sum_state_products(readers, chunk, &shared_state, &mut part, &mut sums, sizes);
        // The updates.
        let mut from = chunk * tokens * value_dim;
        if comptime!(sizes.gradient) {
            from = to + key_dim * value_dim;
        }
        let updates = to + key_dim * value_dim;
        #[unroll]
        for j in 0..own_tokens {
            let token = y * own_tokens + j;
            #[unroll]
            for i in 0..2 {
                let column = column + comptime!(i * SIDE);
                let mut change = 0.0f32;
                if column < value_dim {
                    change = values[from + token * value_dim + column];
                    if comptime!(sizes.gradient) {
                        change += sums[comptime!(2 * j + i)];
                    } else {
                        change -= sums[comptime!(2 * j + i)];
                    }
                    out[updates + token * value_dim + column] = change;
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
                if comptime!(sizes.gradient) {
                    let column = column + comptime!(i * SIDE);
                    if row < key_dim && column < value_dim {
                        own += values[to + row * value_dim + column];
                    }
                }
                state[comptime!(2 * j + i)] = own;
            }
        }
        add_updates(writers, chunk, &changes, &mut part, &mut state, sizes);
        step += 1;
    }
}

/// Reads the state for the unit's tokens of a chunk, into `sums`.
#[cube]
fn sum_state_products(
    readers: &[f32],
    chunk: usize,
    shared_state: &Shared<[f32]>,
    part: &mut Shared<[f32]>,
    sums: &mut Array<f32>,
    #[comptime] sizes: KernelSizes,
) {
    let key_dim = comptime!(sizes.key_dim);
    let own_tokens = comptime!(sizes.own_tokens());
    let y = UNIT_POS as usize / SIDE;
    let x = UNIT_POS as usize % SIDE;
    #[unroll]
    for i in 0..comptime!(2 * own_tokens) {
        sums[i] = 0.0f32;
    }
    let mut first = 0usize.runtime();
    while first < key_dim {
        let mut i = UNIT_POS as usize;
        while i < comptime!(sizes.tokens * SIDE) {
            let token = i / SIDE;
            let row = first + i % SIDE;
            let mut value = 0.0f32;
            if row < key_dim {
                value = readers[(chunk * comptime!(sizes.tokens) + token) * key_dim + row];
            }
            part[token * comptime!(SIDE + 1) + i % SIDE] = value;
            i += comptime!(SIDE * SIDE);
        }
        sync_cube();
        #[unroll]
        for k in 0..SIDE {
            let index = (first + k) * COLUMNS + x;
            let a = shared_state[index];
            let b = shared_state[index + SIDE];
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

/// Adds the updates of a chunk to the unit's part of the state; subtracts them in the backward
/// pass.
#[cube]
fn add_updates(
    writers: &[f32],
    chunk: usize,
    changes: &Shared<[f32]>,
    part: &mut Shared<[f32]>,
    state: &mut Array<f32>,
    #[comptime] sizes: KernelSizes,
) {
    let key_dim = comptime!(sizes.key_dim);
    let own_rows = comptime!(sizes.own_rows());
    let pitch = comptime!(sizes.rows() + 1);
    let y = UNIT_POS as usize / SIDE;
    let x = UNIT_POS as usize % SIDE;
    let mut first = 0usize.runtime();
    while first < comptime!(sizes.tokens) {
        let mut i = UNIT_POS as usize;
        while i < comptime!(WRITTEN * sizes.rows()) {
            let token = i / comptime!(sizes.rows());
            let row = i % comptime!(sizes.rows());
            let mut value = 0.0f32;
            if row < key_dim {
                value = writers[(chunk * comptime!(sizes.tokens) + first + token) * key_dim + row];
            }
            part[token * pitch + row] = value;
            i += comptime!(SIDE * SIDE);
        }
        // Also waits for the updates that other units wrote.
        sync_cube();
        #[unroll]
        for k in 0..WRITTEN {
            let index = (first + k) * COLUMNS + x;
            let mut a = changes[index];
            let mut b = changes[index + SIDE];
            if comptime!(sizes.gradient) {
                a = 0.0 - a;
                b = 0.0 - b;
            }
            #[unroll]
            for j in 0..own_rows {
                let factor = part[comptime!(k * (sizes.rows() + 1)) + y + comptime!(j * SIDE)];
                state[comptime!(2 * j)] += factor * a;
                state[comptime!(2 * j + 1)] += factor * b;
            }
        }
        sync_cube();
        first += WRITTEN;
    }
}

/// Tensors that update the state, with the shapes of [`Walk`].
#[derive(Debug, Clone, ExtensionType)]
pub(crate) struct Operands<B: Backend> {
    state_coefficients: FloatTensor<B>,
    keys: FloatTensor<B>,
    decay: FloatTensor<B>,
}

/// State of the forward pass that the backward pass needs.
#[derive(Debug, Clone)]
pub(crate) struct Walked<B: Backend> {
    operands: Operands<B>,
    /// The walk's result.
    given: FloatTensor<B>,
    order: Order,
}

/// Operation that a backend implements itself.
#[backend_extension(Autodiff, Cube)]
pub(crate) trait WalkOps: Backend {
    /// Same contract as [`Walk::run`].
    fn walk_states(
        values: FloatTensor<Self>,
        #[extension_type] operands: Operands<Self>,
        order: Order,
    ) -> FloatTensor<Self>;
}

/// The backward pass, on tensors that are not part of an autodiff graph.
pub(crate) trait WalkGradients: WalkOps {
    /// The gradient of the state after each chunk, followed by the gradients of the values,
    /// `[chunks, h, key_dim + tokens, value_dim]`.
    fn walk_states_backward(walked: &Walked<Self>, d_given: FloatTensor<Self>)
    -> FloatTensor<Self>;
}

/// Same contract as [`Walk::run`], for f32 tensors on a GPU.
pub(super) fn run(walk: Walk, order: Order) -> Tensor<4> {
    let operands = Operands {
        state_coefficients: walk.state_coefficients.into_dispatch(),
        keys: walk.keys.into_dispatch(),
        decay: walk.decay.into_dispatch(),
    };
    Tensor::from_dispatch(Dispatch::walk_states(
        walk.values.into_dispatch(),
        operands,
        order,
    ))
}

fn launch(
    values: CubeTensor,
    [readers, writers, decay]: [CubeTensor; 3],
    order: &Order,
    gradient: bool,
) -> CubeTensor {
    let (values, [chunks, h, _, value_dim]) = contiguous(values);
    let (readers, [_, _, tokens, key_dim]) = contiguous(readers);
    let (writers, [_, _, _, _]) = contiguous(writers);
    let (decay, [_, _, _, _]) = contiguous(decay);
    let out = output(
        &values,
        [chunks, h, key_dim + tokens, value_dim],
        values.dtype,
    );
    let documents = order.widths.first().copied().unwrap_or(0);
    if documents * h * value_dim == 0 {
        return out;
    }
    let mut firsts = vec![0u32];
    for &width in &order.widths {
        firsts.push(firsts[firsts.len() - 1] + width as u32);
    }
    let firsts = upload(&values, &firsts);
    let cubes = [value_dim.div_ceil(COLUMNS), h, documents].map(|n| n as u32);
    walk_chunks::launch(
        &values.client,
        CubeCount::new_3d(cubes[0], cubes[1], cubes[2]),
        CubeDim::new_1d((SIDE * SIDE) as u32),
        argument(&values),
        argument(&readers),
        argument(&writers),
        argument(&decay),
        argument(&firsts),
        argument(&out),
        h as u32,
        value_dim as u32,
        KernelSizes {
            tokens,
            key_dim,
            gradient,
        },
    );
    out
}

impl WalkOps for CubeBackend {
    fn walk_states(values: CubeTensor, operands: Operands<Self>, order: Order) -> CubeTensor {
        let Operands {
            state_coefficients,
            keys,
            decay,
        } = operands;
        launch(values, [state_coefficients, keys, decay], &order, false)
    }
}

impl WalkGradients for CubeBackend {
    fn walk_states_backward(walked: &Walked<Self>, d_given: CubeTensor) -> CubeTensor {
        let Operands {
            state_coefficients,
            keys,
            decay,
        } = walked.operands.clone();
        let swapped = [keys, state_coefficients, decay];
        launch(d_given, swapped, &walked.order, true)
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
        let back = B::walk_states_backward(&walked, d_given);
        let [_, _, tokens, key_dim] = walked.operands.keys.shape().dims();
        let part = |x: FloatTensor<B>, first: usize, n: usize| {
            let all = Slice::from(..);
            let rows = Slice::from(first..first + n);
            B::float_slice(x, &[all, all, rows, all])
        };
        let parts = |x: FloatTensor<B>| [part(x.clone(), 0, key_dim), part(x, key_dim, tokens)];
        let [states, changes] = parts(walked.given);
        let [d_behind, d_values] = parts(back);
        let state_products = B::float_mul(states.clone(), d_behind.clone());
        let d_decay = B::float_sum_dim(B::float_sum_dim(state_products, 3), 2);
        let d_keys = B::float_matmul(changes, B::float_swap_dims(d_behind, 2, 3));
        let d_state_coefficients =
            B::float_matmul(d_values.clone(), B::float_swap_dims(states, 2, 3));
        let input_gradients = [
            d_values,
            B::float_neg(d_state_coefficients),
            d_keys,
            d_decay,
        ];
        for (parent, gradient) in ops.parents.into_iter().zip(input_gradients) {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

impl<B: WalkGradients, C: CheckpointStrategy> WalkOps for Autodiff<B, C> {
    fn walk_states(
        values: FloatTensor<Self>,
        operands: Operands<Self>,
        order: Order,
    ) -> FloatTensor<Self> {
        let prepared = WalkBackward
            .prepare::<C>([
                values.node(),
                operands.state_coefficients.node(),
                operands.keys.node(),
                operands.decay.node(),
            ])
            .compute_bound()
            .stateful();
        let operands = Operands::<B> {
            state_coefficients: operands.state_coefficients.into_primitive(),
            keys: operands.keys.into_primitive(),
            decay: operands.decay.into_primitive(),
        };
        let states = B::walk_states(values.into_primitive(), operands.clone(), order.clone());
        let walked = Walked::<B> {
            operands,
            given: states.clone(),
            order,
        };
        match prepared {
            OpsKind::Tracked(prep) => prep.finish(walked, states),
            OpsKind::UnTracked(prep) => prep.finish(states),
        }
    }
}

#[cfg(feature = "cuda-source")]
pub(crate) fn sources(sources: &mut crate::cube::source::Sources) {
    let dim = CubeDim::new_1d((SIDE * SIDE) as u32);
    for (gradient, name) in [(false, "forward"), (true, "gradient")] {
        for key_dim in [128, 256] {
            let sizes = KernelSizes {
                tokens: super::chunked::CHUNK,
                key_dim,
                gradient,
            };
            let [values, readers, writers, decay, firsts, out] = [0; 6].map(|_| sources.buffer());
            let (device, target, count) = sources.device();
            let kernel = walk_chunks::create_dummy_kernel(
                device, target, count, dim, values, readers, writers, decay, firsts, out, 1, 1,
                sizes,
            );
            sources.add(&format!("{name}, keys of {key_dim}"), dim, kernel);
        }
    }
}
