//! Jinja2's generators: items that can be read once. A generator has no length and is always true.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, Value};

use super::super::budget;

/// Items that can be read once. All readers share them.
#[derive(Debug)]
pub(super) struct Generator(Mutex<VecDeque<Value>>);

impl Generator {
    pub(super) fn create(items: Vec<Value>) -> Result<Value, Error> {
        budget::charge_created_items(items.len() + 1)?;
        let holds = items.iter().any(|item| item.as_object().is_some());
        let generator = Value::from_object(Self(Mutex::new(items.into())));
        if holds {
            budget::keep_until_end(generator.clone());
        }
        Ok(generator)
    }

    fn items(&self) -> std::sync::MutexGuard<'_, VecDeque<Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(CollectedItems(self.clone())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

/// Iterates over the remaining items of a generator and reports their number, which `loop.length`
/// needs.
struct CollectedItems(Arc<Generator>);

impl Iterator for CollectedItems {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.0.items().pop_front()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let n_items = self.0.items().len();
        (n_items, Some(n_items))
    }
}
