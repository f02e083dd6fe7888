//! Random inputs and the parsing of requests.

use burn::tensor::{DType, Device, Distribution, Tensor};
use tooltune_kernels::ComputeDtype;

/// Element type of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    F32,
    Bf16,
}

impl Precision {
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        match word {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            _ => Err(format!("unknown dtype {word}")),
        }
    }

    pub(crate) fn compute_dtype(self) -> ComputeDtype {
        match self {
            Self::F32 => ComputeDtype::F32,
            Self::Bf16 => ComputeDtype::Bf16,
        }
    }

    pub(crate) fn dtype(self) -> DType {
        self.compute_dtype().dtype()
    }

    /// Returns an error unless this is f32: for operations without another dtype.
    pub(crate) fn f32_only(self) -> Result<(), String> {
        match self {
            Self::F32 => Ok(()),
            Self::Bf16 => Err("not supported in bf16".to_owned()),
        }
    }
}

/// Checks that a request has the number of dimensions that the operation needs.
pub(crate) fn shape<const N: usize>(numbers: &[usize]) -> Result<[usize; N], String> {
    numbers
        .try_into()
        .map_err(|_| format!("expected {N} numbers, found {}", numbers.len()))
}

pub(crate) fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

/// Number of arrays of this size that together exceed every cache: if they are used in rotation,
/// each one is read from memory.
pub(crate) fn cold_copies(bytes: usize) -> usize {
    const COLD_BYTES: usize = 128 << 20;
    COLD_BYTES.div_ceil(bytes).max(2)
}

/// A tensor that requires gradients.
pub(crate) fn leaf<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    Tensor::from_inner(x.clone()).require_grad()
}

/// Values in -1..1, for operations on slices.
pub(crate) fn floats(n: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}
