//! Rotary position embedding: queries and keys to the same, turned by their position.
//!
//! Values lie behind the keys in the same tensor and pass unchanged: the projection that made the
//! three of them is one, and so is its gradient.

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

/// Tokens whose angles one thread computes: on a GPU's machine the other threads have nothing else to
/// do, and one alone would take a few percent of a step.
const PART_TOKENS: usize = 128;

/// Cosines and sines of every token of a micro-batch, shared by all layers.
#[derive(Debug, Clone)]
pub struct RopeTable {
    /// `[n, 1, c / 2]`, f32, or with fewer columns.
    pub cos: Tensor<3>,
    /// As the cosines.
    pub sin: Tensor<3>,
}

impl RopeTable {
    /// Makes the table for tokens at `position_ids`, in f64 before it is rounded once to f32.
    ///
    /// `inverse_frequencies` holds `c / 2` values, or fewer where only the first part of a head turns;
    /// `attention_scaling` multiplies both tables (1 except for some RoPE scalings).
    pub fn new(
        position_ids: &[u32],
        inverse_frequencies: &[f64],
        attention_scaling: f64,
        device: &Device,
    ) -> Self {
        let frequencies = |_| inverse_frequencies;
        let half = inverse_frequencies.len();
        Self::by_token(position_ids, half, frequencies, attention_scaling, device)
    }

    /// The same where tokens differ in their frequencies: `half` of them each.
    pub fn by_token<'a>(
        position_ids: &[u32],
        half: usize,
        inverse_frequencies: impl Fn(usize) -> &'a [f64] + Sync,
        attention_scaling: f64,
        device: &Device,
    ) -> Self {
        let values = Self::values(position_ids, half, inverse_frequencies, attention_scaling);
        let shape = [position_ids.len(), 1, half];
        // Numbers in a row lie without holes on a GPU, where others may take their place.
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

    /// Puts the cosines and sines of other positions in the place of those of as many tokens; the rest as
    /// [`Self::by_token`]. On a GPU they lie where the old ones lay, for all copies of the table.
    ///
    /// # Panics
    ///
    /// If the tokens or frequencies are more or fewer.
    pub fn replace<'a>(
        &mut self,
        position_ids: &[u32],
        inverse_frequencies: impl Fn(usize) -> &'a [f64] + Sync,
        attention_scaling: f64,
    ) {
        let [n, _, half] = self.cos.dims();
        assert_eq!(position_ids.len(), n, "tokens in the place of others");
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
                    // transformers multiplies in f32; so do we, or long contexts drift apart.
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

/// Other values of a tensor, which stays where it is on a GPU.
fn overwrite(table: &mut Tensor<3>, values: Vec<f32>) {
    #[cfg(all(feature = "cube", not(feature = "fusion")))]
    if crate::route::is_served_by_gpu(table)
        && let Ok(there) = table
            .clone()
            .try_into_primitive::<burn_cubecl::CubeBackend>()
    {
        assert!(there.is_contiguous(), "a table lies without holes");
        let bytes = burn_std::Bytes::from_elems(values);
        there.client.write(&there.handle, bytes);
        return;
    }
    let data = TensorData::new(values, table.dims());
    *table = Tensor::from_data(data, &table.device());
}

/// Turns heads by the angles of their token; halves of a head are paired, not neighbours.
///
/// # Shapes
///
/// - `qkv`: `[n, heads, c]`, f32 or bf16: the first `turned_heads` are turned, the others copied
/// - `table`: of the same `n` tokens and `c / 2` frequencies, or fewer, `f`: then the first `2 f` numbers
///   of a head are turned, in halves, and the others copied
/// - returns: `[n, heads, c]`, same dtype
///
/// A GPU has no kernel for a part of a head: there that goes to the reference.
///
/// # Panics
///
/// If a head cannot be halved, the table is of another shape, or there are fewer heads.
///
/// # Source
///
/// Su et al. 2021; the pairing of `rotate_half` in transformers 5.23.
pub fn rope(qkv: Tensor<3>, table: &RopeTable, turned_heads: usize) -> Tensor<3> {
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
        turned_heads <= heads,
        "rope: {turned_heads} heads of {heads} cannot be turned"
    );
    let tables_served = [&table.cos, &table.sin]
        .iter()
        .all(|table| is_served(table) && table.dtype() == DType::F32);
    let has_kernel = is_served(&qkv) && (2 * half == c || is_served_by_cpu(&qkv));
    if !(has_kernel && tables_served) {
        return reference::rope(qkv, table, turned_heads);
    }
    let (cos, sin) = (
        table.cos.clone().into_dispatch(),
        table.sin.clone().into_dispatch(),
    );
    let turn = Turn {
        heads: turned_heads,
        direction: Direction::Forward,
    };
    Tensor::from_dispatch(Dispatch::rotate(qkv.into_dispatch(), cos, sin, turn))
}

/// Which heads are turned, and which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The first so many.
    pub(crate) heads: usize,
    pub(crate) direction: Direction,
}

/// Which way heads are turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// By the angles of the table.
    Forward,
    /// Back: the gradient of the other.
    Back,
}

/// What backends implement themselves; turning back is its own backward pass.
#[backend_extension(
    Autodiff,
    Flex,
    Cube: cfg(feature = "cube"),
    Fusion: cfg(feature = "fusion"),
)]
pub(crate) trait RopeOps: Backend {
    /// The first heads turned by the angles of a table, which is constant.
    #[fusion(dtype = x, shape = x)]
    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        turn: Turn,
    ) -> FloatTensor<Self>;
}
