//! What operations take from outside: weights that embed texts, and what a single suite needs.

use std::any::{Any, TypeId};
use std::collections::HashMap;

use super::encoders::Encoders;

/// Encoders behind the operations, and what else some of them ask for.
///
/// By default the hash encoder and nothing else, which need nothing.
#[derive(Debug)]
pub struct Outside {
    /// The encoders behind `options.encoder`.
    encoders: Encoders,
    /// What a suite has asked for, by its type, so that no other suite need know of it.
    others: HashMap<TypeId, Box<dyn Any>>,
}

impl Outside {
    /// Adds something that operations ask for by its type; it takes the place of an earlier one.
    #[must_use]
    pub fn with<T: Any>(mut self, other: T) -> Self {
        self.others.insert(TypeId::of::<T>(), Box::new(other));
        self
    }

    pub(super) fn encoders(&self) -> &Encoders {
        &self.encoders
    }

    pub(super) fn other<T: Any>(&self) -> Option<&T> {
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
