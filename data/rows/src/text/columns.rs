//! Maps renamed columns to the fields of rows.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Mapping from columns to fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// Field names by column name.
    fields: BTreeMap<String, String>,
}

impl Columns {
    /// Builds the mapping from pairs of field and column.
    pub fn new(columns: impl IntoIterator<Item = (String, String)>) -> Self {
        let columns = columns.into_iter();
        Self {
            fields: columns.map(|(field, column)| (column, field)).collect(),
        }
    }

    /// The field of a column.
    pub fn field_of<'c>(&'c self, column: &'c str) -> &'c str {
        self.fields.get(column).map_or(column, String::as_str)
    }

    /// Renames the columns of a row to field names. A key with the name of a remapped field is
    /// dropped.
    pub fn rename(&self, row: Map<String, Value>) -> Map<String, Value> {
        if self.fields.is_empty() {
            return row;
        }
        let is_replaced = |name: &String| {
            !self.fields.contains_key(name) && self.fields.values().any(|field| field == name)
        };
        let remaining = row.into_iter().filter(|(name, _)| !is_replaced(name));
        remaining
            .map(|(name, value)| (self.field_of(&name).to_owned(), value))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_column_replaces_a_key_with_the_name_of_its_field() {
        let with_fields = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            Columns::new(pairs.map(|(field, column)| ((*field).to_owned(), (*column).to_owned())))
        };
        let rename = |columns: &Columns, row: Value| match row {
            Value::Object(row) => Value::Object(columns.rename(row)),
            other => other,
        };
        let row = json!({"question": "q", "prompt": "old", "answer": "a", "id": 1});
        let columns = with_fields(&[("prompt", "question"), ("completion", "answer")]);
        let expected = json!({"prompt": "q", "completion": "a", "id": 1});
        assert_eq!(rename(&columns, row.clone()), expected);
        // Two fields may be swapped.
        let columns = with_fields(&[("prompt", "answer"), ("answer", "prompt")]);
        let expected = json!({"question": "q", "answer": "old", "prompt": "a", "id": 1});
        assert_eq!(rename(&columns, row.clone()), expected);
        assert_eq!(rename(&Columns::default(), row.clone()), row);
    }
}
