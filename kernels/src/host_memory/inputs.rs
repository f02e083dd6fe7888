//! Block inputs in pinned host memory between the forward and the backward pass.
//!
//! An input is copied to the host while its block runs, and leaves the GPU one block later. In the
//! backward pass, each input is copied back one block ahead of its use.

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::Tensor;

use super::HostMemoryError;

/// The inputs of the blocks of a pass, last in, first out. On a device other than CUDA they stay
/// where they are.
#[derive(Debug, Default)]
pub struct BlockInputs {
    entries: Vec<Entry>,
    #[cfg(feature = "cuda")]
    copies: cuda::Copies,
}

#[derive(Debug)]
enum Entry {
    Device(Box<Tensor<2>>),
    #[cfg(feature = "cuda")]
    Host(cuda::HostInput),
}

impl BlockInputs {
    /// Adds the input of the next block, `[n, d]`, f32.
    ///
    /// # Errors
    ///
    /// There is not enough host memory.
    pub fn push(&mut self, x: Tensor<2>) -> Result<(), HostMemoryError> {
        #[cfg(feature = "cuda")]
        let x = match self.push_to_host(x)? {
            Some(x) => x,
            None => return Ok(()),
        };
        self.entries.push(Entry::Device(Box::new(x)));
        Ok(())
    }

    /// Removes the last input.
    pub fn pop(&mut self) -> Option<Tensor<2>> {
        match self.entries.pop()? {
            Entry::Device(x) => Some(*x),
            #[cfg(feature = "cuda")]
            Entry::Host(input) => Some(self.pop_from_host(input)),
        }
    }
}
