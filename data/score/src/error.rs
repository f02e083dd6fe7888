//! Says what can be wrong with a stream as a whole.

use std::io;

/// Why a stream could not be scored to its end.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The input broke off.
    #[error("line {line_no}: the input cannot be read: {source}")]
    Read {
        /// The line that was being read, from 1.
        line_no: usize,
        /// The cause.
        source: io::Error,
    },
    /// The output is closed or full.
    #[error("line {line_no}: the score cannot be written: {source}")]
    Write {
        /// The line whose score was being written, from 1.
        line_no: usize,
        /// The cause.
        source: io::Error,
    },
}
