//! What can be wrong with any file of JSON rows, whatever its rows are.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::json::{DuplicateKey, OversizedInteger};
use crate::lines::{ForeignFile, TooLong};
use crate::tools::kind_of;

/// A fault that every reader of rows can meet; the errors of each reader hold it as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A file cannot be opened, read or decompressed.
    #[error("{}: cannot read: {error}; check {check}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
        /// What may be at fault.
        check: &'static str,
    },

    /// A folder stands in the place of a file of rows.
    #[error("{}: it is a folder, and rows stand in files; {remedy}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What to name instead.
        remedy: String,
    },

    /// A line, or a document that is read whole, has no end in sight.
    #[error(transparent)]
    TooLong(#[from] TooLong),

    /// A file is known to be something else than text.
    #[error(transparent)]
    Foreign(#[from] ForeignFile),

    /// A row has two values of one name.
    #[error(transparent)]
    DuplicateKey(#[from] DuplicateKey),

    /// An integer would be learned as another number.
    #[error(transparent)]
    OversizedInteger(#[from] OversizedInteger),

    /// A field that is needed is not there.
    #[error("field {field:?} is missing; {needed}")]
    MissingField {
        /// Where the field should be, such as `messages[2].content`.
        field: String,
        /// What the format needs.
        needed: &'static str,
    },

    /// A field holds another type than its format says.
    #[error("{field} is {found}, but must be {expected}")]
    WrongType {
        /// Where the field is, such as `messages[2].content`.
        field: String,
        /// What is there.
        found: &'static str,
        /// What must be there.
        expected: &'static str,
    },
}

impl ReadError {
    /// A file of plain text that cannot be read.
    pub(crate) fn unreadable(path: &Path, error: io::Error) -> Self {
        Self::Unreadable {
            path: path.to_owned(),
            error,
            check: "the path and the access rights",
        }
    }

    /// A file, compressed perhaps, that cannot be read.
    pub fn unreadable_or_cut(path: &Path, error: io::Error) -> Self {
        Self::Unreadable {
            path: path.to_owned(),
            error,
            check: "the path, the access rights and that a .gz file is whole",
        }
    }

    /// A field that is needed and not there; `needed` says what the row needs.
    pub fn missing(field: impl Into<String>, needed: &'static str) -> Self {
        Self::MissingField {
            field: field.into(),
            needed,
        }
    }

    pub(crate) fn wrong_type(field: &str, found: &Value, expected: &'static str) -> Self {
        Self::WrongType {
            field: field.to_owned(),
            found: kind_of(found),
            expected,
        }
    }

    /// Whether the system refuses the file, so that no row is at fault.
    pub fn is_of_the_system(&self) -> bool {
        matches!(self, Self::Unreadable { error, .. } if error.raw_os_error().is_some())
    }

    /// Whether the message names the file.
    pub(crate) fn names_its_file(&self) -> bool {
        matches!(
            self,
            Self::Unreadable { .. } | Self::Folder { .. } | Self::Foreign(_)
        )
    }

    /// The fault with another name for its field.
    #[must_use]
    pub(crate) fn with_field(mut self, rename: impl FnOnce(&str) -> String) -> Self {
        match &mut self {
            Self::MissingField { field, .. }
            | Self::WrongType { field, .. }
            | Self::OversizedInteger(OversizedInteger { field, .. }) => *field = rename(field),
            _ => {}
        }
        self
    }
}

/// Refuses a folder in the place of a file of rows, with the files in it.
///
/// # Errors
///
/// - the path leads to a folder
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
    let listed = |endings: &[&str]| {
        let found: Vec<&PathBuf> = files
            .iter()
            .filter(|file| ends_with(file, endings))
            .collect();
        let names = found.iter().take(MAX_NAMES);
        let mut names: Vec<String> = names.map(|file| file.display().to_string()).collect();
        if let Some(n_more @ 1..) = found.len().checked_sub(MAX_NAMES) {
            names.push(format!("{n_more} more"));
        }
        Some(names.join(", ")).filter(|names| !names.is_empty())
    };
    let remedy = match (
        listed(&["jsonl"]),
        listed(&["json", "csv", "tsv", "parquet"]),
    ) {
        (Some(files), _) => format!("name the files in it that are meant: {files}"),
        (None, Some(files)) => {
            format!("convert the files in it to JSON Lines and name them: {files}")
        }
        (None, None) => "it holds no file of JSON Lines; name such a file".to_owned(),
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
        let said = || match refuse_a_folder(folder.path()) {
            Err(error) => error
                .to_string()
                .replace(&folder.path().display().to_string(), "F"),
            Ok(()) => String::new(),
        };
        let write = |name: &str| std::fs::write(folder.path().join(name), "").expect("written");
        write("README.md");
        assert!(
            said().ends_with("it holds no file of JSON Lines; name such a file"),
            "{}",
            said()
        );
        write("train.parquet");
        assert!(
            said().ends_with("to JSON Lines and name them: F/train.parquet"),
            "{}",
            said()
        );
        for n in 0..7 {
            write(&format!("{n}.jsonl"));
        }
        let files = "F: it is a folder, and rows stand in files; name the files in it that are meant: \
                     F/0.jsonl, F/1.jsonl, F/2.jsonl, F/3.jsonl, F/4.jsonl, 2 more";
        assert_eq!(said(), files);
        assert!(refuse_a_folder(&folder.path().join("0.jsonl")).is_ok());
        assert!(refuse_a_folder(&folder.path().join("absent")).is_ok());
    }
}
