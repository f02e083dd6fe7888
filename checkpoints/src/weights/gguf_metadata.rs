//! Typed access to the metadata of a GGUF header.
//!
//! An absent key is `None`. A value of the wrong type is an error that names the key, because
//! ignoring it would silently describe a different model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::CheckpointError;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum GgufValue {
    Unsigned(u64),
    Signed(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(String),
    Array(Vec<GgufValue>),
}

/// The metadata of one file, with typed access.
#[derive(Debug)]
pub(crate) struct GgufMetadata {
    path: PathBuf,
    entries: BTreeMap<String, GgufValue>,
}

impl GgufMetadata {
    pub(super) fn new(path: &Path, entries: BTreeMap<String, GgufValue>) -> GgufMetadata {
        GgufMetadata {
            path: path.to_owned(),
            entries,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// All entries, sorted by key.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// Whether there is an entry with this key, of any type.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn type_error(&self, key: &str, expected: &str) -> CheckpointError {
        CheckpointError::field(
            &self.path,
            key,
            format!("must be {expected}; convert the model again"),
        )
    }

    fn get<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, CheckpointError> {
        let Some(value) = self.entries.get(key) else {
            return Ok(None);
        };
        convert(value)
            .map(Some)
            .ok_or_else(|| self.type_error(key, expected))
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, CheckpointError> {
        self.get(key, "a string", |value| match value {
            GgufValue::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    pub(crate) fn unsigned(&self, key: &str) -> Result<Option<u64>, CheckpointError> {
        self.get(key, "a whole number, not negative", as_unsigned)
    }

    pub(crate) fn token_id(&self, key: &str) -> Result<Option<u32>, CheckpointError> {
        self.get(key, "a token id", |value| {
            as_unsigned(value)?.try_into().ok()
        })
    }

    pub(crate) fn f32(&self, key: &str) -> Result<Option<f32>, CheckpointError> {
        self.get(key, "a number", |value| match value {
            GgufValue::F32(number) => Some(*number),
            GgufValue::F64(number) => Some(*number as f32),
            _ => None,
        })
    }

    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        self.get(key, "true or false", |value| match value {
            GgufValue::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    fn array<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<Vec<T>>, CheckpointError> {
        self.get(key, expected, |value| match value {
            GgufValue::Array(items) => items.iter().map(convert).collect(),
            _ => None,
        })
    }

    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<String>>, CheckpointError> {
        self.array(key, "an array of strings", |item| match item {
            GgufValue::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    pub(crate) fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, CheckpointError> {
        self.array(key, "an array of 32-bit integers", |item| match item {
            GgufValue::Signed(number) => (*number).try_into().ok(),
            GgufValue::Unsigned(number) => (*number).try_into().ok(),
            _ => None,
        })
    }

    pub(crate) fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, CheckpointError> {
        self.array(key, "an array of 32-bit floats", |item| match item {
            GgufValue::F32(number) => Some(*number),
            _ => None,
        })
    }

    /// Returns the value of a required key, or an error if it is absent.
    pub(crate) fn require<T>(&self, key: &str, value: Option<T>) -> Result<T, CheckpointError> {
        value.ok_or_else(|| {
            let problem = "is missing from the GGUF metadata; convert the model again";
            CheckpointError::field(&self.path, key, problem)
        })
    }
}

fn as_unsigned(value: &GgufValue) -> Option<u64> {
    match value {
        GgufValue::Unsigned(number) => Some(*number),
        GgufValue::Signed(number) => (*number).try_into().ok(),
        _ => None,
    }
}
