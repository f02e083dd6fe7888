//! Converts arguments between the nested and the flat form.
//!
//! Both directions walk the same tree, with flat names in leaf order. An unknown key in either form
//! is an error, because the other form cannot represent it. A `null` for a part that cannot be null
//! is treated as missing, because models write it for "not given".

use serde_json::{Map, Value};
use tooltune_apis::did_you_mean;
use tooltune_json::PathStep;
use tooltune_json::kind_of;

use super::error::{FlatError, path_text};
use super::flatten::FlatSchema;
use super::shape::{Field, Shape};

impl FlatSchema {
    /// Flattens nested arguments, in document order.
    ///
    /// Empty objects and lists have no flat form and are omitted; [`FlatSchema::round_trips`]
    /// detects this.
    ///
    /// # Errors
    ///
    /// - a key is not declared in the schema
    /// - an object, list or scalar does not match the schema
    /// - a list has more items than slots
    pub fn flatten_arguments(
        &self,
        arguments: &Map<String, Value>,
    ) -> Result<Map<String, Value>, FlatError> {
        let mut walk = Flattening {
            flat_schema: self,
            next_leaf: 0,
            path: Vec::new(),
            flat: Map::new(),
        };
        walk.fields(&self.fields, Some(arguments))?;
        Ok(walk.flat)
    }

    /// Nests flat arguments, in document order.
    ///
    /// An object or item without any leaf is absent. Unused slots are skipped, so a list with
    /// values only in its second slot has one item.
    ///
    /// # Errors
    ///
    /// A name is not in the mapping, for example a slot number that is too high.
    pub fn unflatten_arguments(
        &self,
        arguments: &Map<String, Value>,
    ) -> Result<Map<String, Value>, FlatError> {
        let unknown = arguments
            .keys()
            .find(|name| !self.by_name.contains_key(*name));
        if let Some(name) = unknown {
            let leaf_names = self.leaves.iter().map(|leaf| leaf.name.as_str());
            return Err(FlatError::UnknownKey {
                name: name.clone(),
                hint: did_you_mean(name, leaf_names),
            });
        }
        let mut walk = Unflattening {
            flat_schema: self,
            next_leaf: 0,
            flat: arguments,
        };
        Ok(walk.fields(&self.fields))
    }

    /// Whether nested arguments survive flattening and unflattening unchanged, ignoring key order.
    ///
    /// Empty objects, empty lists of objects, and nulls that count as missing do not survive.
    ///
    /// # Errors
    ///
    /// As for [`FlatSchema::flatten_arguments`].
    pub fn round_trips(&self, arguments: &Map<String, Value>) -> Result<bool, FlatError> {
        let flat = self.flatten_arguments(arguments)?;
        Ok(self.unflatten_arguments(&flat)? == *arguments)
    }

    /// Length of the longest list of objects in nested arguments, which is the number of slots that
    /// they need.
    ///
    /// The result does not depend on this schema's own number of slots, unless that number is zero.
    pub fn longest_list(&self, arguments: &Map<String, Value>) -> usize {
        longest_list(&self.fields, arguments)
    }
}

/// Arguments as an object.
///
/// # Errors
///
/// The arguments are not an object.
pub(super) fn as_arguments(value: &Value) -> Result<&Map<String, Value>, FlatError> {
    value.as_object().ok_or_else(|| FlatError::NotAnObject {
        found: kind_of(value),
    })
}

struct Flattening<'s> {
    flat_schema: &'s FlatSchema,
    /// Index of the next leaf; the walk visits them in order.
    next_leaf: usize,
    path: Vec<PathStep>,
    flat: Map<String, Value>,
}

impl Flattening<'_> {
    /// Walks the fields of an object. If the object is absent, all their leaves are skipped.
    fn fields(
        &mut self,
        fields: &[Field],
        arguments: Option<&Map<String, Value>>,
    ) -> Result<(), FlatError> {
        let keys = arguments.into_iter().flat_map(Map::keys);
        for key in keys {
            if fields.iter().all(|field| field.name != *key) {
                self.path.push(PathStep::Key(key.clone()));
                let field_names = fields.iter().map(|field| field.name.as_str());
                return Err(FlatError::UnknownPath {
                    path: path_text(&self.path),
                    reason: format!(
                        "not declared in the schema; remove or declare it{}",
                        did_you_mean(key, field_names)
                    ),
                });
            }
        }
        for field in fields {
            self.path.push(PathStep::Key(field.name.clone()));
            self.flatten_part(
                &field.shape,
                arguments.and_then(|arguments| arguments.get(&field.name)),
            )?;
            self.path.pop();
        }
        Ok(())
    }

    fn flatten_part(&mut self, shape: &Shape, value: Option<&Value>) -> Result<(), FlatError> {
        match shape {
            Shape::Leaf(_) => {
                self.flatten_leaf(value);
                Ok(())
            }
            Shape::Object(fields) => match value {
                None | Some(Value::Null) => self.fields(fields, None),
                Some(Value::Object(value)) => self.fields(fields, Some(value)),
                Some(other) => Err(self.wrong_shape(other, "an object")),
            },
            Shape::List { item, n_slots, .. } => self.flatten_list(item, *n_slots, value),
        }
    }

    fn flatten_leaf(&mut self, scalar: Option<&Value>) {
        let leaf = self.flat_schema.leaves.get(self.next_leaf);
        self.next_leaf += 1;
        let (Some(leaf), Some(value)) = (leaf, scalar) else {
            return;
        };
        if leaf.allows_null || !value.is_null() {
            self.flat.insert(leaf.name.clone(), value.clone());
        }
    }

    fn flatten_list(
        &mut self,
        item: &[Field],
        n_slots: usize,
        value: Option<&Value>,
    ) -> Result<(), FlatError> {
        let items: &[Value] = match value {
            None | Some(Value::Null) => &[],
            Some(Value::Array(items)) => items,
            Some(other) => return Err(self.wrong_shape(other, "a list of objects")),
        };
        if items.len() > n_slots {
            return Err(FlatError::TooManyItems {
                path: path_text(&self.path),
                n_items: items.len(),
                n_slots,
            });
        }
        for slot in 0..n_slots {
            self.path.push(PathStep::Index(slot));
            match items.get(slot) {
                None => self.fields(item, None)?,
                Some(Value::Object(value)) => self.fields(item, Some(value))?,
                Some(other) => return Err(self.wrong_shape(other, "an object")),
            }
            self.path.pop();
        }
        Ok(())
    }

    fn wrong_shape(&self, actual: &Value, expected: &str) -> FlatError {
        FlatError::UnknownPath {
            path: path_text(&self.path),
            reason: format!("found {}, expected {expected}", kind_of(actual)),
        }
    }
}

struct Unflattening<'s> {
    flat_schema: &'s FlatSchema,
    next_leaf: usize,
    flat: &'s Map<String, Value>,
}

impl Unflattening<'_> {
    fn fields(&mut self, fields: &[Field]) -> Map<String, Value> {
        let mut nested = Map::new();
        for field in fields {
            let value = match &field.shape {
                Shape::Leaf(_) => self.flatten_leaf(),
                Shape::Object(fields) => {
                    let object = self.fields(fields);
                    (!object.is_empty()).then_some(Value::Object(object))
                }
                Shape::List { item, n_slots, .. } => {
                    let items: Vec<Value> = (0..*n_slots)
                        .map(|_| self.fields(item))
                        .filter(|item| !item.is_empty())
                        .map(Value::Object)
                        .collect();
                    (!items.is_empty()).then_some(Value::Array(items))
                }
            };
            if let Some(value) = value {
                nested.insert(field.name.clone(), value);
            }
        }
        nested
    }

    fn flatten_leaf(&mut self) -> Option<Value> {
        let leaf = self.flat_schema.leaves.get(self.next_leaf)?;
        self.next_leaf += 1;
        let value = self.flat.get(&leaf.name)?;
        (leaf.allows_null || !value.is_null()).then(|| value.clone())
    }
}

fn longest_list(fields: &[Field], arguments: &Map<String, Value>) -> usize {
    let lengths = fields
        .iter()
        .map(|field| match (&field.shape, arguments.get(&field.name)) {
            (Shape::Object(fields), Some(Value::Object(arguments))) => {
                longest_list(fields, arguments)
            }
            (Shape::List { item, .. }, Some(Value::Array(items))) => {
                let objects = items.iter().filter_map(Value::as_object);
                let nested_lengths = objects.map(|arguments| longest_list(item, arguments));
                nested_lengths.max().unwrap_or(0).max(items.len())
            }
            _ => 0,
        });
    lengths.max().unwrap_or(0)
}
