//! Rows of files in any form -> one file in another.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Map, Value};
use tooltune_rows::ReadError;
use tooltune_rows::json::{self, JsonError};
use tooltune_rows::text::{DataError, RowRecords};

use crate::form::FileForm;
use crate::infer::Columns;
use crate::open::open;
use crate::write::{ColumnWriter, TextWriter, WriteError};

/// What became of rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conversion {
    /// Rows that were written.
    pub n_rows: usize,
    /// Columns that hold JSON texts, because their values have no one type.
    pub json_texts: Vec<String>,
    /// What the form cannot hold, in sentences.
    pub losses: Vec<String>,
}

/// Rows that cannot be converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// A row that cannot be read.
    #[error(transparent)]
    Rows(#[from] DataError),
    /// A file that cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Writes the rows of files, one file after the other. For columns the files are read twice: the first
/// time tells the types.
///
/// # Errors
///
/// - a file cannot be read, has no rows, or one that is not one JSON object
/// - `out` cannot be written
pub fn convert<W: Write + Send>(
    files: &[PathBuf],
    form: FileForm,
    out: W,
) -> Result<Conversion, ConvertError> {
    let mut conversion = Conversion::default();
    if !form.form.has_columns() {
        let mut writer = TextWriter::new(out, form)?;
        for file in files {
            for record in RowRecords::new(open(file).map_err(DataError::from)?) {
                let (place, record) = record?;
                parsed(&place, &record)?;
                writer.push(&record)?;
                conversion.n_rows += 1;
            }
        }
        writer.finish()?;
        return Ok(conversion);
    }
    let mut columns = Columns::default();
    for row in rows(files) {
        columns.add(&row?);
    }
    conversion.json_texts = columns.json_texts().map(str::to_owned).collect();
    conversion.losses = columns.losses();
    let mut writer = ColumnWriter::new(out, form.form, columns)?;
    for row in rows(files) {
        writer.push(row?)?;
        conversion.n_rows += 1;
    }
    writer.finish()?;
    Ok(conversion)
}

fn rows(files: &[PathBuf]) -> impl Iterator<Item = Result<Map<String, Value>, DataError>> {
    let records = files.iter().flat_map(|file| {
        let (records, error) = match open(file) {
            Ok(records) => (Some(RowRecords::new(records)), None),
            Err(error) => (None, Some(Err(error.into()))),
        };
        error.into_iter().chain(records.into_iter().flatten())
    });
    records.map(|record| {
        let (place, record) = record?;
        parsed(&place, &record)
    })
}

/// A row, which must be one JSON object.
fn parsed(place: &str, record: &[u8]) -> Result<Map<String, Value>, DataError> {
    let parse = || -> Result<Map<String, Value>, DataError> {
        let text = std::str::from_utf8(record).map_err(|error| DataError::NotUtf8 {
            byte: error.valid_up_to(),
        })?;
        let value = json::parse_unique(text).map_err(|error| match error {
            JsonError::DuplicateKey(twice) => ReadError::from(twice).into(),
            error => DataError::NotJson { error },
        })?;
        // It would be rounded.
        if let Some(oversized) = json::oversized_integer(text, |_| true) {
            return Err(ReadError::from(oversized).into());
        }
        match value {
            Value::Object(row) => Ok(row),
            other => Err(ReadError::WrongType {
                field: "the row".to_owned(),
                found: tooltune_rows::tools::kind_of(&other),
                expected: "a JSON object",
            }
            .into()),
        }
    };
    parse().map_err(|error| error.at(place))
}
