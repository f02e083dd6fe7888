//! Merges two schemas of the same value into one.

use serde_json::{Map, Value, json};

/// Whether a keyword is an annotation that does not restrict values.
pub(super) fn is_annotation(keyword: &str) -> bool {
    ["default", "deprecated", "description"].contains(&keyword)
}

/// Merges two schemas of the same value; annotations of `first` take precedence.
pub(super) fn merge(first: Map<String, Value>, second: Map<String, Value>) -> Value {
    if let Some(combined) = merge_schemas(&first, &second) {
        return Value::Object(combined);
    }
    let mut first = first;
    match first.get_mut("allOf") {
        Some(Value::Array(branches)) => branches.push(Value::Object(second)),
        _ => {
            first.insert("allOf".to_owned(), json!([second]));
        }
    }
    Value::Object(first)
}

/// Merges two schemas if no keyword of one affects the other.
fn merge_schemas(
    first: &Map<String, Value>,
    second: &Map<String, Value>,
) -> Option<Map<String, Value>> {
    let has_only_annotations = |map: &Map<String, Value>| map.keys().all(|key| is_annotation(key));
    let extended = |by: &Map<String, Value>, map: &Map<String, Value>| {
        let mut map = map.clone();
        map.extend(by.clone());
        Some(map)
    };
    if has_only_annotations(first) {
        return extended(first, second);
    }
    // These keywords affect all keys or items that other keywords of the schema do not list.
    let applies_to_unlisted = |map: &Map<String, Value>| {
        let keywords = [
            "additionalProperties",
            "allOf",
            "patternProperties",
            "prefixItems",
            "unevaluatedItems",
            "unevaluatedProperties",
        ];
        keywords.iter().any(|keyword| map.contains_key(*keyword))
    };
    if !has_only_annotations(second) && (applies_to_unlisted(first) || applies_to_unlisted(second))
    {
        return None;
    }
    let mut both = first.clone();
    for (keyword, value) in second {
        match (keyword.as_str(), both.get_mut(keyword)) {
            (_, None) => {
                both.insert(keyword.clone(), value.clone());
            }
            (name, Some(_)) if is_annotation(name) => {}
            ("properties", Some(Value::Object(properties))) => {
                for (name, property) in value.as_object()? {
                    let both = match (properties.get(name), property) {
                        (Some(Value::Object(first_value)), Value::Object(property)) => {
                            merge(first_value.clone(), property.clone())
                        }
                        (None, property) => property.clone(),
                        (Some(_), _) => return None,
                    };
                    properties.insert(name.clone(), both);
                }
            }
            ("required", Some(Value::Array(names))) => {
                for name in value.as_array()? {
                    if !names.contains(name) {
                        names.push(name.clone());
                    }
                }
            }
            (_, Some(first_value)) if first_value == value => {}
            _ => return None,
        }
    }
    Some(both)
}
