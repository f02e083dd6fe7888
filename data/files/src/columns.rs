//! Rows of columns, Parquet and Arrow, as JSON texts.
//!
//! A null of a row or of a struct is left out: columns cannot tell a field that is null from one that
//! is not there, and `datasets` makes every struct of a column hold the fields of all. Nulls in lists
//! stay. A column of JSON texts, by Parquet's logical type or Arrow's extension type, becomes the
//! values that the texts stand for.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::extension::{EXTENSION_TYPE_NAME_KEY, ExtensionType, Json};
use arrow_schema::{ArrowError, DataType, Field, FieldRef};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{ConvertedType, LogicalType};
use serde::de::IgnoredAny;
use tooltune_rows::budgets::LINE_BYTES;
use tooltune_rows::lines::{Records, TooLong};
use tooltune_rows::{ReadError, contained};

use crate::cells::{self, CellFault};

/// Bytes of rows that become text together.
const TOGETHER_BYTES: usize = 4 << 20;

/// Rows of Parquet that are decoded together at most.
const MOST_ROWS: usize = 1024;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// What rows of columns cannot be.
#[derive(Debug, thiserror::Error)]
enum ColumnFault {
    #[error("the column {column:?} holds, in row {row}, {fault}")]
    Cell {
        column: String,
        row: usize,
        fault: CellFault,
    },
    #[error("the column {column:?} holds JSON texts, and that of row {row} is none: {error}")]
    NotJson {
        column: String,
        row: usize,
        error: serde_json::Error,
    },
    #[error("its decoder failed: {0}")]
    Panic(String),
    #[error(transparent)]
    Arrow(#[from] ArrowError),
}

/// The rows of a file of columns.
pub(crate) struct ColumnRows {
    path: PathBuf,
    batches: Batches,
    /// Of each column whether it holds JSON texts.
    are_json: Vec<bool>,
    /// What is left of the batch that was read last, and where that begins.
    batch: Option<(RecordBatch, usize)>,
    /// Rows as text, end to end, and their ends.
    texts: Vec<u8>,
    ends: std::vec::IntoIter<usize>,
    begin: usize,
    n_rows: usize,
    /// Rows that became text.
    n_decoded: usize,
}

impl fmt::Debug for ColumnRows {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.place())
    }
}

impl ColumnRows {
    pub(crate) fn of_parquet(path: &Path, file: File) -> Result<Self, ReadError> {
        let opened = guarded(|| {
            let builder =
                ParquetRecordBatchReaderBuilder::try_new(file).map_err(ArrowError::from)?;
            let groups = builder.metadata().row_groups().iter();
            let bytes: i64 = groups.map(|group| group.total_byte_size()).sum();
            let rows = builder.metadata().file_metadata().num_rows().max(1);
            let of_row = usize::try_from(bytes / rows).unwrap_or_default();
            let schema = builder.parquet_schema();
            let is_json = |field: &Field| {
                let root = schema.root_schema().get_fields().iter();
                let mut named = root.filter(|column| column.name() == field.name());
                named.next().is_some_and(|column| {
                    let info = column.get_basic_info();
                    info.logical_type_ref() == Some(&LogicalType::Json)
                        || info.converted_type() == ConvertedType::JSON
                })
            };
            let fields = builder.schema().fields().iter();
            let are_json = fields.map(|field| is_json(field) || is_json_text(field));
            let are_json = are_json.collect();
            let together = (TOGETHER_BYTES / of_row.max(1)).clamp(1, MOST_ROWS);
            let batches: Batches = Box::new(
                builder
                    .with_batch_size(together)
                    .build()
                    .map_err(ArrowError::from)?,
            );
            Ok((batches, are_json))
        });
        let (batches, are_json) = opened.map_err(|fault| unreadable(path, fault))?;
        Ok(Self::new(path, batches, are_json))
    }

    pub(crate) fn of_arrow_file(path: &Path, file: File) -> Result<Self, ReadError> {
        let opened = guarded(|| Ok(FileReader::try_new(BufReader::new(file), None)?));
        let reader = opened.map_err(|fault| unreadable(path, fault))?;
        let are_json = reader.schema().fields().iter().map(is_json_text).collect();
        Ok(Self::new(path, Box::new(reader), are_json))
    }

    pub(crate) fn of_arrow_stream(path: &Path, file: File) -> Result<Self, ReadError> {
        let opened = guarded(|| Ok(StreamReader::try_new(BufReader::new(file), None)?));
        let reader = opened.map_err(|fault| unreadable(path, fault))?;
        let are_json = reader.schema().fields().iter().map(is_json_text).collect();
        Ok(Self::new(path, Box::new(reader), are_json))
    }

    fn new(path: &Path, batches: Batches, are_json: Vec<bool>) -> Self {
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
        }
    }

    /// Makes further rows text; whether there are any.
    fn decode(&mut self) -> Result<bool, ColumnFault> {
        let (batch, begin) = loop {
            match self.batch.take() {
                Some((batch, begin)) if begin < batch.num_rows() => break (batch, begin),
                _ => match guarded(|| Ok(self.batches.next().transpose()?))? {
                    None => return Ok(false),
                    Some(batch) => self.batch = Some((batch, 0)),
                },
            }
        };
        let of_row = batch.get_array_memory_size() / batch.num_rows().max(1);
        let n = (TOGETHER_BYTES / of_row.max(1))
            .max(1)
            .min(batch.num_rows() - begin);
        let part = batch.slice(begin, n);
        let ends = guarded(|| texts_of(&part, &self.are_json, self.n_decoded, &mut self.texts))?;
        self.ends = ends.into_iter();
        self.begin = 0;
        self.n_decoded += n;
        self.batch = Some((batch, begin + n));
        Ok(true)
    }
}

/// What `call` gives; a panic of the crates that read columns is an error.
fn guarded<T>(call: impl FnOnce() -> Result<T, ColumnFault>) -> Result<T, ColumnFault> {
    contained(call).unwrap_or_else(|said| Err(ColumnFault::Panic(said)))
}

fn unreadable(path: &Path, fault: ColumnFault) -> ReadError {
    ReadError::Unreadable {
        path: path.to_owned(),
        error: io::Error::new(io::ErrorKind::InvalidData, fault),
        check: "that the file is whole, and its columns of types and compressions that \
                `tooltune data convert` could write",
    }
}

/// Whether a field holds JSON texts by Arrow's extension type.
fn is_json_text(field: &FieldRef) -> bool {
    let name = field.metadata().get(EXTENSION_TYPE_NAME_KEY);
    name.is_some_and(|name| name == Json::NAME)
}

/// Adds the rows of a batch to `texts`; their ends there. `first` is the number of the first one.
fn texts_of(
    batch: &RecordBatch,
    are_json: &[bool],
    first: usize,
    texts: &mut Vec<u8>,
) -> Result<Vec<usize>, ColumnFault> {
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns()).zip(are_json);
    let columns: Vec<_> = columns
        .map(|((field, array), &is_json)| {
            let mut name = serde_json::to_vec(field.name()).unwrap_or_default();
            name.extend_from_slice(b": ");
            (field.name(), name, array, is_json)
        })
        .collect();
    texts.clear();
    let mut ends = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        texts.push(b'{');
        let mut is_first = true;
        for (column, name, array, is_json) in &columns {
            let text = text_of(array, row).filter(|_| *is_json);
            let is_empty = text.is_some_and(|text| text.trim().is_empty());
            if cells::is_null(array, row) || is_empty {
                continue;
            }
            if !std::mem::take(&mut is_first) {
                texts.extend_from_slice(b", ");
            }
            texts.extend_from_slice(name);
            let column = || (*column).clone();
            match text {
                None => cells::write(array, row, texts).map_err(|fault| ColumnFault::Cell {
                    column: column(),
                    row: first + row + 1,
                    fault,
                })?,
                Some(text) => {
                    let checked = serde_json::from_str::<IgnoredAny>(text);
                    checked.map_err(|error| ColumnFault::NotJson {
                        column: column(),
                        row: first + row + 1,
                        error,
                    })?;
                    texts.extend_from_slice(text.trim().as_bytes());
                }
            }
        }
        texts.push(b'}');
        ends.push(texts.len());
    }
    Ok(ends)
}

/// The text that a column of texts holds.
fn text_of(array: &ArrayRef, row: usize) -> Option<&str> {
    if array.is_null(row) {
        return None;
    }
    match array.data_type() {
        DataType::Utf8 => Some(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Some(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Some(array.as_string_view().value(row)),
        _ => None,
    }
}

impl Records for ColumnRows {
    fn path(&self) -> &Path {
        &self.path
    }

    fn place(&self) -> String {
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
                if record.len() > LINE_BYTES {
                    return Err(TooLong::line(LINE_BYTES).into());
                }
                return Ok(Some(record.to_vec()));
            }
            match self.decode() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(fault) => {
                    // Nothing comes after it.
                    self.batches = Box::new(std::iter::empty());
                    self.batch = None;
                    return Err(unreadable(&self.path, fault));
                }
            }
        }
    }
}
