//! A linear map whose weight and bias are trained: what an encoder learns as a whole.
//!
//! The map may read its input through GELU, which then is computed again in the backward pass
//! instead of being kept: in a feed-forward block it would be the widest activation of all.

mod backend;
mod cpu;
mod gelu;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};

use crate::cpu::buffer::plain;
use crate::frozen_weight::{ComputeDtype, Packed};
use crate::maybe::Maybe;
use crate::route::is_served_by_cpu;
use backend::{DenseOps, Spec};

/// Weight and bias of a map, the weight as products read it.
#[derive(Debug, Clone)]
pub struct Dense {
    /// `[out, in]`, f32; its gradient is f32, whatever products read.
    pub weight: Tensor<2>,
    /// `[out]`, f32.
    pub bias: Tensor<1>,
    dtype: ComputeDtype,
    /// Of the weight, on the CPU.
    packed: Option<Packed>,
}

/// What a map reads of its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputTransform {
    /// The input as it is.
    Plain,
    /// `x Φ(x)` with the normal distribution function Φ, exactly.
    Gelu,
}

impl Dense {
    /// A map that multiplies in `dtype`. The weight is packed here: after an update, the map is made
    /// anew.
    ///
    /// # Panics
    ///
    /// If there is not one bias for each output: a bug of the caller.
    pub fn new(weight: Tensor<2>, bias: Tensor<1>, dtype: ComputeDtype) -> Self {
        let shape = weight.dims();
        assert_eq!(bias.dims(), [shape[0]], "a bias for each output");
        let packed = pack(&weight, dtype);
        Self {
            weight,
            bias,
            dtype,
            packed,
        }
    }

    /// The dtype of matrix products.
    pub fn compute_dtype(&self) -> ComputeDtype {
        self.dtype
    }
}

/// The panels of a weight, where the CPU multiplies it.
fn pack(weight: &Tensor<2>, dtype: ComputeDtype) -> Option<Packed> {
    let shape = weight.dims();
    let values = if weight.is_autodiff() {
        weight.clone().inner()
    } else {
        weight.clone()
    };
    let values = plain(&values, DType::F32)?;
    Some(Packed::new(values.numbers(), shape, dtype))
}

/// `read(x) Wᵀ + b`, plus the residual where there is one.
///
/// # Shapes
///
/// - `x`: `[n, in]`, f32 or the map's compute type; the latter where it is read through GELU
/// - `residual`: `[n, out]`, f32
/// - returns: `[n, out]`, f32 with a residual, else of the map's compute type
///
/// Gradients have the types of what they belong to.
///
/// # Panics
///
/// If the shapes or types disagree: a bug of the caller.
///
/// # Source
///
/// `torch.nn.functional.linear`; Hendrycks and Gimpel 2016, equation 1, for GELU.
pub fn dense(
    x: Tensor<2>,
    map: &Dense,
    residual: Option<Tensor<2>>,
    transform: InputTransform,
) -> Tensor<2> {
    crate::operation!("dense");
    let [out_features, in_features] = map.weight.dims();
    let [n, columns] = x.dims();
    assert_eq!(columns, in_features, "columns of x and of the weight");
    if let Some(residual) = &residual {
        let shape = [n, out_features];
        assert_eq!(residual.dims(), shape, "the shape of the residual");
    }
    let compute = map.dtype.dtype();
    assert!(
        x.dtype() == compute || (transform == InputTransform::Plain && x.dtype() == DType::F32),
        "a map in {compute:?} cannot read {:?}",
        x.dtype()
    );
    let served = is_served_by_cpu(&x) && map.weight.dtype() == DType::F32;
    match &map.packed {
        Some(packed) if served => {
            let spec = Spec {
                packed: packed.clone(),
                transform,
            };
            Tensor::from_dispatch(Dispatch::trained_linear(
                x.into_dispatch(),
                map.weight.clone().into_dispatch(),
                map.bias.clone().into_dispatch(),
                Maybe::of(residual.map(Tensor::into_dispatch)),
                spec,
            ))
        }
        _ => reference::dense(x, &map.weight, &map.bias, residual, transform, compute),
    }
}
