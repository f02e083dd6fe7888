//! Converts row files to one file of a different format.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Map, Value};
use tooltune_json as json;
use tooltune_json::JsonError;
use tooltune_json::ReadError;
use tooltune_rows::text::{DataError, RowRecords};

use crate::format::FileFormat;
use crate::infer::Columns;
use crate::open::open;
use crate::write::{ColumnWriter, TextWriter, WriteError};

/// The result of a conversion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conversion {
    /// Number of rows written.
    pub n_rows: usize,
    /// Columns stored as JSON strings, because their values have no common type.
    pub json_texts: Vec<String>,
    /// Information that the format cannot store, as sentences.
    pub losses: Vec<String>,
}

/// Why rows cannot be converted.
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

/// Writes the rows of several files, one file after another. For column formats the files are read
/// twice: the first pass determines the types. `on_row` is called for each row.
///
/// # Errors
///
/// - A file cannot be read, has no rows, or has a row that is not a JSON object.
/// - `out` cannot be written.
pub fn convert<W: Write + Send>(
    files: &[PathBuf],
    format: FileFormat,
    out: W,
    on_row: &mut dyn FnMut(),
) -> Result<Conversion, ConvertError> {
    let mut conversion = Conversion::default();
    if !format.content.has_columns() {
        let mut writer = TextWriter::new(out, format)?;
        for file in files {
            for record in RowRecords::new(open(file).map_err(DataError::from)?) {
                let (location, record) = record?;
                on_row();
                parse_row(&location, &record)?;
                writer.push(&record)?;
                conversion.n_rows += 1;
            }
        }
        writer.finish()?;
        return Ok(conversion);
    }
    let mut columns = Columns::default();
    for row in rows(files) {
        on_row();
        columns.add(&row?);
    }
    conversion.json_texts = columns.json_texts().map(str::to_owned).collect();
    conversion.losses = columns.losses();
    let mut writer = ColumnWriter::new(out, format.content, columns)?;
    for row in rows(files) {
        on_row();
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
        let (location, record) = record?;
        parse_row(&location, &record)
    })
}

/// Parses a row, which must be one JSON object.
fn parse_row(location: &str, record: &[u8]) -> Result<Map<String, Value>, DataError> {
    let parse = || -> Result<Map<String, Value>, DataError> {
        let text = std::str::from_utf8(record).map_err(|error| DataError::NotUtf8 {
            byte: error.valid_up_to(),
        })?;
        let value = json::parse_unique(text).map_err(|error| match error {
            JsonError::DuplicateKey(twice) => ReadError::from(twice).into(),
            error => DataError::NotJson { error },
        })?;
        // The integer would be rounded.
        if let Some(oversized) = json::oversized_integer(text, |_| true) {
            return Err(ReadError::from(oversized).into());
        }
        match value {
            Value::Object(row) => Ok(row),
            other => Err(ReadError::WrongType {
                field: "the row".to_owned(),
                found: tooltune_json::kind_of(&other),
                expected: "a JSON object",
            }
            .into()),
        }
    };
    parse().map_err(|error| error.at(location))
}
