//! Reads typed fields of a `config.json`, with errors that name the field.

use serde_json::Value;

use super::config::DecoderConfigError;

pub(super) fn wrong_field(
    json: &Value,
    field: &'static str,
    expected: &'static str,
) -> DecoderConfigError {
    let value = json
        .get(field)
        .map_or("nothing".to_string(), Value::to_string);
    DecoderConfigError::Field {
        field,
        expected,
        found: value,
    }
}

pub(super) fn string(json: &Value, field: &'static str) -> Result<String, DecoderConfigError> {
    let value = json.get(field).and_then(Value::as_str);
    value
        .map(str::to_string)
        .ok_or_else(|| wrong_field(json, field, "a string"))
}

pub(super) fn count(json: &Value, field: &'static str) -> Result<usize, DecoderConfigError> {
    optional_count(json, field)?.ok_or_else(|| wrong_field(json, field, "a whole number above 0"))
}

pub(super) fn optional_count(
    json: &Value,
    field: &'static str,
) -> Result<Option<usize>, DecoderConfigError> {
    match json.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            // With the limit 2^32, the product of two sizes fits into 64 bits.
            Some(n) if n > 0 && n < 1 << 32 => Ok(Some(n as usize)),
            _ => Err(wrong_field(json, field, "a whole number above 0")),
        },
    }
}

pub(super) fn number(json: &Value, field: &'static str) -> Result<f64, DecoderConfigError> {
    optional_number(json, field)?.ok_or_else(|| wrong_field(json, field, "a number above 0"))
}

pub(super) fn optional_number(
    json: &Value,
    field: &'static str,
) -> Result<Option<f64>, DecoderConfigError> {
    match json.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(x) if x > 0.0 && x.is_finite() => Ok(Some(x)),
            _ => Err(wrong_field(json, field, "a number above 0")),
        },
    }
}

/// A list of `n` numbers above 0.
pub(super) fn numbers(
    json: &Value,
    field: &'static str,
    n: usize,
) -> Result<Vec<f64>, DecoderConfigError> {
    let entries = json.get(field).and_then(Value::as_array);
    let numbers: Option<Vec<f64>> = entries
        .into_iter()
        .flatten()
        .map(|value| value.as_f64().filter(|x| *x > 0.0 && x.is_finite()))
        .collect();
    numbers.filter(|numbers| numbers.len() == n).ok_or_else(|| {
        let expected = "a list of numbers above 0, one for each pair of rotated values";
        wrong_field(json, field, expected)
    })
}

pub(super) fn probability(json: &Value, field: &'static str) -> Result<f64, DecoderConfigError> {
    match json.get(field) {
        None | Some(Value::Null) => Ok(0.0),
        Some(value) => match value.as_f64() {
            Some(x) if (0.0..1.0).contains(&x) => Ok(x),
            _ => Err(wrong_field(json, field, "a number from 0 to below 1")),
        },
    }
}

pub(super) fn flag(
    json: &Value,
    field: &'static str,
    default: bool,
) -> Result<bool, DecoderConfigError> {
    match json.get(field) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(wrong_field(json, field, "true or false")),
    }
}
