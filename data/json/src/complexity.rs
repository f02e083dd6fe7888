//! Measures SLOT's seven complexities of a JSON value.
//!
//! The paper is ambiguous about some details, which this module chooses. A flat or empty object has
//! depth 1 and a scalar has depth 0. The root and the containers count as elements. Integers and
//! fractions are one JSON type. String lengths are in code points, and digits are counted in the
//! literal that Python prints. The paper does not define "code-like"; [`CODE_LIKE`] is our
//! definition.

use std::collections::HashSet;
use std::mem::discriminant;
use std::sync::LazyLock;

use super::{Style, dumps};
use crate::blank::is_blank;
use regex::Regex;
use serde::Serialize;
use serde_json::Value;

/// Signs of program text in a string: brackets, operators, calls, tags, keywords.
const CODE_LIKE: &str = concat!(
    r"(?m)[{}\[\];`]|=>|->|::|==|!=|&&|\|\||\w\([^()]*\)|</?[A-Za-z]\w*[^<>]*>",
    r"|^\s*(?:def|class|import|from|return|function|const|let|var|public|#include)\b",
);

static CODE_LIKE_REGEX: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(CODE_LIKE).expect("CODE_LIKE is a valid pattern"));

/// The seven measures of one value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Complexity {
    /// Deepest nesting: 0 for a scalar, 1 for a flat object or array.
    pub depth: usize,
    /// Total number of keys of all objects.
    pub keys: usize,
    /// Bytes of the value as Python's `json.dumps` writes it.
    pub size: usize,
    /// Number of values of any kind, including the root and containers.
    pub elements: usize,
    /// Keys of all objects plus the number of non-empty arrays.
    pub cyclomatic: usize,
    /// Weight of the structure: types, nesting, string lengths.
    pub schema_complexity: f64,
    /// Weight of the scalar values: length, variety, special characters, code.
    pub content_complexity: f64,
}

/// Measures a value.
///
/// # Source
///
/// SLOT, appendix D.3, with the choices listed in the module documentation.
pub fn json_complexity(value: &Value) -> Complexity {
    let mut counts = Complexity {
        depth: json_depth(value),
        size: dumps(value, Style::PythonAscii).len(),
        schema_complexity: schema_complexity(value),
        content_complexity: content_complexity(value),
        ..Complexity::default()
    };
    count(value, &mut counts);
    counts
}

/// Deepest nesting of a value: 0 for a scalar, 1 for a flat or empty object or array.
pub fn json_depth(value: &Value) -> usize {
    match value {
        Value::Object(fields) => 1 + fields.values().map(json_depth).max().unwrap_or(0),
        Value::Array(items) => 1 + items.iter().map(json_depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn count(value: &Value, counts: &mut Complexity) {
    counts.elements += 1;
    match value {
        Value::Object(fields) => {
            counts.keys += fields.len();
            counts.cyclomatic += fields.len();
            fields.values().for_each(|field| count(field, counts));
        }
        Value::Array(items) => {
            counts.cyclomatic += usize::from(!items.is_empty());
            items.iter().for_each(|item| count(item, counts));
        }
        _ => {}
    }
}

/// Computes only [`Complexity::schema_complexity`].
pub fn schema_complexity(value: &Value) -> f64 {
    match value {
        Value::String(text) => 1.0 + text.chars().count().min(100) as f64 / 10.0,
        Value::Object(fields) => {
            1.0 + fields.len() as f64 + fields.values().map(schema_complexity).sum::<f64>()
        }
        Value::Array(items) => {
            let first_kind = items.first().map(discriminant);
            let homogeneous = items
                .iter()
                .all(|item| Some(discriminant(item)) == first_kind);
            let n_weighed = if homogeneous { 1 } else { items.len() };
            let weighed: f64 = items.iter().take(n_weighed).map(schema_complexity).sum();
            1.0 + items.len() as f64 + weighed
        }
        _ => 1.0,
    }
}

fn content_complexity(value: &Value) -> f64 {
    match value {
        // Adding zero turns -0, the sum of an empty iterator, into 0.
        Value::Object(fields) => fields.values().map(content_complexity).sum::<f64>() + 0.0,
        Value::Array(items) => items.iter().map(content_complexity).sum::<f64>() + 0.0,
        Value::String(text) => text_complexity(text),
        Value::Number(_) => {
            let literal = dumps(value, Style::Python);
            let n_digits = literal.bytes().filter(u8::is_ascii_digit).count();
            (n_digits as f64 / 5.0).min(1.0)
        }
        _ => 0.0,
    }
}

fn text_complexity(text: &str) -> f64 {
    let n_chars = text.chars().count() as f64;
    if n_chars == 0.0 {
        return 0.0;
    }
    let n_unique = text.chars().collect::<HashSet<_>>().len() as f64;
    let is_special = |character: &char| !character.is_alphanumeric() && !is_blank(*character);
    let n_special = text.chars().filter(is_special).count() as f64;
    (n_chars / 20.0).min(5.0)
        + n_unique / n_chars * 3.0
        + (n_special / n_chars * 5.0).min(3.0)
        + if CODE_LIKE_REGEX.is_match(text) {
            2.0
        } else {
            0.0
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn complexity_of_a_nested_value_matches_a_manual_count() {
        let value = json!({"stay": {"nights": [2, 3], "paid": true}, "codes": []});
        let complexity = json_complexity(&value);
        assert_eq!(complexity.depth, 3);
        assert_eq!(complexity.keys, 4);
        assert_eq!(
            complexity.size,
            r#"{"stay": {"nights": [2, 3], "paid": true}, "codes": []}"#.len()
        );
        assert_eq!(complexity.elements, 7);
        assert_eq!(complexity.cyclomatic, 5);
        // codes 1, nights 1+2+1, paid 1, stay 1+2+5, root 1+2+9.
        assert_eq!(complexity.schema_complexity, 12.0);
        assert!((complexity.content_complexity - 0.4).abs() < 1e-12);
    }

    #[test]
    fn depth_is_zero_for_scalars_and_one_for_empty_containers() {
        for (value, depth) in [
            (json!(7), 0),
            (json!({}), 1),
            (json!([]), 1),
            (json!([[{}]]), 3),
            (json!({"a": 1}), 1),
        ] {
            assert_eq!(json_depth(&value), depth, "{value}");
        }
    }

    #[test]
    fn complexity_counts_all_items_of_a_mixed_array_and_one_of_a_uniform_array() {
        assert_eq!(schema_complexity(&json!(["aa", "bbbb"])), 1.0 + 2.0 + 1.2);
        assert_eq!(schema_complexity(&json!([null, 1.5, 2])), 1.0 + 3.0 + 3.0);
    }

    #[test]
    fn code_is_recognised_and_prose_is_not() {
        for text in [
            "x => y",
            "open(file)",
            "<b>bold</b>",
            "a; b",
            "note\n  import os",
            "a::b",
        ] {
            assert!(CODE_LIKE_REGEX.is_match(text), "{text}");
        }
        for text in [
            "an import tax",
            "a - b, c > d",
            "Room 4 (north side)",
            "50% off",
        ] {
            assert!(!CODE_LIKE_REGEX.is_match(text), "{text}");
        }
    }

    #[test]
    fn length_variety_and_special_characters_are_capped() {
        assert_eq!(text_complexity(""), 0.0);
        assert!((text_complexity(&"ab".repeat(100)) - (5.0 + 0.03)).abs() < 1e-12);
        assert!((text_complexity("!?") - (0.1 + 3.0 + 3.0)).abs() < 1e-12);
        assert!(content_complexity(&json!([])).is_sign_positive());
        assert_eq!(content_complexity(&json!(1234567)), 1.0);
        assert_eq!(content_complexity(&json!(-2.5)), 0.4);
    }
}
