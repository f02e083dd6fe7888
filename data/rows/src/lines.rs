//! Reads lines and documents of bounded length.
//!
//! A few megabytes of gzip unpack to gigabytes without a line end, and what a process cannot
//! allocate ends it without a word; so whoever reads a file of others reads it here.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use crate::budgets::LINE_BYTES;
use crate::read_error::{ReadError, refuse_a_folder};
use crate::regular_file::{self, STANDARD_INPUT};

/// The records of one file in order, each as the text of a JSON value, whatever form the file has.
pub trait Records: fmt::Debug + Send {
    /// The file.
    fn path(&self) -> &Path;

    /// Where the record stands that was read last, as `file:number`: the line of JSON Lines, else
    /// the number of the record.
    fn place(&self) -> String;

    /// Whether there was a record so far, also one that is not given.
    fn has_any(&self) -> bool;

    /// The next record; none at the end of the file. After an error there may be none, although the
    /// file has more.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or is not in its form
    /// - the record is too long
    fn next_record(&mut self) -> Result<Option<Vec<u8>>, ReadError>;
}

/// Opens a file of rows as JSON Lines, gzip-compressed or not; the standard input where its name is
/// [`STANDARD_INPUT`], of which nothing is read before the first record is asked for.
///
/// # Errors
///
/// - the file cannot be opened, or is a folder
pub fn open_rows(path: &Path) -> Result<Box<dyn Records>, ReadError> {
    let reader: Box<dyn BufRead + Send> = if path == Path::new(STANDARD_INPUT) {
        let input = regular_file::standard_input();
        let input = input.map_err(|error| ReadError::unreadable_or_cut(path, error))?;
        Box::new(BufReader::with_capacity(1 << 16, input))
    } else {
        refuse_a_folder(path)?;
        open_text(path)?
    };
    Ok(rows_of(path, reader))
}

/// The rows of JSON Lines that a reader gives; `path` is what errors call it.
pub fn rows_of(path: &Path, reader: Box<dyn BufRead + Send>) -> Box<dyn Records> {
    let lines = FileLines::new(path, reader);
    Box::new(FileLines {
        are_rows: true,
        ..lines
    })
}

/// Opens a file for reading, decompressed where it begins as gzip does.
///
/// # Errors
///
/// - the file cannot be opened or read
pub(crate) fn open_text(path: &Path) -> Result<Box<dyn BufRead + Send>, ReadError> {
    let unreadable = |error| ReadError::unreadable_or_cut(path, error);
    let file = regular_file::open(path).map_err(unreadable)?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let start = reader.fill_buf().map_err(unreadable)?;
    if start.starts_with(GZIP) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(reader))));
    }
    Ok(Box::new(reader))
}

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

/// A file that holds something else than what is read of it, as its first bytes say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: the file is {}{}; {} and name the new file",
    path.display(),
    kind.name(),
    kind.why(),
    kind.remedy(path)
)]
pub struct ForeignFile {
    path: PathBuf,
    kind: ForeignKind,
}

/// What a file is instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ForeignKind {
    Gzip,
    Utf16,
    Parquet,
    JsonArray,
    SpreadJson,
    /// Values between commas, or between these characters.
    Csv(char),
}

impl ForeignKind {
    /// What is not text in UTF-8.
    fn of_bytes(start: &[u8]) -> Option<Self> {
        match start {
            start if start.starts_with(GZIP) => Some(Self::Gzip),
            start if start.starts_with(b"PAR1") => Some(Self::Parquet),
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some(Self::Utf16),
            _ => None,
        }
    }

    /// What is text, and no JSON Lines.
    fn of_line(line: &[u8], path: &Path) -> Option<Self> {
        let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        match line.trim_ascii() {
            [b'[', ..] => Some(Self::JsonArray),
            b"{" => Some(Self::SpreadJson),
            [b'{', ..] => None,
            text => csv_delimiter(std::str::from_utf8(text).ok()?, path).map(Self::Csv),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "compressed by gzip",
            Self::Utf16 => "UTF-16",
            Self::Parquet => "Parquet",
            Self::JsonArray => "one JSON array",
            Self::SpreadJson => "JSON whose values go over several lines",
            Self::Csv(_) => "CSV",
        }
    }

    fn why(self) -> &'static str {
        match self {
            Self::Gzip | Self::Utf16 => "",
            _ => ", and rows stand in JSON Lines, one object a line",
        }
    }

    fn remedy(self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::Gzip => format!("unpack it, `gunzip < {path} > rows.jsonl`,"),
            Self::Utf16 => format!("convert it, `iconv -f UTF-16 -t UTF-8 {path} > rows.jsonl`,"),
            Self::Parquet | Self::JsonArray => {
                format!("convert it, `tooltune data convert {path} --output rows.jsonl`,")
            }
            Self::SpreadJson => format!("convert it, `jq -c . {path} > rows.jsonl`,"),
            Self::Csv(delimiter) => format!(
                "convert it, `python3 -c \"import csv, json, sys; [print(json.dumps(row)) for row in \
                 csv.DictReader(sys.stdin, delimiter={delimiter:?})]\" < {path} > rows.jsonl`,"
            ),
        }
    }
}

impl ForeignFile {
    /// What the file is that begins with `start`, if it is known and no text in UTF-8.
    pub fn told_by(start: &[u8], path: &Path) -> Option<Self> {
        let kind = ForeignKind::of_bytes(start)?;
        let path = path.to_owned();
        Some(Self { path, kind })
    }

    /// What a file of rows is whose first line cannot be one.
    pub(crate) fn told_by_row(line: &[u8], path: &Path) -> Option<Self> {
        let kind = ForeignKind::of_line(line, path)?;
        let path = path.to_owned();
        Some(Self { path, kind })
    }
}

/// What stands between the values of a line of CSV: a line that is one by the name of its file, or as a
/// header of nothing but names.
fn csv_delimiter(line: &str, path: &Path) -> Option<char> {
    let most = |of: &[char]| {
        let count = |delimiter: char| line.matches(delimiter).count();
        let most = of.iter().copied().max_by_key(|&one| count(one));
        most.filter(|&one| count(one) > 0)
    };
    let is_name = |cell: &str| {
        let cell = cell.trim_matches('"');
        let mut letters = cell.chars();
        letters
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic())
            && letters.all(|one| one.is_ascii_alphanumeric() || one == '_')
    };
    let delimiter = most(&[';', '\t', ',']);
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("csv") => Some(delimiter.unwrap_or(',')),
        Some("tsv") => Some('\t'),
        _ => delimiter.filter(|&delimiter| line.split(delimiter).all(is_name)),
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

/// The lines of one file in order; blank ones are passed over.
pub(crate) struct FileLines<R> {
    path: PathBuf,
    reader: R,
    pub(crate) max_line_bytes: usize,
    line_number: usize,
    /// Whether the first line must be one of a file of rows.
    are_rows: bool,
    has_any: bool,
}

impl<R> fmt::Debug for FileLines<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.path.display(), self.line_number)
    }
}

impl<R> FileLines<R> {
    /// Any text, a record a line.
    pub(crate) fn new(path: &Path, reader: R) -> Self {
        Self {
            path: path.to_owned(),
            reader,
            max_line_bytes: LINE_BYTES,
            line_number: 0,
            are_rows: false,
            has_any: false,
        }
    }

    /// Whether the line that was read last is the first of the file.
    fn is_first(&self) -> bool {
        self.line_number == 1
    }
}

impl<R: BufRead> FileLines<R> {
    /// The next line with its end, without a byte-order mark; none at the end of the file.
    fn next_line(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        let mut line = Vec::new();
        let found = read_line(&mut self.reader, &mut line, self.max_line_bytes)
            .map_err(|error| ReadError::unreadable_or_cut(&self.path, error))?;
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
        if self.are_rows
            && self.is_first()
            && let Some(foreign) = ForeignFile::told_by_row(&line, &self.path)
        {
            return Err(foreign.into());
        }
        Ok(Some(line))
    }
}

impl<R: BufRead + Send> Records for FileLines<R> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn place(&self) -> String {
        format!("{}:{}", self.path.display(), self.line_number)
    }

    fn has_any(&self) -> bool {
        self.has_any
    }

    fn next_record(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        loop {
            match self.next_line()? {
                Some(line) if line.trim_ascii().is_empty() => {}
                line => {
                    self.has_any |= line.is_some();
                    return Ok(line);
                }
            }
        }
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
    fn the_first_line_tells_what_is_no_file_of_rows() {
        let told = |line: &str, path: &str| {
            ForeignFile::told_by_row(line.as_bytes(), Path::new(path)).map(|file| file.to_string())
        };
        for (line, path, parts) in [
            (
                "[",
                "a.json",
                [
                    "is one JSON array",
                    "tooltune data convert a.json --output rows.jsonl",
                ],
            ),
            (
                "  [{\"a\": 1}]",
                "a.jsonl",
                ["is one JSON array", "one object a line"],
            ),
            (
                "{\n",
                "a.json",
                ["over several lines", "jq -c . a.json > rows.jsonl"],
            ),
            (
                "\u{feff}prompt,completion\r\n",
                "a",
                ["is CSV", "delimiter=',')"],
            ),
            (
                "\"instruction\";\"output\"",
                "a.txt",
                ["is CSV", "delimiter=';')"],
            ),
            ("prompt\tcompletion", "a", ["is CSV", "delimiter='\\t')"]),
            (
                "What, really?,Yes",
                "a.csv",
                ["is CSV", "< a.csv > rows.jsonl"],
            ),
            ("What", "a.tsv", ["is CSV", "delimiter='\\t')"]),
        ] {
            let told = told(line, path).unwrap_or_default();
            for part in parts {
                assert!(told.contains(part), "{line:?}: {told}");
            }
            assert!(told.starts_with(&format!("{path}: the file is")), "{told}");
            assert_eq!(told.lines().count(), 1, "{told}");
        }
        for line in ["{\"a\": 1}", "{ \"a\":", "Hello, you", "a", "", "7"] {
            assert_eq!(told(line, "a.jsonl"), None, "{line:?}");
        }
        let parquet = ForeignFile::told_by(b"PAR1\x15\x04", Path::new("a.parquet"));
        let told = parquet.map(|file| file.to_string()).unwrap_or_default();
        assert!(told.contains("the file is Parquet, and rows"), "{told}");
        assert!(told.contains("`tooltune data convert a.parquet"), "{told}");
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
