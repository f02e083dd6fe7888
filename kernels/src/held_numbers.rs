//! Whole numbers that the kernels of a GPU find in the same place however often they change, so that a
//! launch which reads them need not change.

#[cfg(feature = "cube")]
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "cube")]
use burn_cubecl::tensor::CubeTensor;
#[cfg(feature = "cube")]
use burn_std::Bytes;

#[cfg(feature = "cube")]
use crate::cube::launch::upload;

/// Numbers on the host, and on a GPU once a kernel has asked for them; copies share the latter.
#[derive(Debug, Clone)]
pub struct HeldNumbers {
    numbers: Vec<u32>,
    #[cfg(feature = "cube")]
    there: Arc<Mutex<Option<CubeTensor>>>,
}

impl HeldNumbers {
    /// These numbers.
    pub fn new(numbers: Vec<u32>) -> Self {
        Self {
            numbers,
            #[cfg(feature = "cube")]
            there: Arc::default(),
        }
    }

    /// The numbers.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Puts other numbers in their place. What a GPU was given before reads the old ones.
    ///
    /// # Panics
    ///
    /// If there are more or fewer: a bug of the caller.
    pub fn replace(&mut self, numbers: Vec<u32>) {
        assert_eq!(
            numbers.len(),
            self.numbers.len(),
            "numbers in the place of others"
        );
        #[cfg(feature = "cube")]
        if let Some(there) = &*self.there.lock().unwrap_or_else(PoisonError::into_inner) {
            let bytes = Bytes::from_elems(numbers.clone());
            there.client.write(&there.handle, bytes);
        }
        self.numbers = numbers;
    }

    /// The numbers on the device of `like`.
    #[cfg(feature = "cube")]
    pub(crate) fn on_device(&self, like: &CubeTensor) -> CubeTensor {
        let mut there = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        match &*there {
            Some(there) if there.device == like.device => there.clone(),
            _ => there.insert(upload(like, &self.numbers)).clone(),
        }
    }
}
