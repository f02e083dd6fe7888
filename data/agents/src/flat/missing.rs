//! Finds the required parts that are missing in nested arguments.
//!
//! The check uses the nested form, because a flat `required` cannot express "a city is required if
//! there is an address".

use crate::budgets::FLAT_BYTES;
use serde_json::{Map, Value};
use tooltune_json::PathStep;

use super::error::FlatError;
use super::extent::{path_bytes, too_many_bytes};
use super::flatten::FlatSchema;
use super::shape::{allows_null, required_names};

impl FlatSchema {
    /// Paths of the missing required parts; an object comes before its parts.
    ///
    /// Parts of an absent optional object are not missing. A disallowed `null` counts as missing.
    /// Branches of unions are not checked.
    ///
    /// # Errors
    ///
    /// - a `required` keyword is not an array of names
    /// - the paths take more than [`FLAT_BYTES`]
    pub fn missing_required(
        &self,
        arguments: &Map<String, Value>,
    ) -> Result<Vec<Vec<PathStep>>, FlatError> {
        let mut search = RequiredSearch::default();
        search.check_object(&self.nested, arguments, "")?;
        Ok(search.missing)
    }
}

#[derive(Default)]
struct RequiredSearch {
    path: Vec<PathStep>,
    missing: Vec<Vec<PathStep>>,
    n_bytes: usize,
}

impl RequiredSearch {
    fn check_object(
        &mut self,
        schema: &Value,
        arguments: &Map<String, Value>,
        pointer: &str,
    ) -> Result<(), FlatError> {
        let properties = schema.get("properties").and_then(Value::as_object);
        let property = |name: &str| properties.and_then(|properties| properties.get(name));
        for name in required_names(schema, pointer)? {
            let is_present = arguments
                .get(name)
                .is_some_and(|value| !value.is_null() || property(name).is_none_or(allows_null));
            if !is_present {
                self.n_bytes += path_bytes(&self.path) + name.len();
                if self.n_bytes > FLAT_BYTES {
                    return Err(too_many_bytes());
                }
                let mut path = self.path.clone();
                path.push(PathStep::Key(name.to_owned()));
                self.missing.push(path);
            }
        }
        for (name, schema) in properties.into_iter().flatten() {
            if let Some(value) = arguments.get(name) {
                self.path.push(PathStep::Key(name.clone()));
                self.check_part(schema, value, &format!("{pointer}/properties/{name}"))?;
                self.path.pop();
            }
        }
        Ok(())
    }

    fn check_part(
        &mut self,
        schema: &Value,
        value: &Value,
        pointer: &str,
    ) -> Result<(), FlatError> {
        match (value, schema.get("items")) {
            (Value::Object(fields), _) => self.check_object(schema, fields, pointer),
            (Value::Array(items), Some(item_schema @ Value::Object(_))) => {
                for (item_idx, item) in items.iter().enumerate() {
                    self.path.push(PathStep::Index(item_idx));
                    self.check_part(item_schema, item, &format!("{pointer}/items"))?;
                    self.path.pop();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
