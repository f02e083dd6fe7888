//! The canonical form of arguments, by which a recording recognizes equivalent arguments.
//!
//! Arguments are equivalent under the same rules as in the metrics' normalized equality: numbers by
//! exact value, strings in NFC with collapsed whitespace, strings that contain a JSON number or a
//! boolean (of JSON or Python) by value, null like a missing argument, and keys in any order. In
//! addition, a string that contains a list or object equals that list or object, because recordings
//! contain both.

use std::fmt::Write;

use serde_json::{Map, Value};
use tooltune_json::MAX_LEVELS;
use unicode_normalization::UnicodeNormalization;

use super::literal::container_literal;

/// A string that is the same for equivalent arguments.
pub fn canonical_arguments(arguments: &Map<String, Value>) -> String {
    canonical_with_nulls(arguments, &|_| false)
}

/// Like [`canonical_arguments`], but null is a value for the arguments in `takes_null`.
pub(super) fn canonical_with_nulls(
    arguments: &Map<String, Value>,
    takes_null: &dyn Fn(&str) -> bool,
) -> String {
    let mut text = String::new();
    let arguments_with_values = arguments
        .iter()
        .filter(|(name, value)| !value.is_null() || takes_null(name));
    write_members(&mut text, arguments_with_values, 0);
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
            text.push_str(&canonical_decimal(&number).unwrap_or(number));
        }
        Value::String(argument_text) => write_text(text, argument_text, level),
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

fn write_text(text: &mut String, argument_text: &str, level: usize) {
    let composed: String = argument_text.nfc().collect();
    let collapsed = composed.split_whitespace().collect::<Vec<_>>().join(" ");
    // Do not parse a list in a string that is itself inside a parsed string.
    if level < MAX_LEVELS
        && let Some(value) = container_literal(&collapsed)
    {
        return write_value(text, &value, MAX_LEVELS);
    }
    match collapsed.as_str() {
        "true" | "True" => text.push_str("true"),
        "false" | "False" => text.push_str("false"),
        _ => match canonical_decimal(&collapsed) {
            Some(number) => text.push_str(&number),
            None => write!(text, "{collapsed:?}").expect("memory"),
        },
    }
}

/// A JSON number as digits and exponent without leading or trailing zeros; `None` if it is not a
/// number.
fn canonical_decimal(text: &str) -> Option<String> {
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
    let (integer_part, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent: i64 = exponent.parse().ok()?;
    let digits = format!("{integer_part}{fraction}");
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

    fn key_of(value: Value) -> String {
        canonical_arguments(value.as_object().expect("an object"))
    }

    #[test]
    fn arguments_with_equal_meaning_have_one_canonical_form() {
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
            assert_eq!(
                key_of(left.clone()),
                key_of(right.clone()),
                "{left} {right}"
            );
        }
    }

    #[test]
    fn different_arguments_have_different_canonical_forms() {
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
            assert_ne!(
                key_of(left.clone()),
                key_of(right.clone()),
                "{left} {right}"
            );
        }
    }
}
