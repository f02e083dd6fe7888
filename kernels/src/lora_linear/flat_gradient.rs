//! A flat buffer for the factor gradients of many stacks, which each backward pass writes to
//! directly.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
#[cfg(feature = "cube")]
use std::sync::{Mutex, PoisonError, atomic::Ordering};

use burn::tensor::Tensor;
#[cfg(feature = "cube")]
use {
    crate::cube::launch::output,
    burn::tensor::{DType, Shape},
    burn_cubecl::tensor::CubeTensor,
};

/// Memory for concatenated gradients, so that they need not be copied together.
///
/// The first backward pass that writes to it allocates it. Passes that cannot use it, such as those
/// on the CPU, return separate gradients, which [`FlatGradient::concatenate`] copies.
#[derive(Debug, Clone)]
pub struct FlatGradient {
    len: usize,
    #[cfg(feature = "cube")]
    memory: Arc<Mutex<Option<CubeTensor>>>,
}

/// Destination of the gradient of one stack's factors.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "cube"),
    expect(dead_code, reason = "CPU passes return separate gradients")
)]
pub(crate) struct GradientSlot {
    buffer: FlatGradient,
    start: usize,
    /// Whether a gradient was written here; a second gradient of the same factors is added to the
    /// first.
    is_written: Arc<AtomicBool>,
}

impl FlatGradient {
    /// For `len` elements, f32.
    pub fn new(len: usize) -> Self {
        Self {
            len,
            #[cfg(feature = "cube")]
            memory: Arc::default(),
        }
    }

    /// The destination starting at element `start`.
    pub(super) fn slot(&self, start: usize) -> GradientSlot {
        GradientSlot {
            buffer: self.clone(),
            start,
            is_written: Arc::default(),
        }
    }

    /// Concatenates the gradients `parts`. Those that are already in the buffer are not copied.
    ///
    /// # Shapes
    ///
    /// - `parts`: f32, with the total length passed to [`FlatGradient::new`]
    /// - returns: `[len]`
    ///
    /// # Panics
    ///
    /// If the total length differs: a bug of the caller.
    pub fn concatenate(self, parts: Vec<Tensor<1>>) -> Tensor<1> {
        let n_elements: usize = parts.iter().map(|part| part.dims()[0]).sum();
        assert_eq!(
            n_elements, self.len,
            "the gradients must have the elements of the flat buffer"
        );
        #[cfg(feature = "cube")]
        if let Some(whole) = self.take() {
            return copy_missing_parts(whole, parts);
        }
        Tensor::cat(parts, 0)
    }

    #[cfg(feature = "cube")]
    fn take(&self) -> Option<CubeTensor> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.take()
    }
}

/// Copies each part that is not yet in `whole` to it.
#[cfg(feature = "cube")]
fn copy_missing_parts(whole: CubeTensor, parts: Vec<Tensor<1>>) -> Tensor<1> {
    use burn_cubecl::CubeBackend;

    let is_in_place = |part: &Tensor<1>, start: usize| {
        let part = part.clone().try_into_primitive::<CubeBackend>();
        part.is_ok_and(|part| {
            part.handle.memory.descriptor() == whole.handle.memory.descriptor()
                && part.handle.offset_start.unwrap_or(0) == (start * DType::F32.size()) as u64
        })
    };
    let mut end = 0;
    let mut copied = Vec::new();
    // Parts that are in place are dropped first, because the buffer can only be changed in place
    // once nothing else uses it.
    for part in parts {
        let start = end;
        end += part.dims()[0];
        if !is_in_place(&part, start) {
            copied.push((start..end, part));
        }
    }
    let whole = Tensor::from_primitive::<CubeBackend>(whole);
    let assign = |whole: Tensor<1>, (range, part)| whole.slice_assign([range], part);
    copied.into_iter().fold(whole, assign)
}

#[cfg(feature = "cube")]
impl GradientSlot {
    /// Uninitialised memory at this destination, `[len]`, on the device of `like`. `None` if it
    /// already has a gradient, exceeds the buffer, or is not sufficiently aligned.
    pub(super) fn take(&self, like: &CubeTensor, len: usize) -> Option<CubeTensor> {
        let buffer_len = self.buffer.len;
        let n_after = buffer_len.checked_sub(self.start + len)?;
        let [n_before, n_after] = [self.start, n_after].map(|n| (n * DType::F32.size()) as u64);
        let is_aligned = n_before.is_multiple_of(like.client.properties().memory.alignment);
        if !is_aligned || self.is_written.swap(true, Ordering::Relaxed) {
            return None;
        }
        let memory = &self.buffer.memory;
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = memory.get_or_insert_with(|| output(like, [buffer_len], DType::F32));
        let handle = buffer.handle.clone();
        Some(CubeTensor::new_contiguous(
            like.client.clone(),
            like.device.clone(),
            Shape::new([len]),
            handle.offset_start(n_before).offset_end(n_after),
            DType::F32,
        ))
    }
}
