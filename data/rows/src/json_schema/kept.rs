//! Keeps what schemas were compiled to.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::json::{self, Style};

/// Schemas of which the compiled form is kept.
const MAX_KEPT_SCHEMAS: usize = 512;

/// What schemas were compiled to, by their text.
///
/// Data sets have a few hundred schemas, or one per row; the second kind must not fill the memory.
#[derive(Debug)]
pub struct KeptBySchema<T> {
    kept: HashMap<String, Arc<T>>,
}

impl<T> Default for KeptBySchema<T> {
    fn default() -> Self {
        Self {
            kept: HashMap::new(),
        }
    }
}

impl<T> KeptBySchema<T> {
    /// What `compile` made of the schema, now or earlier.
    ///
    /// # Errors
    ///
    /// As `compile`; an error is not kept.
    pub fn of<E>(
        &mut self,
        schema: &Value,
        compile: impl FnOnce(&Value) -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let key = json::dumps(schema, Style::Compact);
        if let Some(kept) = self.kept.get(&key) {
            return Ok(Arc::clone(kept));
        }
        let compiled = Arc::new(compile(schema)?);
        if self.kept.len() >= MAX_KEPT_SCHEMAS {
            self.kept.clear();
        }
        self.kept.insert(key, Arc::clone(&compiled));
        Ok(compiled)
    }
}
