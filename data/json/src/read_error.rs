//! Errors that any file of JSON rows can have, regardless of the row format.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tooltune_disk::regular_file::NotRegular;

use crate::input_limits::InputTooLarge;
use crate::kind_of;
use crate::lines::{ForeignFile, TooLong};
use crate::{DuplicateKey, OversizedInteger, TooManyValues};

/// An error that every row reader can return. The error type of each reader wraps it unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A file cannot be opened, read or decompressed.
    #[error("{}: cannot read: {error}; check {check}", path.display())]
    Unreadable {
        /// The file that cannot be read.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
        /// Possible causes to check.
        check: &'static str,
    },

    /// The path of a file of rows is a folder.
    #[error("{}: expected a file of rows, found a folder; {remedy}", path.display())]
    Folder {
        /// The folder given instead of a file.
        path: PathBuf,
        /// What to do instead.
        remedy: String,
    },

    /// A line, or a document that is read whole, exceeds its limit.
    #[error(transparent)]
    TooLong(#[from] TooLong),

    /// A file has too many blank bytes, rows or bytes of text.
    #[error(transparent)]
    InputTooLarge(#[from] InputTooLarge),

    /// A row has more values than the limit.
    #[error(transparent)]
    TooManyValues(#[from] TooManyValues),

    /// A file has a known format other than text.
    #[error(transparent)]
    Foreign(#[from] ForeignFile),

    /// A row has a duplicate key.
    #[error(transparent)]
    DuplicateKey(#[from] DuplicateKey),

    /// An integer would be rounded.
    #[error(transparent)]
    OversizedInteger(#[from] OversizedInteger),

    /// A required field is missing.
    #[error("field {field:?} is missing; {needed}")]
    MissingField {
        /// Path of the missing field, such as `messages[2].content`.
        field: String,
        /// The fields that the format requires.
        needed: &'static str,
    },

    /// A field has the wrong type.
    #[error("{field} is {found}, but must be {expected}")]
    WrongType {
        /// Path of the field, such as `messages[2].content`.
        field: String,
        /// The type of the value.
        found: &'static str,
        /// The types that the field accepts.
        expected: &'static str,
    },
}

impl ReadError {
    /// Creates the error for an unreadable plain text file.
    pub fn unreadable(path: &Path, error: io::Error) -> Self {
        Self::Unreadable {
            path: path.to_owned(),
            error,
            check: "the path and the file permissions",
        }
    }

    /// Creates the error for an unreadable file that may be compressed.
    pub fn unreadable_or_truncated(path: &Path, error: io::Error) -> Self {
        Self::Unreadable {
            path: path.to_owned(),
            error,
            check: "the path, the file permissions, and that a compressed file is complete",
        }
    }

    /// Creates the error for a missing field; `needed` lists the fields that the row requires.
    pub fn missing(field: impl Into<String>, needed: &'static str) -> Self {
        Self::MissingField {
            field: field.into(),
            needed,
        }
    }

    /// Creates the error for a field whose type is not `expected`.
    pub fn wrong_type(field: &str, value: &Value, expected: &'static str) -> Self {
        Self::WrongType {
            field: field.to_owned(),
            found: kind_of(value),
            expected,
        }
    }

    /// Whether the error is about reading the file and not about a row: the operating system
    /// reported it, or the path is a pipe or a device.
    pub fn is_system_error(&self) -> bool {
        let Self::Unreadable { error, .. } = self else {
            return false;
        };
        error.raw_os_error().is_some()
            || error
                .get_ref()
                .is_some_and(|error| error.is::<NotRegular>())
    }

    /// Whether the message names the file.
    pub fn has_file_path(&self) -> bool {
        matches!(
            self,
            Self::Unreadable { .. } | Self::Folder { .. } | Self::Foreign(_)
        )
    }

    /// Renames the field in the error.
    #[must_use]
    pub fn with_field(mut self, rename: impl FnOnce(&str) -> String) -> Self {
        match &mut self {
            Self::MissingField { field, .. }
            | Self::WrongType { field, .. }
            | Self::OversizedInteger(OversizedInteger { field, .. }) => *field = rename(field),
            _ => {}
        }
        self
    }
}

/// Rejects a folder given as a file of rows, and names the files in it.
///
/// # Errors
///
/// - the path is a folder
pub fn refuse_a_folder(path: &Path) -> Result<(), ReadError> {
    const MAX_NAMES: usize = 5;
    if !path.is_dir() {
        return Ok(());
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    let ends_with = |file: &Path, endings: &[&str]| {
        let ending = file.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| endings.contains(&ending))
    };
    let list_files = |endings: &[&str]| {
        let matching: Vec<&PathBuf> = files
            .iter()
            .filter(|file| ends_with(file, endings))
            .collect();
        let names = matching.iter().take(MAX_NAMES);
        let mut names: Vec<String> = names.map(|file| file.display().to_string()).collect();
        if let Some(n_more @ 1..) = matching.len().checked_sub(MAX_NAMES) {
            names.push(format!("{n_more} more"));
        }
        Some(names.join(", ")).filter(|names| !names.is_empty())
    };
    let remedy = match (
        list_files(&["jsonl"]),
        list_files(&["json", "csv", "tsv", "parquet"]),
    ) {
        (Some(files), _) => format!("pass the files to read: {files}"),
        (None, Some(files)) => {
            format!("convert its files to JSON Lines and pass those: {files}")
        }
        (None, None) => "it contains no JSON Lines file; pass one".to_owned(),
    };
    Err(ReadError::Folder {
        path: path.to_owned(),
        remedy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_refused_with_the_files_in_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let message = || match refuse_a_folder(folder.path()) {
            Err(error) => error
                .to_string()
                .replace(&folder.path().display().to_string(), "F"),
            Ok(()) => String::new(),
        };
        let write = |name: &str| std::fs::write(folder.path().join(name), "").expect("written");
        write("README.md");
        assert!(
            message().ends_with("it contains no JSON Lines file; pass one"),
            "{}",
            message()
        );
        write("train.parquet");
        assert!(
            message().ends_with("to JSON Lines and pass those: F/train.parquet"),
            "{}",
            message()
        );
        for n in 0..7 {
            write(&format!("{n}.jsonl"));
        }
        let files = "F: expected a file of rows, found a folder; pass the files to read: \
                     F/0.jsonl, F/1.jsonl, F/2.jsonl, F/3.jsonl, F/4.jsonl, 2 more";
        assert_eq!(message(), files);
        assert!(refuse_a_folder(&folder.path().join("0.jsonl")).is_ok());
        assert!(refuse_a_folder(&folder.path().join("absent")).is_ok());
    }
}
