//! A model's arguments as values of the declared types, and those as texts of a request.
//!
//! The decision to question: what means the same is taken, as in the metrics, so that `"53"` is
//! the integer 53 and 53 is the text `53`; a list where a text is declared is a fault.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Number, Value};
use tooltune_agents::executors::container_literal;
use tooltune_rows::tools::ApiParameter;

/// Everything but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The text as it stands in a path or a query string.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// The value as the parameter's type; nothing where it does not fit.
pub(super) fn fitted(parameter: &ApiParameter, value: &Value) -> Option<Value> {
    let kinds: Vec<&str> = parameter.kind.split('|').map(str::trim).collect();
    if kinds.iter().any(|kind| is_of(kind, value)) {
        return Some(value.clone());
    }
    kinds.iter().find_map(|kind| cast(kind, value))
}

/// Whether the value is of the type as it stands; a type that JSON schema does not have is any.
fn is_of(kind: &str, value: &Value) -> bool {
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
        ("integer", Value::Number(number)) => whole(number),
        ("integer", Value::String(text)) => whole(&number(text)?),
        ("number", Value::String(text)) => number(text).map(Value::Number),
        ("boolean", Value::String(text)) => match text.trim().to_lowercase().as_str() {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            _ => None,
        },
        ("array" | "object", Value::String(text)) => {
            container_literal(text).filter(|value| is_of(kind, value))
        }
        _ => None,
    }
}

/// A JSON number with nothing but blanks around it.
fn number(text: &str) -> Option<Number> {
    serde_json::from_str(text.trim()).ok()
}

/// 1887.0 as 1887; nothing where there is a fraction, or more digits than a float holds.
fn whole(number: &Number) -> Option<Value> {
    if number.is_i64() || number.is_u64() {
        return Some(Value::Number(number.clone()));
    }
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let float = number.as_f64()?;
    (float.fract() == 0.0 && float.abs() <= EXACT).then(|| Value::from(float as i64))
}

/// A value as a text: itself where it is one, else its JSON.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fit(kind: &str, value: Value) -> Option<Value> {
        let parameter = ApiParameter {
            kind: kind.to_owned(),
            ..ApiParameter::new("x")
        };
        fitted(&parameter, &value)
    }

    #[test]
    fn what_means_the_same_fits() {
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
            assert_eq!(fit(kind, value.clone()), Some(expected), "{kind} {value}");
        }
    }

    #[test]
    fn what_does_not_fit_is_nothing() {
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
            assert_eq!(fit(kind, value.clone()), None, "{kind} {value}");
        }
    }

    #[test]
    fn only_unreserved_characters_stay() {
        assert_eq!(encoded("aZ0-._~"), "aZ0-._~");
        assert_eq!(encoded("a b/ü?&=+%#"), "a%20b%2F%C3%BC%3F%26%3D%2B%25%23");
    }
}
