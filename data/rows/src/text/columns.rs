//! Fields of rows that stand under other names in their files.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Which column of a file is which field of its rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// The field of each column.
    fields: BTreeMap<String, String>,
}

impl Columns {
    /// Of pairs of a field and its column.
    pub fn new(columns: impl IntoIterator<Item = (String, String)>) -> Self {
        let columns = columns.into_iter();
        Self {
            fields: columns.map(|(field, column)| (column, field)).collect(),
        }
    }

    /// The field that a column is.
    pub fn field_of<'c>(&'c self, column: &'c str) -> &'c str {
        self.fields.get(column).map_or(column, String::as_str)
    }

    /// The fields of a row under their own names. What stands under the name of a field whose column
    /// is another one gives way.
    pub fn renamed(&self, row: Map<String, Value>) -> Map<String, Value> {
        if self.fields.is_empty() {
            return row;
        }
        let is_replaced = |name: &String| {
            !self.fields.contains_key(name) && self.fields.values().any(|field| field == name)
        };
        let kept = row.into_iter().filter(|(name, _)| !is_replaced(name));
        kept.map(|(name, value)| (self.field_of(&name).to_owned(), value))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_column_is_read_as_its_field_and_what_has_the_name_of_the_field_gives_way() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            Columns::new(pairs.map(|(field, column)| ((*field).to_owned(), (*column).to_owned())))
        };
        let renamed = |columns: &Columns, row: Value| match row {
            Value::Object(row) => Value::Object(columns.renamed(row)),
            other => other,
        };
        let row = json!({"question": "q", "prompt": "old", "answer": "a", "id": 1});
        let columns = of(&[("prompt", "question"), ("completion", "answer")]);
        let expected = json!({"prompt": "q", "completion": "a", "id": 1});
        assert_eq!(renamed(&columns, row.clone()), expected);
        // Two fields may change places.
        let columns = of(&[("prompt", "answer"), ("answer", "prompt")]);
        let expected = json!({"question": "q", "answer": "old", "prompt": "a", "id": 1});
        assert_eq!(renamed(&columns, row.clone()), expected);
        assert_eq!(renamed(&Columns::default(), row.clone()), row);
    }
}
