//! Reorders a value's keys as its JSON Schema declares them.
//!
//! The key order of a training target must not depend on how a data set was written. The schema is
//! in the prompt, so its order is the only one that the model can know, and constrained decoding
//! uses the same order.
//! If several branches of `anyOf` or `oneOf` do not visibly contradict the value, the branch that
//! declares most of the object's keys determines the order. A full validation would cost more, and
//! the order would be the same in practice.

use std::collections::HashSet;

use regex::Regex;
use serde_json::{Map, Value};

/// Levels of a value that are compared with a branch. A field such as `method`, or a field one
/// object below, distinguishes the branches.
const MAX_FIT_LEVELS: usize = 3;

/// Returns `gold` with the keys of every object in the order of the schema's `properties`.
///
/// The schema is followed into nested objects, array items (`items`, `prefixItems`), values under
/// `patternProperties` and `additionalProperties`, `allOf`, `anyOf`, `oneOf`, and local references
/// (`#/$defs/...`, or any pointer into the same schema; up to draft 7, keywords next to `$ref` are
/// ignored). An object from `const` or `enum` keeps the order written there. Keys that the schema
/// does not declare come after the declared keys: first the required keys, then the others in their
/// original order. Values never change, and an unresolvable reference is ignored.
pub fn order_by_schema(gold: &Value, schema: &Value) -> Value {
    Orderer::new(schema).order_value(gold, &[schema])
}

struct Orderer<'s> {
    root: &'s Value,
    /// Whether keywords next to `$ref` are ignored, as up to draft 7.
    ignores_ref_siblings: bool,
}

impl<'s> Orderer<'s> {
    fn new(root: &'s Value) -> Self {
        let draft = root.get("$schema").and_then(Value::as_str);
        let draft = draft.unwrap_or_default();
        Self {
            root,
            // The URIs of drafts up to 7 contain a draft number, later ones a year.
            ignores_ref_siblings: draft.contains("://json-schema.org/draft-0"),
        }
    }

    fn order_value(&self, value: &Value, schemas: &[&'s Value]) -> Value {
        let schemas = self.applicable_schemas(schemas, value);
        let is_declared = schemas.iter().any(|schema| properties(schema).is_some());
        let mut constants = schemas.iter().flat_map(|schema| constants(schema));
        if let Some(constant) = constants.find(|constant| !is_declared && is_same(constant, value))
        {
            return order_like_constant(value, constant);
        }
        match value {
            Value::Object(fields) => Value::Object(self.order_fields(fields, &schemas)),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .map(|(item_idx, item)| self.order_value(item, &item_schemas(&schemas, item_idx)))
                .collect(),
            scalar => scalar.clone(),
        }
    }

    fn order_fields(
        &self,
        fields: &Map<String, Value>,
        schemas: &[&'s Value],
    ) -> Map<String, Value> {
        let declared = schemas.iter().filter_map(|schema| properties(schema));
        let declared_keys = declared.flat_map(Map::keys).map(String::as_str);
        let required_keys = schemas.iter().flat_map(|schema| required_keys(schema));
        let own_keys = fields.keys().map(String::as_str);
        let mut ordered = Map::new();
        for key in declared_keys.chain(required_keys).chain(own_keys) {
            let Some(field) = fields.get(key).filter(|_| !ordered.contains_key(key)) else {
                continue;
            };
            let field = self.order_value(field, &field_schemas(schemas, key));
            ordered.insert(key.to_owned(), field);
        }
        ordered
    }

    /// Returns the schemas that apply to `value`, with references and combinators resolved.
    fn applicable_schemas(&self, schemas: &[&'s Value], value: &Value) -> Vec<&'s Value> {
        let mut applicable = Vec::new();
        let mut visited = HashSet::new();
        let mut queue: Vec<&'s Value> = schemas.iter().rev().copied().collect();
        while let Some(schema) = queue.pop() {
            // A reference may lead back to its own schema.
            if !visited.insert(std::ptr::from_ref(schema)) {
                continue;
            }
            let target = self.reference_target(schema);
            if self.ignores_ref_siblings && target.is_some() {
                queue.extend(target);
                continue;
            }
            applicable.push(schema);
            let mut next = Vec::new();
            next.extend(target);
            next.extend(branches(schema, "allOf"));
            next.extend(self.best_branch(schema, "anyOf", value));
            next.extend(self.best_branch(schema, "oneOf", value));
            queue.extend(next.into_iter().rev());
        }
        applicable
    }

    fn reference_target(&self, schema: &'s Value) -> Option<&'s Value> {
        let reference = schema.get("$ref")?.as_str()?;
        self.root.pointer(reference.strip_prefix('#')?)
    }

    fn best_branch(&self, schema: &'s Value, keyword: &str, value: &Value) -> Option<&'s Value> {
        let n_declared = |branch: &&'s Value| {
            let target = self.reference_target(branch).unwrap_or(branch);
            let fields = value.as_object().into_iter().flat_map(Map::keys);
            let n_known = properties(target).map_or(0, |properties| {
                fields.filter(|key| properties.contains_key(*key)).count()
            });
            // A constant declares all of its keys.
            let is_constant = constants(target).any(|constant| is_same(constant, value));
            let n_known = match value.as_object() {
                Some(fields) if is_constant => fields.len(),
                _ => n_known,
            };
            // An array has no keys to count, so a branch that describes items ranks higher.
            n_known + usize::from(value.is_array() && target.get("items").is_some())
        };
        let rank = |branch: &&'s Value| {
            let fits = self.may_match(branch, value, MAX_FIT_LEVELS);
            (fits, n_declared(branch))
        };
        // `max_by_key` returns the last maximum. Reversing the branches makes it prefer the first
        // branch.
        branches(schema, keyword).rev().max_by_key(rank)
    }

    /// Whether the value may match the schema, down to `n_levels` levels. Only the type, constants,
    /// and required and forbidden keys are checked, which is cheap.
    fn may_match(&self, schema: &'s Value, value: &Value, n_levels: usize) -> bool {
        let schema = self.reference_target(schema).unwrap_or(schema);
        let types = schema.get("type").filter(|types| !types.is_null());
        let is_typed = types.is_none_or(|types| match types {
            Value::Array(types) => types.iter().any(|of| has_type(value, of)),
            of => has_type(value, of),
        });
        let is_constant = schema
            .get("const")
            .is_none_or(|constant| is_same(constant, value));
        let values = schema.get("enum").and_then(Value::as_array);
        let is_listed = values.is_none_or(|values| values.iter().any(|one| is_same(one, value)));
        let fits_one_of = |keyword: &str| {
            let mut options = branches(schema, keyword).peekable();
            options.peek().is_none()
                || n_levels == 0
                || options.any(|option| self.may_match(option, value, n_levels - 1))
        };
        let is_scalar_fit = is_typed && is_constant && is_listed;
        let is_fit = is_scalar_fit && fits_one_of("anyOf") && fits_one_of("oneOf");
        let Value::Object(fields) = value else {
            let mut items = value.as_array().into_iter().flatten().enumerate();
            let item_fits = |(item_idx, item): (usize, &Value)| {
                let schemas = item_schemas(&[schema], item_idx);
                let mut schemas = schemas.into_iter();
                schemas.all(|schema| self.may_match(schema, item, n_levels - 1))
            };
            return is_fit && (n_levels == 0 || items.all(item_fits));
        };
        let declared = properties(schema);
        let is_allowed = |key: &String| {
            let is_declared = declared.is_some_and(|declared| declared.contains_key(key));
            is_declared || !pattern_schemas(schema, key).is_empty()
        };
        let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
        let below_fits =
            |(key, field): (&String, &Value)| match declared.and_then(|all| all.get(key)) {
                Some(schema) if n_levels > 0 => self.may_match(schema, field, n_levels - 1),
                _ => true,
            };
        is_fit
            && required_keys(schema).all(|key| fields.contains_key(key))
            && (!is_closed || fields.keys().all(is_allowed))
            && fields.iter().all(below_fits)
    }
}

/// Returns the values of `const` and `enum`.
fn constants(schema: &Value) -> impl Iterator<Item = &Value> {
    let enum_values = schema.get("enum").and_then(Value::as_array);
    schema
        .get("const")
        .into_iter()
        .chain(enum_values.into_iter().flatten())
}

/// Whether JSON Schema considers two values equal: key order is ignored, and 1 equals 1.0.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let has = |(key, a): (&String, &Value)| b.get(key).is_some_and(|b| is_same(a, b));
            a.len() == b.len() && a.iter().all(has)
        }
        (a, b) => a == b,
    }
}

/// Reorders the keys of a value to match an equal constant.
fn order_like_constant(value: &Value, constant: &Value) -> Value {
    match (value, constant) {
        (Value::Object(fields), Value::Object(known)) => {
            let ordered = known.iter().filter_map(|(key, known)| {
                Some((key.clone(), order_like_constant(fields.get(key)?, known)))
            });
            Value::Object(ordered.collect())
        }
        (Value::Array(items), Value::Array(known)) => {
            let pairs = items.iter().zip(known);
            pairs
                .map(|(item, known)| order_like_constant(item, known))
                .collect()
        }
        (value, _) => value.clone(),
    }
}

fn has_type(value: &Value, type_name: &Value) -> bool {
    match type_name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some("number") => value.is_number(),
        // JSON Schema defines integers by value, so 2.0 is an integer.
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => true,
    }
}

fn required_keys(schema: &Value) -> impl Iterator<Item = &str> {
    let keys = schema.get("required").and_then(Value::as_array);
    keys.into_iter().flatten().filter_map(Value::as_str)
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
    let mut matching = Vec::new();
    for schema in schemas {
        let declared =
            properties(schema).and_then(|properties_of_schema| properties_of_schema.get(key));
        let named: Vec<_> = declared
            .into_iter()
            .chain(pattern_schemas(schema, key))
            .collect();
        if named.is_empty() {
            matching.extend(schema.get("additionalProperties"))
        } else {
            matching.extend(named)
        }
    }
    matching
}

/// Returns the schemas of `patternProperties` whose pattern matches a key; an invalid regular
/// expression matches nothing.
fn pattern_schemas<'s>(schema: &'s Value, key: &str) -> Vec<&'s Value> {
    let patterns = schema.get("patternProperties").and_then(Value::as_object);
    let is_found = |pattern: &str| {
        let pattern = jsonschema_regex::to_rust_regex(pattern).ok();
        pattern.is_some_and(|pattern| Regex::new(&pattern).is_ok_and(|regex| regex.is_match(key)))
    };
    let all = patterns.into_iter().flatten();
    all.filter(|(pattern, _)| is_found(pattern))
        .map(|(_, schema)| schema)
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
    use super::order_by_schema;
    use serde_json::{Value, json};

    fn order_json(gold: &str, schema: Value) -> String {
        let gold: Value = serde_json::from_str(gold).expect("valid gold");
        order_by_schema(&gold, &schema).to_string()
    }

    #[test]
    fn keys_follow_the_schema_and_undeclared_ones_come_after_in_their_own_order() {
        let schema = json!({"properties": {"name": {}, "near": {}, "area": {}}});
        assert_eq!(
            order_json(r#"{"z":1,"area":2,"y":3,"name":4}"#, schema),
            r#"{"name":4,"area":2,"z":1,"y":3}"#
        );
    }

    #[test]
    fn constants_give_the_order_of_their_keys() {
        let schema = json!({"properties": {
            "c": {"const": {"b": 1, "a": [{"y": 1, "x": 2}]}},
            "e": {"enum": [3, {"a": 1, "b": 2}, {"b": 2.0, "a": 2}]},
        }});
        assert_eq!(
            order_json(
                r#"{"e":{"a":2.0,"b":2},"c":{"a":[{"x":2,"y":1}],"b":1.0}}"#,
                schema
            ),
            r#"{"c":{"b":1.0,"a":[{"y":1,"x":2}]},"e":{"b":2,"a":2.0}}"#
        );
    }

    #[test]
    fn nested_objects_and_array_items_are_also_ordered() {
        let item = json!({"properties": {"a": {}, "b": {}}});
        let schema = json!({"properties": {
            "rows": {"items": item.clone()},
            "pair": {"prefixItems": [{}, item.clone()]},
            "inner": {"properties": {"p": {}, "q": {}}},
        }, "additionalProperties": item});
        assert_eq!(
            order_json(
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
    fn recursive_local_references_are_followed() {
        let schema = json!({
            "$ref": "#/$defs/node",
            "$defs": {"node": {"properties": {"v": {}, "next": {"$ref": "#/$defs/node"}}}},
        });
        assert_eq!(
            order_json(r#"{"next":{"next":{"v":3},"v":2},"v":1}"#, schema),
            r#"{"v":1,"next":{"v":2,"next":{"v":3}}}"#
        );
    }

    #[test]
    fn cyclic_and_dangling_references_leave_the_key_order_unchanged() {
        let cyclic = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}});
        assert_eq!(order_json(r#"{"b":1,"a":2}"#, cyclic), r#"{"b":1,"a":2}"#);
        let dangling = json!({"$ref": "#/$defs/none"});
        assert_eq!(order_json(r#"{"b":1,"a":2}"#, dangling), r#"{"b":1,"a":2}"#);
    }

    #[test]
    fn key_patterns_are_followed_and_required_keys_precede_undeclared_ones() {
        let schema = json!({
            "patternProperties": {"^/": {"properties": {"type": {}, "path": {}}}, "(": {}},
            "properties": {"name": {}},
            "required": ["/a", "name"],
        });
        assert_eq!(
            order_json(
                r#"{"note":{"path":1,"type":2},"/a":{"path":1,"type":2},"name":3}"#,
                schema
            ),
            r#"{"name":3,"/a":{"type":2,"path":1},"note":{"path":1,"type":2}}"#
        );
    }

    #[test]
    fn up_to_draft_7_keywords_next_to_a_reference_are_ignored() {
        let schema = |draft: &str| {
            json!({
                "$schema": draft,
                "$ref": "#/definitions/file",
                "properties": {"group": {}, "media": {}},
                "definitions": {"file": {"properties": {"type": {}}}},
            })
        };
        let file = r#"{"media":1,"type":2,"group":3}"#;
        assert_eq!(
            order_json(file, schema("http://json-schema.org/draft-07/schema#")),
            r#"{"type":2,"media":1,"group":3}"#
        );
        assert_eq!(
            order_json(file, schema("https://json-schema.org/draft/2020-12/schema")),
            r#"{"group":3,"media":1,"type":2}"#
        );
    }

    #[test]
    fn a_branch_that_the_value_contradicts_does_not_set_the_order() {
        let method = |name: &str, params: Value| json!({"properties": {"method": {"const": name}, "params": {"properties": params}}});
        let schema = json!({"anyOf": [
            method("ping", json!({"zeta": {}, "alpha": {}})),
            method("list", json!({"alpha": {}, "zeta": {}})),
        ]});
        let params = r#"{"params":{"zeta":1,"alpha":2},"method":"list"}"#;
        assert_eq!(
            order_json(params, schema),
            r#"{"method":"list","params":{"alpha":2,"zeta":1}}"#
        );
        let keys = json!({"x": {}, "y": {}});
        let reversed = json!({"y": {}, "x": {}});
        let any_of = |more: Value| {
            let mut branch = json!({"properties": keys});
            branch
                .as_object_mut()
                .expect("an object")
                .extend(more.as_object().cloned().expect("keys"));
            json!({"oneOf": [branch, {"properties": reversed}]})
        };
        for contradicted in [
            json!({"type": "array"}),
            json!({"type": ["null", "string"]}),
            json!({"required": ["z"]}),
            json!({"properties": {"x": {"enum": ["a"]}, "y": {}}}),
            json!({"properties": {"x": {"type": "string"}, "y": {}}}),
            json!({"properties": {"x": {}}, "additionalProperties": false}),
        ] {
            assert_eq!(
                order_json(r#"{"x":1,"y":2}"#, any_of(contradicted.clone())),
                r#"{"y":2,"x":1}"#,
                "{contradicted}"
            );
        }
        assert_eq!(
            order_json(r#"{"y":2,"x":1}"#, any_of(json!({}))),
            r#"{"x":1,"y":2}"#
        );
        // 2.0 is an integer by value.
        let integer_branch = json!({"properties": {"x": {"type": "integer"}, "y": {}}});
        assert_eq!(
            order_json(r#"{"y":2,"x":2.0}"#, any_of(integer_branch)),
            r#"{"x":2.0,"y":2}"#
        );
    }

    #[test]
    fn the_branch_that_declares_most_keys_sets_the_order() {
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
            order_json(r#"{"x":1,"r":2,"kind":"circle"}"#, schema),
            r#"{"kind":"circle","r":2,"x":1}"#
        );
    }
}
