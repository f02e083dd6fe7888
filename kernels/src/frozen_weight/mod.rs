//! A frozen matrix, stored as its device multiplies it.
//!
//! On a GPU that is a tensor in the checkpoint's layout. On the CPU the matrix is packed once, for
//! `x Wᵀ`; the panels for `dy W` are made of those when a gradient needs them, and only the head's
//! stay.

#[cfg(feature = "cube")]
mod cuda;
pub(crate) mod packed;
mod pieces;

use std::sync::{Arc, OnceLock};

use burn::tensor::{DType, Device, Tensor, TensorData, bf16};

use crate::cpu::isa::has_pairs;
use crate::cpu::packed::convert::narrowed;
#[cfg(feature = "cube")]
use crate::route::is_gpu;
use crate::route::{is_cpu, multiplies_bf16};
pub(crate) use packed::{Packed, PackedMatrix, with_matrix};

/// A tensor `[out, in]` for products in `dtype`. It is rounded before it is uploaded, so that the device
/// never holds the f32 values, twice the size of the weight, beside it.
fn dense(values: Vec<f32>, shape: [usize; 2], dtype: ComputeDtype, device: &Device) -> Tensor<2> {
    let data = match dtype {
        ComputeDtype::F32 => TensorData::new(values, shape),
        ComputeDtype::Bf16 => TensorData::new(narrowed::<bf16>(&values), shape),
    };
    Tensor::from_data(data, (device, dtype.dtype()))
}

/// A matrix `[out, in]` without a gradient.
#[derive(Debug, Clone)]
pub struct FrozenWeight {
    shape: [usize; 2],
    device: Device,
    storage: Storage,
    row_squares: Arc<OnceLock<Vec<f32>>>,
}

/// Where the numbers are.
#[derive(Debug, Clone)]
pub(crate) enum Storage {
    /// `[out, in]`.
    Dense(Box<Tensor<2>>),
    /// Panels in the memory of the CPU.
    Packed(Packed),
}

/// Type of the numbers that products read; sums are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeDtype {
    /// 32-bit floats, exact to the reference.
    F32,
    /// 16-bit floats with the range of f32: half the memory, and more than twice the speed where
    /// the processor multiplies them.
    Bf16,
}

impl ComputeDtype {
    /// bf16 where the device multiplies it faster than f32: CPUs with AVX-512 BF16, and GPUs whose
    /// tensor cores take it, which NVIDIA's do from compute capability 8.0 on.
    pub fn best_of(device: &Device) -> Self {
        let is_fast = if is_cpu(device) {
            has_pairs()
        } else {
            multiplies_bf16(device)
        };
        if is_fast { Self::Bf16 } else { Self::F32 }
    }

    /// The type of activations between operations.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }
}

impl FrozenWeight {
    /// Stores `values`, row-major `[out, in]`, for products in `dtype`.
    ///
    /// # Panics
    ///
    /// If there are not `out * in` values.
    pub fn new(values: Vec<f32>, shape: [usize; 2], dtype: ComputeDtype, device: &Device) -> Self {
        assert_eq!(values.len(), shape[0] * shape[1], "values of a weight");
        let storage = if is_cpu(device) {
            Storage::Packed(Packed::new(&values, shape, dtype))
        } else {
            Storage::Dense(Box::new(dense(values, shape, dtype, device)))
        };
        Self::stored(storage, shape, device)
    }

    /// Stores the numbers that `fill` writes, row-major `[out, in]`, for products in bf16, as
    /// [`Self::new`] stores their widened values.
    ///
    /// `fill` gets the place of its first number in the matrix, and numbers to write: parts of the
    /// matrix, in no order, in all threads. A GPU takes them as they come, so that never the whole
    /// matrix is in the host's memory.
    ///
    /// # Errors
    ///
    /// What `fill` answers, of the first part with an error.
    pub fn filled<E: Send>(
        shape: [usize; 2],
        device: &Device,
        fill: impl Fn(usize, &mut [bf16]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let n = shape[0] * shape[1];
        #[cfg(feature = "cube")]
        if is_gpu(device) {
            let matrix = pieces::on_gpu(shape, device, fill)?;
            return Ok(Self::stored(
                Storage::Dense(Box::new(matrix)),
                shape,
                device,
            ));
        }
        let values = pieces::whole(n, fill)?;
        let storage = if is_cpu(device) {
            Storage::Packed(Packed::of_bf16(&values, shape))
        } else {
            let data = TensorData::new(values, shape);
            let matrix = Tensor::from_data(data, (device, DType::BF16));
            Storage::Dense(Box::new(matrix))
        };
        Ok(Self::stored(storage, shape, device))
    }

    fn stored(storage: Storage, shape: [usize; 2], device: &Device) -> Self {
        Self {
            shape,
            device: device.clone(),
            storage,
            row_squares: Arc::default(),
        }
    }

    /// The sum of squares of each row, computed once.
    pub(crate) fn row_squares(&self) -> &[f32] {
        self.row_squares.get_or_init(|| {
            let values: Vec<f32> = self.to_tensor().into_data().iter::<f32>().collect();
            let square = |x: &f32| f64::from(*x) * f64::from(*x);
            let rows = values.chunks(self.shape[1].max(1));
            rows.map(|row| row.iter().map(square).sum::<f64>() as f32)
                .collect()
        })
    }

    /// `[out, in]`.
    pub fn dims(&self) -> [usize; 2] {
        self.shape
    }

    /// The device that holds it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The dtype of matrix products.
    pub fn compute_dtype(&self) -> ComputeDtype {
        let dtype = match &self.storage {
            Storage::Dense(dense) => dense.dtype(),
            Storage::Packed(packed) => packed.dtype(),
        };
        match dtype {
            DType::F32 => ComputeDtype::F32,
            _ => ComputeDtype::Bf16,
        }
    }

    /// The matrix as f32, `[out, in]`: what references compute with.
    pub fn to_tensor(&self) -> Tensor<2> {
        match &self.storage {
            Storage::Dense(dense) => dense.as_ref().clone().cast(DType::F32),
            Storage::Packed(packed) => {
                let values = packed.rows(0..self.shape[0]);
                Tensor::from_data(TensorData::new(values, self.shape), &self.device)
            }
        }
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Bytes that it takes at present.
    pub fn bytes(&self) -> usize {
        match &self.storage {
            Storage::Dense(dense) => self.shape[0] * self.shape[1] * dense.dtype().size(),
            Storage::Packed(packed) => packed.bytes(),
        }
    }
}
