//! Reads the fields of a `config.json` that is converted to GGUF.

use std::path::Path;

use serde_json::Value;

use crate::error::CheckpointError;
use crate::families::Family;

/// A `config.json` to be converted to GGUF keys.
pub(super) struct Config<'a> {
    pub(super) path: &'a Path,
    pub(super) fields: &'a Value,
    pub(super) family: &'static Family,
}

impl Config<'_> {
    /// A metadata key with the architecture's prefix.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.gguf.architecture)
    }

    pub(super) fn size(&self, key: &str) -> Result<u32, CheckpointError> {
        let size = self.fields[key]
            .as_u64()
            .and_then(|n| u32::try_from(n).ok());
        size.ok_or_else(|| CheckpointError::field(self.path, key, "must be a whole number"))
    }

    pub(super) fn number(&self, key: &str) -> Result<f64, CheckpointError> {
        let number = self.fields[key].as_f64();
        number.ok_or_else(|| CheckpointError::field(self.path, key, "must be a number"))
    }

    pub(super) fn unsupported(&self, feature: String) -> CheckpointError {
        CheckpointError::Unsupported {
            path: self.path.to_owned(),
            feature,
            fix: "llama.cpp does not compute it the same way; use --to merged, which preserves it",
        }
    }

    /// An error that refuses a field and its value.
    pub(super) fn unsupported_field(&self, key: &str) -> CheckpointError {
        self.unsupported(format!("a GGUF file with {key} = {}", self.fields[key]))
    }

    /// Reads a size. A null means `null`. An absent key means `absent`, or `null` if `absent` is
    /// `None`.
    pub(super) fn size_or(
        &self,
        key: &str,
        absent: Option<usize>,
        null: u32,
    ) -> Result<u32, CheckpointError> {
        match (self.fields.get(key), absent) {
            (None, Some(size)) => Ok(size as u32),
            (None | Some(Value::Null), _) => Ok(null),
            _ => self.size(key),
        }
    }
}
