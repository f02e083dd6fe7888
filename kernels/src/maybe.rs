//! An optional tensor as an argument of an operation, which backends cannot take as an `Option`.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType};

/// A tensor that may be missing.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) enum Maybe<B: Backend> {
    /// There is none.
    Absent,
    /// There is one.
    Present(FloatTensor<B>),
}

impl<B: Backend> Maybe<B> {
    pub(crate) fn of(tensor: Option<FloatTensor<B>>) -> Self {
        tensor.map_or(Self::Absent, Self::Present)
    }

    pub(crate) fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Self::Absent => None,
            Self::Present(tensor) => Some(tensor),
        }
    }
}
