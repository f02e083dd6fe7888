//! Converts the rows of Parquet and Arrow files to JSON.
//!
//! A null field of a row or struct is left out, because columns cannot distinguish a null field
//! from an absent one, and `datasets` gives every struct of a column all fields. Nulls in lists are
//! kept. A column of JSON strings, marked by Parquet's logical type or Arrow's extension type,
//! becomes the values that the strings contain.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::budgets::{COLUMN_BYTES, EMPTY_ROWS};
use arrow_array::{Array, RecordBatch};
use arrow_schema::extension::{EXTENSION_TYPE_NAME_KEY, ExtensionType, Json};
use arrow_schema::{ArrowError, FieldRef};
use serde::de::IgnoredAny;
use tooltune_json::budgets::FILE_ROWS;
use tooltune_json::input_limits::{ExpansionBudget, InputTooLarge};
use tooltune_json::lines::Records;
use tooltune_json::{ReadError, catch_panic};

use crate::arrow_batches::ArrowBatches;
use crate::cells::{self, CellFault, RowText};
use crate::parquet_batches::ParquetBatches;

/// Rows are converted until their text reaches this many bytes. The last row may exceed it.
const BATCH_TEXT_BYTES: usize = 4 << 20;

/// Maximum rows converted at once.
const BATCH_ROWS: usize = 65_536;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ColumnFault>> + Send>;

/// Why rows of columns cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ColumnFault {
    #[error("row {row} of the column {column:?} contains {fault}")]
    Cell {
        column: String,
        row: usize,
        fault: CellFault,
    },
    #[error("the column {column:?} contains JSON strings, but row {row} is not JSON: {error}")]
    NotJson {
        column: String,
        row: usize,
        error: serde_json::Error,
    },
    #[error(
        "columns that must be decoded together need {bytes} bytes, but the limit is {COLUMN_BYTES} \
         (COLUMN_BYTES in docs/limits.md); write the file with smaller batches or pages, or \
         leave columns out"
    )]
    TooLarge { bytes: usize },
    #[error(
        "the file has more than {FILE_ROWS} rows, the limit for one file (FILE_ROWS in \
         docs/limits.md); split it"
    )]
    Rows,
    #[error(
        "more than {EMPTY_ROWS} consecutive rows up to row {row} have no values \
         (EMPTY_ROWS in docs/limits.md); remove them"
    )]
    Empty { row: usize },
    #[error(transparent)]
    InputTooLarge(#[from] InputTooLarge),
    #[error("the file is damaged: {0}")]
    Damaged(String),
    #[error(
        "its columns are compressed with {0}, which is not supported; write the file with zstd, snappy, \
         gzip or lz4"
    )]
    Codec(String),
    #[error("the decoder of the file failed: {0}")]
    Panic(String),
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The libraries' message for a compression codec that this build does not include.
const NO_CODEC: &str = "Disabled feature at compile time: ";

impl ColumnFault {
    /// Replaces the library's message about its build features.
    fn with_explanation(self) -> Self {
        let text = self.to_string();
        match text.rsplit_once(NO_CODEC) {
            Some((_, codec)) => Self::Codec(codec.to_owned()),
            None => self,
        }
    }

    /// Returns what to check, for an error message without advice.
    fn check(&self) -> &'static str {
        match self {
            Self::Cell { .. } | Self::NotJson { .. } => "the values of that column",
            Self::TooLarge { .. } | Self::Rows | Self::Empty { .. } | Self::InputTooLarge(_) => {
                "whether this is the right file"
            }
            Self::Codec(_) => "the options of the program that wrote it",
            _ => {
                "that the file is complete, and its columns have types and compressions that \
                 `tooltune data convert` can write"
            }
        }
    }
}

/// The rows of a file of columns.
pub(crate) struct ColumnRows {
    path: PathBuf,
    batches: Batches,
    /// Whether each column contains JSON strings.
    are_json: Vec<bool>,
    /// The last batch, and the index of its first row that is not converted yet.
    batch: Option<(RecordBatch, usize)>,
    /// The converted rows, concatenated, and their ends.
    texts: Vec<u8>,
    ends: std::vec::IntoIter<usize>,
    begin: usize,
    n_rows: usize,
    /// Number of converted rows.
    n_decoded: usize,
    /// Number of consecutive rows without values at the end.
    n_empty: usize,
    pub(crate) expanded: ExpansionBudget,
}

impl fmt::Debug for ColumnRows {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.location())
    }
}

impl ColumnRows {
    pub(crate) fn open_parquet(path: &Path, file: File) -> Result<Self, ReadError> {
        let budget = expansion_budget(path, &file)?;
        let batches = catch_panics(|| ParquetBatches::open(file));
        let batches = batches.map_err(|fault| unreadable(path, fault))?;
        let are_json = batches.are_json();
        Ok(Self::new(path, Box::new(batches), are_json, budget))
    }

    pub(crate) fn open_arrow_file(path: &Path, file: File) -> Result<Self, ReadError> {
        let budget = expansion_budget(path, &file)?;
        Self::open_arrow(path, catch_panics(|| ArrowBatches::from_file(file)), budget)
    }

    pub(crate) fn open_arrow_stream(path: &Path, file: File) -> Result<Self, ReadError> {
        let budget = expansion_budget(path, &file)?;
        Self::open_arrow(
            path,
            catch_panics(|| ArrowBatches::from_stream(file)),
            budget,
        )
    }

    fn open_arrow(
        path: &Path,
        batches: Result<ArrowBatches, ColumnFault>,
        expanded: ExpansionBudget,
    ) -> Result<Self, ReadError> {
        let batches = batches.map_err(|fault| unreadable(path, fault))?;
        let schema = batches.schema();
        let are_json = schema.fields().iter().map(is_json_text).collect();
        Ok(Self::new(path, Box::new(batches), are_json, expanded))
    }

    fn new(path: &Path, batches: Batches, are_json: Vec<bool>, expanded: ExpansionBudget) -> Self {
        Self {
            path: path.to_owned(),
            batches,
            are_json,
            batch: None,
            texts: Vec::new(),
            ends: Vec::new().into_iter(),
            begin: 0,
            n_rows: 0,
            n_decoded: 0,
            n_empty: 0,
            expanded,
        }
    }

    /// Converts more rows; returns whether there are any.
    fn decode(&mut self) -> Result<bool, ColumnFault> {
        let (batch, begin) = loop {
            match self.batch.take() {
                Some((batch, begin)) if begin < batch.num_rows() => break (batch, begin),
                _ => match self.batches.next().transpose()? {
                    None => return Ok(false),
                    Some(batch) => self.batch = Some((batch, 0)),
                },
            }
        };
        let part = Part {
            batch: &batch,
            are_json: &self.are_json,
            begin,
            first: self.n_decoded + 1,
        };
        let ends = catch_panics(|| part.next_texts(&mut self.texts, &mut self.n_empty))?;
        self.expanded.add(self.texts.len())?;
        let n = ends.len();
        self.ends = ends.into_iter();
        self.begin = 0;
        self.n_decoded += n;
        self.batch = Some((batch, begin + n));
        Ok(true)
    }
}

/// The result of `call`; a panic in the column crates becomes an error.
pub(crate) fn catch_panics<T>(
    call: impl FnOnce() -> Result<T, ColumnFault>,
) -> Result<T, ColumnFault> {
    catch_panic(call).unwrap_or_else(|message| Err(ColumnFault::Panic(message)))
}

fn expansion_budget(path: &Path, file: &File) -> Result<ExpansionBudget, ReadError> {
    let length = file.metadata().map(|metadata| metadata.len());
    let length = length.map_err(|error| unreadable(path, error.into()))?;
    Ok(ExpansionBudget::new(length))
}

fn unreadable(path: &Path, fault: ColumnFault) -> ReadError {
    let fault = fault.with_explanation();
    let check = fault.check();
    let error = match fault {
        ColumnFault::Io(error) => error,
        fault => io::Error::new(io::ErrorKind::InvalidData, fault),
    };
    ReadError::Unreadable {
        path: path.to_owned(),
        error,
        check,
    }
}

/// Whether Arrow's extension type marks a field as JSON strings.
pub(crate) fn is_json_text(field: &FieldRef) -> bool {
    let name = field.metadata().get(EXTENSION_TYPE_NAME_KEY);
    name.is_some_and(|name| name == Json::NAME)
}

/// The rows of a batch that have not been converted yet.
struct Part<'b> {
    batch: &'b RecordBatch,
    /// Whether each column contains JSON strings.
    are_json: &'b [bool],
    /// Index of the first of these rows in the batch.
    begin: usize,
    /// Number of the first of these rows in the file, from 1.
    first: usize,
}

impl Part<'_> {
    /// Replaces `texts` by the next rows and returns their ends. `n_empty` counts consecutive rows
    /// without a value.
    fn next_texts(
        &self,
        texts: &mut Vec<u8>,
        n_empty: &mut usize,
    ) -> Result<Vec<usize>, ColumnFault> {
        let schema = self.batch.schema();
        let columns = schema.fields().iter().zip(self.batch.columns());
        let columns: Vec<Column<'_>> = columns
            .zip(self.are_json)
            .map(|((field, values), &is_json)| Column {
                name: field.name(),
                values: values.as_ref(),
                is_json,
            })
            .collect();
        texts.clear();
        let mut ends = Vec::new();
        for row in self.begin..self.batch.num_rows() {
            if ends.len() == BATCH_ROWS || texts.len() >= BATCH_TEXT_BYTES {
                break;
            }
            let number = self.first + (row - self.begin);
            let mut text = RowText::new(texts);
            let mut is_first = true;
            for column in &columns {
                column
                    .write(row, &mut is_first, &mut text)
                    .map_err(|fault| fault.in_column(column.name, number))?;
            }
            let end: &[u8] = if is_first { b"{}" } else { b"}" };
            text.push(end)
                .map_err(|fault| ValueFault::Cell(fault).in_column("", number))?;
            *n_empty = if is_first { *n_empty + 1 } else { 0 };
            if *n_empty > EMPTY_ROWS {
                return Err(ColumnFault::Empty { row: number });
            }
            ends.push(texts.len());
        }
        Ok(ends)
    }
}

struct Column<'b> {
    name: &'b str,
    values: &'b dyn Array,
    is_json: bool,
}

/// An error in one value.
enum ValueFault {
    Cell(CellFault),
    NotJson(serde_json::Error),
}

impl From<CellFault> for ValueFault {
    fn from(fault: CellFault) -> Self {
        Self::Cell(fault)
    }
}

impl ValueFault {
    fn in_column(self, column: &str, row: usize) -> ColumnFault {
        let column = column.to_owned();
        match self {
            Self::Cell(fault) => ColumnFault::Cell { column, row, fault },
            Self::NotJson(error) => ColumnFault::NotJson { column, row, error },
        }
    }
}

impl Column<'_> {
    /// Writes a row's field if it has a value; `is_first` is true until a field was written.
    fn write(
        &self,
        row: usize,
        is_first: &mut bool,
        out: &mut RowText<'_>,
    ) -> Result<(), ValueFault> {
        let json = cells::string_at(self.values, row).filter(|_| self.is_json);
        let is_blank = json.is_some_and(|text| text.trim().is_empty());
        if is_blank || cells::is_null(self.values, row) {
            return Ok(());
        }
        out.push(if std::mem::take(is_first) {
            b"{"
        } else {
            b", "
        })?;
        cells::write_text(out, self.name)?;
        out.push(b": ")?;
        match json {
            None => cells::write(self.values, row, out)?,
            Some(text) => {
                serde_json::from_str::<IgnoredAny>(text).map_err(ValueFault::NotJson)?;
                out.push(text.trim().as_bytes())?;
            }
        }
        Ok(())
    }
}

impl Records for ColumnRows {
    fn path(&self) -> &Path {
        &self.path
    }

    fn location(&self) -> String {
        format!("{}:{}", self.path.display(), self.n_rows)
    }

    fn has_any(&self) -> bool {
        self.n_rows > 0
    }

    fn next_record(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        loop {
            if let Some(end) = self.ends.next() {
                let record = &self.texts[self.begin..end];
                self.begin = end;
                self.n_rows += 1;
                return Ok(Some(record.to_vec()));
            }
            match self.decode() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(fault) => {
                    // Ends the iteration.
                    self.batches = Box::new(std::iter::empty());
                    self.batch = None;
                    return Err(unreadable(&self.path, fault));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsupported_compression_error_lists_the_supported_ones() {
        let library_message = format!("Parquet error: {NO_CODEC}brotli");
        let fault = ColumnFault::Arrow(ArrowError::ParquetError(library_message));
        let message = unreadable(Path::new("x.parquet"), fault).to_string();
        assert!(
            message.contains(
                "compressed with brotli, which is not supported; write the file with zstd"
            ),
            "{message}"
        );
        assert!(!message.contains("compile time"), "{message}");
    }
}
