//! Flattens a nested schema, and keeps the mapping between the two forms.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tooltune_json::PathStep;

use super::error::FlatError;
use super::inline::inline_references;
use super::names::{OnCollision, flat_names};
use super::shape::{Field, allows_null, placed_leaves, root_fields};

/// Options for flattening a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlattenOptions {
    /// Separator between the steps of a path in a name.
    pub separator: String,
    /// Number of copies of the item schema of a list of objects, at most its `maxItems`; 0 leaves
    /// such lists nested.
    pub slots: usize,
    /// Treatment of colliding names.
    pub on_collision: OnCollision,
}

impl Default for FlattenOptions {
    fn default() -> Self {
        Self {
            separator: "_".to_owned(),
            slots: 1,
            on_collision: OnCollision::default(),
        }
    }
}

/// A flat schema with its mapping.
#[derive(Debug, Clone)]
pub struct FlatSchema {
    pub(super) schema: Value,
    /// The nested schema without references.
    pub(super) nested: Value,
    pub(super) fields: Vec<Field>,
    pub(super) leaves: Vec<FlatLeaf>,
    /// Index of a leaf by its flat name.
    pub(super) by_name: HashMap<String, usize>,
}

/// A property of the flat schema.
#[derive(Debug, Clone)]
pub(super) struct FlatLeaf {
    pub(super) name: String,
    pub(super) path: Vec<PathStep>,
    pub(super) allows_null: bool,
}

impl FlatSchema {
    /// Flattens a schema that describes an object.
    ///
    /// - An object is flattened if its type is exactly `"object"`, it declares properties, has no
    ///   `patternProperties`, and its `additionalProperties` is absent or false.
    /// - A list of such objects becomes numbered copies, see [`FlattenOptions::slots`].
    /// - Everything else is a leaf and is unchanged, except that local references are replaced by
    ///   their targets. Descriptions of flattened objects are dropped; none are generated.
    /// - A leaf is required if every step to it is required. Slot `i` of a list is required if
    ///   `minItems` is above `i`.
    ///
    /// # Errors
    ///
    /// - a reference is recursive, has no target, or points outside the schema
    /// - the schema does not describe an object
    /// - a part of it is malformed, contradicts another, or is too deep or too large
    /// - names collide and [`OnCollision::Error`] is set
    pub fn new(schema: &Value, options: &FlattenOptions) -> Result<Self, FlatError> {
        let nested = inline_references(schema)?;
        let fields = root_fields(&nested, options.slots)?;
        let leaves_with_paths = placed_leaves(&fields, &options.separator)?;
        let names = flat_names(&leaves_with_paths, &options.separator, options.on_collision)?;
        let mut properties = Map::new();
        let mut required = Vec::new();
        let mut leaves = Vec::with_capacity(leaves_with_paths.len());
        for (leaf, name) in leaves_with_paths.into_iter().zip(names) {
            properties.insert(name.clone(), leaf.schema.clone());
            if leaf.is_required {
                required.push(name.clone());
            }
            leaves.push(FlatLeaf {
                name,
                allows_null: allows_null(leaf.schema),
                path: leaf.path,
            });
        }
        let mut schema = json!({"type": "object", "properties": properties});
        if let (Some(schema), false) = (schema.as_object_mut(), required.is_empty()) {
            schema.insert("required".to_owned(), required.into());
        }
        let by_name = leaves.iter().enumerate();
        let by_name = by_name.map(|(leaf_idx, leaf)| (leaf.name.clone(), leaf_idx));
        Ok(Self {
            by_name: by_name.collect(),
            schema,
            nested,
            fields,
            leaves,
        })
    }

    /// The flat schema: `type`, `properties` in document order, and `required` if anything is
    /// required.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Each flat name with its path in the nested arguments, in document order.
    pub fn mapping(&self) -> impl ExactSizeIterator<Item = (&str, &[PathStep])> {
        let leaves = self.leaves.iter();
        leaves.map(|leaf| (leaf.name.as_str(), leaf.path.as_slice()))
    }
}
