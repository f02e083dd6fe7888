//! No object has a duplicate key, even if the schema allows any keys.

use tooltune_json::parse_unique;

use super::*;

/// Invariant: A constraint never writes a duplicate key.
#[test]
fn no_duplicate_key_is_generated() {
    let open = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    check(
        &open,
        &patient_options(),
        &[
            r#"{"a": 1, "b": 2, "bb": 3}"#,
            r#"{"b": {"b": {"b": 1}}, "c": [{"b": 1}, {"b": 2}]}"#,
            r#"{"b": "b", "c": "\"b\": 1"}"#,
        ],
        &[
            r#"{"a": 1, "a": 2}"#,
            r#"{"b": 1, "b": 2}"#,
            r#"{"b": 1, "a": 2}"#,
            r#"{"b": 1, "c": {"d": 1, "d": 2}}"#,
            r#"{"b": 1, "c": {"b": 1}, "b": 2}"#,
            r#"{"b": [{"é": 1, "é": 2}]}"#,
            r#"{"\n": 1, "\n": 2}"#,
            r#"{"b": 1, "\u0062": 2}"#,
        ],
    );
    check(
        &json!({}),
        &patient_options(),
        &[r#"[{"a": 1}, {"a": 1}]"#],
        &[r#"[{"a": 1, "a": 1}]"#],
    );
    let merged = json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}],
        "required": ["z"], "type": "object"});
    check(
        &merged,
        &patient_options(),
        &[r#"{"a": 1, "b": 2, "z": 3}"#],
        &[
            r#"{"a": 1, "b": 2, "z": 3, "a": 4}"#,
            r#"{"z": 3, "z": 4}"#,
            r#"{"a": 1, "a": 2, "z": 3}"#,
        ],
    );
}

#[test]
fn no_key_is_started_when_all_possible_keys_are_used() {
    let few = json!({"type": "object", "additionalProperties": false,
        "patternProperties": {"^(a|bc)$": {"type": "integer"}}});
    check(
        &few,
        &patient_options(),
        &["{}", r#"{"bc": 1, "a": 2}"#, r#"{"a": 1, "bc": 2}"#],
        &[
            r#"{"a": 1, "a": 2}"#,
            r#"{"a": 1, "bc": 2, "a": 3}"#,
            r#"{"c": 1}"#,
        ],
    );
    // A comma would require a third key.
    let mut constraint = grammar(&few).constraint();
    for id in tokenizer().encode(r#"{"a": 1, "bc": 2"#).unwrap().ids {
        constraint.consume(id).unwrap();
    }
    let mask = constraint.mask().unwrap();
    let comma = tokenizer().encode(",").unwrap().ids[0];
    assert!(!mask.is_allowed(comma));
    let both = json!({"type": "object", "minProperties": 2, "maxProperties": 2,
        "patternProperties": {"^[ab]$": {"type": "null"}}, "additionalProperties": false});
    let grammar = grammar(&both);
    for seed in 0..20 {
        let text = walk(&grammar, seed, 40);
        let keys = parse_unique(&text).unwrap();
        assert_eq!(
            keys.as_object().map(serde_json::Map::len),
            Some(2),
            "{text}"
        );
    }
}

/// Invariant: A constraint never writes a duplicate key.
#[test]
fn random_objects_have_no_duplicate_key() {
    for (seeds, schema) in [
        (
            40,
            json!({"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 3}),
        ),
        (
            40,
            json!({"type": "object", "additionalProperties": false, "minProperties": 3,
            "patternProperties": {"^[a-c]{1,2}$": {"type": "null"}}}),
        ),
        (
            20,
            json!({"type": "object", "properties": {"a": {}}, "patternProperties": {
            "^[ab]$": {"type": "boolean"}}, "additionalProperties": {"type": "null"}}),
        ),
    ] {
        let grammar = grammar(&schema);
        let validator = validator(&schema, Formats::Annotated);
        for seed in 0..seeds {
            let text = walk(&grammar, seed, 60);
            let value = parse_unique(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(validator.is_valid(&value), "{schema}: {text}");
        }
    }
}
