//! Integers at a fixed GPU address, so that kernel launches that read them can be replayed after
//! they change.

#[cfg(feature = "cube")]
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "cube")]
use burn_cubecl::tensor::CubeTensor;
#[cfg(feature = "cube")]
use burn_std::Bytes;

#[cfg(feature = "cube")]
use crate::cube::launch::upload;

/// Integers on the host, and on a GPU once a kernel has requested them; clones share the GPU
/// memory.
#[derive(Debug, Clone)]
pub struct DeviceIntegers {
    numbers: Vec<u32>,
    #[cfg(feature = "cube")]
    device_copy: Arc<Mutex<Option<CubeTensor>>>,
}

impl DeviceIntegers {
    /// Stores these integers.
    pub fn new(numbers: Vec<u32>) -> Self {
        Self {
            numbers,
            #[cfg(feature = "cube")]
            device_copy: Arc::default(),
        }
    }

    /// The integers on the host.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Replaces the integers in place. GPU work that is already queued reads the old ones.
    ///
    /// # Panics
    ///
    /// If their number differs: a bug of the caller.
    pub fn replace(&mut self, numbers: Vec<u32>) {
        assert_eq!(
            numbers.len(),
            self.numbers.len(),
            "the number of integers must not change"
        );
        #[cfg(feature = "cube")]
        if let Some(device_copy) = &*self
            .device_copy
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
        {
            let bytes = Bytes::from_elems(numbers.clone());
            device_copy.client.write(&device_copy.handle, bytes);
        }
        self.numbers = numbers;
    }

    /// The integers on the device of `like`.
    #[cfg(feature = "cube")]
    pub(crate) fn on_device(&self, like: &CubeTensor) -> CubeTensor {
        let mut device_copy = self
            .device_copy
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &*device_copy {
            Some(device_copy) if device_copy.device == like.device => device_copy.clone(),
            _ => device_copy.insert(upload(like, &self.numbers)).clone(),
        }
    }
}
