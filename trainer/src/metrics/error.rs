//! What can go wrong with the metric files.

use std::io;
use std::path::PathBuf;

/// A metric file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// A new run would write into the file of an old one.
    #[error("{path} exists already: resume the run, or choose another train.output_dir", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be opened or read.
    #[error("{path} cannot be opened: {source}; check that the folder exists and is writable", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A line cannot be written.
    #[error("{path} cannot be written: {source}; make room, then resume the run", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file ends before the place that a checkpoint remembers.
    #[error(
        "{path} has {found} bytes, but the checkpoint was saved after {expected}: \
         restore the file, or resume from an earlier checkpoint",
        path = path.display()
    )]
    Shortened {
        /// The file.
        path: PathBuf,
        /// Bytes when the checkpoint was saved.
        expected: u64,
        /// Bytes now.
        found: u64,
    },
    /// A line is not what this program writes.
    #[error("{path}:{line}: {message}; delete the line if it was edited by hand", path = path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
}
