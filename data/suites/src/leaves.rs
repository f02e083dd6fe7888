//! Lists the leaves of a JSON value, each with its path and text.
//!
//! Paths are typed: the key `"0"` and the index 0 differ, so an object never matches an array by
//! accident. An empty object or array is a leaf with the text `{}` or `[]`, because a prediction
//! that omits it has lost information.

use serde_json::{Number, Value};
use tooltune_json::{Style, dumps, python_float_repr};

/// Lists the leaves of a value in document order as (path, text).
///
/// A path is `$` followed by the steps to the leaf. A step is `["key"]`, with the key as JSON, or
/// `[index]`. The path of a root scalar is `$`. Every value has at least one leaf.
pub fn leaves(value: &Value) -> Vec<(String, String)> {
    let mut all_leaves = Vec::new();
    collect_leaves(value, "$".to_owned(), &mut all_leaves);
    all_leaves
}

/// The text of a value in comparisons: strings are unchanged, other scalars are written as JSON.
///
/// A number without a fraction is written as an integer (`1887.0` as `1887`), because both are the
/// same JSON number. Objects and arrays are written as JSON; only empty ones occur as leaves.
pub fn scalar_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number_text(number),
        other => dumps(other, Style::Python),
    }
}

/// Whether a value contains no other values.
pub(crate) fn is_leaf(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    }
}

/// Number of leaves of a value.
pub(crate) fn n_leaves(value: &Value) -> usize {
    match value {
        Value::Object(fields) if !fields.is_empty() => fields.values().map(n_leaves).sum(),
        Value::Array(items) if !items.is_empty() => items.iter().map(n_leaves).sum(),
        _ => 1,
    }
}

fn collect_leaves(value: &Value, path: String, leaves: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, field) in fields {
                let key = dumps(&Value::from(key.as_str()), Style::Compact);
                collect_leaves(field, format!("{path}[{key}]"), leaves);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (item_idx, item) in items.iter().enumerate() {
                collect_leaves(item, format!("{path}[{item_idx}]"), leaves);
            }
        }
        leaf => leaves.push((path, scalar_text(leaf))),
    }
}

fn number_text(number: &Number) -> String {
    match number.as_f64() {
        // Adding zero turns -0.0 into 0.0.
        Some(float) if number.is_f64() && float.fract() == 0.0 => format!("{:.0}", float + 0.0),
        Some(float) if number.is_f64() => python_float_repr(float),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_leaf_has_a_typed_path_and_a_text() {
        let value = json!({"a": {"0": "x", "b\"": [true, null]}, "c": [[1.5, {}]], "d": []});
        let expected = [
            ("$[\"a\"][\"0\"]", "x"),
            ("$[\"a\"][\"b\\\"\"][0]", "true"),
            ("$[\"a\"][\"b\\\"\"][1]", "null"),
            ("$[\"c\"][0][0]", "1.5"),
            ("$[\"c\"][0][1]", "{}"),
            ("$[\"d\"]", "[]"),
        ];
        let expected: Vec<_> = expected
            .iter()
            .map(|(path, text)| (path.to_string(), text.to_string()))
            .collect();
        assert_eq!(leaves(&value), expected);
    }

    #[test]
    fn an_empty_container_at_the_root_is_one_leaf() {
        assert_eq!(leaves(&json!({})), [("$".to_owned(), "{}".to_owned())]);
        assert_eq!(leaves(&json!([])), [("$".to_owned(), "[]".to_owned())]);
    }

    #[test]
    fn numbers_of_equal_value_have_equal_texts() {
        let rows = [
            ("1887.0", "1887"),
            ("1887", "1887"),
            ("1e3", "1000"),
            ("-0.0", "0"),
            ("-0", "0"),
            ("0.10", "0.1"),
            ("1e22", "10000000000000000000000"),
            ("1.5e-7", "1.5e-07"),
            ("-3", "-3"),
        ];
        for (literal, expected) in rows {
            let number = tooltune_json::parse(literal).expect("a number");
            assert_eq!(scalar_text(&number), expected);
        }
    }
}
