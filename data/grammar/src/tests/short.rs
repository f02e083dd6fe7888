//! Schemas with an end.

use serde_json::json;

use super::{accepts, grammar};
use crate::{MOST_CHARACTERS, MOST_ENTRIES, short};

#[test]
fn lists_and_texts_without_a_limit_have_one_and_others_keep_theirs() {
    let schema = json!({
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": ["string", "null"]}},
            "b": {"type": "array", "maxItems": 99, "items": {"enum": ["x"]}},
            "c": {"type": "array", "minItems": 40, "items": {"$ref": "#/$defs/d"}},
            "e": {"type": "string", "format": "date"},
            "maxItems": {"type": "integer"},
        },
        "$defs": {"d": {"type": "string", "minLength": 2}},
        "required": ["a"],
    });
    let made = short(&schema);
    let properties = &made["properties"];
    assert_eq!(properties["a"]["maxItems"], MOST_ENTRIES);
    assert_eq!(properties["a"]["items"]["maxLength"], MOST_CHARACTERS);
    assert_eq!(properties["c"]["maxItems"], 40);
    assert_eq!(made["$defs"]["d"]["maxLength"], MOST_CHARACTERS);
    for same in ["b", "e", "maxItems"] {
        assert_eq!(properties[same], schema["properties"][same], "{same}");
    }
}

#[test]
fn what_is_held_to_it_ends() {
    let schema = json!({"type": "array", "items": {"enum": ["a"]}});
    let text = |n: u64| {
        serde_json::to_string(&vec!["a"; n as usize])
            .unwrap()
            .replace(',', ", ")
    };
    let (free, held) = (grammar(&schema), grammar(&short(&schema)));
    assert!(accepts(&held, &text(MOST_ENTRIES)));
    assert!(!accepts(&held, &text(MOST_ENTRIES + 1)));
    assert!(accepts(&free, &text(MOST_ENTRIES + 1)));
}
