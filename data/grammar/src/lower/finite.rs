//! Finds the definitions that allow a finite value.
//!
//! A schema can require itself, such as a node that must have a child node. It then allows no
//! finite value, and a model that enters such a branch cannot leave it. References to the schema
//! become `false`, and llguidance drops branches that require `false`.

use serde_json::{Map, Value};

/// Replaces references to definitions that allow no finite value; `None` if the root allows none.
pub(super) fn remove_infinite_definitions(
    root: Value,
    definitions: Vec<Value>,
) -> Option<(Value, Vec<Value>)> {
    let mut finite = vec![false; definitions.len()];
    loop {
        let mut has_changed = false;
        for (idx, definition) in definitions.iter().enumerate() {
            if !is_set(&finite, idx) && is_finite(definition, &finite) {
                if let Some(flag) = finite.get_mut(idx) {
                    *flag = true;
                }
                has_changed = true;
            }
        }
        if !has_changed {
            break;
        }
    }
    if !is_finite(&root, &finite) {
        return None;
    }
    let with_finite_references = |schema: &Value| remove_infinite_references(schema, &finite);
    Some((
        with_finite_references(&root),
        definitions.iter().map(with_finite_references).collect(),
    ))
}

fn is_set(finite: &[bool], idx: usize) -> bool {
    finite.get(idx).copied().unwrap_or(false)
}

/// The definition that a lowered schema refers to.
fn target(fields: &Map<String, Value>) -> Option<usize> {
    let name = fields.get("$ref")?.as_str()?;
    name.strip_prefix("#/$defs/d")?.parse().ok()
}

/// Whether the schema allows a finite value, given which definitions do.
fn is_finite(schema: &Value, finite: &[bool]) -> bool {
    let fields = match schema {
        Value::Object(fields) => fields,
        other => return *other != Value::Bool(false),
    };
    let parts = |keyword: &str| fields.get(keyword).and_then(Value::as_array);
    let is_part_finite = |part: &Value| is_finite(part, finite);
    if target(fields).is_some_and(|idx| !is_set(finite, idx)) {
        return false;
    }
    if parts("allOf").is_some_and(|all| !all.iter().all(is_part_finite)) {
        return false;
    }
    for keyword in ["anyOf", "oneOf"] {
        if parts(keyword).is_some_and(|any| !any.iter().any(is_part_finite)) {
            return false;
        }
    }
    let Some(types) = parts("type") else {
        return true;
    };
    types.iter().any(|name| match name.as_str() {
        Some("object") => is_object_finite(fields, finite),
        Some("array") => is_array_finite(fields, finite),
        _ => true,
    })
}

fn is_object_finite(fields: &Map<String, Value>, finite: &[bool]) -> bool {
    let required = fields.get("required").and_then(Value::as_array);
    let properties = fields.get("properties").and_then(Value::as_object);
    required.into_iter().flatten().all(|key| {
        let property = key.as_str().and_then(|key| properties?.get(key));
        let undeclared = fields.get("additionalProperties");
        let has_patterns = fields.contains_key("patternProperties");
        match property.or(undeclared.filter(|_| !has_patterns)) {
            Some(schema) => is_finite(schema, finite),
            None => true,
        }
    })
}

fn is_array_finite(fields: &Map<String, Value>, finite: &[bool]) -> bool {
    let n_required = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0);
    let n_required = usize::try_from(n_required).unwrap_or(usize::MAX);
    let prefix = fields.get("prefixItems").and_then(Value::as_array);
    let prefix = prefix.map(Vec::as_slice).unwrap_or_default();
    let is_rest_finite = fields
        .get("items")
        .is_none_or(|rest| is_finite(rest, finite));
    (n_required <= prefix.len() || is_rest_finite)
        && prefix
            .iter()
            .take(n_required)
            .all(|item| is_finite(item, finite))
}

/// The schema with references to infinite definitions replaced by `false`. Values of `enum` and
/// `const` contain no references, even if their keys look like references.
fn remove_infinite_references(schema: &Value, finite: &[bool]) -> Value {
    match schema {
        Value::Object(fields) if target(fields).is_some_and(|idx| !is_set(finite, idx)) => {
            Value::Bool(false)
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(key, part)| match key.as_str() {
                "enum" | "const" => (key.clone(), part.clone()),
                _ => (key.clone(), remove_infinite_references(part, finite)),
            })
            .collect(),
        Value::Array(parts) => parts
            .iter()
            .map(|part| remove_infinite_references(part, finite))
            .collect(),
        scalar => scalar.clone(),
    }
}
