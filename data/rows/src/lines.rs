//! Reads lines and documents of bounded length.
//!
//! A few megabytes of gzip unpack to gigabytes without a line end, and what a process cannot
//! allocate ends it without a word; so whoever reads a file of others reads it here.

use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use crate::budgets::LINE_BYTES;
use crate::read_error::ReadError;

/// A line or a document that is longer than what is read of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {what} has more than {limit} bytes, the most that is read of one; {} ({} in docs/limits.md)",
    self.remedy(),
    self.constant()
)]
pub struct TooLong {
    /// `line` or `document`.
    what: &'static str,
    /// Bytes, decompressed.
    limit: usize,
}

impl TooLong {
    /// A line is longer than `limit` bytes.
    pub fn line(limit: usize) -> Self {
        Self {
            what: "line",
            limit,
        }
    }

    pub(crate) fn document(limit: usize) -> Self {
        Self {
            what: "document",
            limit,
        }
    }

    fn constant(&self) -> &'static str {
        match self.what {
            "line" => "LINE_BYTES",
            _ => "DOCUMENT_BYTES",
        }
    }

    fn remedy(&self) -> &'static str {
        match self.what {
            "line" => "give one value a line, and see whether a .gz file is what it should be",
            _ => "split it, or see whether a .gz file is what it should be",
        }
    }
}

/// The first bytes of what gzip compressed.
pub(crate) const GZIP: &[u8] = &[0x1f, 0x8b];

/// A file that holds something else than text in UTF-8, as its first bytes say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: the file is {what}; {} and name the new file", path.display(), self.remedy())]
pub struct ForeignFile {
    path: PathBuf,
    /// `compressed by gzip` or `UTF-16`.
    what: &'static str,
}

impl ForeignFile {
    /// What the file is that begins with `start`, if it is known and no text in UTF-8.
    pub(crate) fn told_by(start: &[u8], path: &Path) -> Option<Self> {
        let what = match start {
            start if start.starts_with(GZIP) => "compressed by gzip",
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "UTF-16",
            _ => return None,
        };
        let path = path.to_owned();
        Some(Self { path, what })
    }

    fn remedy(&self) -> String {
        let path = self.path.display();
        match self.what {
            "UTF-16" => format!("convert it, `iconv -f UTF-16 -t UTF-8 {path} > rows.jsonl`,"),
            _ => format!("unpack it, `gunzip < {path} > rows.jsonl`,"),
        }
    }
}

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing: the reader is at its end.
    End,
    /// All of it.
    Whole,
    /// A beginning, one byte longer than the limit.
    TooLong,
}

/// Reads a line into `line`, with its end; at most one byte more than `limit`.
///
/// # Errors
///
/// - the reader fails
pub fn read_line(
    reader: &mut (impl BufRead + ?Sized),
    line: &mut Vec<u8>,
    limit: usize,
) -> io::Result<Found> {
    line.clear();
    let n_bytes = within(reader, limit).read_until(b'\n', line)?;
    Ok(found(n_bytes, limit))
}

/// Reads a whole document; at most one byte more than `limit`.
///
/// # Errors
///
/// - the reader fails
pub(crate) fn read_document(
    reader: &mut (impl BufRead + ?Sized),
    document: &mut Vec<u8>,
    limit: usize,
) -> io::Result<Found> {
    document.clear();
    let n_bytes = within(reader, limit).read_to_end(document)?;
    Ok(found(n_bytes, limit))
}

/// The reader with one byte beyond the limit, which tells whether there is more.
fn within<R: BufRead + ?Sized>(reader: &mut R, limit: usize) -> io::Take<&mut R> {
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    reader.take(limit.saturating_add(1))
}

fn found(n_bytes: usize, limit: usize) -> Found {
    match n_bytes {
        0 => Found::End,
        n if n > limit => Found::TooLong,
        _ => Found::Whole,
    }
}

/// The lines of one file in order.
pub(crate) struct FileLines<R> {
    path: PathBuf,
    reader: R,
    pub(crate) max_line_bytes: usize,
    line_number: usize,
}

impl<R> std::fmt::Debug for FileLines<R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.place())
    }
}

impl<R> FileLines<R> {
    pub(crate) fn new(path: &Path, reader: R) -> Self {
        Self {
            path: path.to_owned(),
            reader,
            max_line_bytes: LINE_BYTES,
            line_number: 0,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the line stands that was read last, as `file:line`.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}", self.path.display(), self.line_number)
    }

    /// Whether the line that was read last is the first of the file.
    pub(crate) fn is_first(&self) -> bool {
        self.line_number == 1
    }
}

impl<R: BufRead> FileLines<R> {
    /// The next line with its end, without a byte-order mark; none at the end of the file.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, which `unreadable` makes an error
    /// - it is no text in UTF-8, as its first bytes say
    /// - the line is too long
    pub(crate) fn next_line(
        &mut self,
        unreadable: fn(&Path, io::Error) -> ReadError,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let mut line = Vec::new();
        let found = read_line(&mut self.reader, &mut line, self.max_line_bytes)
            .map_err(|error| unreadable(&self.path, error))?;
        if found == Found::End {
            return Ok(None);
        }
        self.line_number += 1;
        if self.is_first()
            && let Some(foreign) = ForeignFile::told_by(&line, &self.path)
        {
            return Err(foreign.into());
        }
        if found == Found::TooLong {
            return Err(TooLong::line(self.max_line_bytes).into());
        }
        if self.is_first() && line.starts_with(b"\xEF\xBB\xBF") {
            line.drain(..3);
        }
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_limit_is_read_and_a_longer_one_only_so_far() {
        let mut reader = &b"abc\nabcd\nlast"[..];
        let mut line = Vec::new();
        let mut next = |limit| {
            let found = read_line(&mut reader, &mut line, limit).expect("memory");
            (found, String::from_utf8(line.clone()).expect("ASCII"))
        };
        assert_eq!(next(4), (Found::Whole, "abc\n".to_owned()));
        assert_eq!(next(3), (Found::TooLong, "abcd".to_owned()));
        assert_eq!(next(3), (Found::Whole, "\n".to_owned()));
        assert_eq!(next(4), (Found::Whole, "last".to_owned()));
        assert_eq!(next(4), (Found::End, String::new()));
    }

    #[test]
    fn of_a_document_without_end_nothing_beyond_the_limit_is_kept() {
        let mut document = Vec::new();
        let mut endless = io::BufReader::new(io::repeat(b'['));
        let found = read_document(&mut endless, &mut document, 1_000).expect("no fault");
        assert_eq!((found, document.len()), (Found::TooLong, 1_001));
        let mut line = Vec::new();
        let found = read_line(&mut endless, &mut line, 1_000).expect("no fault");
        assert_eq!((found, line.len()), (Found::TooLong, 1_001));
        let found = read_document(&mut &b"[1]"[..], &mut document, 3).expect("memory");
        assert_eq!((found, document.as_slice()), (Found::Whole, &b"[1]"[..]));
        let found = read_document(&mut &b""[..], &mut document, 3).expect("memory");
        assert_eq!((found, document.is_empty()), (Found::End, true));
    }
}
