//! Extracts JSON from the text of a reply, however a model has wrapped it.

use serde_json::Value;
use tooltune_json as json;
use tooltune_json::ValueBudget;
use tooltune_json::printable;

/// Number of failed attempts to parse a value, after which the rest is treated as prose.
const MAX_FAILED_STARTS: usize = 64;
/// Maximum number of JSON values in a reply, about a hundred times the largest expected number.
const REPLY_VALUES: ValueBudget = ValueBudget::new("REPLY_VALUES", 100_000);
/// The end marker of a model's reasoning.
const END_OF_THOUGHT: &str = "</think>";
/// Length of excerpts in messages.
const EXCERPT_CHARS: usize = 200;

/// The JSON value of a reply: the whole text, or the first object or array in it. Reasoning, code
/// fences and prose around it are ignored.
///
/// # Errors
///
/// The reply has no JSON value. The error is a sentence for messages.
pub fn json_value(text: &str) -> Result<Value, String> {
    REPLY_VALUES
        .check(text.as_bytes())
        .map_err(|error| error.to_string())?;
    let mut values = json_values(text);
    if values.is_empty() {
        return Err(no_json(text));
    }
    Ok(values.swap_remove(0))
}

/// All outermost JSON objects and arrays in a reply, in order. If the whole reply is another JSON
/// value, returns only that one.
pub fn json_values(text: &str) -> Vec<Value> {
    let text = text
        .rsplit_once(END_OF_THOUGHT)
        .map_or(text, |(_, after_thinking)| after_thinking);
    let text = text.trim();
    if REPLY_VALUES.check(text.as_bytes()).is_err() {
        return Vec::new();
    }
    if let Ok(value) = json::parse(text) {
        return vec![value];
    }
    let mut values = Vec::new();
    let mut remaining = text;
    let mut n_failed = 0;
    while let Some(start) = remaining.find(['{', '[']) {
        remaining = &remaining[start..];
        match first_value(remaining) {
            Some((value, length)) => {
                values.push(value);
                remaining = &remaining[length..];
            }
            None => {
                n_failed += 1;
                if n_failed == MAX_FAILED_STARTS {
                    break;
                }
                // A bracket is one byte.
                remaining = &remaining[1..];
            }
        }
    }
    values
}

/// The JSON value at the start of `text`, and its length.
fn first_value(text: &str) -> Option<(Value, usize)> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    stream.next()?.ok()?;
    let length = stream.byte_offset();
    let value = json::parse(&text[..length]).ok()?;
    // `[1]` is a citation in prose, not an answer.
    let is_answer = value.is_object()
        || value
            .as_array()
            .is_some_and(|items| items.iter().any(Value::is_object));
    is_answer.then_some((value, length))
}

/// Parses a boolean, or a word such as "yes".
pub fn parse_bool(value: &Value) -> Option<bool> {
    let lower = match value {
        Value::Bool(is_true) => return Some(*is_true),
        Value::String(text) => text.trim().trim_end_matches('.').to_lowercase(),
        _ => return None,
    };
    match lower.as_str() {
        "true" | "yes" => Some(true),
        "false" | "no" => Some(false),
        _ => None,
    }
}

fn no_json(text: &str) -> String {
    match excerpt(text) {
        quoted if quoted.is_empty() => "the reply is empty".to_owned(),
        quoted => format!("the reply contains no JSON: {quoted}"),
    }
}

/// The start of `text` on one line, for messages.
pub fn excerpt(text: &str) -> String {
    let mut shortened = String::new();
    let mut n = 0;
    for word in text.split_whitespace() {
        if !shortened.is_empty() {
            shortened.push(' ');
        }
        for character in word.chars().filter(|c| !c.is_control()) {
            if n == EXCERPT_CHARS {
                shortened.push('…');
                return printable::line(&shortened).into_owned();
            }
            shortened.push(character);
            n += 1;
        }
    }
    printable::line(&shortened).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_parsed_however_a_model_wraps_it() {
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
    fn a_reply_without_json_is_an_error_that_quotes_it() {
        assert_eq!(json_value("  ").unwrap_err(), "the reply is empty");
        let error = json_value("half of it: {\"a\": [1, ").unwrap_err();
        assert_eq!(error, "the reply contains no JSON: half of it: {\"a\": [1,");
        let nested = "[".repeat(1 << 20);
        assert!(json_value(&nested).is_err());
        let error =
            json_value(&format!("[{}0]", "0,".repeat(REPLY_VALUES.max_values()))).unwrap_err();
        assert!(error.contains("more than 100000 values"), "{error}");
        let error = json_value(&"word ".repeat(1 << 20)).unwrap_err();
        assert!(error.len() < 400, "{error}");
    }
}
