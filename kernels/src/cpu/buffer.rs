//! Flex tensors to slices and back, without copies and without clearing what is written anyway.

use std::mem::MaybeUninit;

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::{DType, TensorMetadata};
use burn::tensor::{Bytes, Element, Shape, Tensor, bf16};

use super::matrix::Matrix;

/// The tensor with its floats in one piece; copies only a view that is not.
pub(crate) fn contiguous(x: FlexTensor) -> FlexTensor {
    let is_whole = match x.dtype() {
        DType::BF16 => x.as_slice::<bf16>().is_some(),
        _ => x.as_slice::<f32>().is_some(),
    };
    if is_whole {
        x
    } else {
        x.to_contiguous()
    }
}

/// Floats of a tensor that went through [`contiguous`].
///
/// # Panics
///
/// If it did not: a bug of the caller.
pub(crate) fn floats(x: &FlexTensor) -> &[f32] {
    x.as_slice::<f32>().expect("an f32 tensor made contiguous")
}

/// The same for a bf16 tensor.
///
/// # Panics
///
/// If it is not one, or did not go through [`contiguous`]: a bug of the caller.
pub(crate) fn halves(x: &FlexTensor) -> &[bf16] {
    x.as_slice::<bf16>().expect("a bf16 tensor made contiguous")
}

/// Sizes of a tensor of `D` dimensions.
pub(crate) fn dims<const D: usize>(x: &FlexTensor) -> [usize; D] {
    x.shape().dims()
}

/// A tensor that owns `values`.
pub(crate) fn tensor<T: Element, const D: usize>(values: Vec<T>, shape: [usize; D]) -> FlexTensor {
    FlexTensor::new(
        Bytes::from_elems(values),
        Layout::contiguous(Shape::new(shape)),
        T::dtype(),
    )
}

/// The same, if there are as many values as the shape has.
pub(crate) fn tensor_if<T: Element, const D: usize>(
    values: Vec<T>,
    shape: [usize; D],
) -> Option<FlexTensor> {
    (values.len() == shape.iter().product::<usize>()).then(|| tensor(values, shape))
}

/// A tensor without autodiff whose floats lie in one piece in the memory of the CPU.
#[derive(Debug)]
pub(crate) struct Plain<const D: usize>(FlexTensor);

/// The floats of `x`, if it has no autodiff and lies in the memory of the CPU as f32.
pub(crate) fn plain<const D: usize>(x: &Tensor<D>) -> Option<Plain<D>> {
    if x.dtype() != DType::F32 {
        return None;
    }
    x.clone()
        .try_into_primitive::<Flex>()
        .ok()
        .map(|x| Plain(contiguous(x)))
}

/// The same for a bf16 tensor.
pub(crate) fn plain_bf16<const D: usize>(x: &Tensor<D>) -> Option<Plain<D>> {
    if x.dtype() != DType::BF16 {
        return None;
    }
    x.clone()
        .try_into_primitive::<Flex>()
        .ok()
        .map(|x| Plain(contiguous(x)))
}

impl<const D: usize> Plain<D> {
    /// Elements of what [`plain_bf16`] gave.
    pub(crate) fn halves(&self) -> &[bf16] {
        halves(&self.0)
    }

    pub(crate) fn floats(&self) -> &[f32] {
        floats(&self.0)
    }

    pub(crate) fn dims(&self) -> [usize; D] {
        dims(&self.0)
    }
}

impl Plain<2> {
    pub(crate) fn matrix(&self) -> Matrix<'_> {
        let [rows, columns] = dims(&self.0);
        Matrix::strided(floats(&self.0), [rows, columns], columns)
    }
}

/// `n` numbers that `fill` writes.
///
/// # Safety
///
/// `fill` initialises every element.
pub(crate) unsafe fn filled<T>(n: usize, fill: impl FnOnce(&mut [MaybeUninit<T>])) -> Vec<T> {
    let mut values = Vec::with_capacity(n);
    fill(&mut values.spare_capacity_mut()[..n]);
    // SAFETY: the capacity is `n` or more, and the caller promises the initialisation.
    unsafe { values.set_len(n) };
    values
}
