//! Equality, order and membership as in Python.

use std::cmp::Ordering;
use std::sync::Arc;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::super::budget::{self, ITEM, Level};
use super::namespace::Namespace;
use super::operators::{Numbers, check_hashable, is_list, items, numbers, undefined_operation};

/// `v == w`.
pub(crate) fn is_equal(v: &Value, w: &Value) -> Result<bool, Error> {
    equal_at(v, w, Level::default())
}

/// Whether two slices of values are equal.
pub(crate) fn are_equal(all: &[Value], others: &[Value]) -> Result<bool, Error> {
    all_equal(all, others, Level::default())
}

fn all_equal(all: &[Value], others: &[Value], level: Level) -> Result<bool, Error> {
    if all.len() != others.len() {
        return Ok(false);
    }
    for (v, w) in all.iter().zip(others) {
        if !equal_at(v, w, level)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equal_at(v: &Value, w: &Value, level: Level) -> Result<bool, Error> {
    if let (Some(v), Some(w)) = (v.as_str(), w.as_str()) {
        budget::charge_read(v.len().min(w.len()))?;
        return Ok(v == w);
    }
    match (v.kind(), w.kind()) {
        (ValueKind::Seq, ValueKind::Seq) => {
            if v.is_tuple() == w.is_tuple() {
                all_equal(&items(v)?, &items(w)?, level.descend()?)
            } else {
                Ok(false)
            }
        }
        // Comparing items would consume generators, so compare identity as Python does.
        (ValueKind::Iterable, _) | (_, ValueKind::Iterable) => {
            Ok(match (v.as_object(), w.as_object()) {
                (Some(v), Some(w)) => std::ptr::eq(v, w),
                _ => false,
            })
        }
        (ValueKind::Map, ValueKind::Map) => maps_equal(v, w, level.descend()?),
        (ValueKind::Map, _) | (_, ValueKind::Map) => Ok(false),
        _ => {
            budget::charge_read_items(1)?;
            Ok(v == w)
        }
    }
}

fn maps_equal(v: &Value, w: &Value, level: Level) -> Result<bool, Error> {
    let namespaces = (
        v.downcast_object::<Namespace>(),
        w.downcast_object::<Namespace>(),
    );
    match namespaces {
        (Some(v), Some(w)) => return Ok(Arc::ptr_eq(&v, &w)),
        (None, None) => {}
        _ => return Ok(false),
    }
    if v.len() != w.len() {
        return Ok(false);
    }
    for key in items(v)? {
        // The key is looked up in both maps.
        budget::charge_read_items(4)?;
        let other = w.as_object().and_then(|w| w.get_value(&key));
        let Some(other) = other else {
            return Ok(false);
        };
        if !equal_at(&v.get_item(&key)?, &other, level)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Orders two values.
pub(super) fn ordering(v: &Value, w: &Value) -> Result<Ordering, Error> {
    ordering_at(v, w, Level::default())
}

fn ordering_at(v: &Value, w: &Value, level: Level) -> Result<Ordering, Error> {
    if let (Some(v), Some(w)) = (v.as_str(), w.as_str()) {
        budget::charge_read(v.len().min(w.len()).max(16))?;
        return Ok(v.cmp(w));
    }
    let level = level.descend()?;
    match numbers(v, w) {
        Some(Numbers::Integers(v, w)) => return Ok(v.cmp(&w)),
        Some(Numbers::Floats(v, w)) => {
            let nan = || Error::new(ErrorKind::InvalidOperation, "nan has no order");
            return v.partial_cmp(&w).ok_or_else(nan);
        }
        None => {}
    }
    if is_list(v) && is_list(w) && v.is_tuple() == w.is_tuple() {
        let (v, w) = (items(v)?, items(w)?);
        for (v, w) in v.iter().zip(&w) {
            if !equal_at(v, w, level)? {
                return ordering_at(v, w, level);
            }
        }
        return Ok(v.len().cmp(&w.len()));
    }
    Err(undefined_operation("ordering", &[v, w]))
}

/// `item in container`.
pub(super) fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    if let Some(text) = container.as_str() {
        let item = item.as_str();
        let item = item.ok_or_else(|| undefined_operation("in", &[container]))?;
        budget::charge_read(text.len())?;
        return Ok(text.contains(item));
    }
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map => match item.kind() {
            ValueKind::Map => Err(undefined_operation("in", &[item, container])),
            ValueKind::Seq if !item.is_tuple() => {
                Err(undefined_operation("in", &[item, container]))
            }
            _ => {
                check_hashable(item, Level::default())?;
                any_equal(items(container)?.into_iter().map(Ok), item)
            }
        },
        ValueKind::Seq | ValueKind::Iterable => any_equal(container.try_iter()?.checked(), item),
        _ => Err(undefined_operation("in", &[item, container])),
    }
}

fn any_equal(
    values: impl Iterator<Item = Result<Value, Error>>,
    target: &Value,
) -> Result<bool, Error> {
    for value in values {
        budget::charge_read(ITEM / 4)?;
        if is_equal(&value?, target)? {
            return Ok(true);
        }
    }
    Ok(false)
}
