//! Parses JSON and rejects duplicate keys.
//!
//! RFC 8259 does not define which of two duplicate values is used, and parsers differ. In a
//! training row one of the values is a mistake, and keeping the last would silently drop the other.
//! Model output is parsed by [`parse`](super::parse) instead, which accepts duplicates like Python.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Value};

use super::parse::{JsonError, parse_with};

/// A key that occurs twice in one object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: the key {key:?} occurs twice in one object; delete one of the two")]
pub struct DuplicateKey {
    /// The key.
    pub key: String,
    /// Column in bytes, from 1, of the end of the second occurrence. The text has one line.
    pub column: usize,
}

/// Parses a one-line text like [`parse`](super::parse), and rejects a duplicate key.
///
/// # Errors
///
/// - as [`parse`](super::parse)
/// - a key occurs twice in one object
pub fn parse_unique(text: &str) -> Result<Value, JsonError> {
    let repeated = RefCell::new(None);
    let read = |text: &str| {
        let mut reader = serde_json::Deserializer::from_str(text);
        let value = UniqueKeys(&repeated).deserialize(&mut reader)?;
        reader.end()?;
        Ok(value)
    };
    parse_with(text, read).map_err(|error| match (repeated.take(), error) {
        (Some(key), JsonError::Refused { column, .. }) => DuplicateKey { key, column }.into(),
        (_, error) => error,
    })
}

/// Deserializes a value and stores the first duplicate key in the cell.
#[derive(Clone, Copy)]
struct UniqueKeys<'k>(&'k RefCell<Option<String>>);

impl<'de> DeserializeSeed<'de> for UniqueKeys<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            match map.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(fields.next_value_seed(self)?);
                }
                Entry::Occupied(entry) => {
                    *self.0.borrow_mut() = Some(entry.key().clone());
                    return Err(A::Error::custom("a key occurs twice"));
                }
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    #[test]
    fn a_duplicate_key_is_named_with_its_column_at_any_depth() {
        for (text, key, column) in [
            (r#"{"a": 1, "a": 1}"#, "a", 12),
            (
                r#"{"x": [{"a": 1}, {"b": 1, "é\"": 2, "\u00e9\"": 3}]}"#,
                "é\"",
                47,
            ),
        ] {
            let key = key.to_owned();
            let expected = JsonError::from(DuplicateKey { key, column });
            assert_eq!(parse_unique(text), Err(expected), "{text}");
        }
        let message = parse_unique(r#"{"a": 1, "a": 1}"#).unwrap_err().to_string();
        let expected = "column 12: the key \"a\" occurs twice in one object; delete one of the two";
        assert_eq!(message, expected);
    }

    #[test]
    fn objects_with_unique_keys_parse_as_usual() {
        for text in [
            r#" {"a": {"a": [null, true, -1, 18446744073709551615, -0, -0.0, 1e300, "é\n"]}, "": []} "#,
            "[[{}], {\"a\": 1}, {\"a\": 2}]",
            "99999999999999999999",
            "\u{feff}{}",
            " ",
            "{\"a\": 1,}",
            "{} {}",
            "[1e999]",
            "{\"a\": \"\\ud800\"}",
            &"[".repeat(128),
        ] {
            assert_eq!(parse_unique(text), parse(text), "{text}");
        }
    }
}
