//! The schemas of rows as validators, compiled once.

use std::collections::HashMap;
use std::sync::Arc;

use jsonschema::{Draft, Validator};
use serde_json::Value;

use super::error::{DataError, excerpt};
use crate::json::{self, Style};

/// Compiled schemas by their text.
#[derive(Debug, Default)]
pub(super) struct Validators {
    kept: HashMap<String, Arc<Validator>>,
}

/// Data sets have a few hundred schemas, or one per row; the second kind must not fill the memory.
const MAX_KEPT_SCHEMAS: usize = 512;

impl Validators {
    /// The validator of the schema that stands at `field`: 2020-12 unless `$schema` says otherwise,
    /// formats not asserted.
    ///
    /// # Errors
    ///
    /// - the schema does not compile, refers to another document, or could be validated only in
    ///   endless work
    pub(super) fn of(&mut self, field: &str, schema: &Value) -> Result<Arc<Validator>, DataError> {
        let key = json::dumps(schema, Style::Compact);
        if let Some(kept) = self.kept.get(&key) {
            return Ok(Arc::clone(kept));
        }
        let bad = |pointer: String, reason: String| DataError::BadSchema {
            field: field.to_owned(),
            pointer,
            reason,
        };
        if let Some(reason) = json::endless_work(schema) {
            return Err(bad(String::new(), reason));
        }
        let mut options = jsonschema::options().should_validate_formats(false);
        if schema.get("$schema").is_none() {
            options = options.with_draft(Draft::Draft202012);
        }
        let validator = options.build(schema).map(Arc::new).map_err(|error| {
            let pointer = error.instance_path().to_string();
            bad(pointer, excerpt(&error.to_string()))
        })?;
        if self.kept.len() >= MAX_KEPT_SCHEMAS {
            self.kept.clear();
        }
        self.kept.insert(key, Arc::clone(&validator));
        Ok(validator)
    }
}
