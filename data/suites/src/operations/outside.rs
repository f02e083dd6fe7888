//! Resources that operations need from the caller: sentence encoders, and resources for individual
//! suites.

use std::any::{Any, TypeId};
use std::collections::HashMap;

use super::encoders::Encoders;

/// Encoders and other resources for operations.
///
/// The default has only the hash encoder, which needs no files.
#[derive(Debug)]
pub struct Outside {
    /// The encoders for `options.encoder`.
    encoders: Encoders,
    /// Resources of individual suites by type, so that no other suite depends on them.
    others: HashMap<TypeId, Box<dyn Any>>,
}

impl Outside {
    /// Adds a resource that operations look up by its type. Replaces an earlier resource of that
    /// type.
    #[must_use]
    pub fn with<T: Any>(mut self, other: T) -> Self {
        self.others.insert(TypeId::of::<T>(), Box::new(other));
        self
    }

    pub(super) fn encoders(&self) -> &Encoders {
        &self.encoders
    }

    pub(super) fn resource<T: Any>(&self) -> Option<&T> {
        self.others.get(&TypeId::of::<T>())?.downcast_ref()
    }
}

impl Default for Outside {
    fn default() -> Self {
        Encoders::hash_only().into()
    }
}

impl From<Encoders> for Outside {
    fn from(encoders: Encoders) -> Self {
        Self {
            encoders,
            others: HashMap::new(),
        }
    }
}
