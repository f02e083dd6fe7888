//! Counts the bytes of the places of a JSON Schema's parts.
//!
//! A compiled schema keeps the whole way to each of its keywords, as a pointer and, below an `$id`,
//! as an address: one name of 100,000 bytes above 9,000 properties makes gigabytes of a schema of
//! 300,000 bytes.

use serde_json::Value;

use super::SchemaFault;
use crate::budgets::SCHEMA_PLACE_BYTES;

/// # Errors
///
/// - the ways to the parts of the schema take more than [`SCHEMA_PLACE_BYTES`]
pub(super) fn must_have_short_places(schema: &Value) -> Result<(), SchemaFault> {
    let mut n_bytes = 0;
    let mut left = vec![(schema, 0)];
    while let Some((value, above)) = left.pop() {
        match value {
            Value::Array(items) => {
                // Numbers and texts in a list are no schemas and have no place of their own.
                let parts = items
                    .iter()
                    .filter(|item| item.is_object() || item.is_array());
                let above_items = left.len();
                left.extend(parts.map(|part| (part, above + INDEX_BYTES)));
                n_bytes += (left.len() - above_items) * (above + INDEX_BYTES);
            }
            Value::Object(fields) => {
                let id = fields.get("$id").and_then(Value::as_str);
                let above = above + id.map_or(0, str::len);
                for (key, field) in fields {
                    let place = above + 1 + key.len();
                    n_bytes += place;
                    left.push((field, place));
                }
            }
            _ => {}
        }
        if n_bytes > SCHEMA_PLACE_BYTES {
            return Err(SchemaFault {
                pointer: String::new(),
                reason: format!(
                    "the places of its parts take more than {} MiB (SCHEMA_PLACE_BYTES in \
                     docs/limits.md), because long names stand above many parts; shorten the names",
                    SCHEMA_PLACE_BYTES >> 20
                ),
            });
        }
    }
    Ok(())
}

/// Bytes of a position in a list, with the slash before it.
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
    fn a_long_name_above_many_parts_is_refused_wherever_it_stands() {
        let long = "a".repeat(100_000);
        for schema in [
            json!({"properties": {long.clone(): {"properties": properties(9_000)}}}),
            json!({"$defs": {long.clone(): {"properties": properties(9_000)}}}),
            json!({"$id": format!("http://x/{long}"), "properties": properties(9_000)}),
            json!({"properties": {long.clone(): {"anyOf": vec![json!({"minLength": 1}); 9_000]}}}),
        ] {
            let fault = must_have_short_places(&schema).expect_err("gigabytes");
            assert!(fault.reason.contains("64 MiB"), "{}", fault.reason);
        }
    }

    #[test]
    fn many_parts_and_long_names_are_fine_apart_from_each_other() {
        let long = "a".repeat(100_000);
        for schema in [
            json!({"properties": properties(100_000)}),
            json!({"properties": {long.clone(): {"type": "integer"}}}),
            json!({"properties": {long: {"enum": vec!["b"; 100_000]}}}),
        ] {
            assert_eq!(must_have_short_places(&schema), Ok(()));
        }
    }
}
