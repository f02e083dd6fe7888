//! Tests schemas that are hard to flatten, and arguments that are hard to unflatten.

mod documents;
mod hostile;
mod reading;
mod round_trips;
mod rows;

use serde_json::{Map, Value, json};
use tooltune_json::PathStep;

use super::*;

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => panic!("{other}"),
    }
}

fn options_with_slots(slots: usize) -> FlattenOptions {
    FlattenOptions {
        slots,
        ..FlattenOptions::default()
    }
}

fn flat(schema: &Value, n_slots: usize) -> FlatSchema {
    FlatSchema::new(schema, &options_with_slots(n_slots)).expect("a usable schema")
}

fn leaf_names(schema: &FlatSchema) -> Vec<&str> {
    schema.mapping().map(|(name, _)| name).collect()
}

fn schema_of(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

#[test]
fn a_schema_that_is_not_a_plain_object_stays_an_unchanged_leaf() {
    let inner = || json!({"x": {"type": "string"}});
    let leaves = json!({
        "union": {"anyOf": [schema_of(inner()), {"type": "null"}]},
        "types": {"type": ["object", "null"], "properties": inner()},
        "open": {"type": "object", "properties": inner(), "additionalProperties": {}},
        "yes": {"type": "object", "properties": inner(), "additionalProperties": true},
        "patterns": {"type": "object", "properties": inner(), "patternProperties": {"^x": {}}},
        "empty": {"type": "object", "properties": {}},
        "free": {"type": "object"},
        "untyped": {"properties": inner()},
        "scalars": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        "mixed": {"type": "array", "items": {"anyOf": [schema_of(inner()), {"type": "string"}]}},
        "none": {"type": "array", "items": schema_of(inner()), "maxItems": 0},
        "any": true,
        "bounded": {"type": "number", "minimum": 1, "default": 2, "format": "f", "description": "d"},
    });
    let flat_schema = flat(&schema_of(leaves.clone()), 2);
    assert_eq!(flat_schema.schema(), &schema_of(leaves));
}

#[test]
fn a_leaf_in_a_closed_object_has_resolved_references() {
    let schema = json!({
        "type": "object",
        "properties": {"o": {
            "type": "object", "additionalProperties": false,
            "properties": {"u": {"oneOf": [{"$ref": "#/definitions/a%20b"}, {"type": "null"}]}},
        }},
        "definitions": {"a b": {"type": "string", "default": {"$ref": "kept"}}, "unused": 7},
    });
    let expected =
        json!({"oneOf": [{"type": "string", "default": {"$ref": "kept"}}, {"type": "null"}]});
    assert_eq!(
        flat(&schema, 1).schema(),
        &schema_of(json!({"o_u": expected}))
    );
}

#[test]
fn a_description_next_to_a_reference_overrides_its_targets() {
    let schema = json!({
        "$ref": "#/$defs/whole",
        "$defs": {
            "whole": {"type": "object", "properties": {
                "p": {"$ref": "#/$defs/text", "description": "own", "minLength": 1},
            }},
            "text": {"type": "string", "description": "shared", "minLength": 1},
        },
    });
    let expected = json!({"type": "string", "description": "own", "minLength": 1});
    assert_eq!(flat(&schema, 1).schema()["properties"]["p"], expected);
}

#[test]
fn nested_lists_have_their_own_slots() {
    let inner = json!({"type": "array", "minItems": 1, "maxItems": 1, "items": {
        "type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"],
    }});
    let outer = json!({"type": "array", "minItems": 1, "items": {
        "type": "object", "properties": {"l": inner}, "required": ["l"],
    }});
    let schema = json!({"type": "object", "properties": {"m": outer}, "required": ["m"]});
    let flat_schema = flat(&schema, 2);
    assert_eq!(leaf_names(&flat_schema), ["m_0_l_0_x", "m_1_l_0_x"]);
    assert_eq!(flat_schema.schema()["required"], json!(["m_0_l_0_x"]));
    let nested = object(json!({"m": [{"l": [{"x": "a"}]}, {"l": [{"x": "b"}]}]}));
    assert_eq!(flat_schema.round_trips(&nested), Ok(true));
    assert_eq!(flat_schema.longest_list(&nested), 2);
}

#[test]
fn name_suffixes_skip_existing_names() {
    let text = json!({"type": "string"});
    let schema = schema_of(json!({
        "a_b": text, "a": schema_of(json!({"b": text, "b_2": text})), "a_b_3": text,
    }));
    assert_eq!(
        leaf_names(&flat(&schema, 1)),
        ["a_b", "a_b_4", "a_b_2", "a_b_3"]
    );
}

#[test]
fn nulls_are_kept_if_the_schema_allows_them_and_dropped_otherwise() {
    let allowing = json!({
        "any": {}, "yes": true, "typed": {"type": ["string", "null"]}, "alone": {"type": "null"},
        "enumerated": {"enum": ["a", null]}, "constant": {"const": null},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "open": {"type": "string", "nullable": true},
    });
    let refusing = json!({
        "text": {"type": "string"}, "no": false, "enumerated2": {"enum": ["a"]},
        "constant2": {"const": 1}, "both": {"allOf": [{}, {"type": "string"}]},
        "one": {"oneOf": [{"type": "string"}]}, "o": schema_of(json!({"x": {}})),
        "l": {"type": "array", "items": schema_of(json!({"x": {}}))},
    });
    let nulls = |properties: &Value| -> Map<String, Value> {
        let names = properties.as_object().expect("an object").keys();
        names.map(|name| (name.clone(), Value::Null)).collect()
    };
    let with_nulls = flat(&schema_of(allowing.clone()), 1);
    assert_eq!(
        with_nulls.flatten_arguments(&nulls(&allowing)),
        Ok(nulls(&allowing))
    );
    assert_eq!(
        with_nulls.unflatten_arguments(&nulls(&allowing)),
        Ok(nulls(&allowing))
    );
    let without_nulls = flat(&schema_of(refusing.clone()), 1);
    assert_eq!(
        without_nulls.flatten_arguments(&nulls(&refusing)),
        Ok(Map::new())
    );
    assert_eq!(without_nulls.round_trips(&nulls(&refusing)), Ok(false));
    let required = json!({
        "type": "object", "properties": {"s": {"type": "string"}, "n": {}}, "required": ["s", "n"],
    });
    let missing = flat(&required, 1).missing_required(&object(json!({"s": null, "n": null})));
    assert_eq!(missing, Ok(vec![vec![PathStep::Key("s".to_owned())]]));
}

#[test]
fn a_missing_required_key_inside_a_leaf_is_found() {
    let schema = schema_of(json!({
        "open": {"type": "object", "additionalProperties": {}, "required": ["k"]},
        "rows": {"type": "array", "items": {"type": "array", "items": {"required": ["r"]}}},
    }));
    let missing = flat(&schema, 1)
        .missing_required(&object(json!({"open": {}, "rows": [[], [{"r": 1}, {}]]})))
        .expect("a usable schema");
    assert_eq!(json!(missing), json!([["open", "k"], ["rows", 1, 1, "r"]]));
}

#[test]
fn a_tool_without_arguments_is_already_flat() {
    for schema in [json!({"type": "object"}), schema_of(json!({}))] {
        assert_eq!(flat(&schema, 1).schema(), &schema_of(json!({})));
        let advice = advise(&schema, Audience::Model).expect("an advice");
        assert_eq!(advice.reason, Reason::AlreadyFlat);
    }
}

#[test]
fn errors_have_a_path_and_a_remedy() {
    let schema = schema_of(json!({"city": schema_of(json!({"name": {}})), "l": {
        "type": "array", "items": schema_of(json!({"x": {}})),
    }}));
    let flat_schema = flat(&schema, 1);
    let message = |nested: Value| {
        let error = flat_schema
            .flatten_arguments(&object(nested))
            .expect_err("refused");
        error.to_string()
    };
    assert_eq!(
        message(json!({"city": {"nama": 1}})),
        "city.nama: not declared in the schema; remove or declare it, did you mean \"name\"?"
    );
    assert_eq!(
        message(json!({"l": [{"x": 1}, {}]})),
        "l has 2 items but only 1 slots; flatten with more slots"
    );
    assert_eq!(
        message(json!({"l": [3]})),
        "l[0]: found a number, expected an object"
    );
    let error = flat_schema.unflatten_arguments(&object(json!({"city_nam": 1})));
    assert_eq!(
        error.expect_err("unknown").to_string(),
        "unknown argument \"city_nam\"; the flat schema lists all arguments, did you mean \"city_name\"?"
    );
}
