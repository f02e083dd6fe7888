//! The gradients of many stacks' factors in one buffer, where each backward pass puts its own.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(feature = "cube")]
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
#[cfg(feature = "cube")]
use burn::tensor::{DType, Shape};
use burn::tensor::{Slice, Tensor};
#[cfg(feature = "cube")]
use burn_cubecl::tensor::CubeTensor;

#[cfg(feature = "cube")]
use crate::cube::launch::output;

const ONE_BACKEND: &str = "all gradients have one backend";

/// Memory for gradients that are wanted one behind the other, so that nobody copies them there.
///
/// It is made by the first backward pass that writes into it. Passes that have no use for it give
/// gradients of their own, which [`FlatGradient::joined`] copies.
#[derive(Clone)]
pub struct FlatGradient {
    len: usize,
    /// Of the backend that made it.
    memory: Arc<Mutex<Option<Box<dyn Any + Send>>>>,
}

/// Where the gradient of one stack's factors belongs.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "cube"),
    expect(dead_code, reason = "passes on the CPU give gradients of their own")
)]
pub(crate) struct GradientPlace {
    whole: FlatGradient,
    start: usize,
    /// Whether it was given away: a second gradient of the same factors is added to the first one.
    taken: Arc<Mutex<bool>>,
}

impl FlatGradient {
    /// For `len` values, f32.
    pub fn new(len: usize) -> Self {
        Self {
            len,
            memory: Arc::default(),
        }
    }

    /// The place from the value `start` on.
    pub(super) fn at(&self, start: usize) -> GradientPlace {
        GradientPlace {
            whole: self.clone(),
            start,
            taken: Arc::default(),
        }
    }

    /// The gradients `parts`, one behind the other. Those that lie in their place are not copied.
    ///
    /// # Shapes
    ///
    /// - `parts`: f32, with the elements that [`FlatGradient::new`] was told, together
    /// - returns: `[len]`
    ///
    /// # Panics
    ///
    /// If there are more or fewer elements: a bug of the caller.
    pub fn joined(self, parts: Vec<Tensor<1>>) -> Tensor<1> {
        let given: usize = parts.iter().map(|part| part.dims()[0]).sum();
        assert_eq!(given, self.len, "elements of all gradients");
        if self.memory().is_none() {
            return Tensor::cat(parts, 0);
        }
        let mut parts = parts.into_iter();
        let first = parts.next().expect("somebody has written a gradient");
        let mut start = first.dims()[0];
        let mut whole = Dispatch::gradients_from(first.into_dispatch(), self);
        for part in parts {
            let end = start + part.dims()[0];
            whole = Dispatch::gradient_put(whole, part.into_dispatch(), start);
            start = end;
        }
        Tensor::from_dispatch(whole)
    }

    fn memory(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory, for nobody else.
    fn take<T: Any + Send>(&self) -> T {
        let memory = self.memory().take().expect("a backward pass has made it");
        *memory.downcast().expect(ONE_BACKEND)
    }
}

impl fmt::Debug for FlatGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlatGradient")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[backend_extension(
    Flex,
    Cube: cfg(feature = "cube"),
)]
pub(crate) trait FlatGradientOps: Backend {
    /// The whole memory, with the `first` part in its place.
    fn gradients_from(first: FloatTensor<Self>, whole: FlatGradient) -> FloatTensor<Self> {
        Self::gradient_put(whole.take::<FloatTensor<Self>>(), first, 0)
    }

    /// `whole` with `part` from `start` on, where it may lie already.
    fn gradient_put(
        whole: FloatTensor<Self>,
        part: FloatTensor<Self>,
        start: usize,
    ) -> FloatTensor<Self> {
        let end = start + part.shape()[0];
        Self::float_slice_assign(whole, &[Slice::from(start..end)], part)
    }
}

impl FlatGradientOps for Flex {}
#[cfg(feature = "fusion")]
impl FlatGradientOps for burn::backend::fusion::Fusion<burn_cubecl::CubeBackend> {}

#[cfg(feature = "cube")]
impl FlatGradientOps for burn_cubecl::CubeBackend {
    fn gradient_put(
        whole: FloatTensor<Self>,
        part: FloatTensor<Self>,
        start: usize,
    ) -> FloatTensor<Self> {
        let end = start + part.shape()[0];
        let is_there = part.handle.memory.descriptor() == whole.handle.memory.descriptor()
            && part.handle.offset_start.unwrap_or(0) == (start * DType::F32.size()) as u64;
        if is_there {
            return whole;
        }
        Self::float_slice_assign(whole, &[Slice::from(start..end)], part)
    }
}

#[cfg(feature = "cube")]
impl GradientPlace {
    /// The place, `[len]`, on the device of `like`; its contents are whatever lay there. `None` where a gradient
    /// has it already, or where it does not begin as pieces of memory must.
    pub(super) fn take(&self, like: &CubeTensor, len: usize) -> Option<CubeTensor> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.whole.len;
        let [before, behind] =
            [self.start, all - self.start - len].map(|n| (n * DType::F32.size()) as u64);
        let alignment = like.client.properties().memory.alignment;
        if *taken || !before.is_multiple_of(alignment) {
            return None;
        }
        *taken = true;
        let mut memory = self.whole.memory();
        let memory = memory.get_or_insert_with(|| Box::new(output(like, [all], DType::F32)));
        let whole: &CubeTensor = memory.downcast_ref().expect(ONE_BACKEND);
        let handle = whole.handle.clone();
        Some(CubeTensor::new_contiguous(
            like.client.clone(),
            like.device.clone(),
            Shape::new([len]),
            handle.offset_start(before).offset_end(behind),
            DType::F32,
        ))
    }
}
