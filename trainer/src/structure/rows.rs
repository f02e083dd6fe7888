//! Lines of JSON to texts with their schemas, one at a time.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use serde_json::{Map, Value};
use tooltune_rows::ReadError;
use tooltune_rows::json::{self, JsonError};
use tooltune_rows::text::DataError;
use tooltune_rows::tools::{TextLines, ToolsError, kind_of};

use crate::error::Error;

/// Names of fields that are remembered as not read.
const MOST_NAMES: usize = 20;

/// A text that is to become JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct TextRow {
    /// Its own name, or its place where it has none.
    pub id: Value,
    /// The row as `file:line`.
    pub place: String,
    /// The text; where a first model is asked, its prompt.
    pub text: String,
    /// What the JSON must satisfy.
    pub json_schema: Value,
}

/// A row that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenRow {
    /// The row as `file:line`.
    pub place: String,
    /// What is wrong with it, with the place before it.
    pub reason: String,
}

/// What a line became.
pub(super) type Line = Result<TextRow, BrokenRow>;

/// What rows have.
#[derive(Debug, Clone, Default)]
pub struct RowOptions {
    /// Whether rows have a `prompt` for a first model, and no text.
    pub are_prompts: bool,
    /// The schema of rows that have none.
    pub schema: Option<Value>,
}

/// The rows of some files in order, or one row.
#[derive(Debug)]
pub struct RowSource {
    typed: Option<TextRow>,
    files: VecDeque<TextLines>,
    options: RowOptions,
    /// Rows of the present file.
    n_rows: usize,
    unread: BTreeMap<String, usize>,
}

impl RowSource {
    /// Of files, `-` being the standard input, which is read when its rows are asked for.
    ///
    /// # Errors
    ///
    /// A file that cannot be opened.
    pub fn open(files: &[PathBuf], options: RowOptions) -> Result<Self, Error> {
        let open = |file: &PathBuf| -> Result<TextLines, ToolsError> {
            Ok(TextLines::of_records(tooltune_files::open(file)?))
        };
        Ok(Self {
            typed: None,
            files: files.iter().map(open).collect::<Result<_, _>>()?,
            options,
            n_rows: 0,
            unread: BTreeMap::new(),
        })
    }

    /// Of one row.
    pub fn of_row(row: TextRow) -> Self {
        Self {
            typed: Some(row),
            files: VecDeque::new(),
            options: RowOptions::default(),
            n_rows: 0,
            unread: BTreeMap::new(),
        }
    }

    /// The next row; none at the end.
    ///
    /// # Errors
    ///
    /// A file that cannot be read on, or has no row.
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

    /// Fields that rows had and nobody read, in a sentence.
    pub fn unread(&self) -> Option<String> {
        let fields = self.unread.iter();
        let fields: Vec<String> = fields.map(|(name, n)| format!("{name:?} ({n})")).collect();
        (!fields.is_empty()).then(|| {
            format!(
                "rows have fields that are not read, each with how many have it: {}",
                fields.join(", ")
            )
        })
    }

    fn row(&mut self, place: String, text: &str) -> Line {
        self.parsed(&place, text).map_err(|error| {
            let reason = error.at(&place).to_string();
            BrokenRow { place, reason }
        })
    }

    fn parsed(&mut self, place: &str, text: &str) -> Result<TextRow, DataError> {
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
            None | Some(Value::Null) => Value::from(place),
            Some(id @ (Value::String(_) | Value::Number(_))) => id,
            Some(other) => return Err(wrong_type("id", &other, "a text or a number")),
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
            } else if self.unread.len() < MOST_NAMES {
                self.unread.insert(name.clone(), 1);
            }
        }
        Ok(TextRow {
            id,
            place: place.to_owned(),
            text,
            json_schema,
        })
    }

    /// The field `text`, or `input_text`, as rows of SLOT spell it; of rows for a first model `prompt`.
    fn text(&self, fields: &mut Map<String, Value>) -> Result<String, DataError> {
        const TEXT: &str = "a row needs a text, as \"text\" or, as rows of SLOT have it, \
                            \"input_text\"";
        const PROMPT: &str = "with --upstream-endpoint a row needs a prompt for the first model, whose \
                              answer is the text";
        let (names, needed): (&[&str], _) = match self.options.are_prompts {
            true => (&["prompt"], PROMPT),
            false => (&["text", "input_text"], TEXT),
        };
        let name = names.iter().find(|name| fields.contains_key(**name));
        let name = name.ok_or_else(|| ReadError::missing(names[0], needed))?;
        match fields.remove(*name) {
            Some(Value::String(text)) => Ok(text),
            other => Err(wrong_type(name, &other.unwrap_or_default(), "a text")),
        }
    }
}

fn wrong_type(field: &str, found: &Value, expected: &'static str) -> DataError {
    ReadError::WrongType {
        field: field.to_owned(),
        found: kind_of(found),
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
    fn a_row_is_a_text_with_a_schema_or_broken_with_its_place() {
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
        for (row, said) in [
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
            assert!(broken.reason.contains(said), "{}", broken.reason);
            assert!(broken.reason.starts_with(&broken.place), "{broken:?}");
        }
        assert!(source.unread().unwrap().ends_with("\"gold\" (2)"));
    }

    #[test]
    fn a_schema_for_all_rows_counts_where_a_row_has_none_and_prompts_are_no_texts() {
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
        assert!(error.contains("holds no rows"), "{error}");
    }
}
