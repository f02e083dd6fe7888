//! The schemas of rows as validators, compiled once.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::error::{DataError, excerpt};
use crate::json::{self, Style};
use crate::json_schema::BoundedValidator;

/// Compiled schemas by their text.
#[derive(Debug, Default)]
pub(super) struct Validators {
    kept: HashMap<String, Arc<BoundedValidator>>,
}

/// Data sets have a few hundred schemas, or one per row; the second kind must not fill the memory.
const MAX_KEPT_SCHEMAS: usize = 512;

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
        let key = json::dumps(schema, Style::Compact);
        if let Some(kept) = self.kept.get(&key) {
            return Ok(Arc::clone(kept));
        }
        let validator = BoundedValidator::new(schema).map_err(|fault| DataError::BadSchema {
            field: field.to_owned(),
            pointer: fault.pointer,
            reason: excerpt(&fault.reason),
        })?;
        let validator = Arc::new(validator);
        if self.kept.len() >= MAX_KEPT_SCHEMAS {
            self.kept.clear();
        }
        self.kept.insert(key, Arc::clone(&validator));
        Ok(validator)
    }
}
