//! Schemas with length limits.

use serde_json::{Value, json};

use super::{accepts, grammar, grammar_with, patient_options};
use crate::{Grammar, GrammarOptions, Lengths, MAX_CHARACTERS, MAX_ENTRIES};

fn short_grammar(schema: &Value) -> Grammar {
    let options = GrammarOptions {
        lengths: Lengths::Short,
        ..patient_options()
    };
    grammar_with(schema, &options)
}

/// A list of `n` entries, in the spelling of a grammar.
fn list(entry: &str, n: usize) -> String {
    format!("[{}]", vec![entry; n].join(", "))
}

#[test]
fn length_limits_apply_to_nested_lists_and_strings() {
    let entries = json!({"type": "array", "items": {"enum": ["a"]}});
    let reference = json!({"$ref": "#/$defs/list"});
    for schema in [
        entries.clone(),
        json!({"items": {"enum": ["a"]}, "type": ["array", "null"]}),
        json!({"anyOf": [{"type": "null"}, entries]}),
        json!({"oneOf": [{"type": "null"}, entries]}),
        json!({"allOf": [{"type": "array"}, {"items": {"enum": ["a"]}}]}),
        json!({"anyOf": [reference], "$defs": {"list": entries}}),
    ] {
        let (free, short) = (grammar(&schema), short_grammar(&schema));
        assert!(short.is_shortened() && !free.is_shortened(), "{schema}");
        let (longest, too_long) = (list("\"a\"", MAX_ENTRIES), list("\"a\"", MAX_ENTRIES + 1));
        assert!(accepts(&short, &longest), "{schema}");
        assert!(!accepts(&short, &too_long), "{schema}");
        assert!(accepts(&free, &too_long), "{schema}");
    }
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let text = |n: usize| format!("{{\"a\": \"{}\"}}", "x".repeat(n));
    let (free, short) = (grammar(&schema), short_grammar(&schema));
    assert!(accepts(&short, &text(MAX_CHARACTERS)));
    assert!(!accepts(&short, &text(MAX_CHARACTERS + 1)));
    assert!(accepts(&free, &text(MAX_CHARACTERS + 1)));
}

#[test]
fn lengths_set_by_the_schema_are_kept() {
    for (schema, longest) in [
        (
            json!({"type": "array", "maxItems": 20, "items": {"const": 1}}),
            20,
        ),
        (
            json!({"type": "array", "minItems": 40, "items": {"const": 1}}),
            40,
        ),
    ] {
        let short = short_grammar(&schema);
        assert!(accepts(&short, &list("1", longest)), "{schema}");
        assert!(!accepts(&short, &list("1", longest + 1)), "{schema}");
    }
    for same in [
        json!({"type": "array", "maxItems": 20, "items": {"const": 1}}),
        json!({"type": "string", "pattern": "^a+$"}),
        json!({"enum": ["x".repeat(300), ["y", "y"]]}),
        json!({"type": "array", "prefixItems": [{"type": "integer"}], "items": false}),
    ] {
        assert!(!short_grammar(&same).is_shortened(), "{same}");
    }
}
