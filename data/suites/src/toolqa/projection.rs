//! Projects a response to the keys that the program of its question reads.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::error::ToolQaError;
use super::rows::{ToolQaRow, ToolResponse};

impl ToolQaRow {
    /// The row with its response projected to the keys that the program of its answer reads.
    ///
    /// # Errors
    ///
    /// The row does not state these keys.
    pub fn projected(&self) -> Result<Self, ToolQaError> {
        let keys = self
            .read_keys
            .as_ref()
            .ok_or_else(|| ToolQaError::NoReadKeys {
                uid: self.uid.clone(),
            })?;
        let response = ToolResponse {
            response: project_to_keys(&self.response.response, keys),
            ..ToolResponse::clone(&self.response)
        };
        Ok(Self {
            response: Arc::new(response),
            ..self.clone()
        })
    }
}

/// Keeps only the values at `paths`. A path is a list of keys; lists add none, so that a path applies
/// to every item of a list. A path that ends at an object or list keeps all of it. Lists keep their
/// length: an item without any of the keys becomes an empty object.
///
/// The projection needs the gold program, so its results are an upper bound for shortened responses.
///
/// # Source
///
/// "How Good Are LLMs at Processing Tool Outputs?", section 4.7.2. The published projection removes
/// items without any of the keys.
pub fn project_to_keys<K: AsRef<[String]>>(response: &Value, paths: &[K]) -> Value {
    let paths: Vec<&[String]> = paths.iter().map(AsRef::as_ref).collect();
    project(response, &paths)
}

fn project(value: &Value, paths: &[&[String]]) -> Value {
    if paths.iter().any(|path| path.is_empty()) {
        return value.clone();
    }
    match value {
        Value::Object(fields) => {
            let mut kept = Map::new();
            for (key, field) in fields {
                let below: Vec<&[String]> = paths
                    .iter()
                    .filter_map(|path| path.split_first())
                    .filter(|(first, _)| *first == key)
                    .map(|(_, rest)| rest)
                    .collect();
                if !below.is_empty() {
                    kept.insert(key.clone(), project(field, &below));
                }
            }
            Value::Object(kept)
        }
        Value::Array(items) => items.iter().map(|item| project(item, paths)).collect(),
        scalar => scalar.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_read_keys_remain() {
        let response = json!({
            "meta": {"page": 1},
            "data": {"flights": [
                {"id": "A", "price": {"total": 3, "tax": 1}, "legs": [{"from": "x", "to": "y"}]},
                {"name": "no id"},
                [{"id": "nested list"}],
                null
            ]}
        });
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        let paths = [
            path("data.flights.id"),
            path("data.flights.price.total"),
            path("data.flights.legs.to"),
            path("absent"),
        ];
        let expected = json!({"data": {"flights": [
            {"id": "A", "price": {"total": 3}, "legs": [{"to": "y"}]},
            {},
            [{"id": "nested list"}],
            null
        ]}});
        assert_eq!(project_to_keys(&response, &paths), expected);
        assert_eq!(
            project_to_keys(&response, &[path("meta")]),
            json!({"meta": {"page": 1}})
        );
        assert_eq!(project_to_keys(&response, &[Vec::new()]), response);
        let nothing: [Vec<String>; 0] = [];
        assert_eq!(project_to_keys(&response, &nothing), json!({}));
    }
}
