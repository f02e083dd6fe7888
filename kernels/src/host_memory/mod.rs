//! Weights and block inputs that a CUDA GPU keeps in pinned host memory and copies while it computes.
//!
//! Results have the same bits as with everything on the GPU.

mod inputs;
#[cfg(feature = "cuda")]
pub(crate) mod pinned;
#[cfg(any(test, feature = "cuda"))]
pub(crate) mod walk;
#[cfg(feature = "cuda")]
mod weights;

use thiserror::Error;

use crate::FrozenWeight;
pub use inputs::BlockInputs;
#[cfg(feature = "cuda")]
pub(crate) use weights::{ALIGNMENT, HostStack, StackLayout, part_of_slot};

/// Why weights cannot be in host memory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HostMemoryError {
    /// The driver has no pinned memory for a weight.
    #[error("the driver could not allocate {bytes} bytes of pinned host memory: {reason}")]
    NoMemory {
        /// Requested bytes.
        bytes: usize,
        /// The driver's reason.
        reason: String,
    },
    /// Only CUDA devices copy from pinned memory.
    #[error("weights can be in host memory only with a CUDA device")]
    NotCuda,
}

/// Copies the weights of `blocks` from host memory to two slots on the GPU, one block ahead of their
/// use. Weights that are not in host memory stay where they are.
///
/// All later uses of these weights must be on the thread that calls this.
///
/// # Panics
///
/// If a weight is streamed already: a bug of the caller.
pub fn stream_blocks<'a>(blocks: impl Iterator<Item = Vec<&'a FrozenWeight>>) {
    #[cfg(feature = "cuda")]
    weights::stream_blocks(blocks);
    #[cfg(not(feature = "cuda"))]
    drop(blocks);
}
