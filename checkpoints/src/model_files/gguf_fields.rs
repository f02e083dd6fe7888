//! Reads the metadata fields of a GGUF file's architecture.

use serde_json::Value;

use crate::error::CheckpointError;
use crate::weights::gguf::{GgufMetadata, GgufValue};

/// Metadata fields with the architecture's prefix.
pub(super) struct Fields<'a> {
    pub(super) metadata: &'a GgufMetadata,
    pub(super) architecture: &'static str,
}

impl Fields<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn unsigned(&self, name: &str) -> Result<u64, CheckpointError> {
        let key = self.key(name);
        self.metadata.require(&key, self.metadata.unsigned(&key)?)
    }

    /// Refuses a size that is present but differs from the head size.
    pub(super) fn must_be(&self, name: &str, head_dim: u64) -> Result<(), CheckpointError> {
        let key = self.key(name);
        match self.metadata.unsigned(&key)? {
            Some(size) if size != head_dim => Err(CheckpointError::Unsupported {
                path: self.metadata.path().to_owned(),
                feature: format!("{key} = {size} with heads of size {head_dim}"),
                fix: "use a model whose heads have one size and apply RoPE to all dimensions, or \
                      convert it again",
            }),
            _ => Ok(()),
        }
    }

    /// Reads a number of any stored type.
    pub(super) fn optional_number_or_count(
        &self,
        name: &str,
    ) -> Result<Option<Value>, CheckpointError> {
        let key = self.key(name);
        let mut entries = self.metadata.entries();
        match entries.find(|(entry, _)| *entry == key) {
            Some((_, GgufValue::Unsigned(count))) => Ok(Some((*count).into())),
            _ => self.optional_number(name),
        }
    }

    /// The shortest decimal that equals the stored f32: 1e-5, not 9.999999747378752e-6.
    pub(super) fn optional_number(&self, name: &str) -> Result<Option<Value>, CheckpointError> {
        let key = self.key(name);
        let Some(number) = self.metadata.f32(&key)? else {
            return Ok(None);
        };
        match shortest(number) {
            Some(number) => Ok(Some(number.into())),
            None => Err(CheckpointError::field(
                self.metadata.path(),
                key,
                "must be finite",
            )),
        }
    }
}

/// The shortest decimal that equals an f32, as an f64: 1.1, not 1.100000023841858. `None` if the number
/// is not finite.
pub(super) fn shortest(number: f32) -> Option<f64> {
    let shortest: Option<f64> = format!("{number:e}").parse().ok();
    shortest.filter(|number| number.is_finite())
}
