//! The trained linear layer as an operation of the CPU backend, with its backward pass.

use std::borrow::Cow;

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, backend_extension};

use super::cpu::TransformedInput;
use super::{InputTransform, cpu, gelu};
use crate::cpu::buffer::{contiguous, dims, floats, numbers, tensor};
use crate::cpu::packed::convert::narrowed;
use crate::cpu::packed::operand::Operand;
use crate::cpu::pool::Buffer;
use crate::frozen_weight::{Packed, PackedMatrix, with_matrix};
use crate::maybe::Maybe;
use crate::with_backward::with_backward;

/// Arguments other than tensors.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(super) packed: Packed,
    pub(super) transform: InputTransform,
}

/// Operation that a backend implements itself.
#[backend_extension(Autodiff, Flex)]
pub(crate) trait DenseOps: Backend {
    /// Same contract as [`super::dense`].
    fn trained_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        #[extension_type] residual: Maybe<Self>,
        spec: Spec,
    ) -> FloatTensor<Self>;
}

/// Which of input, weight and bias get gradients.
pub(crate) type InputGradients<B> = [Option<FloatTensor<B>>; 3];

/// The backward pass, on tensors that are not part of an autodiff graph.
pub(crate) trait DenseGradients: DenseOps {
    /// Gradients of input, weight and bias, if requested.
    fn trained_linear_gradients(
        x: FloatTensor<Self>,
        spec: Spec,
        dy: FloatTensor<Self>,
        wanted: [bool; 3],
    ) -> InputGradients<Self>;
}

/// Elements in the dtype of a product: the tensor's own, or converted ones.
fn numbers_of<T: Operand>(x: &FlexTensor) -> Cow<'_, [T]> {
    match T::slice(x) {
        Some(x) => Cow::Borrowed(x),
        None => Cow::Owned(narrowed(floats(x))),
    }
}

fn read<T: Operand>(x: &FlexTensor, transform: InputTransform) -> TransformedInput<'_, T> {
    match transform {
        InputTransform::Plain => TransformedInput::Plain(numbers_of(x)),
        InputTransform::Gelu => TransformedInput::Gelu(numbers(x), dims::<2>(x)[1]),
    }
}

fn forward<T: Operand>(
    x: &FlexTensor,
    bias: &FlexTensor,
    residual: Option<&FlexTensor>,
    matrix: &PackedMatrix<T>,
    transform: InputTransform,
) -> FlexTensor {
    let (x_read, weight) = (read(x, transform), matrix.forward());
    let shape = [dims::<2>(x)[0], weight.columns()];
    let bias = floats(bias);
    match residual {
        Some(residual) => {
            let residual = Some(floats(residual));
            tensor(
                cpu::output::<T, f32>(&x_read, weight, bias, residual),
                shape,
            )
        }
        None => tensor(cpu::output::<T, T>(&x_read, weight, bias, None), shape),
    }
}

fn backward<T: Operand>(
    x: &FlexTensor,
    dy: &FlexTensor,
    matrix: &PackedMatrix<T>,
    transform: InputTransform,
    wanted: [bool; 3],
) -> InputGradients<Flex> {
    let [wants_x, wants_weight, wants_bias] = wanted;
    let (shape, [_, out_features]) = (dims::<2>(x), dims::<2>(dy));
    let in_features = shape[1];
    let d_bias = wants_bias.then(|| {
        let sums = match T::slice(dy) {
            Some(dy) => cpu::bias_gradient(dy, out_features),
            None => cpu::bias_gradient(floats(dy), out_features),
        };
        tensor(sums, [out_features])
    });
    let narrow = numbers_of::<T>(dy);
    let d_weight = wants_weight.then(|| {
        let x = read(x, transform);
        let sums = cpu::weight_gradient(&narrow, &x, [out_features, in_features]);
        tensor(sums, [out_features, in_features])
    });
    let dx = wants_x.then(|| {
        let weight = matrix.backward();
        if transform == InputTransform::Gelu {
            let mut gradient: Buffer<T> = cpu::input_gradient(&narrow, &weight);
            gelu::to_input_gradient(numbers(x), &mut gradient, in_features);
            return tensor(gradient, shape);
        }
        match T::slice(x) {
            Some(_) => tensor(cpu::input_gradient::<T, T>(&narrow, &weight), shape),
            None => tensor(cpu::input_gradient::<T, f32>(&narrow, &weight), shape),
        }
    });
    [dx, d_weight, d_bias]
}

impl DenseOps for Flex {
    fn trained_linear(
        x: FlexTensor,
        _weight: FlexTensor,
        bias: FlexTensor,
        residual: Maybe<Self>,
        spec: Spec,
    ) -> FlexTensor {
        let [x, bias] = [x, bias].map(contiguous);
        let residual = residual.into_option().map(contiguous);
        let residual = residual.as_ref();
        with_matrix!(&spec.packed, matrix => forward(&x, &bias, residual, matrix, spec.transform))
    }
}

impl DenseGradients for Flex {
    fn trained_linear_gradients(
        x: FlexTensor,
        spec: Spec,
        dy: FlexTensor,
        wanted: [bool; 3],
    ) -> InputGradients<Self> {
        let [x, dy] = [x, dy].map(contiguous);
        with_matrix!(&spec.packed, matrix => backward(&x, &dy, matrix, spec.transform, wanted))
    }
}

impl<B: DenseGradients, C: CheckpointStrategy> DenseOps for Autodiff<B, C> {
    fn trained_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        residual: Maybe<Self>,
        spec: Spec,
    ) -> FloatTensor<Self> {
        let residual = residual.into_option();
        let last = residual.as_ref().map_or_else(|| x.node(), |r| r.node());
        // A missing residual repeats x.
        let inputs = [x.node(), weight.node(), bias.node(), last];
        let has_residual = residual.is_some();
        let [x, weight, bias] = [x, weight, bias].map(|tensor| tensor.into_primitive());
        let residual = Maybe::from_option(residual.map(|tensor| tensor.into_primitive()));
        let y = B::trained_linear(x.clone(), weight, bias, residual, spec.clone());
        with_backward::<B, C, _, _>(inputs, y, move |dy, [wants_x, weight, bias, residual]| {
            crate::operation!("dense backward");
            let d_residual = (has_residual && residual).then(|| dy.clone());
            let wanted = [wants_x, weight, bias];
            let [dx, d_weight, d_bias] = B::trained_linear_gradients(x, spec, dy, wanted);
            [dx, d_weight, d_bias, d_residual]
        })
    }
}
