//! Reads lines and documents of bounded length.
//!
//! A few megabytes of gzip unpack to gigabytes without a line end, and a failed allocation aborts
//! the process without a message. Read every untrusted file through this module.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use tooltune_disk::regular_file;
use tooltune_disk::regular_file::STANDARD_INPUT;

use crate::budgets::LINE_BYTES;
use crate::gzip::GzipMembers;
use crate::input_limits::{BlankRun, refuse_rows_without_end};
use crate::{ReadError, refuse_a_folder};

/// The records of one file in order, for any file format. Each record is the text of a JSON value.
pub trait Records: fmt::Debug + Send {
    /// Path of the file.
    fn path(&self) -> &Path;

    /// Location of the last record read, as `file:number`: the line number in JSON Lines, otherwise
    /// the record number.
    fn location(&self) -> String;

    /// Whether any record was found so far, including skipped ones.
    fn has_any(&self) -> bool;

    /// Returns the next record, or `None` at the end of the file. After an error it may return
    /// `None` before the end.
    ///
    /// # Errors
    ///
    /// - the file cannot be read or is malformed
    /// - the record is too long
    fn next_record(&mut self) -> Result<Option<Vec<u8>>, ReadError>;
}

/// Opens a JSON Lines file, which may be gzip-compressed. The path [`STANDARD_INPUT`] opens the
/// standard input, which is not read before the first record is requested.
///
/// # Errors
///
/// - the file cannot be opened, or is a folder
pub fn open_rows(path: &Path) -> Result<Box<dyn Records>, ReadError> {
    let reader: Box<dyn BufRead + Send> = if path == Path::new(STANDARD_INPUT) {
        let input = regular_file::standard_input();
        let input = input.map_err(|error| ReadError::unreadable_or_truncated(path, error))?;
        Box::new(BufReader::with_capacity(1 << 16, input))
    } else {
        refuse_a_folder(path)?;
        open_text(path)?
    };
    Ok(json_lines(path, reader))
}

/// Reads JSON Lines from a reader; errors name `path`.
pub fn json_lines(path: &Path, reader: Box<dyn BufRead + Send>) -> Box<dyn Records> {
    let lines = FileLines::new(path, reader);
    Box::new(FileLines {
        are_rows: true,
        ..lines
    })
}

/// Opens a file for reading and decompresses it if it starts with the gzip magic bytes.
///
/// # Errors
///
/// - the file cannot be opened or read
pub fn open_text(path: &Path) -> Result<Box<dyn BufRead + Send>, ReadError> {
    let unreadable = |error| ReadError::unreadable_or_truncated(path, error);
    let file = regular_file::open(path).map_err(unreadable)?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let start = reader.fill_buf().map_err(unreadable)?;
    if start.starts_with(GZIP) {
        return Ok(Box::new(BufReader::new(GzipMembers::new(reader))));
    }
    Ok(Box::new(reader))
}

/// A line or a document exceeds its maximum length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {what} has more than {limit} bytes, the limit; {} ({} in docs/limits.md)",
    self.remedy(),
    self.constant()
)]
pub struct TooLong {
    /// `line` or `document`.
    what: &'static str,
    /// Maximum bytes, after decompression.
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

    /// A document is longer than `limit` bytes.
    pub fn document(limit: usize) -> Self {
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
            "line" => "write one value per line, or check that a .gz file has the expected content",
            _ => "split it, or check that a .gz file has the expected content",
        }
    }
}

/// Magic bytes of a gzip file.
pub const GZIP: &[u8] = &[0x1f, 0x8b];

/// A file whose first bytes show that it has an unsupported format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: the file is {}{}; {} and pass the new file",
    path.display(),
    kind.name(),
    kind.explanation(),
    kind.remedy(path)
)]
pub struct ForeignFile {
    path: PathBuf,
    kind: ForeignKind,
}

/// The actual format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ForeignKind {
    Gzip,
    Utf16,
    Parquet,
    JsonArray,
    SpreadJson,
    /// Values separated by commas, or by this character.
    Csv(char),
}

impl ForeignKind {
    /// Detects formats that are not UTF-8 text.
    fn from_magic_bytes(start: &[u8]) -> Option<Self> {
        match start {
            start if start.starts_with(GZIP) => Some(Self::Gzip),
            start if start.starts_with(b"PAR1") => Some(Self::Parquet),
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some(Self::Utf16),
            _ => None,
        }
    }

    /// Detects text formats other than JSON Lines.
    fn from_line(line: &[u8], path: &Path) -> Option<Self> {
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
            Self::Gzip => "compressed with gzip",
            Self::Utf16 => "UTF-16",
            Self::Parquet => "Parquet",
            Self::JsonArray => "one JSON array",
            Self::SpreadJson => "JSON with values that span several lines",
            Self::Csv(_) => "CSV",
        }
    }

    fn explanation(self) -> &'static str {
        match self {
            Self::Gzip | Self::Utf16 => "",
            _ => ", but rows must be JSON Lines, one object per line",
        }
    }

    fn remedy(self, path: &Path) -> String {
        // Quoted so that the command can be pasted into a shell.
        let path = path.display().to_string();
        let path = shlex::try_quote(&path).unwrap_or_else(|_| path.as_str().into());
        match self {
            Self::Gzip => format!("unpack it with `gunzip < {path} > rows.jsonl`"),
            Self::Utf16 => {
                format!("convert it with `iconv -f UTF-16 -t UTF-8 {path} > rows.jsonl`")
            }
            Self::Parquet | Self::JsonArray => {
                format!("convert it with `tooltune data convert {path} --output rows.jsonl`")
            }
            Self::SpreadJson => format!("convert it with `jq -c . {path} > rows.jsonl`"),
            Self::Csv(delimiter) => format!(
                "convert it with `python3 -c \"import csv, json, sys; [print(json.dumps(row)) for row in \
                 csv.DictReader(sys.stdin, delimiter={delimiter:?})]\" < {path} > rows.jsonl`"
            ),
        }
    }
}

impl ForeignFile {
    /// Returns an error if the file starts with the magic bytes of a known non-UTF-8 format.
    pub fn detect_by_magic_bytes(start: &[u8], path: &Path) -> Option<Self> {
        let kind = ForeignKind::from_magic_bytes(start)?;
        let path = path.to_owned();
        Some(Self { path, kind })
    }

    /// Returns an error if the first line shows that the file is not JSON Lines.
    pub fn detect_by_line(line: &[u8], path: &Path) -> Option<Self> {
        let kind = ForeignKind::from_line(line, path)?;
        let path = path.to_owned();
        Some(Self { path, kind })
    }
}

/// Returns the delimiter if a line is CSV: the file name has a CSV extension, or the line looks
/// like a header of column names.
fn csv_delimiter(line: &str, path: &Path) -> Option<char> {
    let most_frequent = |delimiters: &[char]| {
        let count = |delimiter: char| line.matches(delimiter).count();
        let delimiter = delimiters.iter().copied().max_by_key(|&one| count(one));
        delimiter.filter(|&one| count(one) > 0)
    };
    let is_name = |cell: &str| {
        let cell = cell.trim_matches('"');
        let mut letters = cell.chars();
        letters
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic())
            && letters.all(|one| one.is_ascii_alphanumeric() || one == '_')
    };
    let delimiter = most_frequent(&[';', '\t', ',']);
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("csv") => Some(delimiter.unwrap_or(',')),
        Some("tsv") => Some('\t'),
        _ => delimiter.filter(|&delimiter| line.split(delimiter).all(is_name)),
    }
}

/// The result of a bounded read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundedRead {
    /// Nothing: the reader is at its end.
    End,
    /// The whole line or document.
    Whole,
    /// Only the beginning, one byte longer than the limit.
    TooLong,
}

/// Reads a line into `line`, including its line end. Reads at most one byte more than `limit`.
///
/// # Errors
///
/// - the reader fails
pub fn read_line(
    reader: &mut (impl BufRead + ?Sized),
    line: &mut Vec<u8>,
    limit: usize,
) -> io::Result<BoundedRead> {
    line.clear();
    let n_bytes = limit_reader(reader, limit).read_until(b'\n', line)?;
    Ok(classify_read(n_bytes, limit))
}

/// Removes the line end of a line: one `\n` or `\r\n`.
pub fn strip_line_end(line: &str) -> &str {
    match line.strip_suffix('\n') {
        Some(line) => line.strip_suffix('\r').unwrap_or(line),
        None => line,
    }
}

/// Reads a whole document. Reads at most one byte more than `limit`.
///
/// # Errors
///
/// - the reader fails
pub fn read_document(
    reader: &mut (impl BufRead + ?Sized),
    document: &mut Vec<u8>,
    limit: usize,
) -> io::Result<BoundedRead> {
    document.clear();
    let n_bytes = limit_reader(reader, limit).read_to_end(document)?;
    Ok(classify_read(n_bytes, limit))
}

/// Lets the reader return one byte more than the limit, to detect whether the input is longer.
fn limit_reader<R: BufRead + ?Sized>(reader: &mut R, limit: usize) -> io::Take<&mut R> {
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    reader.take(limit.saturating_add(1))
}

fn classify_read(n_bytes: usize, limit: usize) -> BoundedRead {
    match n_bytes {
        0 => BoundedRead::End,
        n if n > limit => BoundedRead::TooLong,
        _ => BoundedRead::Whole,
    }
}

/// The lines of one file in order; blank lines are skipped, up to a limit.
pub struct FileLines<R> {
    path: PathBuf,
    reader: R,
    /// Maximum bytes per line.
    pub max_line_bytes: usize,
    line_number: usize,
    n_records: usize,
    /// Whether to reject a first line that cannot belong to a file of rows.
    are_rows: bool,
    has_any: bool,
}

impl<R> fmt::Debug for FileLines<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.path.display(), self.line_number)
    }
}

impl<R> FileLines<R> {
    /// Reads any text, one record per line.
    pub fn new(path: &Path, reader: R) -> Self {
        Self {
            path: path.to_owned(),
            reader,
            max_line_bytes: LINE_BYTES,
            line_number: 0,
            n_records: 0,
            are_rows: false,
            has_any: false,
        }
    }

    /// Whether the last line read is the first of the file.
    fn is_first(&self) -> bool {
        self.line_number == 1
    }
}

impl<R: BufRead> FileLines<R> {
    /// Skips empty lines, many at once.
    fn skip_empty_lines(&mut self, blanks: &mut BlankRun) -> Result<(), ReadError> {
        loop {
            let buffer = self
                .reader
                .fill_buf()
                .map_err(|error| ReadError::unreadable_or_truncated(&self.path, error))?;
            let mut n = 0;
            let mut n_lines = 0;
            loop {
                match &buffer[n..] {
                    [b'\n', ..] => n += 1,
                    [b'\r', b'\n', ..] => n += 2,
                    _ => break,
                }
                n_lines += 1;
            }
            let is_all = n > 0 && n == buffer.len();
            self.reader.consume(n);
            self.line_number += n_lines;
            blanks.add(n)?;
            if !is_all {
                return Ok(());
            }
        }
    }

    /// Returns the next line with its line end and without a byte-order mark, or `None` at the end.
    fn next_line(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        let mut line = Vec::new();
        let outcome = read_line(&mut self.reader, &mut line, self.max_line_bytes)
            .map_err(|error| ReadError::unreadable_or_truncated(&self.path, error))?;
        if outcome == BoundedRead::End {
            return Ok(None);
        }
        self.line_number += 1;
        if self.is_first()
            && let Some(foreign) = ForeignFile::detect_by_magic_bytes(&line, &self.path)
        {
            return Err(foreign.into());
        }
        if outcome == BoundedRead::TooLong {
            return Err(TooLong::line(self.max_line_bytes).into());
        }
        if self.is_first() && line.starts_with(b"\xEF\xBB\xBF") {
            line.drain(..3);
        }
        if self.are_rows
            && self.is_first()
            && let Some(foreign) = ForeignFile::detect_by_line(&line, &self.path)
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

    fn location(&self) -> String {
        format!("{}:{}", self.path.display(), self.line_number)
    }

    fn has_any(&self) -> bool {
        self.has_any
    }

    fn next_record(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        let mut blanks = BlankRun::default();
        loop {
            self.skip_empty_lines(&mut blanks)?;
            let Some(line) = self.next_line()? else {
                return Ok(None);
            };
            if line.trim_ascii().is_empty() {
                blanks.add(line.len())?;
                continue;
            }
            self.has_any = true;
            self.n_records += 1;
            refuse_rows_without_end(self.n_records)?;
            return Ok(Some(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_up_to_the_limit() {
        let mut reader = &b"abc\nabcd\nlast"[..];
        let mut line = Vec::new();
        let mut next = |limit| {
            let outcome = read_line(&mut reader, &mut line, limit).expect("memory");
            (outcome, String::from_utf8(line.clone()).expect("ASCII"))
        };
        assert_eq!(next(4), (BoundedRead::Whole, "abc\n".to_owned()));
        assert_eq!(next(3), (BoundedRead::TooLong, "abcd".to_owned()));
        assert_eq!(next(3), (BoundedRead::Whole, "\n".to_owned()));
        assert_eq!(next(4), (BoundedRead::Whole, "last".to_owned()));
        assert_eq!(next(4), (BoundedRead::End, String::new()));
    }

    #[test]
    fn the_first_line_reveals_files_other_than_json_lines() {
        let message_for = |line: &str, path: &str| {
            ForeignFile::detect_by_line(line.as_bytes(), Path::new(path))
                .map(|file| file.to_string())
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
                ["is one JSON array", "one object per line"],
            ),
            (
                "{\n",
                "a.json",
                ["span several lines", "jq -c . a.json > rows.jsonl"],
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
            let message = message_for(line, path).unwrap_or_default();
            for part in parts {
                assert!(message.contains(part), "{line:?}: {message}");
            }
            assert!(
                message.starts_with(&format!("{path}: the file is")),
                "{message}"
            );
            assert_eq!(message.lines().count(), 1, "{message}");
        }
        for line in ["{\"a\": 1}", "{ \"a\":", "Hello, you", "a", "", "7"] {
            assert_eq!(message_for(line, "a.jsonl"), None, "{line:?}");
        }
        let parquet = ForeignFile::detect_by_magic_bytes(b"PAR1\x15\x04", Path::new("a.parquet"));
        let message = parquet.map(|file| file.to_string()).unwrap_or_default();
        assert!(
            message.contains("the file is Parquet, but rows"),
            "{message}"
        );
        assert!(
            message.contains("`tooltune data convert a.parquet"),
            "{message}"
        );
        // The file name is one word of the command.
        let name = Path::new("a b; rm -r 'x'.parquet");
        let message =
            ForeignFile::detect_by_magic_bytes(b"PAR1\x15\x04", name).map(|file| file.to_string());
        let message = message.unwrap_or_default();
        let (_, command) = message.split_once("`tooltune ").expect("a command");
        let (command, _) = command.split_once('`').expect("its end");
        let words = shlex::split(command).expect("words of a shell");
        let expected = [
            "data",
            "convert",
            "a b; rm -r 'x'.parquet",
            "--output",
            "rows.jsonl",
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn an_endless_document_is_read_only_up_to_the_limit() {
        let mut document = Vec::new();
        let mut endless = io::BufReader::new(io::repeat(b'['));
        let found = read_document(&mut endless, &mut document, 1_000).expect("no fault");
        assert_eq!((found, document.len()), (BoundedRead::TooLong, 1_001));
        let mut line = Vec::new();
        let found = read_line(&mut endless, &mut line, 1_000).expect("no fault");
        assert_eq!((found, line.len()), (BoundedRead::TooLong, 1_001));
        let found = read_document(&mut &b"[1]"[..], &mut document, 3).expect("memory");
        assert_eq!(
            (found, document.as_slice()),
            (BoundedRead::Whole, &b"[1]"[..])
        );
        let found = read_document(&mut &b""[..], &mut document, 3).expect("memory");
        assert_eq!((found, document.is_empty()), (BoundedRead::End, true));
    }
}
