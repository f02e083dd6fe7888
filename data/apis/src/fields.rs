//! Strict access to the fields of one JSON object. Every error contains the path of the field.

use serde_json::{Map, Value};
use tooltune_json::ReadError;

use super::error::{ToolsError, did_you_mean};

/// An object with its path, such as `calls[2]`; the path is empty for the whole row.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: &'a str,
    needed: &'static str,
}

impl<'a> Fields<'a> {
    /// Wraps `value`, which must be an object; `needed` describes the layout in errors.
    pub fn new(value: &'a Value, path: &'a str, needed: &'static str) -> Result<Self, ToolsError> {
        match value {
            Value::Object(map) => Ok(Self { map, path, needed }),
            other => {
                let path = if path.is_empty() { "the row" } else { path };
                Err(wrong_type(path, other, "an object"))
            }
        }
    }

    /// Path of the field `name`.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            return name.to_owned();
        }
        format!("{}.{name}", self.path)
    }

    /// Path of the object.
    pub(crate) fn object_path(&self) -> &'a str {
        self.path
    }

    /// Value of a field; null is treated as absent.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Value of a field, including null.
    pub fn raw(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name)
    }

    /// A required string field.
    pub fn text(&self, name: &str) -> Result<&'a str, ToolsError> {
        self.optional_text(name)?.ok_or_else(|| self.missing(name))
    }

    /// An optional string field.
    pub fn optional_text(&self, name: &str) -> Result<Option<&'a str>, ToolsError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&self.path(name), other, "a string")),
        }
    }

    /// An optional boolean field; false by default.
    pub fn flag(&self, name: &str) -> Result<bool, ToolsError> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(wrong_type(&self.path(name), other, "a boolean")),
        }
    }

    /// An optional list field; empty by default.
    pub(crate) fn list(&self, name: &str) -> Result<&'a [Value], ToolsError> {
        match self.get(name) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(wrong_type(&self.path(name), other, "a list")),
        }
    }

    /// An optional list of strings; empty by default.
    pub fn texts(&self, name: &str) -> Result<Vec<String>, ToolsError> {
        let path = self.path(name);
        let text = |(i, item): (usize, &Value)| match item {
            Value::String(text) => Ok(text.clone()),
            other => Err(wrong_type(&format!("{path}[{i}]"), other, "a string")),
        };
        self.list(name)?.iter().enumerate().map(text).collect()
    }

    /// An optional object field.
    pub fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ToolsError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(wrong_type(&self.path(name), other, "an object")),
        }
    }

    /// The error for a missing field `name`.
    pub fn missing(&self, name: &str) -> ToolsError {
        ReadError::missing(self.path(name), self.needed).into()
    }

    /// Rejects fields that are not in `known`.
    pub fn only(&self, known: &[&str]) -> Result<(), ToolsError> {
        match self.map.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => Err(self.unknown(key, known)),
        }
    }

    /// Rejects unknown fields whose names are similar to a field in `known`, and accepts other
    /// unknown fields.
    pub fn refuse_misspelled(&self, known: &[&str]) -> Result<(), ToolsError> {
        const NEAR: usize = 2;
        let is_near = |key: &str| {
            known
                .iter()
                .any(|name| strsim::levenshtein(name, key) <= NEAR)
        };
        let mut others = self.map.keys().filter(|key| !known.contains(&key.as_str()));
        match others.find(|key| is_near(key)) {
            None => Ok(()),
            Some(key) => Err(self.unknown(key, known)),
        }
    }

    fn unknown(&self, key: &str, known: &[&str]) -> ToolsError {
        ToolsError::UnknownField {
            field: self.path(key),
            hint: did_you_mean(key, known.iter().copied()),
            known: known.join(", "),
        }
    }
}

/// The error for a field with the wrong type.
pub(crate) fn wrong_type(field: &str, value: &Value, expected: &'static str) -> ToolsError {
    ReadError::wrong_type(field, value, expected).into()
}
