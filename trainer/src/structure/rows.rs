//! Reads rows with a text and a schema from JSON Lines, one at a time.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use serde_json::{Map, Value};
use tooltune_apis::{TextLines, ToolsError};
use tooltune_json as json;
use tooltune_json::JsonError;
use tooltune_json::ReadError;
use tooltune_json::kind_of;
use tooltune_rows::text::DataError;

use crate::error::Error;

/// Maximum number of unused field names in the report.
const MAX_NAMES: usize = 20;

/// A text to convert to JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct TextRow {
    /// Id of the row, or its location.
    pub id: Value,
    /// Row as `file:line`.
    pub place: String,
    /// The text, or the prompt for a first model.
    pub text: String,
    /// The schema that the JSON must satisfy.
    pub json_schema: Value,
}

/// A row that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenRow {
    /// Row as `file:line`.
    pub place: String,
    /// The error, starting with the location.
    pub reason: String,
}

/// A parsed line.
pub(super) type Line = Result<TextRow, BrokenRow>;

/// The expected fields of rows.
#[derive(Debug, Clone, Default)]
pub struct RowOptions {
    /// Whether rows have a `prompt` for a first model instead of a text.
    pub are_prompts: bool,
    /// Default schema for rows without one.
    pub schema: Option<Value>,
}

/// Rows of several files in order, or a single row.
#[derive(Debug)]
pub struct RowSource {
    typed: Option<TextRow>,
    files: VecDeque<TextLines>,
    options: RowOptions,
    /// Number of rows read from the current file.
    n_rows: usize,
    unread: BTreeMap<String, usize>,
}

impl RowSource {
    /// Opens files. `-` is standard input, which is read only as rows are requested.
    ///
    /// # Errors
    ///
    /// A file cannot be opened.
    pub fn open(files: &[PathBuf], options: RowOptions) -> Result<Self, Error> {
        let open = |file: &PathBuf| -> Result<TextLines, ToolsError> {
            Ok(TextLines::from_records(tooltune_files::open(file)?))
        };
        Ok(Self {
            typed: None,
            files: files.iter().map(open).collect::<Result<_, _>>()?,
            options,
            n_rows: 0,
            unread: BTreeMap::new(),
        })
    }

    /// A source with one row.
    pub fn single_row(row: TextRow) -> Self {
        Self {
            typed: Some(row),
            files: VecDeque::new(),
            options: RowOptions::default(),
            n_rows: 0,
            unread: BTreeMap::new(),
        }
    }

    /// The next row; `None` at the end.
    ///
    /// # Errors
    ///
    /// A file cannot be read or has no rows.
    pub fn next_line(&mut self) -> Result<Option<Line>, Error> {
        if let Some(row) = self.typed.take() {
            return Ok(Some(Ok(row)));
        }
        while let Some(lines) = self.files.front_mut() {
            let Some(line) = lines.next() else {
                if self.n_rows == 0 {
                    let path = lines.path().to_owned();
                    return Err(DataError::EmptyFile { path }.into());
                }
                self.n_rows = 0;
                self.files.pop_front();
                continue;
            };
            self.n_rows += 1;
            return match line {
                Ok((place, text)) => Ok(Some(self.row(place, &text))),
                Err(ToolsError::At { place, error })
                    if matches!(*error, ToolsError::NotUtf8 { .. }) =>
                {
                    let reason = format!("{place}: {error}");
                    Ok(Some(Err(BrokenRow { place, reason })))
                }
                Err(error) => Err(error.into()),
            };
        }
        Ok(None)
    }

    /// A report line about row fields that are not used.
    pub fn unused_fields(&self) -> Option<String> {
        let fields = self.unread.iter();
        let fields: Vec<String> = fields.map(|(name, n)| format!("{name:?} ({n})")).collect();
        (!fields.is_empty()).then(|| {
            format!(
                "unused fields in rows (with number of rows): {}",
                fields.join(", ")
            )
        })
    }

    fn row(&mut self, location: String, text: &str) -> Line {
        self.parse(&location, text).map_err(|error| {
            let reason = error.at(&location).to_string();
            BrokenRow {
                place: location,
                reason,
            }
        })
    }

    fn parse(&mut self, location: &str, text: &str) -> Result<TextRow, DataError> {
        let value = json::parse_unique(text).map_err(|error| match error {
            JsonError::DuplicateKey(twice) => ReadError::from(twice).into(),
            error => DataError::NotJson { error },
        })?;
        if let Some(oversized) = json::oversized_integer(text, |field| field == "json_schema") {
            return Err(ReadError::from(oversized).into());
        }
        let Value::Object(mut fields) = value else {
            return Err(wrong_type("the line", &value, "a JSON object"));
        };
        let id = match fields.remove("id") {
            None | Some(Value::Null) => Value::from(location),
            Some(id @ (Value::String(_) | Value::Number(_))) => id,
            Some(other) => return Err(wrong_type("id", &other, "a string or a number")),
        };
        let text = self.text(&mut fields)?;
        let json_schema = match fields.remove("json_schema") {
            Some(schema) => schema,
            None => match &self.options.schema {
                Some(schema) => schema.clone(),
                None => {
                    let needed = "a row needs a json_schema; give one for all rows with --schema";
                    return Err(ReadError::missing("json_schema", needed).into());
                }
            },
        };
        if !json_schema.is_object() {
            return Err(wrong_type("json_schema", &json_schema, "an object"));
        }
        for name in fields.keys() {
            if let Some(n) = self.unread.get_mut(name) {
                *n += 1;
            } else if self.unread.len() < MAX_NAMES {
                self.unread.insert(name.clone(), 1);
            }
        }
        Ok(TextRow {
            id,
            place: location.to_owned(),
            text,
            json_schema,
        })
    }

    /// Reads the field `text` (or `input_text`, as in SLOT rows), or `prompt` for a first model.
    fn text(&self, fields: &mut Map<String, Value>) -> Result<String, DataError> {
        const TEXT: &str = "a row needs a text, as \"text\" or, as in SLOT rows, \
                            \"input_text\"";
        const PROMPT: &str = "with --upstream-endpoint a row needs a prompt for the first model, \
                              which generates the text";
        let (names, needed): (&[&str], _) = match self.options.are_prompts {
            true => (&["prompt"], PROMPT),
            false => (&["text", "input_text"], TEXT),
        };
        let name = names.iter().find(|name| fields.contains_key(**name));
        let name = name.ok_or_else(|| ReadError::missing(names[0], needed))?;
        match fields.remove(*name) {
            Some(Value::String(text)) => Ok(text),
            other => Err(wrong_type(name, &other.unwrap_or_default(), "a string")),
        }
    }
}

fn wrong_type(field: &str, value: &Value, expected: &'static str) -> DataError {
    ReadError::WrongType {
        field: field.to_owned(),
        found: kind_of(value),
        expected,
    }
    .into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn source(text: &str, options: RowOptions) -> (tempfile::NamedTempFile, RowSource) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let source = RowSource::open(&[file.path().to_owned()], options).unwrap();
        (file, source)
    }

    fn all(source: &mut RowSource) -> Vec<Line> {
        std::iter::from_fn(|| source.next_line().unwrap()).collect()
    }

    #[test]
    fn a_row_without_text_or_schema_is_broken_with_its_location() {
        let lines = [
            r#"{"id": "a", "text": "one", "json_schema": {"type": "object"}, "gold": {}}"#,
            r#"{"input_text": "two", "json_schema": {}, "gold": {}}"#,
            r#"{"id": 7, "text": "three"}"#,
            r#"{"id": [], "text": "four", "json_schema": {}}"#,
            r#"{"text": 5, "json_schema": {}}"#,
            "not JSON",
            r#"{"text": "x", "text": "y", "json_schema": {}}"#,
            "[1]",
            r#"{"text": "x", "json_schema": {"const": 123456789012345678901}}"#,
        ];
        let (_file, mut source) = source(&lines.join("\n"), RowOptions::default());
        let rows = all(&mut source);
        assert_eq!(rows.len(), lines.len());
        let first = rows[0].as_ref().unwrap();
        assert_eq!((&first.id, first.text.as_str()), (&json!("a"), "one"));
        let second = rows[1].as_ref().unwrap();
        assert_eq!(second.id, json!(second.place));
        assert!(second.place.ends_with(":2"), "{}", second.place);
        for (row, expected) in [
            (
                2,
                ":3: field \"json_schema\" is missing; a row needs a json_schema; give one",
            ),
            (3, ":4: id is "),
            (4, ":5: text is "),
            (5, ":6: not valid JSON"),
            (6, ":7: column "),
            (7, ":8: the line is "),
            (
                8,
                ":9: json_schema.const is the integer 123456789012345678901",
            ),
        ] {
            let broken = rows[row].as_ref().unwrap_err();
            assert!(broken.reason.contains(expected), "{}", broken.reason);
            assert!(broken.reason.starts_with(&broken.place), "{broken:?}");
        }
        assert!(source.unused_fields().unwrap().ends_with("\"gold\" (2)"));
    }

    #[test]
    fn the_default_schema_applies_to_rows_without_one() {
        let options = RowOptions {
            are_prompts: true,
            schema: Some(json!({"type": "object"})),
        };
        let text =
            "{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"json_schema\": {}}\n{\"text\": \"c\"}\n";
        let (_file, mut source) = source(text, options);
        let rows = all(&mut source);
        assert_eq!(
            rows[0].as_ref().unwrap().json_schema,
            json!({"type": "object"})
        );
        assert_eq!(rows[1].as_ref().unwrap().json_schema, json!({}));
        let broken = rows[2].as_ref().unwrap_err();
        assert!(
            broken.reason.contains("needs a prompt"),
            "{}",
            broken.reason
        );
    }

    #[test]
    fn a_file_without_rows_is_an_error() {
        let (_file, mut source) = source("\n", RowOptions::default());
        let error = source.next_line().unwrap_err().to_string();
        assert!(error.contains("has no rows"), "{error}");
    }
}
