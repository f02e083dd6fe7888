//! The text of a reply in, the JSON in it out, however a model has wrapped it.

use serde_json::Value;
use tooltune_rows::json;

/// Places at which a value is looked for and none begins, before the rest counts as prose.
const MAX_FAILED_STARTS: usize = 64;
/// What ends the thought of a model that thinks aloud.
const END_OF_THOUGHT: &str = "</think>";
/// Characters of a text that are shown.
const EXCERPT_CHARS: usize = 200;

/// The JSON value of a reply: the whole text, or the first object or array in it, behind a
/// thought, in a code fence or among prose.
///
/// # Errors
///
/// Why there is none, for a message.
pub fn json_value(text: &str) -> Result<Value, String> {
    let mut values = json_values(text);
    if values.is_empty() {
        return Err(no_json(text));
    }
    Ok(values.swap_remove(0))
}

/// Every JSON object and array of a reply that stands in no other, in their order; a reply that is
/// a JSON value of another kind has that one.
pub fn json_values(text: &str) -> Vec<Value> {
    let text = text
        .rsplit_once(END_OF_THOUGHT)
        .map_or(text, |(_, said)| said);
    let text = text.trim();
    if let Ok(value) = json::parse(text) {
        return vec![value];
    }
    let mut values = Vec::new();
    let mut rest = text;
    let mut n_failed = 0;
    while let Some(start) = rest.find(['{', '[']) {
        rest = &rest[start..];
        match first_value(rest) {
            Some((value, length)) => {
                values.push(value);
                rest = &rest[length..];
            }
            None => {
                n_failed += 1;
                if n_failed == MAX_FAILED_STARTS {
                    break;
                }
                // A bracket is one byte.
                rest = &rest[1..];
            }
        }
    }
    values
}

/// The value at the beginning of a text, and its length.
fn first_value(text: &str) -> Option<(Value, usize)> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    stream.next()?.ok()?;
    let length = stream.byte_offset();
    let value = json::parse(&text[..length]).ok()?;
    // `[1]` is how prose refers to a source, and is no answer.
    let is_answer = value.is_object()
        || value
            .as_array()
            .is_some_and(|items| items.iter().any(Value::is_object));
    is_answer.then_some((value, length))
}

/// Whether a value says yes or no: a boolean, or such a word.
pub fn truth(value: &Value) -> Option<bool> {
    let word = match value {
        Value::Bool(is_true) => return Some(*is_true),
        Value::String(text) => text.trim().trim_end_matches('.').to_lowercase(),
        _ => return None,
    };
    match word.as_str() {
        "true" | "yes" => Some(true),
        "false" | "no" => Some(false),
        _ => None,
    }
}

fn no_json(text: &str) -> String {
    match excerpt(text) {
        said if said.is_empty() => "the reply is empty".to_owned(),
        said => format!("the reply holds no JSON: {said}"),
    }
}

/// The beginning of a text on one line, for messages.
pub fn excerpt(text: &str) -> String {
    let mut shown = String::new();
    let mut n = 0;
    for word in text.split_whitespace() {
        if !shown.is_empty() {
            shown.push(' ');
        }
        for character in word.chars().filter(|c| !c.is_control()) {
            if n == EXCERPT_CHARS {
                shown.push('…');
                return shown;
            }
            shown.push(character);
            n += 1;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_found_however_a_model_wraps_it() {
        for text in [
            r#"{"a": [1, "}"]}"#,
            "```json\n{\"a\": [1, \"}\"]}\n```",
            "Sure! Here it is:\n{\"a\": [1, \"}\"]}\nAnything else? {no",
            "<think>{\"a\": 0}? No.</think>\n{\"a\": [1, \"}\"]}",
            "As in [1], {x}: {\"a\": [1, \"}\"]}",
        ] {
            assert_eq!(json_value(text), Ok(json!({"a": [1, "}"]})), "{text}");
        }
        let lines = "<JSONL>{\"a\": 1}</JSONL>\n<JSONL>{\"a\": 2}</JSONL>";
        assert_eq!(json_values(lines), [json!({"a": 1}), json!({"a": 2})]);
        assert_eq!(json_values("[{\"a\": 1}]"), [json!([{"a": 1}])]);
        assert_eq!(json_values(" true "), [json!(true)]);
    }

    #[test]
    fn what_is_no_json_says_so_and_ends() {
        assert_eq!(json_value("  ").unwrap_err(), "the reply is empty");
        let error = json_value("half of it: {\"a\": [1, ").unwrap_err();
        assert_eq!(error, "the reply holds no JSON: half of it: {\"a\": [1,");
        let deep = "[".repeat(1 << 20);
        assert!(json_value(&deep).is_err());
        let error = json_value(&"word ".repeat(1 << 20)).unwrap_err();
        assert!(error.len() < 400, "{error}");
    }
}
