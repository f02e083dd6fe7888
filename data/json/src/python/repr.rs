//! Writes a value as Python's `str` and `repr` do.

use std::sync::LazyLock;

use regex::Regex;

use super::value::PyValue;
use crate::python_float_repr;

/// Characters for which `str.isprintable` is false, except the space.
static UNPRINTABLE: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^[\p{C}\p{Zl}\p{Zp}\p{Zs}]$").ok());

/// Prints a value as `str` does: a string is unquoted, strings inside lists are quoted.
pub fn python_str(value: &PyValue) -> String {
    match value {
        PyValue::Text(text) => text.clone(),
        other => python_repr(other),
    }
}

/// Prints a value as `repr` does: `{'a': [1, 2.0, None]}`.
///
/// # Source
///
/// CPython `unicode_repr`: single quotes, unless the string contains one and no double quote;
/// characters that are not `str.isprintable` are escaped.
pub fn python_repr(value: &PyValue) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &PyValue, out: &mut String) {
    match value {
        PyValue::None => out.push_str("None"),
        PyValue::Bool(true) => out.push_str("True"),
        PyValue::Bool(false) => out.push_str("False"),
        PyValue::Int(integer) => out.push_str(&integer.to_string()),
        PyValue::Float(float) if float.is_nan() => out.push_str("nan"),
        PyValue::Float(float) => out.push_str(&python_float_repr(*float)),
        PyValue::Text(text) => write_text(text, out),
        PyValue::List(items) => write_items(items, ['[', ']'], out),
        PyValue::Tuple(items) => {
            write_items(items, ['(', ')'], out);
            if items.len() == 1 {
                out.insert(out.len() - 1, ',');
            }
        }
        PyValue::Dict(fields) => {
            out.push('{');
            for (field_idx, (key, field)) in fields.iter().enumerate() {
                if field_idx > 0 {
                    out.push_str(", ");
                }
                write_text(key, out);
                out.push_str(": ");
                write(field, out);
            }
            out.push('}');
        }
        PyValue::Other(repr) => out.push_str(repr),
    }
}

fn write_items(items: &[PyValue], [open, close]: [char; 2], out: &mut String) {
    out.push(open);
    for (item_idx, item) in items.iter().enumerate() {
        if item_idx > 0 {
            out.push_str(", ");
        }
        write(item, out);
    }
    out.push(close);
}

fn write_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => out.extend(['\\', quote]),
            ' '..='~' => out.push(character),
            _ if is_printable(character) => out.push(character),
            _ => out.push_str(&escape(character)),
        }
    }
    out.push(quote);
}

fn is_printable(character: char) -> bool {
    let text = character.encode_utf8(&mut [0; 4]).to_owned();
    !UNPRINTABLE
        .as_ref()
        .is_some_and(|pattern| pattern.is_match(&text))
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
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_python_literals() {
        let value = json!({
            "a": [1, -2.0, 1e22, true, false, null],
            "b": {}, "c": [], "it's": "é😀",
        });
        assert_eq!(
            python_repr(&PyValue::from(&value)),
            "{'a': [1, -2.0, 1e+22, True, False, None], 'b': {}, 'c': [], \"it's\": 'é😀'}"
        );
    }

    #[test]
    fn quotes_and_escapes_match_unicode_repr() {
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
            assert_eq!(python_repr(&PyValue::from(&json!(text))), expected);
        }
    }
}
