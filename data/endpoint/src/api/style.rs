//! Values written in the styles of OpenAPI.
//!
//! # Source
//!
//! OpenAPI 3.0.4, section 4.8.12.3, "Style Values".

use serde_json::Value;
use tooltune_rows::tools::ParameterStyle;

use super::values::{encoded, text};

/// `name=value` of a query string or a cookie, encoded; several where lists are exploded.
///
/// # Errors
///
/// - the style is none of form, spaceDelimited, pipeDelimited and deepObject
pub(super) fn pairs(
    name: &str,
    value: &Value,
    style: &ParameterStyle,
) -> Result<Vec<String>, String> {
    let pair = |name: &str, value: &str| format!("{}={value}", encoded(name));
    let one = |name: &str, value: &Value| pair(name, &encoded(&text(value)));
    let ParameterStyle::Named { style, explode } = style else {
        return Ok(vec![pair(name, &encoded(&value.to_string()))]);
    };
    let separator = match style.as_str() {
        "form" | "deepObject" => ",",
        "spaceDelimited" => "%20",
        "pipeDelimited" => "%7C",
        _ => return Err(unsupported(name, style)),
    };
    Ok(match value {
        Value::Array(items) if items.is_empty() => Vec::new(),
        Value::Array(items) if *explode => items.iter().map(|item| one(name, item)).collect(),
        Value::Object(members) if style == "deepObject" => members
            .iter()
            .map(|(key, value)| one(&format!("{name}[{key}]"), value))
            .collect(),
        Value::Object(members) if *explode => {
            members.iter().map(|(key, value)| one(key, value)).collect()
        }
        Value::Object(members) if members.is_empty() => Vec::new(),
        other => vec![pair(name, &parts(other, encoded).join(separator))],
    })
}

/// A value of a path or a header, its parts written by `write`.
///
/// # Errors
///
/// - the style is not simple
pub(super) fn joined(
    name: &str,
    value: &Value,
    style: &ParameterStyle,
    write: impl Fn(&str) -> String,
) -> Result<String, String> {
    let ParameterStyle::Named { style, explode } = style else {
        return Ok(write(&value.to_string()));
    };
    if style != "simple" {
        return Err(unsupported(name, style));
    }
    Ok(match value {
        Value::Object(members) if *explode => {
            let member =
                |(key, value): (&String, &Value)| format!("{}={}", write(key), write(&text(value)));
            members.iter().map(member).collect::<Vec<_>>().join(",")
        }
        other => parts(other, write).join(","),
    })
}

/// The elements of a list, the names and values of an object in turn, or the value itself.
fn parts(value: &Value, write: impl Fn(&str) -> String) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().map(|item| write(&text(item))).collect(),
        Value::Object(members) => members
            .iter()
            .flat_map(|(key, value)| [write(key), write(&text(value))])
            .collect(),
        other => vec![write(&text(other))],
    }
}

fn unsupported(name: &str, style: &str) -> String {
    format!("the specification writes {name:?} in the style {style:?}, which is not supported here")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(style: &str, explode: bool) -> ParameterStyle {
        ParameterStyle::Named {
            style: style.to_owned(),
            explode,
        }
    }

    #[test]
    fn query_strings_follow_the_table_of_openapi() {
        let list = json!(["blue", "a&b"]);
        let object = json!({"R": 100, "G": "x y"});
        for (value, style, expected) in [
            (&json!("a b"), named("form", true), "color=a%20b"),
            (&list, named("form", true), "color=blue&color=a%26b"),
            (&list, named("form", false), "color=blue,a%26b"),
            (&list, named("spaceDelimited", false), "color=blue%20a%26b"),
            (&list, named("pipeDelimited", false), "color=blue%7Ca%26b"),
            (&object, named("form", true), "R=100&G=x%20y"),
            (&object, named("form", false), "color=R,100,G,x%20y"),
            (
                &object,
                named("deepObject", true),
                "color%5BR%5D=100&color%5BG%5D=x%20y",
            ),
            (
                &object,
                ParameterStyle::Json,
                "color=%7B%22R%22%3A100%2C%22G%22%3A%22x%20y%22%7D",
            ),
            (&json!([]), named("form", false), ""),
            (&json!([[1, 2]]), named("form", true), "color=%5B1%2C2%5D"),
        ] {
            let written = pairs("color", value, &style).expect(expected).join("&");
            assert_eq!(written, expected);
        }
        let message = pairs("color", &list, &named("matrix", true)).expect_err("a path's");
        assert!(message.contains("the style \"matrix\""), "{message}");
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
            let written = joined("color", value, &named("simple", explode), encoded);
            assert_eq!(written.expect(expected), expected);
        }
        assert!(joined("color", &object, &named("label", true), encoded).is_err());
    }
}
