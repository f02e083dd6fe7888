//! Flex tensors to slices and back, without copies and without clearing what is written anyway.

use std::mem::MaybeUninit;

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::{DType, TensorMetadata};
use burn::tensor::{Shape, Tensor};

use super::matrix::Matrix;
use super::number::Number;

/// The tensor with its numbers in one piece; copies only a view that is not.
pub(crate) fn contiguous(x: FlexTensor) -> FlexTensor {
    if x.layout().contiguous_offsets().is_some() {
        x
    } else {
        x.to_contiguous()
    }
}

/// Numbers of a tensor that went through [`contiguous`].
///
/// # Panics
///
/// If it did not, or holds another type: a bug of the caller.
pub(crate) fn numbers<T: Number>(x: &FlexTensor) -> &[T] {
    T::slice(x).expect("a tensor of this type made contiguous")
}

/// Changes the numbers of a tensor where they lie, or in a copy if another tensor shares them.
pub(crate) fn changed<T: Number>(x: FlexTensor, change: impl FnOnce(&mut [T])) -> FlexTensor {
    let mut x = whole(x);
    change(T::storage_mut(&mut x));
    x
}

/// The tensor in memory of its own: no view of a part, and in order.
fn whole(x: FlexTensor) -> FlexTensor {
    // A second handle must not outlive this line: shared memory would be copied before a change.
    let whole = x.to_contiguous();
    drop(x);
    whole
}

/// [`numbers`] of an f32 tensor.
pub(crate) fn floats(x: &FlexTensor) -> &[f32] {
    numbers(x)
}

/// Sizes of a tensor of `D` dimensions.
pub(crate) fn dims<const D: usize>(x: &FlexTensor) -> [usize; D] {
    x.shape().dims()
}

/// A tensor that owns `values`.
pub(crate) fn tensor<T: Number, const D: usize>(values: Vec<T>, shape: [usize; D]) -> FlexTensor {
    FlexTensor::new(
        T::into_bytes(values),
        Layout::contiguous(Shape::new(shape)),
        T::DTYPE,
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
