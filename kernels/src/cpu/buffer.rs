//! Converts Flex tensors to slices and back, without copies.

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::{DType, TensorMetadata};
use burn::tensor::{Shape, Tensor};

use super::number::Number;
use super::pool::Buffer;

/// The tensor with contiguous elements; copies only if it is a non-contiguous view.
pub(crate) fn contiguous(x: FlexTensor) -> FlexTensor {
    if x.layout().contiguous_offsets().is_some() {
        x
    } else {
        x.to_contiguous()
    }
}

/// Elements of a tensor that [`contiguous`] returned.
///
/// # Panics
///
/// If the tensor is not contiguous or has another dtype: a bug of the caller.
pub(crate) fn numbers<T: Number>(x: &FlexTensor) -> &[T] {
    T::slice(x).expect("a contiguous tensor of this dtype")
}

/// Changes the elements of a tensor in place, or in a copy if another tensor shares them.
pub(crate) fn modify<T: Number>(x: FlexTensor, change: impl FnOnce(&mut [T])) -> FlexTensor {
    let mut x = into_owned::<T>(x);
    change(T::storage_mut(&mut x));
    x
}

/// The tensor in memory of its own; copied if it is a view or another tensor shares the memory.
pub(crate) fn into_owned<T: Number>(x: FlexTensor) -> FlexTensor {
    if owns_whole_memory(&x) {
        return x;
    }
    let x = contiguous(x);
    with_layout_of(Buffer::copy_of(numbers::<T>(&x)), &x)
}

/// Whether the tensor covers all of its memory, in order, and no other tensor shares it.
pub(crate) fn owns_whole_memory(x: &FlexTensor) -> bool {
    let bytes = x.shape().num_elements() * x.dtype().size();
    x.is_unique() && x.layout().contiguous_offsets().is_some() && x.bytes().len() == bytes
}

/// A tensor of the same shape as `x` that owns `values`.
pub(crate) fn with_layout_of<T: Number>(values: Buffer<T>, x: &FlexTensor) -> FlexTensor {
    let layout = Layout::contiguous(x.shape());
    FlexTensor::new(values.into_bytes(), layout, T::DTYPE)
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
pub(crate) fn tensor<T: Number, const D: usize>(
    values: Buffer<T>,
    shape: [usize; D],
) -> FlexTensor {
    FlexTensor::new(
        values.into_bytes(),
        Layout::contiguous(Shape::new(shape)),
        T::DTYPE,
    )
}

/// Like `tensor`, if the number of values matches the shape.
pub(crate) fn tensor_if<T: Number, const D: usize>(
    values: Buffer<T>,
    shape: [usize; D],
) -> Option<FlexTensor> {
    (values.len() == shape.iter().product::<usize>()).then(|| tensor(values, shape))
}

/// A contiguous tensor in CPU memory that is not part of an autodiff graph.
#[derive(Debug)]
pub(crate) struct Plain<const D: usize>(FlexTensor);

/// The elements of `x`, if it is in CPU memory with `dtype` and not part of an autodiff graph.
pub(crate) fn plain<const D: usize>(x: &Tensor<D>, dtype: DType) -> Option<Plain<D>> {
    if x.dtype() != dtype {
        return None;
    }
    x.clone()
        .try_into_primitive::<Flex>()
        .ok()
        .map(|x| Plain(contiguous(x)))
}

impl<const D: usize> Plain<D> {
    pub(crate) fn numbers<T: Number>(&self) -> &[T] {
        numbers(&self.0)
    }
}
