//! Random inputs, and what the words of a request mean.

use burn::tensor::{DType, Device, Distribution, Tensor};
use tooltune_kernels::ComputeDtype;

/// What the numbers of an operation are.
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
            _ => Err(format!("no dtype {word}")),
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

    /// An error unless f32: for operations that have nothing else.
    pub(crate) fn f32_only(self) -> Result<(), String> {
        match self {
            Self::F32 => Ok(()),
            Self::Bf16 => Err("not computed in bf16".to_owned()),
        }
    }
}

/// The numbers of a shape, as many as the operation has.
pub(crate) fn shape<const N: usize>(numbers: &[usize]) -> Result<[usize; N], String> {
    numbers
        .try_into()
        .map_err(|_| format!("{} numbers in place of {N}", numbers.len()))
}

pub(crate) fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

/// So many arrays of this size together are more than any cache holds: taken in turns, each comes
/// from memory.
pub(crate) fn cold_copies(bytes: usize) -> usize {
    const COLD_BYTES: usize = 128 << 20;
    COLD_BYTES.div_ceil(bytes).max(2)
}

/// A tensor that gradients are wanted for.
pub(crate) fn leaf<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    Tensor::from_inner(x.clone()).require_grad()
}

/// Numbers of about unit size, for operations on slices.
pub(crate) fn floats(n: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}
