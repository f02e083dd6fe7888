//! Why a data set cannot be imported.

use std::path::PathBuf;

use tooltune_rows::tools::ToolsError;

/// What is wrong with the files of a data set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A file cannot be read, is not UTF-8, or is not the JSON that it should hold.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// A folder cannot be listed.
    #[error("{}: cannot list the folder: {error}; check the path and the access rights", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// A folder holds no files of the kind.
    #[error("{}: no {kind} file is in this folder or below it; give the data set's folder", path.display())]
    NoFiles {
        /// The folder.
        path: PathBuf,
        /// The ending that was looked for.
        kind: &'static str,
    },
    /// A file is not in its format.
    #[error("{place}: {reason}; expected {expected}")]
    Format {
        /// `file`, or `file:line`.
        place: String,
        /// What is wrong.
        reason: String,
        /// What the file should hold.
        expected: &'static str,
    },
    /// Two files that belong together have different numbers of lines.
    #[error(
        "{} has {n_first} lines, but {} has {n_second}; line n of one belongs to line n of the other",
        first.display(),
        second.display()
    )]
    Lengths {
        /// One file.
        first: PathBuf,
        /// Its lines.
        n_first: usize,
        /// The other file.
        second: PathBuf,
        /// Its lines.
        n_second: usize,
    },
}
