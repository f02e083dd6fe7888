//! A linear layer with a trained weight and bias, for fully trained encoders.
//!
//! The layer may apply GELU to its input. GELU is then recomputed in the backward pass instead of
//! stored: in a feed-forward block it would be the widest activation.

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

/// Weight and bias of a layer; the weight is in the format that products use.
#[derive(Debug, Clone)]
pub struct Dense {
    /// `[out, in]`, f32; its gradient is f32, whatever dtype products use.
    pub weight: Tensor<2>,
    /// `[out]`, f32.
    pub bias: Tensor<1>,
    dtype: ComputeDtype,
    /// Packed weight, on the CPU.
    packed: Option<Packed>,
}

/// How a layer reads its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputTransform {
    /// Unchanged.
    Plain,
    /// Through exact GELU: `x Φ(x)`, with the normal distribution function Φ.
    Gelu,
}

impl Dense {
    /// A layer whose products use `dtype`. The weight is packed here: create a new layer after each
    /// update.
    ///
    /// # Panics
    ///
    /// If the number of biases differs from the number of outputs: a bug of the caller.
    pub fn new(weight: Tensor<2>, bias: Tensor<1>, dtype: ComputeDtype) -> Self {
        let shape = weight.dims();
        assert_eq!(bias.dims(), [shape[0]], "a layer needs one bias per output");
        let packed = pack(&weight, dtype);
        Self {
            weight,
            bias,
            dtype,
            packed,
        }
    }

    /// The dtype of matmul operands.
    pub fn compute_dtype(&self) -> ComputeDtype {
        self.dtype
    }
}

/// The packed weight, if the CPU computes the products.
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

/// `read(x) Wᵀ + b`, plus the residual if there is one.
///
/// # Shapes
///
/// - `x`: `[n, in]`, f32 or the layer's compute dtype; the latter if it is read through GELU
/// - `residual`: `[n, out]`, f32
/// - returns: `[n, out]`, f32 with a residual, otherwise the layer's compute dtype
///
/// Each gradient has the dtype of its tensor.
///
/// # Panics
///
/// If the shapes or dtypes do not match: a bug of the caller.
///
/// # Source
///
/// `torch.nn.functional.linear`; Hendrycks and Gimpel 2016, equation 1, for GELU.
pub fn dense(
    x: Tensor<2>,
    layer: &Dense,
    residual: Option<Tensor<2>>,
    transform: InputTransform,
) -> Tensor<2> {
    crate::operation!("dense");
    let [out_features, in_features] = layer.weight.dims();
    let [n, columns] = x.dims();
    assert_eq!(
        columns, in_features,
        "x must have the columns of the weight"
    );
    if let Some(residual) = &residual {
        let shape = [n, out_features];
        assert_eq!(
            residual.dims(),
            shape,
            "the residual must have the shape of the output"
        );
    }
    let compute = layer.dtype.dtype();
    assert!(
        x.dtype() == compute || (transform == InputTransform::Plain && x.dtype() == DType::F32),
        "a layer computed in {compute:?} cannot read an input of {:?}",
        x.dtype()
    );
    let uses_kernel = is_served_by_cpu(&x) && layer.weight.dtype() == DType::F32;
    match &layer.packed {
        Some(packed) if uses_kernel => {
            let spec = Spec {
                packed: packed.clone(),
                transform,
            };
            Tensor::from_dispatch(Dispatch::trained_linear(
                x.into_dispatch(),
                layer.weight.clone().into_dispatch(),
                layer.bias.clone().into_dispatch(),
                Maybe::from_option(residual.map(Tensor::into_dispatch)),
                spec,
            ))
        }
        _ => reference::dense(x, &layer.weight, &layer.bias, residual, transform, compute),
    }
}
