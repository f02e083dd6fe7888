//! Tests malicious schemas.

use super::*;

fn kind(schema: &Value) -> &'static str {
    FlatSchema::new(schema, &options_with_slots(2))
        .expect_err("refused")
        .kind()
}

/// A chain of references, each one level deeper; the JSON itself is shallow.
fn chain(n: usize) -> Value {
    let link = |i: usize| {
        (
            format!("d{i}"),
            schema_of(json!({"x": {"$ref": format!("#/$defs/d{}", i + 1)}})),
        )
    };
    let mut links: Map<String, Value> = (0..n).map(link).collect();
    links.insert(format!("d{n}"), json!({"type": "string"}));
    json!({"$ref": "#/$defs/d0", "$defs": links})
}

#[test]
fn ten_thousand_levels_are_an_error() {
    assert_eq!(kind(&chain(10_000)), "too_deep");
    let mut nested = json!({"type": "string"});
    for _ in 0..10_000 {
        // The `json` macro would copy the value once per level.
        let properties = Map::from_iter([("x".to_owned(), nested)]);
        let object = [
            ("type".to_owned(), "object".into()),
            ("properties".to_owned(), properties.into()),
        ];
        nested = Map::from_iter(object).into();
    }
    assert_eq!(kind(&nested), "too_deep");
    assert_eq!(
        flatten_minimal(&nested).expect_err("deep").kind(),
        "too_deep"
    );
    // Drop the value level by level, because dropping it at once would recurse.
    while let Some(inner) = nested.pointer_mut("/properties/x") {
        nested = inner.take();
    }
    assert_eq!(flat(&chain(50), 1).mapping().len(), 1);
}

#[test]
fn exponentially_growing_references_are_an_error() {
    let link = |i: usize| {
        let next_reference = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        (
            format!("d{i}"),
            schema_of(json!({"l": next_reference, "r": next_reference})),
        )
    };
    let mut links: Map<String, Value> = (0..40).map(link).collect();
    links.insert("d40".to_owned(), json!({"type": "string"}));
    assert_eq!(
        kind(&json!({"$ref": "#/$defs/d0", "$defs": links})),
        "too_large"
    );
    let mut list = json!({"type": "object", "properties": {"x": {"type": "string"}}});
    for _ in 0..12 {
        list = schema_of(json!({"l": {"type": "array", "items": list}}));
    }
    let error =
        FlatSchema::new(&list, &options_with_slots(usize::MAX)).expect_err("too many slots");
    assert_eq!(error.kind(), "too_large");
}

/// A schema of 300,000 bytes could expand to gigabytes, because each leaf repeats every name above
/// it.
#[test]
fn long_parent_names_of_many_leaves_are_an_error() {
    let leaves = |n: usize| {
        let leaf = |i| (format!("p{i}"), json!({"type": "integer"}));
        schema_of(Value::Object(
            (0..n).map(leaf).collect::<Map<String, Value>>(),
        ))
    };
    let long = "a".repeat(100_000);
    let long_schema = schema_of(json!({long.clone(): leaves(9_000)}));
    assert_eq!(kind(&long_schema), "too_large");
    let error = flatten_minimal(&long_schema).expect_err("900 MB of names");
    assert_eq!(error.kind(), "too_large");
    let long_separator = FlattenOptions {
        separator: long.clone(),
        ..options_with_slots(1)
    };
    let error = FlatSchema::new(&schema_of(json!({"a": leaves(9_000)})), &long_separator)
        .expect_err("too long");
    assert!(error.to_string().contains("FLAT_BYTES"), "{error}");
    let item = json!({"type": "object", "properties": {"b": {}}, "required": ["b"]});
    let list = schema_of(json!({long.clone(): {"type": "array", "items": item}}));
    let mut arguments = Map::new();
    arguments.insert(long, vec![json!({}); 9_000].into());
    let error = flat(&list, 1)
        .missing_required(&arguments)
        .expect_err("too long");
    assert_eq!(error.kind(), "too_large");
}

#[test]
fn a_large_reference_copied_often_is_an_error() {
    let property = |i| (format!("p{i}"), json!({"$ref": "#/$defs/n"}));
    let properties = (0..9_000).map(property).collect::<Map<String, Value>>();
    let mut schema = schema_of(properties.into());
    schema["$defs"] = json!({"n": {"enum": vec!["x".repeat(1_000); 1_000]}});
    assert_eq!(kind(&schema), "too_large");
}

#[test]
fn unresolvable_references_are_errors() {
    for (reference, expected) in [
        ("#", "recursive"),
        ("#/properties/a", "recursive"),
        ("#/$defs/loop", "recursive"),
        ("#/$defs/none", "missing_ref"),
        ("#anchor", "missing_ref"),
        ("#/%ff", "missing_ref"),
        ("other.json#/a", "remote_ref"),
        ("file:///etc/passwd", "remote_ref"),
        ("", "remote_ref"),
    ] {
        let schema = json!({
            "type": "object",
            "properties": {"a": {"items": {"$ref": reference}}},
            "$defs": {"loop": {"not": {"$ref": "#/$defs/back"}}, "back": {"$ref": "#/$defs/loop"}},
        });
        assert_eq!(kind(&schema), expected, "{reference}");
        let advised = advise(&schema, Audience::Model);
        match expected {
            "recursive" => assert_eq!(advised.expect("an advice").reason, Reason::Recursive),
            _ => assert_eq!(advised.expect_err("refused").kind(), expected),
        }
    }
}

#[test]
fn contradicting_schema_parts_are_errors() {
    let list = |min: Value, max: Value| {
        schema_of(json!({"l": {
            "type": "array", "minItems": min, "maxItems": max, "items": schema_of(json!({"x": {}})),
        }}))
    };
    assert_eq!(kind(&list(json!(3), json!(2))), "contradiction");
    assert_eq!(kind(&list(json!(-1), json!(2))), "bad_schema");
    assert_eq!(kind(&list(json!("1"), json!(2))), "bad_schema");
    assert_eq!(flat(&list(json!(1.0), json!(2)), 9).mapping().len(), 2);
    let contradicting = json!({
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n", "type": "string"}},
        "$defs": {"n": {"type": "number"}},
    });
    assert_eq!(kind(&contradicting), "contradiction");
}

#[test]
fn a_schema_that_is_not_of_an_object_is_an_error() {
    for schema in [
        json!(null),
        json!(true),
        json!([]),
        json!({}),
        json!({"type": "string", "properties": {"a": {}}}),
        json!({"type": ["object"], "properties": {"a": {}}}),
        json!({"type": "object", "properties": []}),
        json!({"type": "object", "properties": {"a": 1}}),
        json!({"type": "object", "properties": {"a": {}}, "required": "a"}),
        json!({"type": "object", "properties": {"a": {}}, "required": [1]}),
        json!({"type": "object", "properties": {"a": {"anyOf": {}}}}),
        json!({"type": "object", "properties": {"a": {"$ref": 1}}}),
    ] {
        assert_eq!(kind(&schema), "bad_schema", "{schema}");
    }
}
