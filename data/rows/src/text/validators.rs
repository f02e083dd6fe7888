//! The schemas of rows as validators, compiled once.

use std::sync::Arc;

use serde_json::Value;

use super::error::DataError;
use crate::faults::excerpt;
use crate::json_schema::{BoundedValidator, KeptBySchema};

/// Compiled schemas by their text.
#[derive(Debug, Default)]
pub(super) struct Validators {
    kept: KeptBySchema<BoundedValidator>,
}

impl Validators {
    /// The validator of the schema that stands at `field`.
    ///
    /// # Errors
    ///
    /// - the schema does not compile, refers to another document, or could be validated only in
    ///   endless work
    pub(super) fn of(
        &mut self,
        field: &str,
        schema: &Value,
    ) -> Result<Arc<BoundedValidator>, DataError> {
        self.kept.of(schema, |schema| {
            BoundedValidator::new(schema).map_err(|fault| DataError::BadSchema {
                field: field.to_owned(),
                pointer: fault.pointer,
                reason: excerpt(&fault.reason),
            })
        })
    }
}
