//! Stacked adapted maps whose low-rank products are those of [`LowRank`]: the dense product adds to what
//! they have written while it computes, by cuBLASLt where it is there.
//!
//! The reference is [`crate::lora_linear::composed`].

use burn::backend::DType;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::LowRank;
use crate::cube::launch::{contiguous, output};
#[cfg(feature = "cuda")]
use crate::cublaslt::{self, Matrix, Product};
use crate::lora_linear::backend::{Frozen, LinearPasses, Saved, Spec, TransformSpec};
use crate::lora_linear::composed::cast;
use crate::lora_linear::cpu::Wants;
use crate::rms_norm::cuda::gradient_and_norm;
use crate::swiglu::cuda::gradient_and_gated;

/// What a forward pass gives, and what its backward pass reads.
pub(in crate::lora_linear) struct Forward {
    pub(in crate::lora_linear) y: CubeTensor,
    pub(in crate::lora_linear) low: CubeTensor,
    /// In the type that products read.
    pub(in crate::lora_linear) factors: CubeTensor,
}

/// The contract is [`LinearPasses::linear_forward`]'s; `None` where [`LowRank`] does not serve it.
pub(in crate::lora_linear) fn forward(
    x: &CubeTensor,
    factors: Option<&CubeTensor>,
    residual: Option<&CubeTensor>,
    frozen: &Frozen<CubeBackend>,
    spec: &Spec,
) -> Option<Forward> {
    let weight = frozen.weight.clone().into_option()?;
    let low_rank = LowRank::of(x, spec.adapter.as_ref()?, spec)?;
    let factors = match frozen.rounded.clone().into_option() {
        Some(rounded) if rounded.dtype == x.dtype && is_aligned(&rounded) => rounded,
        _ => cast::<CubeBackend>(factors?.clone(), x.dtype),
    };
    let (x, [n, _]) = contiguous(x.clone());
    let low = low_rank.lows(&x, &factors);
    let y_dtype = if residual.is_some() {
        DType::F32
    } else {
        x.dtype
    };
    let y = if spec.unread {
        output(&x, [n, spec.out_features.iter().sum()], y_dtype)
    } else {
        let residual = residual.map(|residual| contiguous::<2>(residual.clone()).0);
        let y = low_rank.outputs(&low, &factors, residual.as_ref());
        let bias = frozen.bias.clone().into_option();
        let bias = bias.map(|bias| cast::<CubeBackend>(bias, y_dtype));
        with_product(y, &x, weight, true, bias)
    };
    Some(Forward { y, low, factors })
}

/// The contract is [`LinearPasses::given_backward`]'s; `None` where the forward pass was not [`forward`].
///
/// What was read is computed again in the pass that computes the gradient through it, and the gradients of
/// the factors follow.
pub(in crate::lora_linear) fn given_backward(
    saved: &Saved<CubeBackend>,
    dy: &CubeTensor,
    added: Option<&CubeTensor>,
    wants: Wants,
) -> Option<(Option<CubeTensor>, Option<CubeTensor>)> {
    let (factors, low) = (saved.factors.as_ref()?, saved.low.as_ref()?);
    let plan = saved.spec.adapter.as_ref()?;
    let weight = saved.frozen.weight.clone().into_option()?;
    let low_rank = LowRank::of(low, plan, &saved.spec)?;
    if !low_rank.made(low) {
        return None;
    }
    let factors = cast::<CubeBackend>(factors.clone(), low.dtype);
    let [d_low, dy] = low_rank.d_lows(dy.clone(), &factors);
    let norm = saved.frozen.norm.clone().into_option();
    let (transform, given) = (saved.spec.transform, saved.x.clone());
    let (dx, read) = if wants == Wants::InputAndFactors {
        let share = low_rank.inputs(&d_low, &factors);
        let d_read = with_product(share, &dy, weight, false, None);
        let (dx, read) = match (transform, norm) {
            (TransformSpec::Normed { eps, .. }, Some(norm)) => {
                gradient_and_norm(given, norm, eps, d_read, added.cloned(), true)
            }
            (TransformSpec::Gated, _) => gradient_and_gated(given, d_read, true),
            (TransformSpec::Plain | TransformSpec::Normed { .. }, _) => (d_read, Some(given)),
        };
        let is_added = matches!(transform, TransformSpec::Normed { .. });
        let dx = match added.filter(|_| !is_added) {
            Some(added) => CubeBackend::float_add(dx, added.clone()),
            None => dx,
        };
        (Some(dx), read?)
    } else {
        (None, CubeBackend::read(given, norm, transform))
    };
    let read = contiguous::<2>(read).0;
    let len = plan.layout.len();
    let place = plan.gradient_place.as_ref();
    let gradients = place
        .and_then(|place| place.take(&read, len))
        .unwrap_or_else(|| output(&read, [len], DType::F32));
    low_rank.write_gradients([&read, &d_low], [&dy, low], &gradients);
    Some((dx, Some(gradients)))
}

/// Whether a piece of a buffer without holes can be read in vectors.
fn is_aligned(x: &CubeTensor) -> bool {
    let start = x.handle.offset_start.unwrap_or(0);
    start.is_multiple_of(16) && x.meta.strides().last() == Some(&1)
}

/// `sum + x w + bias`, or with `wᵀ`, in the place and the type of `sum`; the bias has that type.
fn with_product(
    sum: CubeTensor,
    x: &CubeTensor,
    weight: CubeTensor,
    transposed: bool,
    bias: Option<CubeTensor>,
) -> CubeTensor {
    #[cfg(feature = "cuda")]
    if cublaslt::is_served(&x.client) {
        let mut w = Matrix::new(&weight);
        if transposed {
            w = w.transposed();
        }
        let product = Product {
            bias: bias.clone(),
            ..Product::new(Matrix::new(x), w, Matrix::new(&sum))
        };
        if product.added().enqueue().is_some() {
            return sum;
        }
    }
    let weight = match transposed {
        true => CubeBackend::float_transpose(weight),
        false => weight,
    };
    let product = CubeBackend::float_matmul(x.clone(), weight);
    let dtype = sum.dtype;
    let sum = CubeBackend::float_add(sum, cast::<CubeBackend>(product, dtype));
    match bias {
        Some(bias) => {
            let n = bias.meta.shape()[0];
            CubeBackend::float_add(sum, CubeBackend::float_reshape(bias, Shape::new([1, n])))
        }
        None => sum,
    }
}
