//! Parses a large JSON file with a limit on the number of values, because parsed values need many
//! times the memory of the file.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::budgets::TOKENIZER_VALUES;

/// The fields of a `tokenizer.json` except the model, which is nearly the whole file.
///
/// # Errors
///
/// - The source is not a JSON object.
/// - The other fields have more than [`TOKENIZER_VALUES`] values.
pub(super) fn fields_except_model(text: &[u8]) -> Result<Map<String, Value>, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let fields = json.deserialize_map(Fields)?;
    json.end()?;
    Ok(fields)
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let n_values = Cell::new(0);
        let mut values = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            if key == "model" {
                fields.next_value::<IgnoredAny>()?;
            } else {
                values.insert(key, fields.next_value_seed(Budgeted(&n_values))?);
            }
        }
        Ok(values)
    }
}

/// A value that counts itself and its nested values.
struct Budgeted<'a>(&'a Cell<u64>);

impl Budgeted<'_> {
    fn count<E: Error>(&self, value: impl Into<Value>) -> Result<Value, E> {
        self.0.set(self.0.get() + 1);
        if self.0.get() > TOKENIZER_VALUES {
            Err(E::custom(format!(
                "more than {TOKENIZER_VALUES} values outside the model (TOKENIZER_VALUES in docs/limits.md)"
            )))
        } else {
            Ok(value.into())
        }
    }
}

impl<'de> DeserializeSeed<'de> for Budgeted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Budgeted<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.count(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.count(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.count(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.count(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.count(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.count(value)
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        self.count(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(item) = items.next_element_seed(Budgeted(self.0))? {
            values.push(item);
        }
        self.count(values)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            values.insert(key, fields.next_value_seed(Budgeted(self.0))?);
        }
        self.count(values)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_except_the_model_are_read_within_the_budget() {
        let other_fields = json!({
            "added_tokens": [{"id": 1, "content": "<s>", "special": true}, null, -1, 0.5, []],
            "decoder": {"type": "ByteLevel"},
        });
        let mut tokenizer = other_fields.clone();
        tokenizer["model"] = json!({"vocab": {"a": 1}});
        let parsed = fields_except_model(tokenizer.to_string().as_bytes()).expect("JSON");
        assert_eq!(Value::Object(parsed), other_fields);
        let values = "0,".repeat(TOKENIZER_VALUES as usize);
        for (text, message) in [
            (format!("{{\"model\":[{values}0]}}"), None),
            (
                format!("{{\"added_tokens\":[{values}0]}}"),
                Some("more than"),
            ),
            ("[]".to_owned(), Some("an object")),
            ("{} {}".to_owned(), Some("trailing")),
            ("[".repeat(1_000), Some("an object")),
            (format!("{{\"a\":{}", "[".repeat(1_000)), Some("recursion")),
        ] {
            let found = fields_except_model(text.as_bytes());
            match message {
                None => assert!(found.is_ok(), "{found:?}"),
                Some(message) => {
                    let error = found.expect_err(message).to_string();
                    assert!(error.contains(message), "{error}");
                }
            }
        }
    }
}
