//! Stacked LoRA linear layers with the low-rank products of [`LowRank`]: the dense product, by
//! cuBLASLt if it is available, adds to their result while it computes.
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
use crate::lora_linear::cuda::dense_weight;
use crate::rms_norm::cuda::gradient_and_norm;
use crate::swiglu::cuda::gradient_and_gated;

/// Result of a forward pass, and the state for its backward pass.
pub(in crate::lora_linear) struct Forward {
    pub(in crate::lora_linear) y: CubeTensor,
    pub(in crate::lora_linear) low: CubeTensor,
    /// In the dtype that products read.
    pub(in crate::lora_linear) factors: CubeTensor,
}

/// Same contract as [`LinearPasses::linear_forward`]; `None` if [`LowRank`] does not support it.
pub(in crate::lora_linear) fn forward(
    x: &CubeTensor,
    factors: Option<&CubeTensor>,
    residual: Option<&CubeTensor>,
    frozen: &Frozen<CubeBackend>,
    spec: &Spec,
) -> Option<Forward> {
    let low_rank = LowRank::new(x, spec.adapter.as_ref()?, spec)?;
    let factors = match frozen.rounded.clone().into_option() {
        Some(rounded) if rounded.dtype == x.dtype && is_aligned(&rounded) => rounded,
        _ => cast::<CubeBackend>(factors?.clone(), x.dtype),
    };
    let (x, [n, _]) = contiguous(x.clone());
    let low = low_rank.lora_a_forward(&x, &factors);
    let y_dtype = if residual.is_some() {
        DType::F32
    } else {
        x.dtype
    };
    let y = if spec.unread {
        output(&x, [n, spec.out_features.iter().sum()], y_dtype)
    } else {
        let residual = residual.map(|residual| contiguous::<2>(residual.clone()).0);
        let y = low_rank.lora_b_forward(&low, &factors, residual.as_ref());
        let bias = frozen.bias.clone().into_option();
        let bias = bias.map(|bias| cast::<CubeBackend>(bias, y_dtype));
        with_product(y, &x, dense_weight(frozen, spec), true, bias)
    };
    Some(Forward { y, low, factors })
}

/// Same contract as [`LinearPasses::input_backward`]; `None` if the forward pass was not
/// [`forward`].
///
/// The pass that computes the gradient of the transformed input also recomputes that input; the
/// factor gradients then use it.
pub(in crate::lora_linear) fn input_backward(
    saved: &Saved<CubeBackend>,
    dy: &CubeTensor,
    added: Option<&CubeTensor>,
    wants: Wants,
) -> Option<(Option<CubeTensor>, Option<CubeTensor>)> {
    let (factors, low) = (saved.factors.as_ref()?, saved.low.as_ref()?);
    let plan = saved.spec.adapter.as_ref()?;
    let low_rank = LowRank::new(low, plan, &saved.spec)?;
    if !low_rank.has_padded_ranks(low) {
        return None;
    }
    let factors = cast::<CubeBackend>(factors.clone(), low.dtype);
    let [d_low, dy] = low_rank.lora_b_backward(dy.clone(), &factors);
    let norm = saved.frozen.norm.clone().into_option();
    let (transform, given) = (saved.spec.transform, saved.x.clone());
    let (dx, input) = if wants == Wants::InputAndFactors {
        let low_rank_gradient = low_rank.lora_a_backward(&d_low, &factors);
        let weight = dense_weight(&saved.frozen, &saved.spec);
        let d_input = with_product(low_rank_gradient, &dy, weight, false, None);
        let (dx, input) = match (transform, norm) {
            (TransformSpec::Normed { eps, .. }, Some(norm)) => {
                gradient_and_norm(given, norm, eps, d_input, added.cloned(), true)
            }
            (TransformSpec::Gated, _) => gradient_and_gated(given, d_input, true),
            (TransformSpec::Plain | TransformSpec::Normed { .. }, _) => (d_input, Some(given)),
        };
        let is_added = matches!(transform, TransformSpec::Normed { .. });
        let dx = match added.filter(|_| !is_added) {
            Some(added) => CubeBackend::float_add(dx, added.clone()),
            None => dx,
        };
        (Some(dx), input?)
    } else {
        (None, CubeBackend::transform_input(given, norm, transform))
    };
    let input = contiguous::<2>(input).0;
    let len = plan.layout.len();
    let slot = plan.gradient_slot.as_ref();
    let gradients = slot
        .and_then(|slot| slot.take(&input, len))
        .unwrap_or_else(|| output(&input, [len], DType::F32));
    low_rank.write_factor_gradients([&input, &d_low], [&dy, low], &gradients);
    Some((dx, Some(gradients)))
}

/// Whether a slice of a contiguous buffer can be read in vectors.
fn is_aligned(x: &CubeTensor) -> bool {
    let start = x.handle.offset_start.unwrap_or(0);
    start.is_multiple_of(16) && x.meta.strides().last() == Some(&1)
}

/// `sum + x w + bias`, or with `wᵀ`, in the memory and dtype of `sum`; the bias has this dtype.
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
        if product.accumulate().enqueue().is_some() {
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
