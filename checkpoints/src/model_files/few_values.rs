//! JSON values of a large file, as many as fit a budget: a value takes many times its text.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::budgets::TOKENIZER_VALUES;

/// The fields of a `tokenizer.json` beside its model, which is passed over unread, being nearly all
/// of it.
///
/// # Errors
///
/// - the text is no JSON object
/// - the other fields have more than [`TOKENIZER_VALUES`] values
pub(super) fn fields_beside_the_model(
    text: &[u8],
) -> Result<Map<String, Value>, serde_json::Error> {
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
        let mut found = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            if key == "model" {
                fields.next_value::<IgnoredAny>()?;
            } else {
                found.insert(key, fields.next_value_seed(Few(&n_values))?);
            }
        }
        Ok(found)
    }
}

/// A value that counts itself and those in it.
struct Few<'a>(&'a Cell<u64>);

impl Few<'_> {
    fn counted<E: Error>(&self, value: impl Into<Value>) -> Result<Value, E> {
        self.0.set(self.0.get() + 1);
        if self.0.get() > TOKENIZER_VALUES {
            Err(E::custom(format!(
                "more than {TOKENIZER_VALUES} values beside the model (TOKENIZER_VALUES in docs/limits.md)"
            )))
        } else {
            Ok(value.into())
        }
    }
}

impl<'de> DeserializeSeed<'de> for Few<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Few<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.counted(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.counted(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.counted(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.counted(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.counted(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.counted(value)
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        self.counted(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut found = Vec::new();
        while let Some(item) = items.next_element_seed(Few(self.0))? {
            found.push(item);
        }
        self.counted(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut found = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            found.insert(key, fields.next_value_seed(Few(self.0))?);
        }
        self.counted(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_read_as_they_are_without_the_model_and_within_the_budget() {
        let others = json!({
            "added_tokens": [{"id": 1, "content": "<s>", "special": true}, null, -1, 0.5, []],
            "decoder": {"type": "ByteLevel"},
        });
        let mut whole = others.clone();
        whole["model"] = json!({"vocab": {"a": 1}});
        let read = fields_beside_the_model(whole.to_string().as_bytes()).expect("JSON");
        assert_eq!(Value::Object(read), others);
        let many = "0,".repeat(TOKENIZER_VALUES as usize);
        for (text, said) in [
            (format!("{{\"model\":[{many}0]}}"), None),
            (format!("{{\"added_tokens\":[{many}0]}}"), Some("more than")),
            ("[]".to_owned(), Some("an object")),
            ("{} {}".to_owned(), Some("trailing")),
            ("[".repeat(1_000), Some("an object")),
            (format!("{{\"a\":{}", "[".repeat(1_000)), Some("recursion")),
        ] {
            let found = fields_beside_the_model(text.as_bytes());
            match said {
                None => assert!(found.is_ok(), "{found:?}"),
                Some(said) => {
                    let error = found.expect_err(said).to_string();
                    assert!(error.contains(said), "{error}");
                }
            }
        }
    }
}
