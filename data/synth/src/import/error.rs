//! Errors from importing a data set.

use std::path::PathBuf;

use tooltune_apis::ToolsError;

/// An error in the files of a data set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A file cannot be read, is not UTF-8, or is not the expected JSON.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// A folder cannot be listed.
    #[error("{}: cannot list the folder: {error}; check the path and the access rights", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A folder has no file with the expected extension.
    #[error("{}: no {extension} file in this folder or its subfolders; pass the folder of the data set", path.display())]
    NoFiles {
        /// The folder.
        path: PathBuf,
        /// The expected file extension.
        extension: &'static str,
    },
    /// A file has the wrong format.
    #[error("{place}: {reason}; expected {expected}")]
    Format {
        /// `file`, or `file:line`.
        place: String,
        /// What is wrong.
        reason: String,
        /// The expected content.
        expected: &'static str,
    },
    /// Two corresponding files have different numbers of lines.
    #[error(
        "{} has {n_first} lines, but {} has {n_second}; line n of one must correspond to line n of the other; pass matching files",
        first.display(),
        second.display()
    )]
    Lengths {
        /// The first file.
        first: PathBuf,
        /// Number of lines of the first file.
        n_first: usize,
        /// The second file.
        second: PathBuf,
        /// Number of lines of the second file.
        n_second: usize,
    },
}
