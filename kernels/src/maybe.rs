//! An optional tensor argument of an operation, because backends do not support `Option`.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType};

/// A tensor that may be missing.
#[derive(Debug, Clone, ExtensionType)]
pub(crate) enum Maybe<B: Backend> {
    /// Missing.
    Absent,
    /// Present.
    Present(FloatTensor<B>),
}

impl<B: Backend> Maybe<B> {
    pub(crate) fn from_option(tensor: Option<FloatTensor<B>>) -> Self {
        tensor.map_or(Self::Absent, Self::Present)
    }

    pub(crate) fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Self::Absent => None,
            Self::Present(tensor) => Some(tensor),
        }
    }
}
