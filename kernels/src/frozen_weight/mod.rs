//! A frozen weight, stored in the format in which its device multiplies it.
//!
//! On a GPU that is a tensor in the checkpoint's layout. On the CPU the matrix is packed once, for
//! `x Wᵀ`. The panels for `dy W` are derived from these when a gradient needs them; only the LM
//! head's are cached.

#[cfg(feature = "cube")]
mod cuda;
pub(crate) mod packed;
pub(crate) mod pieces;
pub mod quantised;
pub(crate) mod source;
#[cfg(feature = "cube")]
mod supply;

use std::sync::{Arc, OnceLock};

use burn::tensor::{DType, Device, Tensor, TensorData, bf16};

use crate::cpu::isa::has_pairs;
use crate::cpu::packed::convert::narrowed;
use crate::host_memory::HostMemoryError;
#[cfg(feature = "cube")]
use crate::route::is_gpu;
use crate::route::{is_cpu, multiplies_bf16};
pub(crate) use packed::{Packed, PackedMatrix, with_matrix};
#[cfg(feature = "cube")]
use quantised::cuda::QuantisedOnGpu;
use quantised::{Nf4, Nf4Error, Quantised};
pub use source::WeightSource;
#[cfg(feature = "cube")]
pub(crate) use supply::Supply;

/// A tensor `[out, in]` for products in `dtype`. It is rounded before it is uploaded, so that the
/// device never has the f32 values, which are twice as large.
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

/// Storage of the elements.
#[derive(Debug, Clone)]
pub(crate) enum Storage {
    /// `[out, in]`.
    Dense(Box<Tensor<2>>),
    /// Panels in CPU memory.
    Packed(Packed),
    /// 4-bit codes in CPU memory, which each product dequantises.
    Quantised(Arc<Quantised>),
    /// On a GPU: computed for each product.
    #[cfg(feature = "cube")]
    Supplied(Supply),
}

/// Element type that products read; accumulation is always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeDtype {
    /// 32-bit floats, as exact as the reference.
    F32,
    /// 16-bit floats with the range of f32: half the memory, and more than twice the speed on
    /// processors with bf16 instructions.
    Bf16,
}

impl ComputeDtype {
    /// bf16 if the device multiplies it faster than f32: CPUs with AVX-512 BF16, and GPUs with bf16
    /// tensor cores (NVIDIA: compute capability 8.0 and above).
    pub fn fastest_on(device: &Device) -> Self {
        let is_fast = if is_cpu(device) {
            has_pairs()
        } else {
            multiplies_bf16(device)
        };
        if is_fast { Self::Bf16 } else { Self::F32 }
    }

    /// The dtype of activations between operations.
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
        assert_eq!(
            values.len(),
            shape[0] * shape[1],
            "a weight needs out * in values"
        );
        let storage = if is_cpu(device) {
            Storage::Packed(Packed::new(&values, shape, dtype))
        } else {
            Storage::Dense(Box::new(dense(values, shape, dtype, device)))
        };
        Self::from_storage(storage, shape, device)
    }

    /// Stores the elements that `fill` writes, row-major `[out, in]`, for products in bf16, in the
    /// same format as [`Self::new`].
    ///
    /// `fill` is called for parts of the matrix, in any order, from all threads. It gets the index
    /// of the part's first element and the slice to write. A GPU receives each part as soon as it
    /// is filled, so the whole matrix is never in host memory.
    ///
    /// # Errors
    ///
    /// The first error of `fill`, in the order of the parts.
    pub fn from_fill<E: Send>(
        shape: [usize; 2],
        device: &Device,
        fill: impl Fn(usize, &mut [bf16]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let n = shape[0] * shape[1];
        #[cfg(feature = "cube")]
        if is_gpu(device) {
            let matrix = pieces::on_gpu(shape, device, fill)?;
            return Ok(Self::from_storage(
                Storage::Dense(Box::new(matrix)),
                shape,
                device,
            ));
        }
        let values = pieces::fill_all(n, fill)?;
        let storage = if is_cpu(device) {
            Storage::Packed(Packed::from_bf16(&values, shape))
        } else {
            let data = TensorData::new(values, shape);
            let matrix = Tensor::from_data(data, (device, DType::BF16));
            Storage::Dense(Box::new(matrix))
        };
        Ok(Self::from_storage(storage, shape, device))
    }

    /// Stores matrices in NF4 that are stacked to one matrix `shape`, `[out, in]`, for products in
    /// `dtype`.
    ///
    /// # Errors
    ///
    /// The parts of a matrix do not fit each other, or the matrices do not stack to `shape`.
    pub fn from_nf4(
        parts: Vec<Nf4>,
        shape: [usize; 2],
        dtype: ComputeDtype,
        device: &Device,
    ) -> Result<Self, Nf4Error> {
        quantised::validate_stack(&parts, shape)?;
        if is_cpu(device) {
            let storage = Storage::Quantised(Arc::new(Quantised::new(&parts, shape, dtype)));
            return Ok(Self::from_storage(storage, shape, device));
        }
        #[cfg(feature = "cube")]
        if is_gpu(device) {
            let codes = QuantisedOnGpu::new(&parts, shape, dtype, device);
            let storage = Storage::Supplied(Supply::Quantised(Arc::new(codes)));
            return Ok(Self::from_storage(storage, shape, device));
        }
        let values = quantised::reference::dequantised_stack(&parts, dtype.dtype());
        Ok(Self::new(values, shape, dtype, device))
    }

    /// Whether the weight is stored in 4 bits.
    pub fn is_quantised(&self) -> bool {
        match &self.storage {
            Storage::Quantised(_) => true,
            #[cfg(feature = "cube")]
            Storage::Supplied(supply) => supply.is_quantised(),
            Storage::Dense(_) | Storage::Packed(_) => false,
        }
    }

    /// Whether a GPU copies the weight from host memory or gathers it from other GPUs for each use.
    pub fn is_streamed(&self) -> bool {
        match &self.storage {
            #[cfg(feature = "cuda")]
            Storage::Supplied(Supply::Host(_) | Supply::Node(_)) => true,
            _ => false,
        }
    }

    /// The same values in the dtype that products read.
    #[must_use]
    pub fn dequantised(&self) -> Self {
        match &self.storage {
            Storage::Quantised(quantised) => {
                let dtype = quantised.compute_dtype();
                Self::new(quantised.values(), self.shape, dtype, &self.device)
            }
            #[cfg(feature = "cube")]
            Storage::Supplied(supply) => {
                let storage = Storage::Dense(Box::new(supply.tensor()));
                Self::from_storage(storage, self.shape, &self.device)
            }
            Storage::Dense(_) | Storage::Packed(_) => self.clone(),
        }
    }

    /// The same weight in pinned host memory, without a copy on the GPU. Each use copies it, until
    /// [`stream_blocks`](crate::host_memory::stream_blocks) gives it a place.
    ///
    /// # Errors
    ///
    /// The device is not a CUDA device, or there is not enough host memory.
    pub fn into_host_memory(self) -> Result<Self, HostMemoryError> {
        #[cfg(feature = "cuda")]
        return self.moved_to_host();
        #[cfg(not(feature = "cuda"))]
        Err(HostMemoryError::NotCuda)
    }

    #[cfg(feature = "cuda")]
    fn moved_to_host(self) -> Result<Self, HostMemoryError> {
        use crate::host_memory::{HostStack, StackLayout};

        let (stored, layout) = match self.storage {
            Storage::Dense(dense) => {
                let layout = StackLayout::Dense(self.shape, dense.dtype());
                let stored = dense.try_into_primitive::<burn_cubecl::CubeBackend>();
                (stored.map_err(|_| HostMemoryError::NotCuda)?, layout)
            }
            Storage::Supplied(Supply::Quantised(codes)) => {
                let (words, layout) = codes.parts();
                (words.clone(), StackLayout::Nf4(layout.clone()))
            }
            Storage::Supplied(Supply::Host(_)) => return Ok(self),
            Storage::Supplied(Supply::Node(_)) | Storage::Packed(_) | Storage::Quantised(_) => {
                return Err(HostMemoryError::NotCuda);
            }
        };
        let stack = Supply::Host(Arc::new(HostStack::new(stored, layout)?));
        Ok(Self {
            storage: Storage::Supplied(stack),
            ..self
        })
    }

    pub(crate) fn from_storage(storage: Storage, shape: [usize; 2], device: &Device) -> Self {
        Self {
            shape,
            device: device.clone(),
            storage,
            row_squares: Arc::default(),
        }
    }

    /// Sum of squares of each row, computed once.
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

    /// The device of the weight.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The dtype of matmul operands.
    pub fn compute_dtype(&self) -> ComputeDtype {
        let dtype = match &self.storage {
            Storage::Dense(dense) => dense.dtype(),
            Storage::Packed(packed) => packed.dtype(),
            Storage::Quantised(quantised) => return quantised.compute_dtype(),
            #[cfg(feature = "cube")]
            Storage::Supplied(supply) => supply.dtype(),
        };
        match dtype {
            DType::F32 => ComputeDtype::F32,
            _ => ComputeDtype::Bf16,
        }
    }

    /// The matrix as f32, `[out, in]`, for references.
    pub fn to_tensor(&self) -> Tensor<2> {
        match &self.storage {
            Storage::Dense(dense) => dense.as_ref().clone().cast(DType::F32),
            Storage::Packed(packed) => {
                let values = packed.rows(0..self.shape[0]);
                Tensor::from_data(TensorData::new(values, self.shape), &self.device)
            }
            Storage::Quantised(quantised) => {
                let values = TensorData::new(quantised.values(), self.shape);
                Tensor::from_data(values, &self.device)
            }
            #[cfg(feature = "cube")]
            Storage::Supplied(supply) => supply.tensor().cast(DType::F32),
        }
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Current size in bytes; only of this GPU's share if the GPUs of a node divide the weight.
    pub fn bytes(&self) -> usize {
        match &self.storage {
            Storage::Dense(dense) => self.shape[0] * self.shape[1] * dense.dtype().size(),
            Storage::Packed(packed) => packed.bytes(),
            Storage::Quantised(quantised) => quantised.bytes(),
            #[cfg(feature = "cube")]
            Storage::Supplied(supply) => supply.bytes(),
        }
    }
}
