//! Writes a JSON value in a canonical form: two values are equal under JSON Schema if and only if
//! their canonical text is equal.

use serde_json::{Number, Value};

/// Writes keys sorted by bytes and numbers by value, so that `uniqueItems` can use a set instead of
/// comparing every pair of items.
pub(super) fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Number(number) => text.push_str(&number_text(number)),
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write(item, text);
                text.push(',');
            }
            text.push(']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| *key);
            text.push('{');
            for (key, field) in fields {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write(field, text);
                text.push(',');
            }
            text.push('}');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

fn number_text(number: &Number) -> String {
    /// Every float above this one is an integer, and every 64-bit integer is below it.
    const END_OF_INTEGERS: f64 = 18_446_744_073_709_551_616.0;
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < END_OF_INTEGERS => {
            (float as i128).to_string()
        }
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonschema::json::cmp;
    use serde_json::json;

    #[test]
    fn canonical_texts_are_equal_if_and_only_if_values_are() {
        let values = [
            json!(1),
            json!(1.0),
            json!(-0.0),
            json!(0),
            json!(1.5),
            json!(u64::MAX),
            json!(u64::MAX as f64),
            json!(9_007_199_254_740_993_u64),
            json!(9_007_199_254_740_992_f64),
            json!(1e300),
            json!("1"),
            json!(null),
            json!(true),
            json!([1, [2.0]]),
            json!([[1], 2]),
            json!({"a": 1, "b": [2]}),
            json!({"b": [2.0], "a": 1}),
            json!({"a": 1}),
        ];
        for left in &values {
            for right in &values {
                let is_equal = canonical(left) == canonical(right);
                assert_eq!(is_equal, cmp::equal(left, right), "{left} {right}");
            }
        }
    }
}
