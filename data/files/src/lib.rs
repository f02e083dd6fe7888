//! Reads and writes row files: JSON Lines, one JSON array, Parquet and Arrow, the first two
//! optionally compressed by gzip or zstd.
//!
//! [`open`] returns the rows of a file as JSON, one at a time. The format makes no difference to
//! the caller, and memory holds only a few rows, regardless of the file size. [`convert`] writes
//! rows in a different format. Rows of columns become JSON and are parsed again, so there is only
//! one row parser with one set of checks; tokenization takes most of the time anyway.
//!
//! ```
//! use std::path::Path;
//!
//! let folder = tempfile::tempdir().expect("a folder");
//! let path = folder.path().join("rows.json");
//! std::fs::write(&path, "[{\"a\": 1}, {\"a\": 2}]").expect("written");
//! let mut rows = tooltune_files::open(&path).expect("a file of rows");
//! assert_eq!(rows.next_record().expect("a row").as_deref(), Some(&b"{\"a\": 1}"[..]));
//! assert!(rows.location().ends_with("rows.json:1"));
//! ```

mod array;
mod arrow_batches;
pub mod budgets;
mod cells;
mod columns;
mod compressed_pages;
mod convert;
mod delta_bytes;
mod format;
mod infer;
mod open;
mod parquet_batches;
mod parquet_depth;
mod select;
mod write;

#[cfg(test)]
mod tests;

pub use convert::{Conversion, ConvertError, convert};
pub use format::{Compression, ContentFormat, FileFormat, FileNameError};
pub use open::open;
pub use select::{Selection, Side, Split, SplitCounts, SplitRecord, select};
pub use write::WriteError;
