//! Compiles the schemas of rows once per schema.
//!
//! Formats such as `date` are asserted in rows for training, because the model would otherwise be
//! trained on values that violate its schemas. Rows for evaluation may have any value, because
//! published data sets do and published scorers accept it.

use std::sync::Arc;

use serde_json::Value;
use tooltune_json::faults::excerpt;
use tooltune_json::json_schema::{BoundedValidator, FormatRule, SchemaCache};

use super::error::DataError;

/// Compiled schemas by their JSON text.
#[derive(Debug)]
pub(super) struct Validators {
    cache: SchemaCache<BoundedValidator>,
    formats: FormatRule,
}

impl Validators {
    pub(super) fn new(formats: FormatRule) -> Self {
        Self {
            cache: SchemaCache::default(),
            formats,
        }
    }

    /// The validator of the schema at `field`.
    ///
    /// # Errors
    ///
    /// - the schema does not compile, refers to another document, or could require unbounded work
    ///   to validate
    pub(super) fn get_or_compile(
        &mut self,
        field: &str,
        schema: &Value,
    ) -> Result<Arc<BoundedValidator>, DataError> {
        let formats = self.formats;
        self.cache.get_or_compile(schema, |schema| {
            BoundedValidator::with_formats(schema, formats).map_err(|fault| DataError::BadSchema {
                field: field.to_owned(),
                pointer: fault.pointer,
                reason: excerpt(&fault.reason),
            })
        })
    }
}
