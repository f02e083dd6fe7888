//! Reads one JSON text as a value whose numbers are exact decimals.
//!
//! `serde_json` stores a number in 64 bits, which is right for data but wrong for comparing
//! identifiers with twenty digits. The text is first parsed strictly, so this module accepts
//! exactly the texts that [`parse`] accepts, and the second pass cannot fail.

use std::collections::BTreeMap;

use serde_json::Value;

use super::decimal::Decimal;
use super::parse::{JsonError, parse};

/// A JSON value. Two values are equal if and only if both are the same JSON: 1 equals 1.0, `"1"`
/// does not equal 1, and the order of keys does not matter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExactJson {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Decimal),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<ExactJson>),
    /// An object; the last of duplicate keys wins.
    Object(BTreeMap<String, ExactJson>),
}

impl From<&Value> for ExactJson {
    /// Reads each number as the decimal value of its shortest literal.
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(holds) => Self::Bool(*holds),
            Value::Number(number) => Self::Number(Decimal::from_number(number)),
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Object(fields) => Self::Object(
                fields
                    .iter()
                    .map(|(key, field)| (key.clone(), field.into()))
                    .collect(),
            ),
        }
    }
}

impl ExactJson {
    /// Returns a field of an object.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.get(key),
            _ => None,
        }
    }

    /// Returns the items of an array; an empty slice for any other value.
    pub fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }
}

/// Parses a string like [`parse`], with numbers of any length and precision.
///
/// # Errors
///
/// - as [`parse`]; a number beyond the range of a 64-bit float is also rejected
pub fn parse_exact(text: &str) -> Result<ExactJson, JsonError> {
    parse(text)?;
    Ok(Walk::new(text).value())
}

/// A cursor over a string that is known to be valid JSON.
pub(super) struct Walk<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Walk<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    fn value(&mut self) -> ExactJson {
        match self.peek() {
            b'{' => {
                let mut fields = BTreeMap::new();
                self.object(|walk, key| {
                    fields.insert(key, walk.value());
                });
                ExactJson::Object(fields)
            }
            b'[' => {
                let mut items = Vec::new();
                self.list(|walk| items.push(walk.value()));
                ExactJson::List(items)
            }
            b'"' => ExactJson::Text(self.string()),
            _ => self.bool_number_or_null(),
        }
    }

    /// Reads the object at the cursor; `field` reads the value of each key.
    pub(super) fn object(&mut self, mut field: impl FnMut(&mut Self, String)) {
        self.at += 1;
        while self.peek() != b'}' {
            let key = self.string();
            self.skip(b':');
            field(self, key);
            self.skip(b',');
        }
        self.at += 1;
    }

    /// Reads the array at the cursor; `item` reads each of its values.
    pub(super) fn list(&mut self, mut item: impl FnMut(&mut Self)) {
        self.at += 1;
        while self.peek() != b']' {
            item(self);
            self.skip(b',');
        }
        self.at += 1;
    }

    /// Reads the string at the cursor, without quotes and with escapes resolved.
    pub(super) fn string(&mut self) -> String {
        self.peek();
        let start = self.at;
        let mut is_escaped = false;
        let rest = self.text.as_bytes()[start + 1..].iter();
        let n_inside = rest
            .take_while(|byte| {
                let ends = **byte == b'"' && !is_escaped;
                is_escaped = **byte == b'\\' && !is_escaped;
                !ends
            })
            .count();
        self.at = start + n_inside + 2;
        serde_json::from_str(&self.text[start..self.at]).unwrap_or_default()
    }

    fn bool_number_or_null(&mut self) -> ExactJson {
        match self.literal() {
            "true" => ExactJson::Bool(true),
            "false" => ExactJson::Bool(false),
            number => Decimal::parse(number).map_or(ExactJson::Null, ExactJson::Number),
        }
    }

    /// Reads the number, boolean or null at the cursor, as written.
    pub(super) fn literal(&mut self) -> &'t str {
        let rest: &'t str = &self.text[self.at..];
        let ends = |c: char| matches!(c, ',' | ']' | '}' | ' ' | '\t' | '\n' | '\r');
        let literal = &rest[..rest.find(ends).unwrap_or(rest.len())];
        self.at += literal.len();
        literal
    }

    /// Skips white space and returns the next byte without consuming it.
    pub(super) fn peek(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while matches!(bytes[self.at], b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        bytes[self.at]
    }

    /// Consumes the byte if it is next.
    fn skip(&mut self, byte: u8) {
        if self.peek() == byte {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any_json::any_json;
    use crate::{Style, dumps};
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn numbers_keep_every_digit() {
        let long = "123456789012345678901234567890";
        let parsed = parse_exact(&format!("[{long}, {long}.0, 1{long}]")).expect("JSON");
        assert_eq!(parsed.items()[0], parsed.items()[1]);
        assert_ne!(parsed.items()[0], parsed.items()[2]);
        assert_eq!(
            parse_exact("1").expect("JSON"),
            parse_exact("1.0").expect("JSON")
        );
        assert_ne!(
            parse_exact("1").expect("JSON"),
            parse_exact("\"1\"").expect("JSON")
        );
    }

    #[test]
    fn strings_with_escapes_and_all_white_space_are_walked() {
        let text = "\n{ \"a\\\"\\\\\" :\t[ true,false , null ] ,\"\\u00e9\": \"}\\\\\",\"e\":{ },\"l\":[ ]}\r\n";
        let expected = json!({"a\"\\": [true, false, null], "é": "}\\", "e": {}, "l": []});
        assert_eq!(parse_exact(text), Ok(ExactJson::from(&expected)));
        assert_eq!(
            parse_exact("{\"k\": 1, \"k\": 2}"),
            Ok(ExactJson::from(&json!({"k": 2})))
        );
    }

    #[test]
    fn invalid_json_is_rejected() {
        for text in ["", "{", "[1,]", "NaN", "1 2", "{\"a\" 1}", "1e999"] {
            assert!(parse_exact(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn exact_parsing_agrees_with_plain_parsing(value in any_json()) {
            for style in [Style::Python, Style::CompactAscii, Style::Indented(2)] {
                prop_assert_eq!(parse_exact(&dumps(&value, style)), Ok(ExactJson::from(&value)));
            }
        }
    }
}
