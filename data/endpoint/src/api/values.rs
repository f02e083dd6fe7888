//! Converts a model's arguments to the declared types, and the converted values to strings of a
//! request.
//!
//! Equivalent values are accepted, as in the metrics: `"53"` is the integer 53, and 53 is the
//! string `53`. A list for a declared string is an error.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Number, Value};
use tooltune_agents::executors::container_literal;
use tooltune_apis::ApiParameter;

/// Everything except the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Percent-encodes a string for a path or a query string.
pub(super) fn encode_component(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Characters to encode in a query value, because they end the value or mean a space.
const NOT_IN_QUERIES: &AsciiSet = &RESERVED
    .remove(b':')
    .remove(b'/')
    .remove(b'?')
    .remove(b'[')
    .remove(b']')
    .remove(b'@')
    .remove(b'!')
    .remove(b'$')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b',')
    .remove(b';')
    .remove(b'=');

/// Encodes a string for a query string under `allowReserved`: reserved and percent-encoded
/// characters stay unchanged.
///
/// # Source
///
/// OpenAPI 3.1.1, section 4.8.12.2.2; RFC 6570, section 3.2.3.
pub(super) fn encode_except_reserved(text: &str) -> String {
    let mut encoded = String::new();
    let mut remaining = text;
    while let Some(percent) = remaining.find('%') {
        encoded.extend(utf8_percent_encode(&remaining[..percent], NOT_IN_QUERIES));
        let digits = remaining.as_bytes().get(percent + 1..percent + 3);
        let is_encoded = digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        encoded.push_str(if is_encoded { "%" } else { "%25" });
        remaining = &remaining[percent + 1..];
    }
    encoded.extend(utf8_percent_encode(remaining, NOT_IN_QUERIES));
    encoded
}

/// Converts the value to the parameter's type; `None` if that is impossible.
pub(super) fn fit_argument(parameter: &ApiParameter, value: &Value) -> Option<Value> {
    let kinds: Vec<&str> = parameter.kind.split('|').map(str::trim).collect();
    if kinds.iter().any(|kind| has_type(kind, value)) {
        return Some(value.clone());
    }
    kinds.iter().find_map(|kind| cast(kind, value))
}

/// Whether the value already has the type. A type unknown to JSON Schema accepts any value.
fn has_type(kind: &str, value: &Value) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    }
}

fn cast(kind: &str, value: &Value) -> Option<Value> {
    match (kind, value) {
        ("string", Value::Number(_) | Value::Bool(_)) => Some(Value::from(value.to_string())),
        ("integer", Value::Number(number)) => as_integer(number),
        ("integer", Value::String(text)) => as_integer(&number(text)?),
        ("number", Value::String(text)) => number(text).map(Value::Number),
        ("boolean", Value::String(text)) => match text.trim().to_lowercase().as_str() {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            _ => None,
        },
        ("array" | "object", Value::String(text)) => {
            container_literal(text).filter(|value| has_type(kind, value))
        }
        _ => None,
    }
}

/// A JSON number, optionally surrounded by whitespace.
fn number(text: &str) -> Option<Number> {
    serde_json::from_str(text.trim()).ok()
}

/// Converts 1887.0 to 1887; `None` if there is a fraction, or more digits than a float has.
fn as_integer(number: &Number) -> Option<Value> {
    if number.is_i64() || number.is_u64() {
        return Some(Value::Number(number.clone()));
    }
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let float = number.as_f64()?;
    (float.fract() == 0.0 && float.abs() <= EXACT).then(|| Value::from(float as i64))
}

/// A value as a string: the string itself, or the value's JSON.
pub(super) fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cast_checked(kind: &str, value: Value) -> Option<Value> {
        let parameter = ApiParameter {
            kind: kind.to_owned(),
            ..ApiParameter::new("x")
        };
        fit_argument(&parameter, &value)
    }

    #[test]
    fn equivalent_values_are_converted() {
        for (kind, value, expected) in [
            ("integer", json!(" 53 "), json!(53)),
            ("integer", json!(53.0), json!(53)),
            ("integer", json!(u64::MAX), json!(u64::MAX)),
            ("number", json!("1.5"), json!(1.5)),
            ("number", json!(2), json!(2)),
            ("string", json!(53), json!("53")),
            ("string", json!(true), json!("true")),
            ("boolean", json!("True"), json!(true)),
            ("array", json!("['a', \"b\"]"), json!(["a", "b"])),
            ("object", json!("{\"a\": 1}"), json!({"a": 1})),
            ("integer|string", json!("53"), json!("53")),
            ("integer|array", json!("53"), json!(53)),
            ("", json!([1]), json!([1])),
            ("file", json!(1), json!(1)),
        ] {
            assert_eq!(
                cast_checked(kind, value.clone()),
                Some(expected),
                "{kind} {value}"
            );
        }
    }

    #[test]
    fn values_that_do_not_fit_the_type_are_refused() {
        for (kind, value) in [
            ("integer", json!("5.5")),
            ("integer", json!("007")),
            ("integer", json!(1e300)),
            ("integer", json!(true)),
            ("number", json!("NaN")),
            ("string", json!(["a"])),
            ("boolean", json!(1)),
            ("array", json!("a,b")),
            ("array", json!("{\"a\": 1}")),
            ("object", json!([1])),
            ("integer|boolean", json!("yes")),
        ] {
            assert_eq!(cast_checked(kind, value.clone()), None, "{kind} {value}");
        }
    }

    #[test]
    fn only_unreserved_characters_stay() {
        assert_eq!(encode_component("aZ0-._~"), "aZ0-._~");
        assert_eq!(
            encode_component("a b/ü?&=+%#"),
            "a%20b%2F%C3%BC%3F%26%3D%2B%25%23"
        );
    }
}
