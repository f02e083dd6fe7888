//! Caches compiled schemas.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::Style;

/// Maximum number of cached schemas.
const MAX_CACHED_SCHEMAS: usize = 512;

/// Compiled schemas by their text.
///
/// A data set has either a few hundred schemas or one per row, which must not fill the memory.
#[derive(Debug)]
pub struct SchemaCache<T> {
    schemas: HashMap<String, Arc<T>>,
}

impl<T> Default for SchemaCache<T> {
    fn default() -> Self {
        Self {
            schemas: HashMap::new(),
        }
    }
}

impl<T> SchemaCache<T> {
    /// Returns the compiled schema, from the cache or by calling `compile`.
    ///
    /// # Errors
    ///
    /// As `compile`; errors are not cached.
    pub fn get_or_compile<E>(
        &mut self,
        schema: &Value,
        compile: impl FnOnce(&Value) -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let key = crate::dumps(schema, Style::Compact);
        if let Some(cached) = self.schemas.get(&key) {
            return Ok(Arc::clone(cached));
        }
        let compiled = Arc::new(compile(schema)?);
        if self.schemas.len() >= MAX_CACHED_SCHEMAS {
            self.schemas.clear();
        }
        self.schemas.insert(key, Arc::clone(&compiled));
        Ok(compiled)
    }
}
