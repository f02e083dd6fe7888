//! Flex tensors to slices and back, without copies and without clearing what is written anyway.

use std::mem::MaybeUninit;

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::{DType, TensorMetadata};
use burn::tensor::{Bytes, Shape, Tensor};

use super::matrix::Matrix;

/// The tensor with its floats in one piece; copies only a view that is not.
pub(crate) fn contiguous(x: FlexTensor) -> FlexTensor {
    if x.as_slice::<f32>().is_some() {
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

/// Sizes of a tensor of `D` dimensions.
pub(crate) fn dims<const D: usize>(x: &FlexTensor) -> [usize; D] {
    x.shape().dims()
}

/// A tensor that owns `values`.
pub(crate) fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> FlexTensor {
    FlexTensor::new(
        Bytes::from_elems(values),
        Layout::contiguous(Shape::new(shape)),
        DType::F32,
    )
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

impl<const D: usize> Plain<D> {
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

/// `n` floats that `fill` writes.
///
/// # Safety
///
/// `fill` initialises every element.
pub(crate) unsafe fn filled(n: usize, fill: impl FnOnce(&mut [MaybeUninit<f32>])) -> Vec<f32> {
    let mut values = Vec::with_capacity(n);
    fill(&mut values.spare_capacity_mut()[..n]);
    // SAFETY: the capacity is `n` or more, and the caller promises the initialisation.
    unsafe { values.set_len(n) };
    values
}
