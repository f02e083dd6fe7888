//! Parses lists and objects in strings, in JSON or Python notation.
//!
//! API-Bank records `"['John', 'Jane']"` where a model may write the list `["John", "Jane"]`.

use serde_json::Value;
use tooltune_json::parse;
use tooltune_json::python::python_literal;

/// The list or object in a string, if the string contains nothing else.
pub fn container_literal(text: &str) -> Option<Value> {
    let text = text.trim();
    if !text.starts_with(['[', '{']) {
        return None;
    }
    let python = || python_literal(text)?.to_json();
    parse(text).ok().or_else(python)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_and_objects_are_parsed_as_json_and_as_python() {
        for (text, expected) in [
            (r#"["a", 1]"#, json!(["a", 1])),
            (
                " ['a', \"it's\", 1.5, True, None] ",
                json!(["a", "it's", 1.5, true, null]),
            ),
            (
                "[{'name': 'heart_rate', 'value': '80'}, {}]",
                json!([{"name": "heart_rate", "value": "80"}, {}]),
            ),
            (r"['it\'s', 'a\\b']", json!(["it's", "a\\b"])),
            (r"['a\r\x41\u00e9\U0001f600']", json!(["a\rAé😀"])),
            ("{'a': [1, 2,],}", json!({"a": [1, 2]})),
            ("[]", json!([])),
        ] {
            assert_eq!(container_literal(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn a_text_without_a_container_stays_a_text() {
        let nested = "[".repeat(100_000);
        for text in [
            "",
            "a",
            "12",
            "['a'",
            "['a' 'b']",
            "[a]",
            "{1: 2}",
            "['a'] b",
            "[,]",
            &nested,
        ] {
            assert_eq!(
                container_literal(text),
                None,
                "{}",
                &text[..text.len().min(20)]
            );
        }
    }
}
