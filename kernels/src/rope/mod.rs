//! Rotary position embedding: rotates queries and keys by their position.
//!
//! Values come after the keys in the same tensor and are copied unchanged, because a single
//! projection computes all three, and they share one gradient.

mod backend;
mod cpu;
#[cfg(target_arch = "x86_64")]
mod cpu_avx2;
#[cfg(target_arch = "x86_64")]
mod cpu_avx512;
#[cfg(feature = "cube")]
pub(crate) mod cuda;
pub mod reference;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{DType, Device, Tensor, TensorData};
use rayon::prelude::*;

use crate::route::{is_served, is_served_by_cpu};

/// Tokens whose angles one thread computes: on a GPU machine the other threads are idle, and a
/// single thread would take a few percent of a step.
const PART_TOKENS: usize = 128;

/// Cosines and sines of every token of a micro-batch, shared by all layers.
#[derive(Debug, Clone)]
pub struct RopeTable {
    /// `[n, 1, c / 2]`, f32, or with fewer columns.
    pub cos: Tensor<3>,
    /// Same shape as the cosines.
    pub sin: Tensor<3>,
}

impl RopeTable {
    /// Computes the table for tokens at `position_ids`, in f64 before it is rounded once to f32.
    ///
    /// `inverse_frequencies` has `c / 2` values, or fewer if only the first part of a head is
    /// rotated; `attention_scaling` multiplies both tables (1 except for some RoPE scalings).
    pub fn new(
        position_ids: &[u32],
        inverse_frequencies: &[f64],
        attention_scaling: f64,
        device: &Device,
    ) -> Self {
        let frequencies = |_| inverse_frequencies;
        let half = inverse_frequencies.len();
        Self::with_token_frequencies(position_ids, half, frequencies, attention_scaling, device)
    }

    /// Like `new`, with separate frequencies per token: `half` of them each.
    pub fn with_token_frequencies<'a>(
        position_ids: &[u32],
        half: usize,
        inverse_frequencies: impl Fn(usize) -> &'a [f64] + Sync,
        attention_scaling: f64,
        device: &Device,
    ) -> Self {
        let values = Self::values(position_ids, half, inverse_frequencies, attention_scaling);
        let shape = [position_ids.len(), 1, half];
        // On a GPU the table must be contiguous, so that it can be overwritten in place.
        let table = |values: Vec<f32>| {
            let n = values.len();
            if n == 0 {
                return Tensor::from_data(TensorData::new(values, shape), device);
            }
            let data = TensorData::new(values, [n]);
            Tensor::<1>::from_data(data, device).reshape(shape)
        };
        let [cos, sin] = values.map(table);
        Self { cos, sin }
    }

    /// Overwrites the table with the cosines and sines of other positions, for the same number of
    /// tokens; arguments as for [`Self::with_token_frequencies`]. On a GPU the memory is reused, so
    /// all copies of the table change.
    ///
    /// # Panics
    ///
    /// If the number of tokens or frequencies differs.
    pub fn replace<'a>(
        &mut self,
        position_ids: &[u32],
        inverse_frequencies: impl Fn(usize) -> &'a [f64] + Sync,
        attention_scaling: f64,
    ) {
        let [n, _, half] = self.cos.dims();
        assert_eq!(
            position_ids.len(),
            n,
            "the number of tokens must not change"
        );
        let values = Self::values(position_ids, half, inverse_frequencies, attention_scaling);
        for (table, values) in [&mut self.cos, &mut self.sin].into_iter().zip(values) {
            overwrite(table, values);
        }
    }

    fn values<'a>(
        position_ids: &[u32],
        half: usize,
        inverse_frequencies: impl Fn(usize) -> &'a [f64] + Sync,
        attention_scaling: f64,
    ) -> [Vec<f32>; 2] {
        let [mut cos, mut sin] = [(); 2].map(|()| vec![0.0f32; position_ids.len() * half]);
        let part = PART_TOKENS * half.max(1);
        cos.par_chunks_mut(part)
            .zip(sin.par_chunks_mut(part))
            .zip(position_ids.par_chunks(PART_TOKENS))
            .enumerate()
            .for_each(|(part, ((cos, sin), positions))| {
                let tokens = (part * PART_TOKENS..).zip(positions);
                let angles = tokens.flat_map(|(token, &position)| {
                    // transformers multiplies in f32; other precision would diverge at long
                    // contexts.
                    let angle = move |frequency: &f64| position as f32 * *frequency as f32;
                    inverse_frequencies(token).iter().map(angle)
                });
                for ((cos, sin), angle) in cos.iter_mut().zip(sin).zip(angles) {
                    let (s, c) = f64::from(angle).sin_cos();
                    *cos = (c * attention_scaling) as f32;
                    *sin = (s * attention_scaling) as f32;
                }
            });
        [cos, sin]
    }
}

/// Replaces the values of a tensor, in place on a GPU.
fn overwrite(table: &mut Tensor<3>, values: Vec<f32>) {
    #[cfg(feature = "cube")]
    if crate::route::is_served_by_gpu(table)
        && let Ok(there) = table
            .clone()
            .try_into_primitive::<burn_cubecl::CubeBackend>()
    {
        assert!(there.is_contiguous(), "a table must be contiguous");
        let bytes = burn_std::Bytes::from_elems(values);
        there.client.write(&there.handle, bytes);
        return;
    }
    let data = TensorData::new(values, table.dims());
    *table = Tensor::from_data(data, &table.device());
}

/// Rotates heads by the angles of their token; pairs are formed from the halves of a head, not from
/// adjacent elements.
///
/// # Shapes
///
/// - `qkv`: `[n, heads, c]`, f32 or bf16: the first `rotated_heads` are rotated, the rest copied
/// - `table`: for the same `n` tokens, with `f` frequencies, at most `c / 2`: the first `2 f`
///   elements of a head are rotated, in halves, and the rest copied
/// - returns: `[n, heads, c]`, same dtype
///
/// There is no GPU kernel for partial rotation of a head; GPUs use the reference.
///
/// # Panics
///
/// If a head cannot be halved, the table has another shape, or there are fewer heads.
///
/// # Source
///
/// Su et al. 2021; the pairing of `rotate_half` in transformers 5.23.
pub fn rope(qkv: Tensor<3>, table: &RopeTable, rotated_heads: usize) -> Tensor<3> {
    crate::operation!("rope");
    let [n, heads, c] = qkv.dims();
    assert!(
        c.is_multiple_of(2),
        "rope: heads of {c} cannot be halved into pairs"
    );
    let half = table.cos.dims()[2];
    assert!(
        table.cos.dims() == [n, 1, half] && table.sin.dims() == [n, 1, half] && 2 * half <= c,
        "rope: {n} tokens with heads of {c} need tables of [{n}, 1, {}] at most, not {:?} and {:?}",
        c / 2,
        table.cos.dims(),
        table.sin.dims()
    );
    assert!(
        rotated_heads <= heads,
        "rope: cannot rotate {rotated_heads} of {heads} heads"
    );
    let tables_served = [&table.cos, &table.sin]
        .iter()
        .all(|table| is_served(table) && table.dtype() == DType::F32);
    let has_kernel = is_served(&qkv) && (2 * half == c || is_served_by_cpu(&qkv));
    if !(has_kernel && tables_served) {
        return reference::rope(qkv, table, rotated_heads);
    }
    let (cos, sin) = (
        table.cos.clone().into_dispatch(),
        table.sin.clone().into_dispatch(),
    );
    let turn = Turn {
        heads: rotated_heads,
        direction: Direction::Forward,
    };
    Tensor::from_dispatch(Dispatch::rotate(qkv.into_dispatch(), cos, sin, turn))
}

/// The heads to rotate, and the direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Number of heads to rotate, starting with the first.
    pub(crate) heads: usize,
    pub(crate) direction: Direction,
}

/// Direction of the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// By the angles of the table.
    Forward,
    /// By the negative angles: the gradient.
    Back,
}

/// Operation that a backend implements itself; the inverse rotation is its backward pass.
#[backend_extension(
    Autodiff,
    Flex,
    Cube: cfg(feature = "cube"),
)]
pub(crate) trait RopeOps: Backend {
    /// Rotates the first heads by the angles of a constant table.
    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        turn: Turn,
    ) -> FloatTensor<Self>;
}
