//! Builds the closed schema that describes a gold value exactly.

use serde_json::{Map, Value, json};
use tooltune_rows::text::SlotRow;

/// A row with the schema of its gold value.
pub(super) fn slot_row(id: String, input_text: &str, gold: Map<String, Value>) -> SlotRow {
    let gold = Value::Object(gold);
    SlotRow {
        id,
        input_text: input_text.to_owned(),
        json_schema: closed_schema(&gold),
        gold,
    }
}

/// The schema of a value: in objects all keys are required and no others are allowed, arrays are
/// described by their first item, and scalars by their type.
///
/// The importers build only non-empty arrays of a single type.
fn closed_schema(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let properties: Map<String, Value> = fields
                .iter()
                .map(|(key, field)| (key.clone(), closed_schema(field)))
                .collect();
            let required: Vec<&String> = fields.keys().collect();
            json!({
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": false,
            })
        }
        Value::Array(items) => {
            let items = items.first().map_or_else(|| json!({}), closed_schema);
            json!({"type": "array", "items": items})
        }
        Value::String(_) => json!({"type": "string"}),
        Value::Bool(_) => json!({"type": "boolean"}),
        Value::Number(number) if number.is_f64() => json!({"type": "number"}),
        Value::Number(_) => json!({"type": "integer"}),
        Value::Null => json!({"type": "null"}),
    }
}

/// Collects values by key. A key with one value becomes that value; a key with several becomes an
/// array.
#[derive(Debug, Default)]
pub(super) struct GoldFields {
    values: Map<String, Value>,
}

impl GoldFields {
    pub(super) fn add(&mut self, key: &str, value: Value) {
        match self.values.get_mut(key) {
            Some(Value::Array(values)) => values.push(value),
            _ => {
                self.values.insert(key.to_owned(), vec![value].into());
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(super) fn into_fields(self) -> Map<String, Value> {
        let single = |value: Value| match value {
            Value::Array(mut values) if values.len() == 1 => values.pop().unwrap_or_default(),
            values => values,
        };
        let fields = self.values.into_iter();
        fields.map(|(key, value)| (key, single(value))).collect()
    }
}
