//! Writes values in OpenAPI's styles.
//!
//! # Source
//!
//! OpenAPI 3.0.4, section 4.8.12.3, "Style Values".

use serde_json::Value;
use tooltune_apis::ParameterStyle;

use super::values::{encode_component, encode_except_reserved, value_text};

/// Encoded `name=value` pairs of a query string or a cookie; several if lists are exploded.
///
/// # Errors
///
/// The style is not form, spaceDelimited, pipeDelimited or deepObject.
pub(super) fn query_pairs(
    name: &str,
    value: &Value,
    style: &ParameterStyle,
) -> Result<Vec<String>, String> {
    let ParameterStyle::Named {
        style,
        explode,
        allow_reserved,
    } = style
    else {
        return Ok(vec![format!(
            "{}={}",
            encode_component(name),
            encode_component(&value.to_string())
        )]);
    };
    let write: fn(&str) -> String = if *allow_reserved {
        encode_except_reserved
    } else {
        encode_component
    };
    let pair = |name: &str, value: &str| format!("{}={value}", encode_component(name));
    let write_pair = |name: &str, value: &Value| pair(name, &write(&value_text(value)));
    let separator = match style.as_str() {
        "form" | "deepObject" => ",",
        "spaceDelimited" => "%20",
        "pipeDelimited" => "%7C",
        _ => return Err(unsupported_style(name, style)),
    };
    Ok(match value {
        Value::Array(items) if items.is_empty() => Vec::new(),
        Value::Array(items) if *explode => {
            items.iter().map(|item| write_pair(name, item)).collect()
        }
        Value::Object(_) if style == "deepObject" => {
            let mut pairs_found = Vec::new();
            collect_deep_members(name, value, &mut pairs_found);
            pairs_found
                .iter()
                .map(|(name, value)| write_pair(name, value))
                .collect()
        }
        Value::Object(members) if *explode => members
            .iter()
            .map(|(key, value)| write_pair(key, value))
            .collect(),
        Value::Object(members) if members.is_empty() => Vec::new(),
        other => vec![pair(name, &value_parts(other, write).join(separator))],
    })
}

/// `name[key]` of all members and `name[key][inner]` of nested ones; a list repeats its name.
fn collect_deep_members<'v>(
    name: &str,
    value: &'v Value,
    pairs_found: &mut Vec<(String, &'v Value)>,
) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                collect_deep_members(&format!("{name}[{key}]"), value, pairs_found);
            }
        }
        Value::Array(items) => {
            for item in items {
                collect_deep_members(name, item, pairs_found);
            }
        }
        other => pairs_found.push((name.to_owned(), other)),
    }
}

/// Formats a value for a path or a header. `write` formats each part.
///
/// # Errors
///
/// The style is not simple, label or matrix.
pub(super) fn join_value(
    name: &str,
    value: &Value,
    style: &ParameterStyle,
    write: impl Fn(&str) -> String,
) -> Result<String, String> {
    let ParameterStyle::Named { style, explode, .. } = style else {
        return Ok(write(&value.to_string()));
    };
    let member =
        |(key, value): (&String, &Value)| format!("{}={}", write(key), write(&value_text(value)));
    let exploded = |separator: &str| -> Option<String> {
        match value {
            Value::Object(members) if *explode => {
                let members: Vec<String> = members.iter().map(member).collect();
                Some(members.join(separator))
            }
            Value::Array(items) if *explode => {
                let items: Vec<String> =
                    items.iter().map(|item| write(&value_text(item))).collect();
                Some(items.join(separator))
            }
            _ => None,
        }
    };
    let flat = || value_parts(value, &write).join(",");
    match style.as_str() {
        "simple" => Ok(exploded(",").unwrap_or_else(flat)),
        "label" => Ok(format!(".{}", exploded(".").unwrap_or_else(flat))),
        "matrix" => {
            let name = write(name);
            Ok(match value {
                Value::Array(items) if *explode => items
                    .iter()
                    .map(|item| format!(";{name}={}", write(&value_text(item))))
                    .collect(),
                Value::Object(_) if *explode => {
                    format!(";{}", exploded(";").unwrap_or_default())
                }
                _ => match flat() {
                    empty if empty.is_empty() => format!(";{name}"),
                    flat => format!(";{name}={flat}"),
                },
            })
        }
        _ => Err(unsupported_style(name, style)),
    }
}

/// The elements of a list, the alternating names and values of an object, or the value itself.
fn value_parts(value: &Value, write: impl Fn(&str) -> String) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().map(|item| write(&value_text(item))).collect(),
        Value::Object(members) => members
            .iter()
            .flat_map(|(key, value)| [write(key), write(&value_text(value))])
            .collect(),
        other => vec![write(&value_text(other))],
    }
}

fn unsupported_style(name: &str, style: &str) -> String {
    format!("the specification uses the style {style:?} for {name:?}, which is not supported")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn style_named(style: &str, explode: bool) -> ParameterStyle {
        ParameterStyle::Named {
            style: style.to_owned(),
            explode,
            allow_reserved: false,
        }
    }

    #[test]
    fn query_strings_follow_the_table_of_openapi() {
        let list = json!(["blue", "a&b"]);
        let object = json!({"R": 100, "G": "x y"});
        for (value, style, expected) in [
            (&json!("a b"), style_named("form", true), "color=a%20b"),
            (&list, style_named("form", true), "color=blue&color=a%26b"),
            (&list, style_named("form", false), "color=blue,a%26b"),
            (
                &list,
                style_named("spaceDelimited", false),
                "color=blue%20a%26b",
            ),
            (
                &list,
                style_named("pipeDelimited", false),
                "color=blue%7Ca%26b",
            ),
            (&object, style_named("form", true), "R=100&G=x%20y"),
            (&object, style_named("form", false), "color=R,100,G,x%20y"),
            (
                &object,
                style_named("deepObject", true),
                "color%5BR%5D=100&color%5BG%5D=x%20y",
            ),
            (
                &object,
                ParameterStyle::Json,
                "color=%7B%22R%22%3A100%2C%22G%22%3A%22x%20y%22%7D",
            ),
            (&json!([]), style_named("form", false), ""),
            (
                &json!([[1, 2]]),
                style_named("form", true),
                "color=%5B1%2C2%5D",
            ),
        ] {
            let query = query_pairs("color", value, &style)
                .expect(expected)
                .join("&");
            assert_eq!(query, expected);
        }
        let nested = json!({"a": {"b": [1, 2]}, "c": "x y"});
        let query = query_pairs("f", &nested, &style_named("deepObject", true)).expect("deep");
        assert_eq!(
            query,
            ["f%5Ba%5D%5Bb%5D=1", "f%5Ba%5D%5Bb%5D=2", "f%5Bc%5D=x%20y"]
        );
        let message =
            query_pairs("color", &list, &style_named("matrix", true)).expect_err("a path's");
        assert!(message.contains("the style \"matrix\""), "{message}");
    }

    #[test]
    fn reserved_characters_are_kept_if_the_specification_allows_them() {
        let reserved = ParameterStyle::Named {
            style: "form".to_owned(),
            explode: true,
            allow_reserved: true,
        };
        for (value, expected) in [
            ("a/b?c=d", "q=a/b?c=d"),
            ("x:y@[1],(2)!$'*;", "q=x:y@[1],(2)!$'*;"),
            ("%2Fa%zz%", "q=%2Fa%25zz%25"),
            // Unencoded, these would end the value or mean a space.
            ("a&admin=1#x+y z", "q=a%26admin=1%23x%2By%20z"),
            ("é\n", "q=%C3%A9%0A"),
        ] {
            assert_eq!(
                query_pairs("q", &json!(value), &reserved),
                Ok(vec![expected.to_owned()])
            );
        }
    }

    #[test]
    fn labels_and_matrices_follow_the_table_of_openapi() {
        let list = json!(["blue", "a/b"]);
        let object = json!({"R": 100, "G": "x y"});
        for (value, style, explode, expected) in [
            (&json!("blue"), "label", false, ".blue"),
            (&list, "label", false, ".blue,a%2Fb"),
            (&list, "label", true, ".blue.a%2Fb"),
            (&object, "label", false, ".R,100,G,x%20y"),
            (&object, "label", true, ".R=100.G=x%20y"),
            (&json!(""), "matrix", false, ";color"),
            (&json!("blue"), "matrix", true, ";color=blue"),
            (&list, "matrix", false, ";color=blue,a%2Fb"),
            (&list, "matrix", true, ";color=blue;color=a%2Fb"),
            (&object, "matrix", false, ";color=R,100,G,x%20y"),
            (&object, "matrix", true, ";R=100;G=x%20y"),
        ] {
            let text = join_value(
                "color",
                value,
                &style_named(style, explode),
                encode_component,
            );
            assert_eq!(text.expect(expected), expected);
        }
    }

    #[test]
    fn paths_and_headers_are_simple() {
        let object = json!({"R": 100, "G": "x y"});
        for (value, explode, expected) in [
            (&json!(5), false, "5"),
            (&json!(["blue", "a/b"]), false, "blue,a%2Fb"),
            (&object, false, "R,100,G,x%20y"),
            (&object, true, "R=100,G=x%20y"),
        ] {
            let text = join_value(
                "color",
                value,
                &style_named("simple", explode),
                encode_component,
            );
            assert_eq!(text.expect(expected), expected);
        }
        assert!(
            join_value(
                "color",
                &object,
                &style_named("form", true),
                encode_component
            )
            .is_err()
        );
    }
}
