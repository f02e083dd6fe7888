//! Counts the bytes of the paths to all subschemas of a JSON Schema.
//!
//! A compiled schema stores the whole path to each keyword as a JSON pointer. Below an `$id`, it
//! also stores the path as a URI. One name of 100,000 bytes above 9,000 properties turns a schema
//! of 300,000 bytes into gigabytes.

use serde_json::Value;

use super::SchemaFault;
use crate::budgets::SCHEMA_PLACE_BYTES;

/// Checks the total size of the paths.
///
/// # Errors
///
/// - the paths take more than [`SCHEMA_PLACE_BYTES`]
pub(super) fn check_path_sizes(schema: &Value) -> Result<(), SchemaFault> {
    let mut n_bytes = 0;
    let mut pending = vec![(schema, 0)];
    while let Some((value, parent_bytes)) = pending.pop() {
        match value {
            Value::Array(items) => {
                // Numbers and strings in a list are not schemas, so the validator stores no path
                // for them.
                let parts = items
                    .iter()
                    .filter(|item| item.is_object() || item.is_array());
                let above_items = pending.len();
                pending.extend(parts.map(|part| (part, parent_bytes + INDEX_BYTES)));
                n_bytes += (pending.len() - above_items) * (parent_bytes + INDEX_BYTES);
            }
            Value::Object(fields) => {
                let id = fields.get("$id").and_then(Value::as_str);
                let parent_bytes = parent_bytes + id.map_or(0, str::len);
                for (key, field) in fields {
                    let path_bytes = parent_bytes + 1 + key.len();
                    n_bytes += path_bytes;
                    pending.push((field, path_bytes));
                }
            }
            _ => {}
        }
        if n_bytes > SCHEMA_PLACE_BYTES {
            return Err(SchemaFault {
                pointer: String::new(),
                reason: format!(
                    "the paths to its subschemas take more than {} MiB (SCHEMA_PLACE_BYTES in \
                     docs/limits.md), because long names enclose many subschemas; shorten \
                     them",
                    SCHEMA_PLACE_BYTES >> 20
                ),
            });
        }
    }
    Ok(())
}

/// Bytes of a list index and the slash before it.
const INDEX_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    fn properties(n: usize) -> Value {
        let property = |i| (format!("p{i}"), json!({"type": "integer"}));
        Value::Object((0..n).map(property).collect::<Map<String, Value>>())
    }

    #[test]
    fn a_long_name_above_many_subschemas_is_rejected_anywhere() {
        let long = "a".repeat(100_000);
        for schema in [
            json!({"properties": {long.clone(): {"properties": properties(9_000)}}}),
            json!({"$defs": {long.clone(): {"properties": properties(9_000)}}}),
            json!({"$id": format!("http://x/{long}"), "properties": properties(9_000)}),
            json!({"properties": {long.clone(): {"anyOf": vec![json!({"minLength": 1}); 9_000]}}}),
        ] {
            let fault = check_path_sizes(&schema).expect_err("gigabytes");
            assert!(fault.reason.contains("64 MiB"), "{}", fault.reason);
        }
    }

    #[test]
    fn many_subschemas_or_long_names_alone_are_accepted() {
        let long = "a".repeat(100_000);
        for schema in [
            json!({"properties": properties(100_000)}),
            json!({"properties": {long.clone(): {"type": "integer"}}}),
            json!({"properties": {long: {"enum": vec!["b"; 100_000]}}}),
        ] {
            assert_eq!(check_path_sizes(&schema), Ok(()));
        }
    }
}
