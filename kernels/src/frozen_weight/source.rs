//! A weight that has not been loaded yet, so that its loader decides which part of it to read.

use std::fmt;

use burn::tensor::{Device, bf16};

use super::quantised::{self, Nf4, Nf4Error};
use super::{ComputeDtype, FrozenWeight};

/// Writes the elements of a part of a weight, from the element with this index on.
pub(crate) type Fill<'a, E> = Box<dyn Fn(usize, &mut [bf16]) -> Result<(), E> + Sync + 'a>;

/// Where the elements of a weight `[out, in]` come from. `E` is the error if they cannot be read.
pub struct WeightSource<'a, E> {
    pub(crate) shape: [usize; 2],
    pub(crate) elements: Elements<'a, E>,
}

pub(crate) enum Elements<'a, E> {
    /// For products in bf16.
    Filled(Fill<'a, E>),
    Values(Vec<f32>, ComputeDtype),
    Nf4(Vec<Nf4>, ComputeDtype),
}

impl<'a, E: Send> WeightSource<'a, E> {
    /// Elements that `fill` writes, as for [`FrozenWeight::from_fill`].
    pub fn filled(
        shape: [usize; 2],
        fill: impl Fn(usize, &mut [bf16]) -> Result<(), E> + Sync + 'a,
    ) -> Self {
        let elements = Elements::Filled(Box::new(fill));
        Self { shape, elements }
    }

    /// Values, row-major, for products in `dtype`.
    ///
    /// # Panics
    ///
    /// If there are not `out * in` values.
    pub fn values(values: Vec<f32>, shape: [usize; 2], dtype: ComputeDtype) -> Self {
        let n = shape[0] * shape[1];
        assert_eq!(values.len(), n, "a weight needs out * in values");
        let elements = Elements::Values(values, dtype);
        Self { shape, elements }
    }

    /// Matrices in NF4 that are stacked to one matrix `shape`, for products in `dtype`.
    ///
    /// # Errors
    ///
    /// As for [`FrozenWeight::from_nf4`].
    pub fn nf4(parts: Vec<Nf4>, shape: [usize; 2], dtype: ComputeDtype) -> Result<Self, Nf4Error> {
        quantised::validate_stack(&parts, shape)?;
        let elements = Elements::Nf4(parts, dtype);
        Ok(Self { shape, elements })
    }

    /// Loads the whole weight.
    ///
    /// # Errors
    ///
    /// The elements cannot be read.
    pub fn load(self, device: &Device) -> Result<FrozenWeight, E> {
        match self.elements {
            Elements::Filled(fill) => FrozenWeight::from_fill(self.shape, device, fill),
            Elements::Values(values, dtype) => {
                Ok(FrozenWeight::new(values, self.shape, dtype, device))
            }
            Elements::Nf4(parts, dtype) => {
                let weight = FrozenWeight::from_nf4(parts, self.shape, dtype, device);
                Ok(weight.expect("the parts were validated"))
            }
        }
    }
}

impl<E> fmt::Debug for WeightSource<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.elements {
            Elements::Filled(_) => "file",
            Elements::Values(..) => "values",
            Elements::Nf4(..) => "NF4 codes",
        };
        write!(f, "{kind} of {:?}", self.shape)
    }
}
