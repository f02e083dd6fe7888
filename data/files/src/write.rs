//! Writes rows in a given format.

use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression as ParquetCompression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use serde_json::{Map, Value};

use crate::format::{Compression, ContentFormat, FileFormat};
use crate::infer::Columns;

/// Rows converted to columns at once.
const BATCH_ROWS: usize = 256;

/// Bytes of a row group, which is kept in memory until it is written.
const GROUP_BYTES: usize = 64 << 20;

/// Why rows cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The file cannot be written.
    #[error("cannot write: {0}; check whether the disk is full")]
    Io(#[from] io::Error),
    /// Columns cannot be written.
    #[error("cannot write columns: {0}")]
    Arrow(#[from] ArrowError),
    /// Parquet cannot be written.
    #[error("cannot write Parquet: {0}")]
    Parquet(#[from] ParquetError),
}

/// Writes rows as JSON, one per line or in an array.
pub(crate) struct TextWriter<W: Write> {
    sink: Sink<W>,
    is_array: bool,
    n_rows: usize,
}

enum Sink<W: Write> {
    Plain(io::BufWriter<W>),
    Gzip(Box<flate2::write::GzEncoder<io::BufWriter<W>>>),
    Zstd(Box<zstd::Encoder<'static, io::BufWriter<W>>>),
}

impl<W: Write> Sink<W> {
    fn new(out: W, compression: Compression) -> io::Result<Self> {
        let out = io::BufWriter::with_capacity(1 << 16, out);
        Ok(match compression {
            Compression::None => Self::Plain(out),
            Compression::Gzip => Self::Gzip(Box::new(flate2::write::GzEncoder::new(
                out,
                flate2::Compression::default(),
            ))),
            Compression::Zstd => Self::Zstd(Box::new(zstd::Encoder::new(out, 0)?)),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.write_all(bytes),
            Self::Gzip(out) => out.write_all(bytes),
            Self::Zstd(out) => out.write_all(bytes),
        }
    }

    fn finish(self) -> io::Result<()> {
        let mut out = match self {
            Self::Plain(out) => out,
            Self::Gzip(out) => out.finish()?,
            Self::Zstd(out) => out.finish()?,
        };
        out.flush()
    }
}

impl<W: Write> TextWriter<W> {
    pub(crate) fn new(out: W, format: FileFormat) -> Result<Self, WriteError> {
        let mut sink = Sink::new(out, format.compression)?;
        let is_array = format.content == ContentFormat::Array;
        if is_array {
            sink.write(b"[")?;
        }
        Ok(Self {
            sink,
            is_array,
            n_rows: 0,
        })
    }

    /// Writes a row's JSON unchanged, on one line.
    pub(crate) fn push(&mut self, row: &[u8]) -> Result<(), WriteError> {
        if self.is_array {
            let separator: &[u8] = if self.n_rows == 0 { b"\n" } else { b",\n" };
            self.sink.write(separator)?;
        }
        // Line breaks can occur only between JSON tokens, where they are whitespace.
        for part in row.split(|byte| matches!(byte, b'\n' | b'\r')) {
            let blank: &[u8] = if part.is_empty() { b"" } else { b" " };
            let is_first = std::ptr::eq(part.as_ptr(), row.as_ptr());
            self.sink.write(if is_first { b"" } else { blank })?;
            self.sink.write(part)?;
        }
        if !self.is_array {
            self.sink.write(b"\n")?;
        }
        self.n_rows += 1;
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<(), WriteError> {
        if self.is_array {
            self.sink.write(b"\n]\n")?;
        }
        Ok(self.sink.finish()?)
    }
}

/// Writes rows as columns.
pub(crate) struct ColumnWriter<W: Write + Send> {
    schema: SchemaRef,
    columns: Columns,
    rows: Vec<Map<String, Value>>,
    batches: BatchWriter<W>,
}

enum BatchWriter<W: Write + Send> {
    Parquet(Box<ArrowWriter<W>>),
    Arrow(Box<FileWriter<io::BufWriter<W>>>),
}

impl<W: Write + Send> ColumnWriter<W> {
    pub(crate) fn new(out: W, format: ContentFormat, columns: Columns) -> Result<Self, WriteError> {
        let schema: SchemaRef = Arc::new(columns.schema());
        let batches = if format == ContentFormat::Parquet {
            let zstd = ParquetCompression::ZSTD(ZstdLevel::default());
            let properties = WriterProperties::builder().set_compression(zstd).build();
            BatchWriter::Parquet(Box::new(ArrowWriter::try_new(
                out,
                Arc::clone(&schema),
                Some(properties),
            )?))
        } else {
            let out = io::BufWriter::with_capacity(1 << 16, out);
            BatchWriter::Arrow(Box::new(FileWriter::try_new(out, &schema)?))
        };
        Ok(Self {
            schema,
            columns,
            rows: Vec::new(),
            batches,
        })
    }

    pub(crate) fn push(&mut self, row: Map<String, Value>) -> Result<(), WriteError> {
        self.rows.push(row);
        if self.rows.len() == BATCH_ROWS {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), WriteError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let arrays = self.columns.arrays(&self.rows);
        // Rows without fields still count as rows.
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows.len()));
        let schema = Arc::clone(&self.schema);
        let batch = RecordBatch::try_new_with_options(schema, arrays, &options)?;
        self.rows.clear();
        self.batches.write(&batch)
    }

    pub(crate) fn finish(mut self) -> Result<(), WriteError> {
        self.write()?;
        match self.batches {
            BatchWriter::Parquet(writer) => drop(writer.into_inner()?),
            BatchWriter::Arrow(mut writer) => {
                writer.finish()?;
                writer.into_inner()?.flush()?;
            }
        }
        Ok(())
    }
}

impl<W: Write + Send> BatchWriter<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), WriteError> {
        match self {
            Self::Arrow(writer) => Ok(writer.write(batch)?),
            Self::Parquet(writer) => {
                writer.write(batch)?;
                if writer.in_progress_size() > GROUP_BYTES {
                    writer.flush()?;
                }
                Ok(())
            }
        }
    }
}
