//! The flattener from the post named in [`crate::flat`], unchanged, for comparison.

use crate::budgets::FLAT_BYTES;
use serde_json::{Map, Value, json};

use super::error::FlatError;
use super::extent::too_many_bytes;

/// Maximum nesting depth, equal to the limit of JSON texts.
const MAX_LEVELS: usize = tooltune_json::MAX_LEVELS;

/// Flattens only objects, with names joined by `_`.
///
/// It drops `required`, overwrites colliding names, loses objects with empty `properties`, and
/// leaves lists and references unchanged. [`FlatSchema`](super::FlatSchema) has none of these
/// defects.
///
/// # Errors
///
/// - a property is not described by an object (the post's code would also fail)
/// - the schema is too deep, or its names take more than [`FLAT_BYTES`]
pub fn flatten_minimal(schema: &Value) -> Result<Value, FlatError> {
    let mut flat = Flat::default();
    collect(schema, "", 0, &mut flat)?;
    Ok(json!({"type": "object", "properties": flat.properties}))
}

#[derive(Default)]
struct Flat {
    properties: Map<String, Value>,
    name_bytes: usize,
}

fn collect(schema: &Value, prefix: &str, level: usize, flat: &mut Flat) -> Result<(), FlatError> {
    if level > MAX_LEVELS {
        return Err(FlatError::TooDeep {
            pointer: prefix.to_owned(),
            max: MAX_LEVELS,
        });
    }
    let properties = match schema.get("properties") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(properties)) => properties,
        Some(_) => {
            return Err(FlatError::BadSchema {
                pointer: prefix.to_owned(),
                reason: "properties must be an object",
            });
        }
    };
    for (key, property) in properties {
        let name = if prefix.is_empty() {
            key.clone()
        } else {
            format!("{prefix}_{key}")
        };
        flat.name_bytes += name.len();
        if flat.name_bytes > FLAT_BYTES {
            return Err(too_many_bytes());
        }
        let Value::Object(keywords) = property else {
            return Err(FlatError::BadSchema {
                pointer: name,
                reason: "a property must be described by an object",
            });
        };
        let is_object = keywords.get("type").is_some_and(|kind| kind == "object");
        if is_object && keywords.get("properties").is_some_and(|p| !p.is_null()) {
            collect(property, &name, level + 1, flat)?;
        } else {
            flat.properties.insert(name, property.clone());
        }
    }
    Ok(())
}
