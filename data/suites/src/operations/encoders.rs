//! Sentence encoders that an operation can select by name.
//!
//! The real model is loaded only if a line needs it, because most operations encode nothing, and
//! tests without weights use the hash encoder.

use std::cell::OnceCell;
use std::fmt;

use crate::encoder::{EncoderError, HashEncoder, SentenceEncoder};

use super::error::LineError;

/// Loads the MiniLM encoder; called at most once.
pub type EncoderLoader = Box<dyn Fn() -> Result<Box<dyn SentenceEncoder>, EncoderError>>;

/// The encoders for `options.encoder`. `"hash"` is always available, and `"minilm"` is available if
/// the caller provides it.
#[derive(Default)]
pub struct Encoders {
    load_minilm: Option<EncoderLoader>,
    minilm: OnceCell<Result<Box<dyn SentenceEncoder>, EncoderError>>,
}

impl Encoders {
    /// Provides only the hash encoder. Requests for another encoder fail with the kind
    /// `encoder_unavailable`.
    pub fn hash_only() -> Self {
        Self::default()
    }

    /// Provides the hash encoder. MiniLM is loaded by `load` when a line first needs it.
    ///
    /// If loading fails, it is not retried: every line that needs MiniLM gets the same error.
    pub fn with_minilm(load: EncoderLoader) -> Self {
        Self {
            load_minilm: Some(load),
            minilm: OnceCell::new(),
        }
    }

    pub(super) fn named(&self, name: &str) -> Result<&dyn SentenceEncoder, LineError> {
        match name {
            "hash" => Ok(&HashEncoder),
            "minilm" => self.minilm(),
            _ => Err(LineError::WrongType {
                field: "options.encoder".to_owned(),
                expected: "\"minilm\" or \"hash\"",
            }),
        }
    }

    fn minilm(&self) -> Result<&dyn SentenceEncoder, LineError> {
        let unavailable = |reason: &dyn fmt::Display| LineError::NoValue {
            kind: "encoder_unavailable",
            message: format!(
                "the MiniLM encoder is not available: {reason}; set \
                 \"options\": {{\"encoder\": \"hash\"}} to score without weights"
            ),
        };
        let load = self
            .load_minilm
            .as_ref()
            .ok_or_else(|| unavailable(&"no weights are configured"))?;
        match self.minilm.get_or_init(load) {
            Ok(encoder) => Ok(encoder.as_ref()),
            Err(error) => Err(unavailable(error)),
        }
    }
}

impl fmt::Debug for Encoders {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Encoders")
            .field("has_minilm", &self.load_minilm.is_some())
            .field("is_loaded", &self.minilm.get().is_some())
            .finish()
    }
}
