//! Jinja2's `namespace`: a map whose entries a template can set. It equals only itself.
//!
//! The engine's own namespace is not used: it may contain itself, and would then never be freed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Object, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, Value};

use super::super::budget;

/// The value returned by `namespace()`.
#[derive(Debug, Default)]
pub(crate) struct Namespace(Mutex<BTreeMap<Arc<str>, Value>>);

impl Namespace {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all entries; they are dropped after the lock is released.
    pub(crate) fn clear(&self) {
        let entries = std::mem::take(&mut *self.entries());
        drop(entries);
    }
}

impl Object for Namespace {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.entries().get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let keys = self.entries().keys().cloned().map(Value::from).collect();
        Enumerator::Values(keys)
    }
}

/// `namespace(...)`, from a map or keyword arguments.
pub(super) fn namespace(defaults: Option<ValueOrKwargs>) -> Result<Value, Error> {
    let namespace = Arc::new(Namespace::default());
    // A map node and its overhead.
    budget::charge_created_items(12)?;
    if let Some(defaults) = defaults.map(ValueOrKwargs::into_value) {
        if defaults.kind() != ValueKind::Map {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!(
                    "namespace needs a map or keyword arguments, not {}",
                    defaults.kind()
                ),
            ));
        }
        for key in defaults.try_iter()?.checked() {
            let key = key?;
            budget::charge_created_items(2)?;
            if let Some(name) = key.as_str() {
                let value = defaults.get_item(&key)?;
                namespace.entries().insert(name.into(), value);
            }
        }
    }
    budget::keep_namespace(namespace.clone());
    Ok(Value::from_dyn_object(namespace))
}

/// `{% set namespace.name = value %}`.
pub(super) fn set(value: Value, namespace: &Value, name: &str) -> Result<Value, Error> {
    let Some(namespace) = namespace.downcast_object_ref::<Namespace>() else {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("can only assign to namespaces, not {}", namespace.kind()),
        ));
    };
    let old = namespace.entries().insert(name.into(), value);
    drop(old);
    Ok(Value::UNDEFINED)
}
