//! A frozen weight on a GPU whose dense matrix exists only while a product reads it.

use std::sync::Arc;

use burn::backend::DType;
use burn::tensor::Tensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::quantised::cuda::QuantisedOnGpu;
#[cfg(feature = "cuda")]
use crate::host_memory::HostStack;
#[cfg(feature = "cuda")]
use crate::node_memory::NodeStack;

/// The source of a stack's dense matrix. Clones share the stored weight.
#[derive(Debug, Clone)]
pub(crate) enum Supply {
    /// NF4 codes, dequantised for each product.
    Quantised(Arc<QuantisedOnGpu>),
    /// In host memory, copied before each use.
    #[cfg(feature = "cuda")]
    Host(Arc<HostStack>),
    /// Divided among the GPUs of a node, gathered before each use.
    #[cfg(feature = "cuda")]
    Node(Arc<NodeStack>),
}

impl Supply {
    /// The dense matrix, `[out, in]`. Its memory returns to the pool when the tensor is dropped.
    pub(crate) fn dense(&self) -> CubeTensor {
        match self {
            Self::Quantised(codes) => codes.dense(),
            #[cfg(feature = "cuda")]
            Self::Host(stack) => stack.dense(),
            #[cfg(feature = "cuda")]
            Self::Node(stack) => stack.dense(),
        }
    }

    /// [`Self::dense`] as a tensor of Burn.
    pub(crate) fn tensor(&self) -> Tensor<2> {
        Tensor::from_primitive::<CubeBackend>(self.dense())
    }

    /// Whether the weight is stored in 4 bits.
    pub(crate) fn is_quantised(&self) -> bool {
        match self {
            Self::Quantised(_) => true,
            #[cfg(feature = "cuda")]
            Self::Host(stack) => stack.is_quantised(),
            #[cfg(feature = "cuda")]
            Self::Node(stack) => stack.is_quantised(),
        }
    }

    /// The dtype of the dense matrix.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Quantised(codes) => codes.dtype(),
            #[cfg(feature = "cuda")]
            Self::Host(stack) => stack.dtype(),
            #[cfg(feature = "cuda")]
            Self::Node(stack) => stack.dtype(),
        }
    }

    /// Size of the stored weight in bytes; only of this GPU's share if it is divided.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Quantised(codes) => codes.bytes(),
            #[cfg(feature = "cuda")]
            Self::Host(stack) => stack.bytes(),
            #[cfg(feature = "cuda")]
            Self::Node(stack) => stack.bytes(),
        }
    }
}
