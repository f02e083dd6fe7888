//! The gradients of many stacks' factors in one buffer, where each backward pass puts its own.

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

/// Memory for gradients that are wanted one behind the other, so that nobody copies them there.
///
/// The first backward pass that writes into it makes it. Passes that have no use for it, as those of the CPU,
/// give gradients of their own, which [`FlatGradient::joined`] copies.
#[derive(Debug, Clone)]
pub struct FlatGradient {
    len: usize,
    #[cfg(feature = "cube")]
    memory: Arc<Mutex<Option<CubeTensor>>>,
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
    /// Whether a gradient has it: a second one of the same factors is added to the first.
    taken: Arc<AtomicBool>,
}

impl FlatGradient {
    /// For `len` values, f32.
    pub fn new(len: usize) -> Self {
        Self {
            len,
            #[cfg(feature = "cube")]
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
    /// - `parts`: f32, together the elements that [`FlatGradient::new`] was told
    /// - returns: `[len]`
    ///
    /// # Panics
    ///
    /// If there are more or fewer elements: a bug of the caller.
    pub fn joined(self, parts: Vec<Tensor<1>>) -> Tensor<1> {
        let given: usize = parts.iter().map(|part| part.dims()[0]).sum();
        assert_eq!(given, self.len, "elements of all gradients");
        // With Fusion no pass writes into it.
        #[cfg(all(feature = "cube", not(feature = "fusion")))]
        if let Some(whole) = self.take() {
            return with_all(whole, parts);
        }
        Tensor::cat(parts, 0)
    }

    #[cfg(all(feature = "cube", not(feature = "fusion")))]
    fn take(&self) -> Option<CubeTensor> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.take()
    }
}

/// `whole` with a copy of each part that does not lie there yet.
#[cfg(all(feature = "cube", not(feature = "fusion")))]
fn with_all(whole: CubeTensor, parts: Vec<Tensor<1>>) -> Tensor<1> {
    use burn_cubecl::CubeBackend;

    let lies_at = |part: &Tensor<1>, start: usize| {
        let part = part.clone().try_into_primitive::<CubeBackend>();
        part.is_ok_and(|part| {
            part.handle.memory.descriptor() == whole.handle.memory.descriptor()
                && part.handle.offset_start.unwrap_or(0) == (start * DType::F32.size()) as u64
        })
    };
    let mut end = 0;
    let mut others = Vec::new();
    // Those that lie there go first: while one is left, the memory is not changed where it lies.
    for part in parts {
        let start = end;
        end += part.dims()[0];
        if !lies_at(&part, start) {
            others.push((start..end, part));
        }
    }
    let whole = Tensor::from_primitive::<CubeBackend>(whole);
    let put = |whole: Tensor<1>, (range, part)| whole.slice_assign([range], part);
    others.into_iter().fold(whole, put)
}

#[cfg(feature = "cube")]
impl GradientPlace {
    /// The place, `[len]`, on the device of `like`; its contents are whatever lay there. `None` where a gradient
    /// has it already, or where it does not lie within the memory or begin as pieces of it must.
    pub(super) fn take(&self, like: &CubeTensor, len: usize) -> Option<CubeTensor> {
        let all = self.whole.len;
        let behind = all.checked_sub(self.start + len)?;
        let [before, behind] = [self.start, behind].map(|n| (n * DType::F32.size()) as u64);
        let is_piece = before.is_multiple_of(like.client.properties().memory.alignment);
        if !is_piece || self.taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        let memory = &self.whole.memory;
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = memory.get_or_insert_with(|| output(like, [all], DType::F32));
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
