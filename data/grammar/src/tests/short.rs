//! Schemas with an end.

use serde_json::{Value, json};

use super::{accepts, grammar, grammar_with, patient};
use crate::{Grammar, GrammarOptions, Lengths, MOST_CHARACTERS, MOST_ENTRIES};

fn held(schema: &Value) -> Grammar {
    let options = GrammarOptions {
        lengths: Lengths::Short,
        ..patient()
    };
    grammar_with(schema, &options)
}

/// A list of so many entries, in the spelling of a grammar.
fn list(entry: &str, n: usize) -> String {
    format!("[{}]", vec![entry; n].join(", "))
}

#[test]
fn what_is_held_to_it_ends_wherever_the_list_or_the_text_stands() {
    let entries = json!({"type": "array", "items": {"enum": ["a"]}});
    let named = json!({"$ref": "#/$defs/list"});
    for schema in [
        entries.clone(),
        json!({"items": {"enum": ["a"]}, "type": ["array", "null"]}),
        json!({"anyOf": [{"type": "null"}, entries]}),
        json!({"oneOf": [{"type": "null"}, entries]}),
        json!({"allOf": [{"type": "array"}, {"items": {"enum": ["a"]}}]}),
        json!({"anyOf": [named], "$defs": {"list": entries}}),
    ] {
        let (free, short) = (grammar(&schema), held(&schema));
        assert!(short.is_shortened() && !free.is_shortened(), "{schema}");
        let (most, more) = (list("\"a\"", MOST_ENTRIES), list("\"a\"", MOST_ENTRIES + 1));
        assert!(accepts(&short, &most), "{schema}");
        assert!(!accepts(&short, &more), "{schema}");
        assert!(accepts(&free, &more), "{schema}");
    }
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let text = |n: usize| format!("{{\"a\": \"{}\"}}", "x".repeat(n));
    let (free, short) = (grammar(&schema), held(&schema));
    assert!(accepts(&short, &text(MOST_CHARACTERS)));
    assert!(!accepts(&short, &text(MOST_CHARACTERS + 1)));
    assert!(accepts(&free, &text(MOST_CHARACTERS + 1)));
}

#[test]
fn what_says_a_number_of_its_own_keeps_it() {
    for (schema, most) in [
        (
            json!({"type": "array", "maxItems": 20, "items": {"const": 1}}),
            20,
        ),
        (
            json!({"type": "array", "minItems": 40, "items": {"const": 1}}),
            40,
        ),
    ] {
        let short = held(&schema);
        assert!(accepts(&short, &list("1", most)), "{schema}");
        assert!(!accepts(&short, &list("1", most + 1)), "{schema}");
    }
    for same in [
        json!({"type": "array", "maxItems": 20, "items": {"const": 1}}),
        json!({"type": "string", "pattern": "^a+$"}),
        json!({"enum": ["x".repeat(300), ["y", "y"]]}),
        json!({"type": "array", "prefixItems": [{"type": "integer"}], "items": false}),
    ] {
        assert!(!held(&same).is_shortened(), "{same}");
    }
}
