//! A value's keys put into the order in which its JSON Schema declares them.
//!
//! The order of a training target must not depend on how a data set happened to be written:
//! the schema is in the prompt, so its order is the only one that the model can know.
//! Among the branches of `anyOf` or `oneOf` the one that declares most of the object's keys
//! speaks for it; a full validation would cost more and order the same in practice.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Returns `gold` with the keys of every object in the order of the schema's `properties`.
///
/// Nested objects, array items (`items`, `prefixItems`), values under `additionalProperties`,
/// `allOf`, `anyOf`, `oneOf` and local references (`#/$defs/...`, or any pointer into the same
/// schema) are followed. Keys that the schema does not declare come after the declared ones, in
/// their own order. Values are never changed, and a reference that leads nowhere orders nothing.
pub fn in_schema_order(gold: &Value, schema: &Value) -> Value {
    Orderer { root: schema }.ordered(gold, &[schema])
}

struct Orderer<'s> {
    root: &'s Value,
}

impl<'s> Orderer<'s> {
    fn ordered(&self, value: &Value, schemas: &[&'s Value]) -> Value {
        let schemas = self.expanded(schemas, value);
        match value {
            Value::Object(fields) => Value::Object(self.ordered_fields(fields, &schemas)),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .map(|(item_idx, item)| self.ordered(item, &item_schemas(&schemas, item_idx)))
                .collect(),
            scalar => scalar.clone(),
        }
    }

    fn ordered_fields(
        &self,
        fields: &Map<String, Value>,
        schemas: &[&'s Value],
    ) -> Map<String, Value> {
        let declared = schemas.iter().filter_map(|schema| properties(schema));
        let declared_keys = declared
            .flat_map(Map::keys)
            .filter(|key| fields.contains_key(*key));
        let mut ordered = Map::new();
        for key in declared_keys.chain(fields.keys()) {
            if ordered.contains_key(key) {
                continue;
            }
            let field = self.ordered(&fields[key], &field_schemas(schemas, key));
            ordered.insert(key.clone(), field);
        }
        ordered
    }

    /// The schemas that speak for `value`: references resolved, combinators opened.
    fn expanded(&self, schemas: &[&'s Value], value: &Value) -> Vec<&'s Value> {
        let mut expanded = Vec::new();
        let mut seen = HashSet::new();
        let mut queue: Vec<&'s Value> = schemas.iter().rev().copied().collect();
        while let Some(schema) = queue.pop() {
            // A reference may lead back to itself.
            if !seen.insert(std::ptr::from_ref(schema)) {
                continue;
            }
            expanded.push(schema);
            let mut next = Vec::new();
            next.extend(self.reference_target(schema));
            next.extend(branches(schema, "allOf"));
            next.extend(self.best_branch(schema, "anyOf", value));
            next.extend(self.best_branch(schema, "oneOf", value));
            queue.extend(next.into_iter().rev());
        }
        expanded
    }

    fn reference_target(&self, schema: &'s Value) -> Option<&'s Value> {
        let reference = schema.get("$ref")?.as_str()?;
        self.root.pointer(reference.strip_prefix('#')?)
    }

    fn best_branch(&self, schema: &'s Value, keyword: &str, value: &Value) -> Option<&'s Value> {
        let n_declared = |branch: &&'s Value| {
            let target = self.reference_target(branch).unwrap_or(branch);
            let fields = value.as_object().into_iter().flat_map(Map::keys);
            let n_known = properties(target).map_or(0, |known| {
                fields.filter(|key| known.contains_key(*key)).count()
            });
            // An array has no keys to count; the branch that describes items fits it.
            n_known + usize::from(value.is_array() && target.get("items").is_some())
        };
        // `max_by_key` takes the last of equals; the first branch is the natural choice.
        branches(schema, keyword).rev().max_by_key(n_declared)
    }
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

fn branches<'s>(
    schema: &'s Value,
    keyword: &str,
) -> impl DoubleEndedIterator<Item = &'s Value> + use<'s> {
    schema
        .get(keyword)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn field_schemas<'s>(schemas: &[&'s Value], key: &str) -> Vec<&'s Value> {
    schemas
        .iter()
        .filter_map(|schema| {
            let declared = properties(schema).and_then(|known| known.get(key));
            declared.or_else(|| schema.get("additionalProperties"))
        })
        .collect()
}

fn item_schemas<'s>(schemas: &[&'s Value], item_idx: usize) -> Vec<&'s Value> {
    schemas
        .iter()
        .filter_map(|schema| {
            let tuple = schema.get("prefixItems").or_else(|| schema.get("items"));
            let positional = tuple
                .and_then(Value::as_array)
                .and_then(|all| all.get(item_idx));
            positional.or_else(|| schema.get("items"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::in_schema_order;
    use serde_json::{Value, json};

    fn ordered(gold: &str, schema: Value) -> String {
        let gold: Value = serde_json::from_str(gold).expect("valid gold");
        in_schema_order(&gold, &schema).to_string()
    }

    #[test]
    fn keys_follow_the_schema_and_undeclared_ones_come_after_in_their_own_order() {
        let schema = json!({"properties": {"name": {}, "near": {}, "area": {}}});
        assert_eq!(
            ordered(r#"{"z":1,"area":2,"y":3,"name":4}"#, schema),
            r#"{"name":4,"area":2,"z":1,"y":3}"#
        );
    }

    #[test]
    fn nested_objects_and_array_items_are_ordered_too() {
        let item = json!({"properties": {"a": {}, "b": {}}});
        let schema = json!({"properties": {
            "rows": {"items": item.clone()},
            "pair": {"prefixItems": [{}, item.clone()]},
            "inner": {"properties": {"p": {}, "q": {}}},
        }, "additionalProperties": item});
        assert_eq!(
            ordered(
                r#"{"x":{"b":1,"a":2},"inner":{"q":1,"p":2},"pair":[{"b":1,"a":2},{"b":1,"a":2}],
                    "rows":[{"b":1,"a":2},{"b":3}]}"#,
                schema
            ),
            concat!(
                r#"{"rows":[{"a":2,"b":1},{"b":3}],"pair":[{"b":1,"a":2},{"a":2,"b":1}],"#,
                r#""inner":{"p":2,"q":1},"x":{"a":2,"b":1}}"#
            )
        );
    }

    #[test]
    fn local_references_are_followed_even_when_they_recurse() {
        let schema = json!({
            "$ref": "#/$defs/node",
            "$defs": {"node": {"properties": {"v": {}, "next": {"$ref": "#/$defs/node"}}}},
        });
        assert_eq!(
            ordered(r#"{"next":{"next":{"v":3},"v":2},"v":1}"#, schema),
            r#"{"v":1,"next":{"v":2,"next":{"v":3}}}"#
        );
    }

    #[test]
    fn a_reference_to_itself_or_to_nothing_orders_nothing() {
        let loops = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}});
        assert_eq!(ordered(r#"{"b":1,"a":2}"#, loops), r#"{"b":1,"a":2}"#);
        let missing = json!({"$ref": "#/$defs/none"});
        assert_eq!(ordered(r#"{"b":1,"a":2}"#, missing), r#"{"b":1,"a":2}"#);
    }

    #[test]
    fn the_branch_that_declares_most_keys_speaks_for_the_object() {
        let schema = json!({
            "allOf": [{"properties": {"kind": {}}}],
            "anyOf": [
                {"type": "null"},
                {"properties": {"x": {}, "w": {}}},
                {"$ref": "#/$defs/circle"},
            ],
            "$defs": {"circle": {"properties": {"r": {}, "x": {}}}},
        });
        assert_eq!(
            ordered(r#"{"x":1,"r":2,"kind":"circle"}"#, schema),
            r#"{"kind":"circle","r":2,"x":1}"#
        );
    }
}
