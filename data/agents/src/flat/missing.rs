//! The required parts that nested arguments lack.
//!
//! The nested form is checked against the nested schema, since a flat `required` cannot say
//! "a city, if there is an address".

use serde_json::{Map, Value};
use tooltune_rows::budgets::FLAT_BYTES;
use tooltune_rows::json::PathStep;

use super::error::FlatError;
use super::extent::{path_bytes, too_many_bytes};
use super::flatten::FlatSchema;
use super::shape::{allows_null, required_names};

impl FlatSchema {
    /// Paths of required parts that are absent, those of an object before those within its parts.
    ///
    /// What an absent optional object would require is not missing. A `null` where null is not
    /// allowed counts as absent. Branches of unions are not entered.
    ///
    /// # Errors
    ///
    /// - a `required` of the schema is no array of names
    /// - the paths take more than [`FLAT_BYTES`]
    pub fn missing_required(
        &self,
        arguments: &Map<String, Value>,
    ) -> Result<Vec<Vec<PathStep>>, FlatError> {
        let mut search = Search::default();
        search.object(&self.nested, arguments, "")?;
        Ok(search.missing)
    }
}

#[derive(Default)]
struct Search {
    path: Vec<PathStep>,
    missing: Vec<Vec<PathStep>>,
    n_bytes: usize,
}

impl Search {
    fn object(
        &mut self,
        schema: &Value,
        given: &Map<String, Value>,
        pointer: &str,
    ) -> Result<(), FlatError> {
        let properties = schema.get("properties").and_then(Value::as_object);
        let property = |name: &str| properties.and_then(|properties| properties.get(name));
        for name in required_names(schema, pointer)? {
            let is_given = given
                .get(name)
                .is_some_and(|value| !value.is_null() || property(name).is_none_or(allows_null));
            if !is_given {
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
            if let Some(value) = given.get(name) {
                self.path.push(PathStep::Key(name.clone()));
                self.part(schema, value, &format!("{pointer}/properties/{name}"))?;
                self.path.pop();
            }
        }
        Ok(())
    }

    fn part(&mut self, schema: &Value, value: &Value, pointer: &str) -> Result<(), FlatError> {
        match (value, schema.get("items")) {
            (Value::Object(fields), _) => self.object(schema, fields, pointer),
            (Value::Array(items), Some(item_schema @ Value::Object(_))) => {
                for (item_idx, item) in items.iter().enumerate() {
                    self.path.push(PathStep::Index(item_idx));
                    self.part(item_schema, item, &format!("{pointer}/items"))?;
                    self.path.pop();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
