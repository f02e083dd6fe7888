//! Frozen weights that are divided among the GPUs of a node.
//!
//! Each GPU has a share of every decoder block: the stacks of a block are one run of bytes, which is
//! cut into equal shares. NCCL gathers each block on a stream of its own while the block before it
//! is computed. Results have the same bits as with all weights on every GPU.
//!
//! All ranks of a node must gather the same blocks in the same order, even a rank without data of
//! its own. A [`Pass`] fixes this order before its first block.

#[cfg(feature = "cuda")]
mod gathers;
#[cfg(any(test, feature = "cuda"))]
mod order;

use thiserror::Error;

#[cfg(feature = "cuda")]
use crate::nccl::NcclError;
#[cfg(feature = "cuda")]
pub(crate) use gathers::NodeStack;
#[cfg(feature = "cuda")]
pub use gathers::{Gathers, NodeGroup, ShareLoader};
#[cfg(not(feature = "cuda"))]
pub use without_cuda::{Gathers, NodeGroup, ShareLoader};

/// Why ranks of a node cannot gather weights.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NodeError(String);

#[cfg(feature = "cuda")]
impl From<NcclError> for NodeError {
    fn from(error: NcclError) -> Self {
        Self(error.to_string())
    }
}

/// The order in which a pass through the model uses its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// From the first block to the last one.
    Forward,
    /// From the first block to the last one, and back to this block.
    Training {
        /// The first block with trained values.
        first_trained: usize,
    },
}

/// A build without CUDA has no such group, so none of these functions can be called.
#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use std::convert::Infallible;

    use super::{NodeError, Pass};
    use crate::FrozenWeight;
    use crate::frozen_weight::WeightSource;

    /// The GPUs of a node; needs a build with CUDA.
    #[derive(Debug, Clone, Copy)]
    pub struct NodeGroup(Infallible);

    /// Loads shares; needs a build with CUDA.
    #[derive(Debug)]
    pub struct ShareLoader(Infallible);

    /// Gathers blocks; needs a build with CUDA.
    #[derive(Debug, Clone, Copy)]
    pub struct Gathers(Infallible);

    impl ShareLoader {
        /// See the version with CUDA.
        pub fn new(group: &NodeGroup) -> Self {
            match group.0 {}
        }

        /// See the version with CUDA.
        ///
        /// # Errors
        ///
        /// See the version with CUDA.
        pub fn add_block<E: Send>(
            &mut self,
            _: Vec<WeightSource<'_, E>>,
        ) -> Result<Vec<FrozenWeight>, E> {
            match self.0 {}
        }

        /// See the version with CUDA.
        pub fn finish(self) -> Gathers {
            match self.0 {}
        }
    }

    impl Gathers {
        /// See the version with CUDA.
        pub fn begin(&self, _: Pass) {
            match self.0 {}
        }

        /// See the version with CUDA.
        pub fn finish(&self) {
            match self.0 {}
        }

        /// See the version with CUDA.
        pub fn group(&self) -> NodeGroup {
            match self.0 {}
        }
    }

    impl NodeGroup {
        /// See the version with CUDA.
        ///
        /// # Errors
        ///
        /// See the version with CUDA.
        pub fn exchange(&self, _: u32) -> Result<Vec<u32>, NodeError> {
            match self.0 {}
        }
    }
}
