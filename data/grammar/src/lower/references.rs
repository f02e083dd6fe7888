//! Resolves references within one document.

use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::{Document, Lowerer, SchemaLocation, reference_to};
use crate::error::GrammarError;

impl Lowerer {
    /// Lowers a `$ref`; its target becomes a definition.
    ///
    /// # Errors
    ///
    /// The value of `$ref` is not a string, or its target is outside the document or does not
    /// exist.
    pub(super) fn reference<'s>(
        &mut self,
        document: &mut Document<'s>,
        location: &SchemaLocation<'s>,
        reference: &Value,
    ) -> Result<Value, GrammarError> {
        let Some(reference) = reference.as_str() else {
            return Err(location.unsupported("$ref", "is not a string"));
        };
        let (base, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let target = document.resource(location, base).and_then(|resource| {
            let fragment = percent_decode_str(fragment).decode_utf8().ok()?;
            match fragment.as_ref() {
                "" => Some((resource, resource)),
                pointer if pointer.starts_with('/') => document.resolve_pointer(resource, pointer),
                anchor => document.resolve_anchor(resource, anchor),
            }
        });
        let Some((schema, resource)) = target else {
            return Err(location.unsupported(
                "$ref",
                format!(
                    "{reference:?} is not a schema of this document; put the schema under $defs"
                ),
            ));
        };
        let address = std::ptr::from_ref(schema);
        if let Some(&name) = document.names.get(&address) {
            return Ok(reference_to(name));
        }
        let name = self.definitions.len();
        self.definitions.push(Value::Bool(true));
        document.names.insert(address, name);
        let pointer = if fragment.starts_with('/') && std::ptr::eq(resource, document.root) {
            fragment.to_owned()
        } else {
            format!("{}/$ref", location.pointer)
        };
        document.queue.push((
            name,
            SchemaLocation {
                schema,
                resource,
                pointer,
                n_levels: 0,
            },
        ));
        Ok(reference_to(name))
    }
}

impl<'s> Document<'s> {
    /// The schema identified by the part of a reference before `#`.
    fn resource(&self, location: &SchemaLocation<'s>, base: &str) -> Option<&'s Value> {
        if base.is_empty() {
            return Some(location.resource);
        }
        let is_named = |value: &Value| {
            let id = value.as_object().and_then(|all| self.draft.identifier(all));
            id.is_some_and(|id| id.trim_end_matches('#') == base)
        };
        [location.resource, self.root]
            .into_iter()
            .find(|value| is_named(value))
            .or_else(|| find_first(self.root, &|value| is_named(value)))
    }

    /// The target of a pointer and its enclosing resource.
    fn resolve_pointer(&self, root: &'s Value, pointer: &str) -> Option<(&'s Value, &'s Value)> {
        let (mut value, mut resource) = (root, root);
        for step in pointer.split('/').skip(1) {
            let step = step.replace("~1", "/").replace("~0", "~");
            value = match value {
                Value::Array(items) => items.get(step.parse::<usize>().ok()?)?,
                value => value.get(&step)?,
            };
            let fields = value.as_object();
            if fields.is_some_and(|fields| self.draft.identifier(fields).is_some()) {
                resource = value;
            }
        }
        (value.is_object() || value.is_boolean()).then_some((value, resource))
    }

    fn resolve_anchor(&self, resource: &'s Value, name: &str) -> Option<(&'s Value, &'s Value)> {
        let is_it = |value: &Value| {
            let fields = value.as_object();
            fields.is_some_and(|fields| self.draft.has_anchor(fields, name))
        };
        find_first(resource, &is_it).map(|value| (value, resource))
    }
}

/// The first value, from the root, for which `is_it` returns true.
fn find_first<'s>(root: &'s Value, is_it: &dyn Fn(&Value) -> bool) -> Option<&'s Value> {
    let mut queue = vec![root];
    while let Some(value) = queue.pop() {
        if is_it(value) {
            return Some(value);
        }
        match value {
            Value::Array(items) => queue.extend(items.iter().rev()),
            Value::Object(fields) => queue.extend(fields.values().rev()),
            _ => {}
        }
    }
    None
}
