//! Files of rows in every form that rows come in: JSON Lines, one JSON array, Parquet and Arrow, and
//! the first two compressed by gzip or zstd.
//!
//! [`open`] gives the rows of a file as JSON texts, one after the other: whoever parses them sees no
//! difference, and memory holds some rows, however long the file. [`convert`] writes them in another
//! form.
//! The decision to question: rows of columns become JSON texts and are parsed again, so that there is
//! one reader of rows with one set of checks; tokenizing takes most of the time.
//!
//! ```
//! use std::path::Path;
//!
//! let folder = tempfile::tempdir().expect("a folder");
//! let path = folder.path().join("rows.json");
//! std::fs::write(&path, "[{\"a\": 1}, {\"a\": 2}]").expect("written");
//! let mut rows = tooltune_files::open(&path).expect("a file of rows");
//! assert_eq!(rows.next_record().expect("a row").as_deref(), Some(&b"{\"a\": 1}"[..]));
//! assert!(rows.place().ends_with("rows.json:1"));
//! ```

mod array;
mod cells;
mod columns;
mod convert;
mod form;
mod infer;
mod open;
mod select;
mod write;

#[cfg(test)]
mod tests;

pub use convert::{Conversion, ConvertError, convert};
pub use form::{Compression, FileForm, Form, FormError};
pub use open::open;
pub use select::{Selection, Side, Split, SplitCounts, SplitRecord, select};
pub use write::WriteError;
