//! Errors of weights that cannot be loaded.

use tooltune_kernels::node_memory::NodeError;

use super::Error;
use crate::models::load::LoadError;

impl From<NodeError> for Error {
    fn from(error: NodeError) -> Self {
        Self::Nccl(error.to_string())
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Checkpoint(error) => error.into(),
            LoadError::HostMemory(_) => Self::Device(error.to_string()),
            LoadError::Node(error) => error.into(),
        }
    }
}
