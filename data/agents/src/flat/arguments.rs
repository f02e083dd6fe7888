//! Brings arguments from the nested form to the flat one and back.
//!
//! Both directions walk the same tree, the flat names in the order of the leaves. What neither
//! form can hold is said, not guessed: an unknown key is an error in both, while `null` for a part
//! that cannot be null counts as absent, since models write it for "not given".

use serde_json::{Map, Value};
use tooltune_rows::json::PathStep;
use tooltune_rows::tools::{did_you_mean, kind_of};

use super::error::{FlatError, shown_path};
use super::flatten::FlatSchema;
use super::shape::{Field, Shape};

impl FlatSchema {
    /// Nested arguments to flat ones, in document order.
    ///
    /// An empty object or list has no flat form and is left out; [`FlatSchema::survives`] tells.
    ///
    /// # Errors
    ///
    /// - a key that the schema does not declare
    /// - an object, a list or a scalar where the schema has another of them
    /// - a list with more items than slots
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

    /// Flat arguments to nested ones, in document order.
    ///
    /// An object or item without any leaf is absent; slots left out in between are closed up, so
    /// a list that only its second slot describes has one item.
    ///
    /// # Errors
    ///
    /// - a name that the mapping does not have, that of a slot beyond the last included
    pub fn unflatten_arguments(
        &self,
        arguments: &Map<String, Value>,
    ) -> Result<Map<String, Value>, FlatError> {
        let unknown = arguments
            .keys()
            .find(|name| !self.by_name.contains_key(*name));
        if let Some(name) = unknown {
            let known = self.leaves.iter().map(|leaf| leaf.name.as_str());
            return Err(FlatError::UnknownKey {
                name: name.clone(),
                hint: did_you_mean(name, known),
            });
        }
        let mut walk = Unflattening {
            flat_schema: self,
            next_leaf: 0,
            flat: arguments,
        };
        Ok(walk.fields(&self.fields))
    }

    /// Whether nested arguments come back unchanged from their flat form, key order aside.
    ///
    /// Empty objects, empty lists of objects, and nulls that count as absent do not.
    ///
    /// # Errors
    ///
    /// - those of [`FlatSchema::flatten_arguments`]
    pub fn survives(&self, arguments: &Map<String, Value>) -> Result<bool, FlatError> {
        let flat = self.flatten_arguments(arguments)?;
        Ok(self.unflatten_arguments(&flat)? == *arguments)
    }

    /// The length of the longest list of objects in nested arguments: the slots that they need.
    ///
    /// It does not depend on the slots of this flat schema, as long as it has some.
    pub fn longest_list(&self, arguments: &Map<String, Value>) -> usize {
        longest_list(&self.fields, arguments)
    }
}

/// Arguments that must be an object.
///
/// # Errors
///
/// - they are none
pub(super) fn as_arguments(value: &Value) -> Result<&Map<String, Value>, FlatError> {
    value.as_object().ok_or_else(|| FlatError::NotAnObject {
        found: kind_of(value),
    })
}

struct Flattening<'s> {
    flat_schema: &'s FlatSchema,
    /// Position of the next leaf of the walk, which meets them in their order.
    next_leaf: usize,
    path: Vec<PathStep>,
    flat: Map<String, Value>,
}

impl Flattening<'_> {
    /// Walks the fields of an object; without one all their leaves are passed over.
    fn fields(
        &mut self,
        fields: &[Field],
        given: Option<&Map<String, Value>>,
    ) -> Result<(), FlatError> {
        let keys = given.into_iter().flat_map(Map::keys);
        for key in keys {
            if fields.iter().all(|field| field.name != *key) {
                self.path.push(PathStep::Key(key.clone()));
                let known = fields.iter().map(|field| field.name.as_str());
                return Err(FlatError::UnknownPath {
                    path: shown_path(&self.path),
                    reason: format!(
                        "the schema does not declare it{}; remove it or declare it",
                        did_you_mean(key, known)
                    ),
                });
            }
        }
        for field in fields {
            self.path.push(PathStep::Key(field.name.clone()));
            self.part(&field.shape, given.and_then(|given| given.get(&field.name)))?;
            self.path.pop();
        }
        Ok(())
    }

    fn part(&mut self, shape: &Shape, given: Option<&Value>) -> Result<(), FlatError> {
        match shape {
            Shape::Leaf(_) => {
                self.leaf(given);
                Ok(())
            }
            Shape::Object(fields) => match given {
                None | Some(Value::Null) => self.fields(fields, None),
                Some(Value::Object(given)) => self.fields(fields, Some(given)),
                Some(other) => Err(self.wrong_shape(other, "an object")),
            },
            Shape::List { item, n_slots, .. } => self.list(item, *n_slots, given),
        }
    }

    fn leaf(&mut self, given: Option<&Value>) {
        let leaf = self.flat_schema.leaves.get(self.next_leaf);
        self.next_leaf += 1;
        let (Some(leaf), Some(value)) = (leaf, given) else {
            return;
        };
        if leaf.allows_null || !value.is_null() {
            self.flat.insert(leaf.name.clone(), value.clone());
        }
    }

    fn list(
        &mut self,
        item: &[Field],
        n_slots: usize,
        given: Option<&Value>,
    ) -> Result<(), FlatError> {
        let items: &[Value] = match given {
            None | Some(Value::Null) => &[],
            Some(Value::Array(items)) => items,
            Some(other) => return Err(self.wrong_shape(other, "a list of objects")),
        };
        if items.len() > n_slots {
            return Err(FlatError::TooManyItems {
                path: shown_path(&self.path),
                n_items: items.len(),
                n_slots,
            });
        }
        for slot in 0..n_slots {
            self.path.push(PathStep::Index(slot));
            match items.get(slot) {
                None => self.fields(item, None)?,
                Some(Value::Object(given)) => self.fields(item, Some(given))?,
                Some(other) => return Err(self.wrong_shape(other, "an object")),
            }
            self.path.pop();
        }
        Ok(())
    }

    fn wrong_shape(&self, found: &Value, expected: &str) -> FlatError {
        FlatError::UnknownPath {
            path: shown_path(&self.path),
            reason: format!("it is {}, where the schema has {expected}", kind_of(found)),
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
                Shape::Leaf(_) => self.leaf(),
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

    fn leaf(&mut self) -> Option<Value> {
        let leaf = self.flat_schema.leaves.get(self.next_leaf)?;
        self.next_leaf += 1;
        let value = self.flat.get(&leaf.name)?;
        (leaf.allows_null || !value.is_null()).then(|| value.clone())
    }
}

fn longest_list(fields: &[Field], given: &Map<String, Value>) -> usize {
    let lengths = fields
        .iter()
        .map(|field| match (&field.shape, given.get(&field.name)) {
            (Shape::Object(fields), Some(Value::Object(given))) => longest_list(fields, given),
            (Shape::List { item, .. }, Some(Value::Array(items))) => {
                let objects = items.iter().filter_map(Value::as_object);
                let within = objects.map(|given| longest_list(item, given));
                within.max().unwrap_or(0).max(items.len())
            }
            _ => 0,
        });
    lengths.max().unwrap_or(0)
}
