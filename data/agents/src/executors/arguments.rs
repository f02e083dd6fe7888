//! Arguments as a recording knows them again, however a model spells them.
//!
//! The rule is that of the metrics' normalized equality: numbers by exact value, texts in NFC
//! without surplus blanks, texts that are JSON numbers or booleans, of JSON or of Python, as what
//! they say, a null argument as an absent one, and the order of arguments does not matter. Beyond it a list
//! or object in a text is that list or object, since recordings hold both.

use std::fmt::Write;

use serde_json::{Map, Value};
use tooltune_rows::json::MAX_LEVELS;
use unicode_normalization::UnicodeNormalization;

use super::literal::container_literal;

/// A text that is the same for arguments that mean the same.
pub fn canonical(arguments: &Map<String, Value>) -> String {
    let mut text = String::new();
    let given = arguments.iter().filter(|(_, value)| !value.is_null());
    write_members(&mut text, given, 0);
    text
}

fn write_members<'a>(
    text: &mut String,
    members: impl Iterator<Item = (&'a String, &'a Value)>,
    level: usize,
) {
    let mut members: Vec<_> = members.collect();
    members.sort_by_key(|(name, _)| *name);
    text.push('{');
    for (name, value) in members {
        write!(text, "{name:?}:").expect("memory");
        write_value(text, value, level + 1);
        text.push(',');
    }
    text.push('}');
}

fn write_value(text: &mut String, value: &Value, level: usize) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(flag) => text.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => {
            let number = number.to_string();
            text.push_str(&decimal(&number).unwrap_or(number));
        }
        Value::String(given) => write_text(text, given, level),
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write_value(text, item, level + 1);
                text.push(',');
            }
            text.push(']');
        }
        Value::Object(members) => write_members(text, members.iter(), level + 1),
    }
}

fn write_text(text: &mut String, given: &str, level: usize) {
    let composed: String = given.nfc().collect();
    let words = composed.split_whitespace().collect::<Vec<_>>().join(" ");
    // A text within a text within a text: nobody means a list by that.
    if level < MAX_LEVELS
        && let Some(value) = container_literal(&words)
    {
        return write_value(text, &value, MAX_LEVELS);
    }
    match words.as_str() {
        "true" | "True" => text.push_str("true"),
        "false" | "False" => text.push_str("false"),
        _ => match decimal(&words) {
            Some(number) => text.push_str(&number),
            None => write!(text, "{words:?}").expect("memory"),
        },
    }
}

/// A JSON number as digits and exponent without zeros at either end; nothing if it is none.
fn decimal(text: &str) -> Option<String> {
    let is_number = serde_json::from_str::<serde_json::Number>(text).is_ok();
    let starts_well = text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    if !is_number || !starts_well || text.ends_with(char::is_whitespace) {
        return None;
    }
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text),
    };
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent: i64 = exponent.parse().ok()?;
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let short = digits.trim_end_matches('0');
    if short.is_empty() {
        return Some("0e0".to_owned());
    }
    let n_zeros = i64::try_from(digits.len() - short.len()).ok()?;
    let n_fraction = i64::try_from(fraction.len()).ok()?;
    Some(format!("{sign}{short}e{}", exponent - n_fraction + n_zeros))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(value: Value) -> String {
        canonical(value.as_object().expect("an object"))
    }

    #[test]
    fn arguments_that_mean_the_same_are_the_same() {
        for (left, right) in [
            (json!({"x": 1}), json!({"x": 1.0})),
            (json!({"x": "51.5074"}), json!({"x": 51.5074})),
            (json!({"x": "1e2"}), json!({"x": 100})),
            (json!({"x": "True"}), json!({"x": true})),
            (json!({"x": ["False"]}), json!({"x": [false]})),
            (json!({"x": "-0.0"}), json!({"x": 0})),
            (
                json!({"x": "9007199254740993"}),
                json!({"x": 9007199254740993_u64}),
            ),
            (json!({"x": "true"}), json!({"x": true})),
            (json!({"x": " New  York "}), json!({"x": "New York"})),
            (json!({"x": "e\u{301}"}), json!({"x": "é"})),
            (json!({"a": 1, "b": 2, "c": null}), json!({"b": 2, "a": 1})),
            (
                json!({"x": ["1", {"b": 1, "a": 2}]}),
                json!({"x": [1, {"a": 2, "b": "1"}]}),
            ),
            (
                json!({"x": "['John', 'Jane']"}),
                json!({"x": ["John", "Jane"]}),
            ),
        ] {
            assert_eq!(key(left.clone()), key(right.clone()), "{left} {right}");
        }
    }

    #[test]
    fn arguments_that_differ_stay_different() {
        for (left, right) in [
            (json!({"x": 1}), json!({"x": true})),
            (json!({"x": "007"}), json!({"x": 7})),
            (json!({"x": "+5"}), json!({"x": 5})),
            (json!({"x": "5."}), json!({"x": 5})),
            (json!({"x": "null"}), json!({})),
            (json!({"x": ""}), json!({})),
            (json!({"x": "a"}), json!({"x": "A"})),
            (json!({"x": [1, 2]}), json!({"x": [2, 1]})),
            (json!({"x": {"a": null}}), json!({"x": {}})),
            (json!({"x": 1}), json!({"y": 1})),
            (
                json!({"x": "9007199254740993"}),
                json!({"x": 9007199254740992_u64}),
            ),
        ] {
            assert_ne!(key(left.clone()), key(right.clone()), "{left} {right}");
        }
    }
}
