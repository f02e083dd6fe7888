//! Schemas that are refused before generation, with their JSON pointers.

use super::*;

#[test]
fn keywords_that_are_not_enforced_are_refused_with_their_location() {
    let rows = [
        (
            json!({"properties": {"a/b": {"items": {"not": {"type": "null"}}}}}),
            "/properties/a~1b/items/not ",
        ),
        (
            json!({"anyOf": [{}, {"uniqueItems": true}]}),
            "/anyOf/1/uniqueItems ",
        ),
        (json!({"if": {}, "then": {}}), "/if "),
        (json!({"contains": {"type": "null"}}), "/contains "),
        (
            json!({"dependentRequired": {"a": ["b"]}}),
            "/dependentRequired ",
        ),
        (
            json!({"propertyNames": {"maxLength": 3}}),
            "/propertyNames ",
        ),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}}),
            "/$defs/a/not ",
        ),
        (
            json!({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false}),
            "/unevaluatedProperties ",
        ),
        (json!({"$dynamicRef": "#a"}), "/$dynamicRef "),
        (
            json!({"const": 9_007_199_254_740_993_u64}),
            "/const 9007199254740993 is not below 2^53",
        ),
        (
            json!({"type": "number", "multipleOf": 0.00001}),
            "/multipleOf is 0.00001",
        ),
    ];
    for (schema, reason) in rows {
        let refusal = refusal(&schema);
        assert!(
            refusal.starts_with("the schema cannot constrain generation: ")
                && refusal.contains(reason),
            "{schema}: {refusal}"
        );
    }
}

#[test]
fn unenforced_keywords_without_effect_are_accepted() {
    for schema in [
        json!({"type": "string", "uniqueItems": true, "propertyNames": {"maxLength": 1}}),
        json!({"type": "array", "uniqueItems": false, "minContains": 3}),
        json!({"$schema": "http://json-schema.org/draft-04/schema#", "if": false, "else": false}),
        json!({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": false}),
        json!({"not": false, "if": true}),
        json!({"properties": {"not": {"type": "null"}, "if": {}}, "x-other": {"not": {}}}),
    ] {
        grammar(&schema);
    }
}

#[test]
fn invalid_schemas_are_refused() {
    let rows = [
        (json!(3), "is not a schema"),
        (json!({"type": "strin"}), "/type is \"strin\""),
        (json!({"type": []}), "/type is []"),
        (json!({"properties": []}), "/properties is not an object"),
        (
            json!({"properties": {"a": {"required": true}}}),
            "/properties/a/required is not a list",
        ),
        (json!({"anyOf": []}), "/anyOf is not a list"),
        (json!({"enum": "a"}), "/enum is not a list"),
        (json!({"minLength": -1}), "/minLength is -1"),
        (json!({"minimum": "3"}), "/minimum is \"3\""),
        (json!({"pattern": 1}), "/pattern is 1"),
        (json!({"items": [{}]}), "/items is a list"),
        (
            json!({"$schema": "http://json-schema.org/draft-03/schema#"}),
            "/$schema ",
        ),
        (
            json!({"$ref": "http://example.com/other.json"}),
            "/$ref \"http://example.com/other.json\"",
        ),
        (
            json!({"$ref": "#/$defs/none"}),
            "/$ref \"#/$defs/none\" is not a schema",
        ),
        (json!({"pattern": "("}), "cannot constrain"),
        (json!({"pattern": "(?=a)b"}), "cannot constrain"),
    ];
    for (schema, reason) in rows {
        let refusal = refusal(&schema);
        assert!(refusal.contains(reason), "{schema}: {refusal}");
    }
}

#[test]
fn a_schema_that_allows_no_finite_value_is_refused() {
    for schema in [
        json!(false),
        json!({"enum": []}),
        json!({"allOf": [{"type": "string"}, {"type": "null"}]}),
        json!({"type": "integer", "minimum": 3, "maximum": 2}),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
        json!({"$ref": "#"}),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
        json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    ] {
        let refusal = refusal(&schema);
        assert!(refusal.contains("cannot constrain"), "{schema}: {refusal}");
    }
}

#[test]
fn overlapping_oneof_alternatives_are_refused() {
    let refusal = refusal(&json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}));
    assert!(refusal.contains("oneOf"), "{refusal}");
}

/// `{"properties": {"a": {"properties": {"a": ...}}}}`
fn nested(n_levels: usize) -> Value {
    (0..n_levels).fold(json!({}), |inner, _| json!({"properties": {"a": inner}}))
}

#[test]
fn hostile_schemas_are_refused_in_bounded_time() {
    let wide = |n: usize| -> Value {
        let keys = (0..n).map(|key| (format!("k{key}"), json!({})));
        json!({"type": "object", "properties": Value::Object(keys.collect())})
    };
    let choice = json!({"anyOf": [{"properties": {"a": {"type": "integer"}}},
        {"properties": {"b": {"type": "integer"}}}, {"properties": {"c": {}}}]});
    let blown_up = json!({"allOf": vec![choice; 14]});
    let options = patient_options();
    for schema in [
        nested(150),
        wide(3_000),
        json!({"type": "array", "minItems": 1_000_000_000}),
        json!({"type": "string", "minLength": 4_000_000_000_u64}),
        blown_up,
    ] {
        let refused = Grammar::json_schema(&vocabulary(), &schema, &options);
        let excerpt = schema.to_string();
        let excerpt = &excerpt[..excerpt.len().min(80)];
        let message = refused.expect_err(excerpt).to_string();
        // It must be refused for its size, not for its compilation time.
        assert!(
            !message.contains("compiling took over"),
            "{excerpt}: {message}"
        );
    }
    for schema in [nested(100), wide(1_000)] {
        assert!(accepts(&grammar(&schema), "{}"));
    }
    let long = json!({"type": "string", "maxLength": 1_000_000_000});
    check(&long, &options, &["\"a\""], &["1"]);
    let pattern = json!({"type": "string", "pattern": "^((a{0,1000}){0,1000}){0,1000}b$"});
    check(&pattern, &options, &["\"aaab\""], &["\"aaac\""]);
}
