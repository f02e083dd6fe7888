//! Resolves `$ref`s within one document.
//!
//! References are resolved only when they are read, so a broken reference in an unused part is
//! ignored. A circular chain of references is an error. A recursive schema is not an error, so code
//! that walks schemas must track visited parts.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use serde_json::Value;

use super::discarded::LeftOut;
use super::schema::{ConvertedSchema, Direction};
use crate::budgets::{REFERENCE_STEPS, SPEC_BYTES, SPEC_PARTS};
use crate::endpoint::percent_decode;
use crate::error::ToolsError;

/// Bytes charged for visiting a part.
pub(super) const STEP_BYTES: usize = 16;

/// A specification with access to its parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spec<'a> {
    pub(super) root: &'a Value,
    /// Source text of scalars by JSON pointer, for YAML; see
    /// [`YamlDocument`](tooltune_json::yaml::YamlDocument).
    source_texts: Option<&'a HashMap<String, String>>,
    state: &'a ImportState,
}

/// Resource usage of all operations together, and the discarded information.
#[derive(Debug)]
pub(super) struct ImportState {
    n_bytes: Cell<usize>,
    /// Number of visited schema nodes.
    n_parts: Cell<usize>,
    /// Limit of `n_parts`: [`SPEC_PARTS`], smaller in tests.
    max_parts: usize,
    /// Component schemas that were already read, so that operations that share one visit it once.
    schemas_by_pointer: RefCell<HashMap<(String, Direction), Rc<ConvertedSchema>>>,
    left_out: RefCell<LeftOut>,
    /// Name of the current operation.
    operation: RefCell<String>,
}

impl Default for ImportState {
    fn default() -> Self {
        Self::with_limit(SPEC_PARTS)
    }
}

impl ImportState {
    /// Starts with zero usage and the given limit of visited schema nodes.
    pub(super) fn with_limit(max_parts: usize) -> Self {
        Self {
            max_parts,
            n_bytes: Cell::default(),
            n_parts: Cell::default(),
            schemas_by_pointer: RefCell::default(),
            left_out: RefCell::default(),
            operation: RefCell::default(),
        }
    }

    /// The discarded information.
    pub(super) fn into_discarded(self) -> LeftOut {
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
    /// The part below `key`, if present.
    pub(super) fn child(&self, key: &str) -> Option<Part<'a>> {
        Some(Part {
            value: self.value.get(key)?,
            pointer: format!("{}/{}", self.pointer, escape(key)),
        })
    }

    /// The elements of the list below `key`; empty if it is absent or not a list.
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

    /// The members of the object below `key`; empty if it is absent or not an object.
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

    /// The trimmed string below `key`; empty if absent.
    pub(super) fn text(&self, key: &str) -> &'a str {
        self.value
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or("")
            .trim()
    }

    /// The boolean below `key`.
    ///
    /// The strings `"true"` and `"false"` are accepted, because lenient YAML readers write them.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ToolsError> {
        match self.value.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(Value::String(text)) if text == "true" => Ok(Some(true)),
            Some(Value::String(text)) if text == "false" => Ok(Some(false)),
            Some(_) => Err(self.invalid(&format!("{key} must be true or false"))),
        }
    }

    /// The error for an invalid part.
    pub(super) fn invalid(&self, reason: &str) -> ToolsError {
        ToolsError::BadSpec {
            pointer: self.pointer.clone(),
            reason: reason.to_owned(),
        }
    }
}

impl<'a> Spec<'a> {
    pub(super) fn new(root: &'a Value, state: &'a ImportState) -> Self {
        // The cached pointers are relative to the root of the previous `Spec`.
        state.schemas_by_pointer.borrow_mut().clear();
        Self {
            root,
            source_texts: None,
            state,
        }
    }

    /// Wraps a YAML document, whose scalars keep their source text.
    pub(super) fn with_source_texts(
        self,
        source_texts: Option<&'a HashMap<String, String>>,
    ) -> Self {
        Self {
            source_texts,
            ..self
        }
    }

    /// The source text of a YAML scalar, such as `007`, for schemas that require a string; `None`
    /// for JSON and for values that are not such scalars.
    pub(super) fn as_text(&self, value: &Value, pointer: &str) -> Option<String> {
        let written = self.source_texts?;
        match value {
            Value::Number(_) | Value::Bool(_) => {
                let text = written.get(pointer).cloned();
                Some(text.unwrap_or_else(|| value.to_string()))
            }
            _ => None,
        }
    }

    /// Counts one visited schema node.
    ///
    /// # Errors
    ///
    /// - the schemas of all operations together have more than [`SPEC_PARTS`] nodes
    pub(super) fn step(&self, part: &Part<'_>) -> Result<(), ToolsError> {
        let sum = self.state.n_parts.get().saturating_add(1);
        self.state.n_parts.set(sum);
        let max_parts = self.state.max_parts;
        if sum > max_parts {
            return Err(part.invalid(&format!(
                "the schemas of all operations up to {:?} expand to more than {max_parts} parts, the \
                 limit (SPEC_PARTS in docs/limits.md); split the specification, or let its schemas \
                 refer to each other less",
                self.state.operation.borrow()
            )));
        }
        Ok(())
    }

    /// The schema of a component already read.
    pub(super) fn cached_schema(
        &self,
        pointer: &str,
        direction: Direction,
    ) -> Option<Rc<ConvertedSchema>> {
        let schemas = self.state.schemas_by_pointer.borrow();
        schemas.get(&(pointer.to_owned(), direction)).map(Rc::clone)
    }

    /// Caches the schema of a component for other operations.
    pub(super) fn cache_schema(
        &self,
        pointer: &str,
        direction: Direction,
        schema: &Rc<ConvertedSchema>,
    ) {
        let key = (pointer.to_owned(), direction);
        self.state
            .schemas_by_pointer
            .borrow_mut()
            .insert(key, Rc::clone(schema));
    }

    /// Sets the current operation.
    pub(super) fn enter(&self, operation: &str) {
        operation.clone_into(&mut self.state.operation.borrow_mut());
    }

    /// Reports that `what` was discarded from a part of the current operation. An empty part means
    /// the whole operation.
    pub(super) fn report(&self, what: &str, part: &str) {
        let operation = self.state.operation.borrow();
        let gap = if part.is_empty() || operation.is_empty() {
            ""
        } else {
            ", "
        };
        let location = format!("{operation}{gap}{part}");
        self.state.left_out.borrow_mut().add(what, location);
    }

    /// Counts bytes that an operation is about to copy or search in a part that may be shared.
    ///
    /// # Errors
    ///
    /// - all operations together exceed [`SPEC_BYTES`]
    pub(super) fn charge(&self, n_bytes: usize, part: &Part<'_>) -> Result<(), ToolsError> {
        let sum = self.state.n_bytes.get().saturating_add(n_bytes);
        self.state.n_bytes.set(sum);
        if sum > SPEC_BYTES {
            return Err(part.invalid(&format!(
                "the operations up to {:?} copy more than {SPEC_BYTES} bytes of shared components \
                 (SPEC_BYTES in docs/limits.md); shorten this part, or split the specification",
                self.state.operation.borrow()
            )));
        }
        Ok(())
    }

    /// Resolves references until a part is not a reference.
    ///
    /// # Errors
    ///
    /// - a reference does not resolve, refers to another document, or is circular
    /// - a chain has more than [`REFERENCE_STEPS`] references
    pub(super) fn resolve(&self, part: Part<'a>) -> Result<Part<'a>, ToolsError> {
        let mut visited: HashSet<String> = HashSet::new();
        let mut current = part;
        while let Some(Value::String(reference)) = current.value.get("$ref") {
            let fault = |reason| ToolsError::UnresolvedReference {
                pointer: current.pointer.clone(),
                reference: reference.clone(),
                reason,
            };
            let pointer = reference
                .strip_prefix('#')
                .ok_or_else(|| fault("refers to another document"))?;
            let pointer = percent_decode(pointer);
            self.charge(STEP_BYTES + pointer.len(), &current)?;
            if visited.len() == REFERENCE_STEPS {
                return Err(fault(
                    "is at the end of more than 100 chained references (REFERENCE_STEPS in docs/limits.md)",
                ));
            }
            if !visited.insert(pointer.clone()) {
                return Err(fault("refers to itself"));
            }
            let value = self
                .root
                .pointer(&pointer)
                .ok_or_else(|| fault("does not exist"))?;
            current = Part { value, pointer };
        }
        Ok(current)
    }
}

impl<'a> Part<'a> {
    /// The string below `key`, from the reference itself if it has one (OpenAPI 3.1), otherwise
    /// from its target.
    pub(super) fn text_with_override(&self, resolved: &Part<'a>, key: &str) -> &'a str {
        let own_text = match self.value.get("$ref") {
            Some(Value::String(_)) => self.text(key),
            _ => "",
        };
        if own_text.is_empty() {
            resolved.text(key)
        } else {
            own_text
        }
    }
}

pub(super) fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
