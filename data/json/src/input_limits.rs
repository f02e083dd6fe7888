//! Limits for files that expand without bound: blank lines, rows and text.

use crate::ReadError;
use crate::budgets::{BLANK_BYTES, EXPANDED_BYTES, EXPANSION, FILE_ROWS};

/// A file exceeds an input limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InputTooLarge {
    /// The file has too many consecutive blank bytes.
    #[error(
        "more than {limit} consecutive bytes of blank lines or spaces, the limit (BLANK_BYTES in \
         docs/limits.md); remove them, or check that a compressed file has the expected content"
    )]
    Blanks {
        /// Maximum bytes, after decompression.
        limit: usize,
    },
    /// The file has too many rows.
    #[error(
        "the file has more than {limit} rows, the limit per file (FILE_ROWS in docs/limits.md); \
         split it, or check that it has the expected content"
    )]
    Rows {
        /// Maximum number of rows per file.
        limit: usize,
    },
    /// The file has more gzip members than its decompressed bytes justify.
    #[error(
        "{bytes} decompressed bytes come from more than {limit} gzip members, the limit for this size \
         (GZIP_MEMBERS in docs/limits.md); check that the file has the expected content, or compress it \
         again as one member with `zcat FILE | gzip`"
    )]
    Members {
        /// Maximum number of members.
        limit: u64,
        /// Decompressed bytes so far.
        bytes: u64,
    },
    /// The rows have too much text for a file of this size.
    #[error(
        "the rows have more than {limit} bytes of text, which is more than {EXPANSION} times the \
         {bytes} bytes of the file (EXPANSION in docs/limits.md); check that the file has the \
         expected content, or write repeated values once"
    )]
    Expansion {
        /// Size of the file in bytes.
        bytes: u64,
        /// Maximum bytes of text.
        limit: u64,
    },
}

/// Counts the text of a file's rows against [`EXPANSION`].
#[derive(Debug, Clone, Copy)]
pub struct ExpansionBudget {
    bytes: u64,
    limit: u64,
    n: u64,
}

impl ExpansionBudget {
    /// Starts counting for a file of this many bytes.
    pub fn new(bytes: u64) -> Self {
        let limit = bytes.saturating_mul(EXPANSION).max(EXPANDED_BYTES);
        Self::with_limit(bytes, limit)
    }

    /// Starts counting for a file of this many bytes, with a custom limit.
    pub fn with_limit(bytes: u64, limit: u64) -> Self {
        Self { bytes, limit, n: 0 }
    }

    /// Adds `n` bytes of text.
    ///
    /// # Errors
    ///
    /// - the total exceeds the limit
    pub fn add(&mut self, n: usize) -> Result<(), InputTooLarge> {
        self.n = self.n.saturating_add(n as u64);
        let Self { bytes, limit, n } = *self;
        match n > limit {
            true => Err(InputTooLarge::Expansion { bytes, limit }),
            false => Ok(()),
        }
    }
}

/// Counts the blank bytes between two rows against their limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlankRun(usize);

impl BlankRun {
    /// Adds `n` bytes.
    ///
    /// # Errors
    ///
    /// - the total exceeds [`BLANK_BYTES`]
    pub fn add(&mut self, n: usize) -> Result<(), ReadError> {
        self.0 += n;
        match self.0 > BLANK_BYTES {
            true => Err(InputTooLarge::Blanks { limit: BLANK_BYTES }.into()),
            false => Ok(()),
        }
    }
}

/// Rejects a file with more than [`FILE_ROWS`] rows.
///
/// # Errors
///
/// - `n_rows` exceeds the limit
pub fn refuse_rows_without_end(n_rows: usize) -> Result<(), ReadError> {
    match n_rows > FILE_ROWS {
        true => Err(InputTooLarge::Rows { limit: FILE_ROWS }.into()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::path::Path;

    use super::*;
    use crate::lines::json_lines;

    /// Reads all records; returns their number, or the first error with its location.
    fn read_to_end(text: impl Read + Send + 'static) -> Result<usize, String> {
        let reader: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(1 << 16, text));
        let mut rows = json_lines(Path::new("rows.jsonl"), reader);
        let mut n = 0;
        loop {
            match rows.next_record() {
                Ok(Some(_)) => n += 1,
                Ok(None) => return Ok(n),
                Err(error) => return Err(format!("{}: {error}", rows.location())),
            }
        }
    }

    #[test]
    fn blank_lines_are_skipped_up_to_their_limit_and_counted_as_lines() {
        let rows_between_blanks = "\n\r\n  \n{\"a\": 1}\n\n\n7\n";
        assert_eq!(read_to_end(rows_between_blanks.as_bytes()), Ok(2));
        let mut rows = json_lines(Path::new("a"), Box::new(rows_between_blanks.as_bytes()));
        assert!(rows.next_record().expect("a row").is_some());
        assert_eq!(rows.location(), "a:4");
        assert!(rows.next_record().expect("a row").is_some());
        assert_eq!(rows.location(), "a:7");
        let endless = || std::io::repeat(b'\n');
        let error = read_to_end(endless()).expect_err("without end");
        assert!(error.contains("BLANK_BYTES in docs/limits.md"), "{error}");
        let at_the_limit = endless().take(BLANK_BYTES as u64).chain(&b"{}\n"[..]);
        assert_eq!(read_to_end(at_the_limit), Ok(1));
    }

    #[test]
    fn a_file_may_expand_to_some_megabytes_and_ten_thousand_times_its_size() {
        let add_text = |bytes: u64, n: u64| {
            let mut budget = ExpansionBudget::new(bytes);
            let n = usize::try_from(n).expect("64 bits");
            budget.add(n).and_then(|()| budget.add(1))
        };
        assert!(add_text(10, EXPANDED_BYTES - 1).is_ok());
        let error = add_text(10, EXPANDED_BYTES).expect_err("a kilobyte");
        assert!(
            error.to_string().contains("the 10 bytes of the file"),
            "{error}"
        );
        let large = 1 << 20;
        assert!(add_text(large, large * EXPANSION - 1).is_ok());
        assert!(add_text(large, large * EXPANSION).is_err());
        assert!(refuse_rows_without_end(FILE_ROWS).is_ok());
        assert!(refuse_rows_without_end(FILE_ROWS + 1).is_err());
    }
}
