//! Rotary position embedding: queries and keys to the same, turned by their position.

pub(crate) mod cpu;
#[cfg(feature = "cube")]
pub mod cuda;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::{Device, Tensor, TensorData};

use crate::ops::{KernelOps, is_fused};
use cpu::Turn;

/// Cosines and sines of every token of a micro-batch, shared by all layers.
#[derive(Debug, Clone)]
pub struct RopeTable {
    /// `[n, 1, c / 2]`, f32.
    pub cos: Tensor<3>,
    /// `[n, 1, c / 2]`, f32.
    pub sin: Tensor<3>,
}

impl RopeTable {
    /// Makes the table for tokens at `position_ids`, in f64 before it is rounded once to f32.
    ///
    /// `inverse_frequencies` holds `c / 2` values, `attention_scaling` multiplies both tables
    /// (1 except for some RoPE scalings).
    pub fn new(
        position_ids: &[u32],
        inverse_frequencies: &[f64],
        attention_scaling: f64,
        device: &Device,
    ) -> Self {
        let shape = [position_ids.len(), 1, inverse_frequencies.len()];
        let table = |function: fn(f64) -> f64| {
            let values: Vec<f32> = position_ids
                .iter()
                .flat_map(|&position| {
                    inverse_frequencies.iter().map(move |frequency| {
                        // transformers multiplies in f32; so do we, or long contexts drift apart.
                        let angle = position as f32 * *frequency as f32;
                        (function(f64::from(angle)) * attention_scaling) as f32
                    })
                })
                .collect();
            Tensor::from_data(TensorData::new(values, shape), device)
        };
        Self {
            cos: table(f64::cos),
            sin: table(f64::sin),
        }
    }
}

/// Turns each head by the angles of its token; halves of the head are paired, not neighbours.
///
/// # Shapes
///
/// - `x`: `[n, heads, c]`, float
/// - returns: `[n, heads, c]`
///
/// # Source
///
/// Su et al. 2021; the pairing of `rotate_half` in transformers 5.23.
pub fn rope(x: Tensor<3>, table: &RopeTable) -> Tensor<3> {
    if !(is_fused(&x) && is_fused(&table.cos) && is_fused(&table.sin)) {
        return reference::rope(x, table);
    }
    let (cos, sin) = (
        table.cos.clone().into_dispatch(),
        table.sin.clone().into_dispatch(),
    );
    Tensor::from_dispatch(Dispatch::rotate(x.into_dispatch(), cos, sin, Turn::Forward))
}
