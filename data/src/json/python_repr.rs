//! A `Value` to the literal that Python's `repr` writes for it: `{'a': True, 'b': None}`.
//!
//! Prompts that were made with `str(response)` show this text and no JSON, and metrics that
//! compare `str(value)` depend on it to the last character.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::float::python_float_repr;

/// What `str.isprintable` denies beyond ASCII: control, format, unassigned, private, separators.
static UNPRINTABLE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[\p{Other}\p{Separator}]").expect("a fixed pattern"));

/// Renders a value as Python's `repr` renders what `json.loads` makes of it.
///
/// Of a text at the top, `str` would be the text itself; here it is quoted.
///
/// # Source
///
/// CPython `Objects/unicodeobject.c`, `unicode_repr`: single quotes, unless the text holds one and
/// no double quote; `\\`, `\n`, `\r` and `\t` by name, other characters that are not printable as
/// `\xhh`, `\uhhhh` or `\Uhhhhhhhh`.
pub fn python_repr(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value);
    text
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => out.push_str(&python_float_repr(float)),
            _ => out.push_str(&number.to_string()),
        },
        Value::String(text) => write_text(out, text),
        Value::Array(items) => {
            out.push('[');
            for (item_idx, item) in items.iter().enumerate() {
                out.push_str(if item_idx > 0 { ", " } else { "" });
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (field_idx, (key, field)) in fields.iter().enumerate() {
                out.push_str(if field_idx > 0 { ", " } else { "" });
                write_text(out, key);
                out.push_str(": ");
                write_value(out, field);
            }
            out.push('}');
        }
    }
}

fn write_text(out: &mut String, text: &str) {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => {
                out.push('\\');
                out.push(quote);
            }
            _ if is_printable(character) => out.push(character),
            _ => out.push_str(&escape(character)),
        }
    }
    out.push(quote);
}

fn is_printable(character: char) -> bool {
    match character {
        ' '..='~' => true,
        '\0'..='\u{7f}' => false,
        _ => !UNPRINTABLE.is_match(character.encode_utf8(&mut [0; 4])),
    }
}

fn escape(character: char) -> String {
    match u32::from(character) {
        code @ 0..=0xff => format!("\\x{code:02x}"),
        code @ 0x100..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_written_as_python_literals() {
        let value = json!({
            "a": [1, -2.0, 1e22, true, false, null],
            "b": {}, "c": [], "it's": "é😀",
        });
        assert_eq!(
            python_repr(&value),
            "{'a': [1, -2.0, 1e+22, True, False, None], 'b': {}, 'c': [], \"it's\": 'é😀'}"
        );
    }

    #[test]
    fn quotes_and_escapes_are_those_of_unicode_repr() {
        let rows = [
            ("plain", "'plain'"),
            ("it's", "\"it's\""),
            ("say \"hi\"", "'say \"hi\"'"),
            ("it's \"both\"", "'it\\'s \"both\"'"),
            ("a\\b\n\r\t", "'a\\\\b\\n\\r\\t'"),
            (
                "\0\u{1b}\u{7f}\u{85}\u{a0}\u{ad}",
                "'\\x00\\x1b\\x7f\\x85\\xa0\\xad'",
            ),
            (
                "\u{200b}\u{2028}\u{3000}\u{feff}",
                "'\\u200b\\u2028\\u3000\\ufeff'",
            ),
            ("\u{e0001}\u{f0000}", "'\\U000e0001\\U000f0000'"),
            ("\u{301}ß日", "'\u{301}ß日'"),
            ("", "''"),
        ];
        for (text, expected) in rows {
            assert_eq!(python_repr(&json!(text)), expected);
        }
    }
}
