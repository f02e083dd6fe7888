//! Infers the common JSON Schema of responses, in the style of the released schemas.
//!
//! Only types, properties, items and `required` are inferred, but no enumerations, formats or
//! bounds. Integers and other numbers are both `number`. If a value is sometimes null and sometimes
//! of another type, the property only becomes optional. A response with such a null is therefore
//! not valid under its own schema, which is also the case for the released schemas.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

/// Infers the schema of one or several responses.
///
/// Properties are in order of first appearance. A property is required if every object has it with
/// a value other than null. The schema is `{}` for values of different types, and for the items of
/// lists that are all empty.
///
/// # Source
///
/// "How Good Are LLMs at Processing Tool Outputs?", appendix C.2 and Figure 15.
pub fn infer_schema<'v>(responses: impl IntoIterator<Item = &'v Value>) -> Value {
    schema_of(&responses.into_iter().collect::<Vec<_>>())
}

/// The JSON Schema type name of a value.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn schema_of(values: &[&Value]) -> Value {
    let non_null = || values.iter().filter(|value| !value.is_null());
    let Some(first_value) = non_null().chain(values).next() else {
        return json!({});
    };
    if non_null().any(|value| kind(value) != kind(first_value)) {
        return json!({});
    }
    match first_value {
        Value::Object(_) => object_schema(non_null().filter_map(|value| value.as_object())),
        Value::Array(_) => {
            let items = non_null().filter_map(|value| value.as_array()).flatten();
            json!({"type": "array", "items": schema_of(&items.collect::<Vec<_>>())})
        }
        scalar => json!({"type": kind(scalar)}),
    }
}

fn object_schema<'v>(objects: impl Iterator<Item = &'v Map<String, Value>>) -> Value {
    let mut n_objects = 0;
    let mut column_idxs: HashMap<&str, usize> = HashMap::new();
    let mut columns: Vec<(&str, Vec<&Value>)> = Vec::new();
    for object in objects {
        n_objects += 1;
        for (key, field) in object {
            let column_idx = *column_idxs.entry(key).or_insert(columns.len());
            match columns.get_mut(column_idx) {
                Some((_, fields)) => fields.push(field),
                None => columns.push((key, vec![field])),
            }
        }
    }
    let is_required = |fields: &[&Value]| {
        fields.len() == n_objects && fields.iter().all(|field| !field.is_null())
    };
    let required: Vec<&str> = columns
        .iter()
        .filter(|(_, fields)| is_required(fields))
        .map(|(key, _)| *key)
        .collect();
    let properties: Map<String, Value> = columns
        .iter()
        .map(|(key, fields)| ((*key).to_owned(), schema_of(fields)))
        .collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::any_document;
    use crate::slot::{SchemaChecker, SchemaMode};
    use proptest::prelude::*;

    fn infer_one(response: &Value) -> Value {
        infer_schema([response])
    }

    #[test]
    fn kinds_have_their_names_and_all_numbers_are_numbers() {
        let response = json!({"a": 1, "b": 1.5, "c": "x", "d": true, "e": [1, 2.5], "f": null});
        let properties = json!({
            "a": {"type": "number"}, "b": {"type": "number"}, "c": {"type": "string"},
            "d": {"type": "boolean"}, "e": {"type": "array", "items": {"type": "number"}},
            "f": {"type": "null"},
        });
        let schema = json!({
            "type": "object", "properties": properties, "required": ["a", "b", "c", "d", "e"],
        });
        assert_eq!(infer_one(&response), schema);
        assert_eq!(infer_one(&json!("x")), json!({"type": "string"}));
    }

    #[test]
    fn a_property_is_required_if_always_present_and_never_null() {
        let response = json!([{"a": 1, "b": null}, {"c": 3, "a": 2, "b": "x"}]);
        let schema = infer_one(&response);
        let keys: Vec<&String> = schema["items"]["properties"]
            .as_object()
            .expect("an object")
            .keys()
            .collect();
        assert_eq!(keys, ["a", "b", "c"]);
        assert_eq!(
            schema["items"]["properties"]["b"],
            json!({"type": "string"})
        );
        assert_eq!(schema["items"]["required"], json!(["a"]));
    }

    #[test]
    fn no_required_property_omits_the_keyword_and_no_value_infers_the_empty_schema() {
        assert_eq!(
            infer_one(&json!({})),
            json!({"type": "object", "properties": {}})
        );
        assert_eq!(infer_one(&json!([])), json!({"type": "array", "items": {}}));
        assert_eq!(infer_schema([]), json!({}));
        let mixed_types = json!([{"a": 1}, {"a": "x"}, {"a": null}, {"a": {"b": 1}}]);
        let schema = json!({"type": "array", "items": {"type": "object", "properties": {"a": {}}}});
        assert_eq!(infer_one(&mixed_types), schema);
    }

    #[test]
    fn objects_of_several_lists_and_responses_are_merged() {
        let responses = [
            json!({"l": [{"a": [{}]}]}),
            json!({"l": [{"a": [{"b": 1}]}, {}]}),
        ];
        let inner = json!({"type": "object", "properties": {"b": {"type": "number"}}});
        let item =
            json!({"type": "object", "properties": {"a": {"type": "array", "items": inner}}});
        let schema = json!({
            "type": "object",
            "properties": {"l": {"type": "array", "items": item}},
            "required": ["l"],
        });
        assert_eq!(infer_schema(&responses), schema);
    }

    fn is_valid(schema: &Value, response: &Value) -> bool {
        let checker = SchemaChecker::new(schema, SchemaMode::Schema).expect("a schema");
        checker.is_valid(response)
    }

    #[test]
    fn a_null_next_to_another_type_is_not_valid() {
        let response = json!([1, null]);
        assert!(!is_valid(&infer_one(&response), &response));
    }

    fn without_nulls(value: &Value) -> Value {
        match value {
            Value::Object(fields) => fields
                .iter()
                .filter(|(_, field)| !field.is_null())
                .map(|(key, field)| (key.clone(), without_nulls(field)))
                .collect::<Map<_, _>>()
                .into(),
            Value::Array(items) => {
                let items = items.iter().filter(|item| !item.is_null());
                items.map(without_nulls).collect()
            }
            scalar => scalar.clone(),
        }
    }

    proptest! {
        #[test]
        fn responses_without_nulls_are_valid_under_their_schema(
            documents in prop::collection::vec(any_document(), 1..4)
        ) {
            let non_null = documents.iter().filter(|document| !document.is_null());
            let responses: Vec<Value> = non_null.map(without_nulls).collect();
            let schema = infer_schema(&responses);
            for response in &responses {
                prop_assert!(is_valid(&schema, response), "{} {}", response, schema);
            }
        }
    }
}
