//! Tests that arguments survive flattening and unflattening, for any schema.

use proptest::prelude::*;

use super::*;

/// A schema and valid arguments that can survive flattening.
pub(super) fn schema_and_value() -> impl Strategy<Value = (Value, Value)> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(|n| (json!({"type": "integer"}), json!(n))),
        "\\PC{0,6}".prop_map(|text| (json!({"type": "string"}), json!(text))),
        prop::collection::vec(any::<bool>(), 0..3)
            .prop_map(|flags| (json!({"type": "array"}), json!(flags))),
        Just((json!({}), json!({"free": null}))),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        // Few letters, digits and the separator make names collide.
        let fields = prop::collection::btree_map("[ab_0]{1,3}", inner, 1..4);
        (fields, 0..3_usize).prop_map(|(fields, n_items)| {
            let part = |pick: fn(&(Value, Value)) -> &Value| -> Map<String, Value> {
                let fields = fields.iter();
                fields
                    .map(|(key, field)| (key.clone(), pick(field).clone()))
                    .collect()
            };
            let (schema, value) = (
                schema_of(part(|field| &field.0).into()),
                Value::from(part(|field| &field.1)),
            );
            match n_items {
                0 => (schema, value),
                n => (
                    json!({"type": "array", "items": schema}),
                    vec![value; n].into(),
                ),
            }
        })
    })
}

proptest! {
    #[test]
    fn nested_arguments_survive(
        parts in prop::collection::btree_map("[ab_0]{1,3}", schema_and_value(), 1..5),
        separator in prop_oneof![Just("_"), Just("."), Just("")],
    ) {
        let schemas = parts.iter().map(|(key, part)| (key.clone(), part.0.clone()));
        let schema = schema_of(Value::Object(schemas.collect()));
        let values = parts.iter().map(|(key, part)| (key.clone(), part.1.clone()));
        let nested: Map<String, Value> = values.collect();
        let options = FlattenOptions {
            separator: separator.to_owned(),
            ..options_with_slots(2)
        };
        let flat_schema = FlatSchema::new(&schema, &options).unwrap();
        prop_assert_eq!(flat_schema.round_trips(&nested), Ok(true));
        let flat = flat_schema.flatten_arguments(&nested).unwrap();
        let all_names: std::collections::HashSet<&str> = leaf_names(&flat_schema).into_iter().collect();
        prop_assert_eq!(all_names.len(), flat_schema.mapping().len());
        prop_assert!(flat.keys().all(|name| all_names.contains(name.as_str())));
        prop_assert_eq!(flat_schema.missing_required(&nested), Ok(Vec::new()));
    }

    #[test]
    fn no_schema_makes_flattening_panic(schema in any_schema(), arguments in any_object()) {
        if let Ok(flat_schema) = FlatSchema::new(&schema, &options_with_slots(3)) {
            let _ = flat_schema.flatten_arguments(&arguments);
            let _ = flat_schema.unflatten_arguments(&arguments);
            let _ = flat_schema.missing_required(&arguments);
        }
        let _ = (advise(&schema, Audience::Model), flatten_minimal(&schema));
    }
}

/// Objects with the relevant keywords, often with invalid values.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!("object")),
        Just(json!("array")),
        Just(json!(["a", "b"])),
        Just(json!({"$ref": "#/properties/a"})),
        Just(json!({"type": "object", "properties": {"b": {"$ref": "#"}}})),
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..4_i64).prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        let keyword = prop_oneof![
            "type|properties|items|required|anyOf|minItems|maxItems|additionalProperties",
            "\\$ref|\\$defs|a|b",
        ];
        let fields = prop::collection::btree_map(keyword, inner, 0..5);
        (fields, any::<bool>()).prop_map(|(fields, is_object)| {
            let mut fields: Map<String, Value> = fields.into_iter().collect();
            if is_object {
                fields.insert("type".to_owned(), "object".into());
            }
            Value::Object(fields)
        })
    })
}

fn any_object() -> impl Strategy<Value = Map<String, Value>> {
    let value = prop_oneof![
        Just(Value::Null),
        Just(json!(1)),
        Just(json!({"a": {"b": 1}})),
        Just(json!([{"a": 1}, 2])),
    ];
    prop::collection::btree_map("[ab]|a_b|a_0", value, 0..4)
        .prop_map(|fields| fields.into_iter().collect())
}
