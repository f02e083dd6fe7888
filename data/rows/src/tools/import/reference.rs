//! `$ref` within one document.
//!
//! References are followed where they are read, so a broken one in a part that no document is
//! made of does no harm. A chain of references that leads back to itself is an error; a schema
//! that contains itself is none, and who walks it must remember where it has been.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use serde_json::Value;

use super::left_out::LeftOut;
use crate::budgets::SPEC_BYTES;
use crate::tools::endpoint::decoded;
use crate::tools::error::ToolsError;

/// Bytes that looking at a part counts as.
pub(super) const STEP_BYTES: usize = 16;

/// A specification and the means to find its parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spec<'a> {
    pub(super) root: &'a Value,
    copied: &'a Copied,
}

/// What all operations together took of what they share, and what of them is not held.
#[derive(Debug, Default)]
pub(super) struct Copied {
    n_bytes: Cell<usize>,
    left_out: RefCell<LeftOut>,
    /// The operation that is read.
    place: RefCell<String>,
}

impl Copied {
    /// What was not held.
    pub(super) fn into_left_out(self) -> LeftOut {
        self.left_out.into_inner()
    }
}

/// A part of a specification and its JSON pointer.
#[derive(Debug, Clone)]
pub(super) struct Part<'a> {
    pub(super) value: &'a Value,
    pub(super) pointer: String,
}

impl<'a> Part<'a> {
    /// The part below `key`, if there is one.
    pub(super) fn child(&self, key: &str) -> Option<Part<'a>> {
        Some(Part {
            value: self.value.get(key)?,
            pointer: format!("{}/{}", self.pointer, escape(key)),
        })
    }

    /// The elements of the list below `key`; none where it is absent or no list.
    pub(super) fn elements(&self, key: &str) -> Vec<Part<'a>> {
        let Some(list) = self.child(key) else {
            return Vec::new();
        };
        let part = |(i, value)| Part {
            value,
            pointer: format!("{}/{i}", list.pointer),
        };
        let items = list.value.as_array().map_or(&[][..], Vec::as_slice);
        items.iter().enumerate().map(part).collect()
    }

    /// The members of the object below `key`; none where it is absent or no object.
    pub(super) fn members(&self, key: &str) -> Vec<(&'a str, Part<'a>)> {
        let Some(object) = self.child(key) else {
            return Vec::new();
        };
        let Some(map) = object.value.as_object() else {
            return Vec::new();
        };
        map.iter()
            .map(|(name, value)| {
                let pointer = format!("{}/{}", object.pointer, escape(name));
                (name.as_str(), Part { value, pointer })
            })
            .collect()
    }

    /// The text below `key`, trimmed; empty where there is none.
    pub(super) fn text(&self, key: &str) -> &'a str {
        self.value
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or("")
            .trim()
    }

    /// The truth value below `key`.
    ///
    /// The texts `"true"` and `"false"` count, since specifications that went through a lenient
    /// YAML reader hold them.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ToolsError> {
        match self.value.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(Value::String(text)) if text == "true" => Ok(Some(true)),
            Some(Value::String(text)) if text == "false" => Ok(Some(false)),
            Some(_) => Err(self.bad(&format!("{key} must be true or false"))),
        }
    }

    /// The fault that this part is not as it should be.
    pub(super) fn bad(&self, reason: &str) -> ToolsError {
        ToolsError::BadSpec {
            pointer: self.pointer.clone(),
            reason: reason.to_owned(),
        }
    }
}

impl<'a> Spec<'a> {
    pub(super) fn new(root: &'a Value, copied: &'a Copied) -> Self {
        Self { root, copied }
    }

    /// Names the operation that is read from now on.
    pub(super) fn enter(&self, operation: &str) {
        operation.clone_into(&mut self.copied.place.borrow_mut());
    }

    /// Keeps that `what` is not held, at a part of the operation that is read; of the whole operation
    /// where that is empty.
    pub(super) fn tell(&self, what: &str, part: &str) {
        let operation = self.copied.place.borrow();
        let gap = if part.is_empty() || operation.is_empty() {
            ""
        } else {
            ", "
        };
        let place = format!("{operation}{gap}{part}");
        self.copied.left_out.borrow_mut().add(what, place);
    }

    /// Counts bytes that an operation is about to copy, or to search, of a part that others may share.
    ///
    /// # Errors
    ///
    /// - all operations together take more than [`SPEC_BYTES`]
    pub(super) fn take(&self, n_bytes: usize, part: &Part<'_>) -> Result<(), ToolsError> {
        let sum = self.copied.n_bytes.get().saturating_add(n_bytes);
        self.copied.n_bytes.set(sum);
        if sum > SPEC_BYTES {
            return Err(part.bad(&format!(
                "with it the operations copy more than {SPEC_BYTES} bytes of what they share \
                 (SPEC_BYTES in docs/limits.md); shorten it, or split the specification"
            )));
        }
        Ok(())
    }

    /// Follows references until a part is none.
    pub(super) fn resolve(&self, part: Part<'a>) -> Result<Part<'a>, ToolsError> {
        let mut seen: HashSet<String> = HashSet::new();
        let mut here = part;
        while let Some(Value::String(reference)) = here.value.get("$ref") {
            let fault = |reason| ToolsError::UnresolvedReference {
                pointer: here.pointer.clone(),
                reference: reference.clone(),
                reason,
            };
            let pointer = reference
                .strip_prefix('#')
                .ok_or_else(|| fault("leads out of the document"))?;
            let pointer = decoded(pointer);
            self.take(STEP_BYTES + pointer.len(), &here)?;
            if !seen.insert(pointer.clone()) {
                return Err(fault("leads back to itself"));
            }
            let value = self
                .root
                .pointer(&pointer)
                .ok_or_else(|| fault("leads nowhere"))?;
            here = Part { value, pointer };
        }
        Ok(here)
    }
}

fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
