//! Resolves scalars by the core schema.
//!
//! # Source
//!
//! YAML 1.2.2, section 10.3.2.

use serde_json::{Number, Value};

/// The meaning of a plain scalar.
pub(super) enum Plain {
    /// A JSON value.
    Value(Value),
    /// A number that JSON cannot represent, such as `.inf` or `1e400`.
    NotJson,
}

/// Resolves a plain scalar.
pub(super) fn resolve_plain_scalar(text: &str) -> Plain {
    let value = match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ if is_beyond_json(text) => return Plain::NotJson,
        _ => match (integer(text), float(text)) {
            (Some(integer), _) => integer,
            // The parser rounds numbers beyond the range of f64 to infinity.
            (None, Some(float)) => match Number::from_f64(float) {
                Some(float) => Value::from(float),
                None => return Plain::NotJson,
            },
            (None, None) => Value::from(text),
        },
    };
    Plain::Value(value)
}

/// Resolves a scalar with a core schema tag; `None` if the tag does not fit.
pub(super) fn resolve_tagged_scalar(tag: &str, text: &str) -> Option<Value> {
    let resolved = match resolve_plain_scalar(text) {
        Plain::Value(value) => value,
        Plain::NotJson => return None,
    };
    match tag {
        "str" => Some(Value::from(text)),
        "int" => Some(resolved).filter(|value| value.is_i64() || value.is_u64()),
        "float" => resolved
            .as_f64()
            .and_then(Number::from_f64)
            .map(Value::from),
        "bool" => Some(resolved).filter(Value::is_boolean),
        "null" => Some(resolved).filter(Value::is_null),
        _ => None,
    }
}

fn integer(text: &str) -> Option<Value> {
    let radix = |digits: &str, radix| u64::from_str_radix(digits, radix).ok().map(Value::from);
    // `from_str_radix` accepts a sign, which the schema forbids here.
    if let Some(digits) = text.strip_prefix("0o") {
        return digits
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| radix(digits, 8))?;
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return digits
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit())
            .then(|| radix(digits, 16))?;
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    let unsigned = text.parse::<u64>().map(Value::from);
    unsigned
        .or_else(|_| text.parse::<i64>().map(Value::from))
        .ok()
}

fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let begins = unsigned.strip_prefix('.').unwrap_or(unsigned);
    let is_number = begins.starts_with(|c: char| c.is_ascii_digit())
        && unsigned
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    // The float parser checks the rest. It would also accept words such as `inf`, so words are
    // excluded first.
    is_number.then(|| text.parse::<f64>().ok())?
}

fn is_beyond_json(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    [".inf", ".Inf", ".INF"].contains(&unsigned) || [".nan", ".NaN", ".NAN"].contains(&text)
}
