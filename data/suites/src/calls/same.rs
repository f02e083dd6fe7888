//! Compares two arguments under the schema of a tool.

use serde_json::{Map, Value};

use super::tools::Schema;

/// Whether two values are equal as in JSON Schema. Numbers are compared by value, so 5 equals 5.0
/// but not "5". The order of keys does not matter, the order of list items does. A missing key
/// equals its default in the schema.
pub(super) fn is_same(schema: Option<Schema<'_>>, left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => is_same_number(left, right),
        (Value::Array(left), Value::Array(right)) => {
            let mut pairs = left.iter().zip(right).enumerate();
            left.len() == right.len()
                && pairs.all(|(idx, (left, right))| {
                    is_same(schema.and_then(|schema| schema.item(idx)), left, right)
                })
        }
        (Value::Object(left), Value::Object(right)) => {
            has_fields_of(schema, left, right) && has_fields_of(schema, right, left)
        }
        _ => left == right,
    }
}

/// Whether the second object has all fields of the first.
fn has_fields_of(
    schema: Option<Schema<'_>>,
    left_fields: &Map<String, Value>,
    right_fields: &Map<String, Value>,
) -> bool {
    left_fields.iter().all(|(key, value)| {
        let schema = schema.and_then(|schema| schema.property(key));
        let other = right_fields.get(key);
        let other = other.or_else(|| schema.and_then(Schema::default));
        other.is_some_and(|other| is_same(schema, value, other))
    })
}

fn is_same_number(left: &serde_json::Number, right: &serde_json::Number) -> bool {
    match (as_integer(left), as_integer(right)) {
        (Some(left), Some(right)) => left == right,
        (None, None) => left.as_f64() == right.as_f64(),
        _ => false,
    }
}

/// The number as an integer, if it is one.
fn as_integer(number: &serde_json::Number) -> Option<i128> {
    if let Some(integer) = number.as_i128() {
        return Some(integer);
    }
    // Above this number, adjacent integers are the same float. Such floats are compared as floats.
    const MAX_EXACT_FLOAT: f64 = (1_u128 << 100) as f64;
    let float = number.as_f64()?;
    (float.fract() == 0.0 && float.abs() < MAX_EXACT_FLOAT).then_some(float as i128)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_equal_by_the_rules_of_json_schema() {
        for (left, right, expected) in [
            (json!(5), json!(5.0), true),
            (json!(5), json!("5"), false),
            (json!(1), json!(true), false),
            (json!(0.1), json!(0.1), true),
            (
                json!(9_007_199_254_740_993_u64),
                json!(9_007_199_254_740_992.0),
                false,
            ),
            (json!(1e300), json!(1e300), true),
            (json!(-0.0), json!(0), true),
            (json!([1, 2]), json!([2, 1]), false),
            (
                json!({"a": 1, "b": [2]}),
                json!({"b": [2.0], "a": 1.0}),
                true,
            ),
            (json!({"a": 1}), json!({"a": 1, "b": null}), false),
            (json!("Oslo"), json!("oslo"), false),
            (json!(null), json!(""), false),
        ] {
            assert_eq!(is_same(None, &left, &right), expected, "{left} {right}");
            assert_eq!(is_same(None, &right, &left), expected, "{right} {left}");
        }
    }

    #[test]
    fn an_absent_key_equals_its_default_at_any_depth() {
        let schema = json!({"properties": {
            "unit": {"type": "string", "default": "m"},
            "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}},
        }, "$defs": {"stop": {"allOf": [{"properties": {"wait": {"default": 0}}}]}}});
        let are_same =
            |left: Value, right: Value| is_same(Some(Schema::from_root(&schema)), &left, &right);
        assert!(are_same(json!({}), json!({"unit": "m"})));
        assert!(!are_same(json!({}), json!({"unit": "km"})));
        assert!(are_same(
            json!({"stops": [{"name": "a"}]}),
            json!({"stops": [{"wait": 0.0, "name": "a"}], "unit": "m"})
        ));
        assert!(!are_same(json!({"stops": []}), json!({})));
    }
}
