//! Reads one JSON text as a value whose numbers are exact decimals.
//!
//! `serde_json` holds a number as 64 bits, which is right for data and wrong for a comparison of
//! identifiers with twenty digits. The text is first read strictly, so that what is accepted here
//! is what [`parse`] accepts, and the walk over it meets no errors.

use std::collections::BTreeMap;

use serde_json::Value;

use super::decimal::Decimal;
use super::parse::{JsonError, parse};

/// A JSON value; equal if and only if both are the same JSON: 1 is 1.0, `"1"` is not 1, and the
/// order of keys is free.
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
    /// An object; of duplicate keys the last one.
    Object(BTreeMap<String, ExactJson>),
}

impl From<&Value> for ExactJson {
    /// Numbers count as they are written shortest.
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
    /// The field of an object.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.get(key),
            _ => None,
        }
    }

    /// The items of an array; none for any other value.
    pub fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }
}

/// Parses a text as [`parse`] does, with numbers of any length and precision.
///
/// # Errors
///
/// - as [`parse`]; a number beyond the range of a 64-bit float is refused here too
pub fn parse_exact(text: &str) -> Result<ExactJson, JsonError> {
    parse(text)?;
    Ok(Walk::new(text).value())
}

/// A walk over a text that is known to be JSON.
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
            _ => self.word(),
        }
    }

    /// Walks over the object that comes next; `field` walks over the value of each key.
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

    /// Walks over the array that comes next; `item` walks over each of its values.
    pub(super) fn list(&mut self, mut item: impl FnMut(&mut Self)) {
        self.at += 1;
        while self.peek() != b']' {
            item(self);
            self.skip(b',');
        }
        self.at += 1;
    }

    /// The string that comes next, without quotes and escapes.
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

    fn word(&mut self) -> ExactJson {
        match self.literal() {
            "true" => ExactJson::Bool(true),
            "false" => ExactJson::Bool(false),
            number => Decimal::parse(number).map_or(ExactJson::Null, ExactJson::Number),
        }
    }

    /// The number, boolean or null that comes next, as it is written.
    pub(super) fn literal(&mut self) -> &'t str {
        let rest: &'t str = &self.text[self.at..];
        let ends = |c: char| matches!(c, ',' | ']' | '}' | ' ' | '\t' | '\n' | '\r');
        let word = &rest[..rest.find(ends).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    /// The next byte that is no white space; the walk stands on it.
    pub(super) fn peek(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while matches!(bytes[self.at], b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        bytes[self.at]
    }

    /// Steps over a byte if it comes next.
    fn skip(&mut self, byte: u8) {
        if self.peek() == byte {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{Style, dumps};
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn numbers_keep_every_digit() {
        let long = "123456789012345678901234567890";
        let read = parse_exact(&format!("[{long}, {long}.0, 1{long}]")).expect("JSON");
        assert_eq!(read.items()[0], read.items()[1]);
        assert_ne!(read.items()[0], read.items()[2]);
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
    fn what_is_no_json_is_refused() {
        for text in ["", "{", "[1,]", "NaN", "1 2", "{\"a\" 1}", "1e999"] {
            assert!(parse_exact(text).is_err(), "{text:?}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            prop::num::f64::NORMAL.prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((any::<String>(), inner), 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_text_is_read_as_its_value_is(value in any_json()) {
            for style in [Style::Python, Style::CompactAscii, Style::Indented(2)] {
                prop_assert_eq!(parse_exact(&dumps(&value, style)), Ok(ExactJson::from(&value)));
            }
        }
    }
}
