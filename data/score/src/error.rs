//! Errors that end a whole stream.

use std::io;

/// Why a stream could not be scored completely.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The input cannot be read.
    #[error("line {line_no}: the input cannot be read: {source}")]
    Read {
        /// The line being read, from 1.
        line_no: usize,
        /// The cause.
        source: io::Error,
    },
    /// A line is too long to skip.
    #[error(
        "line {line_no} has more than {limit} bytes, the limit for a line that is skipped \
         (SKIPPED_LINE_BYTES in docs/limits.md); write one JSON object per line"
    )]
    LineWithoutEnd {
        /// The line, from 1.
        line_no: usize,
        /// Maximum number of bytes.
        limit: u64,
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
