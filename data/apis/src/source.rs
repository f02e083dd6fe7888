//! Readers for JSON and JSON Lines files, optionally gzip-compressed.
//!
//! Compression is detected from the first two bytes, not from the `.gz` extension. Lines are
//! streamed, so memory use is one line. Lines and documents have a size limit, because the size of
//! compressed data is unknown until it is decompressed.

use std::path::Path;

use serde_json::Value;
use tooltune_json as json;
use tooltune_json::budgets::DOCUMENT_BYTES;
use tooltune_json::lines::{
    BoundedRead, FileLines, ForeignFile, Records, TooLong, open_rows, open_text, read_document,
};
use tooltune_json::{JsonError, ReadError};

use super::error::ToolsError;

/// Reads a whole file as a string, decompressed and without a byte-order mark.
///
/// # Errors
///
/// - the file cannot be read or decompressed, or has more than 2 GiB
/// - it is not UTF-8; if it is UTF-16, the error says so
pub fn read_text(path: &Path) -> Result<String, ToolsError> {
    read_text_within(path, DOCUMENT_BYTES)
}

fn read_text_within(path: &Path, max_bytes: usize) -> Result<String, ToolsError> {
    let mut bytes = Vec::new();
    let outcome = read_document(&mut *open_text(path)?, &mut bytes, max_bytes)
        .map_err(|error| ReadError::unreadable_or_truncated(path, error))?;
    let file = || path.display().to_string();
    if outcome == BoundedRead::TooLong {
        return Err(ToolsError::from(ReadError::from(TooLong::document(max_bytes))).at(file()));
    }
    if let Some(foreign) = ForeignFile::detect_by_magic_bytes(&bytes, path) {
        return Err(ReadError::from(foreign).into());
    }
    let text = utf8(&bytes).map_err(|error| error.at(file()))?;
    Ok(text.trim_start_matches('\u{feff}').to_owned())
}

/// Reads a file that contains one JSON value.
///
/// # Errors
///
/// - the file cannot be read or decompressed, is not UTF-8 or not one JSON value
pub fn read_json(path: &Path) -> Result<Value, ToolsError> {
    let text = read_text(path)?;
    json::parse(&text).map_err(|error| ToolsError::NotJson { error }.at(path.display().to_string()))
}

/// Iterates over the records of a file as strings, each with its location `file:line`. A record of
/// more than 256 MiB ends the iteration with an error.
#[derive(Debug)]
pub struct TextLines {
    records: Box<dyn Records>,
    is_done: bool,
}

impl TextLines {
    /// Opens a text file, optionally gzip-compressed; blank lines are skipped.
    ///
    /// # Errors
    ///
    /// - the file cannot be opened or read
    pub fn open(path: &Path) -> Result<Self, ToolsError> {
        let lines = FileLines::new(path, open_text(path)?);
        Ok(Self::from_records(Box::new(lines)))
    }

    /// Opens a file of rows. If it is another kind of file, such as a JSON array or CSV, the first
    /// line is an error that names the kind.
    ///
    /// # Errors
    ///
    /// - as [`TextLines::open`], or the path is a folder
    pub fn open_rows(path: &Path) -> Result<Self, ToolsError> {
        Ok(Self::from_records(open_rows(path)?))
    }

    /// Reads the records of an open file.
    pub fn from_records(records: Box<dyn Records>) -> Self {
        Self {
            records,
            is_done: false,
        }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        self.records.path()
    }

    /// Whether a record has been read.
    pub fn has_any(&self) -> bool {
        self.records.has_any()
    }
}

impl Iterator for TextLines {
    type Item = Result<(String, String), ToolsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let record = self.records.next_record();
        let location = self.records.location();
        match record {
            Err(error) => {
                self.is_done = true;
                Some(Err(ToolsError::from(error).at(location)))
            }
            Ok(None) => {
                self.is_done = true;
                None
            }
            Ok(Some(record)) => Some(match utf8(&record) {
                Ok(text) => Ok((location, text.trim_end_matches(['\r', '\n']).to_owned())),
                Err(error) => Err(error.at(location)),
            }),
        }
    }
}

/// Iterates over the values of a JSON Lines file, each with its location `file:line`.
#[derive(Debug)]
pub struct JsonLines {
    lines: TextLines,
    parse: fn(&str) -> Result<Value, JsonError>,
}

impl JsonLines {
    /// Opens a file; blank lines are skipped.
    ///
    /// # Errors
    ///
    /// - the file cannot be opened or read
    pub fn open(path: &Path) -> Result<Self, ToolsError> {
        Ok(Self {
            lines: TextLines::open(path)?,
            parse: json::parse,
        })
    }

    /// Opens a hand-written file of rows: rejects duplicate keys in an object and files that are
    /// not rows.
    ///
    /// # Errors
    ///
    /// - as [`TextLines::open_rows`]
    pub fn open_rows(path: &Path) -> Result<Self, ToolsError> {
        Ok(Self {
            lines: TextLines::open_rows(path)?,
            parse: json::parse_unique,
        })
    }

    /// Like [`Self::open_rows`], for the records of an open file.
    pub fn from_records(records: Box<dyn Records>) -> Self {
        Self {
            lines: TextLines::from_records(records),
            parse: json::parse_unique,
        }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        self.lines.path()
    }
}

impl Iterator for JsonLines {
    type Item = Result<(String, Value), ToolsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.lines.next()?;
        Some(line.and_then(|(location, text)| match (self.parse)(&text) {
            Ok(value) => Ok((location, value)),
            Err(error) => Err(ToolsError::from_row_json(error).at(location)),
        }))
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, ToolsError> {
    std::str::from_utf8(bytes).map_err(|error| ToolsError::NotUtf8 {
        byte: error.valid_up_to(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use serde_json::json;

    use super::*;

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).expect("memory");
        encoder.finish().expect("memory")
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(bytes).expect("written");
        file
    }

    #[test]
    fn a_compressed_file_reads_as_the_plain_one() {
        let text = "\u{feff}{\"a\": 1}\n\n{\"a\": 2}\r\n";
        for bytes in [text.as_bytes().to_vec(), gzip(text)] {
            let file = file(&bytes);
            let lines: Vec<(String, Value)> = JsonLines::open(file.path())
                .expect("opens")
                .collect::<Result<_, _>>()
                .expect("reads");
            assert_eq!(lines[0].1, json!({"a": 1}));
            assert_eq!(lines[1].1, json!({"a": 2}));
            assert!(lines[1].0.ends_with(":3"), "{}", lines[1].0);
        }
        assert_eq!(
            read_json(file(&gzip("[1]")).path()).expect("reads"),
            json!([1])
        );
    }

    #[test]
    fn reading_continues_after_an_invalid_line() {
        let file = file(b"{\"a\": 1}\n{\"a\": \n{\"a\": 3}\n\xff\n");
        let mut lines = JsonLines::open(file.path()).expect("opens");
        assert!(lines.next().expect("a line").is_ok());
        let error = lines
            .next()
            .expect("a line")
            .expect_err("broken")
            .to_string();
        assert!(error.contains(":2: not valid JSON"), "{error}");
        assert_eq!(
            lines.next().expect("a line").expect("valid").1,
            json!({"a": 3})
        );
        let error = lines
            .next()
            .expect("a line")
            .expect_err("bytes")
            .to_string();
        assert!(error.contains(":4: invalid UTF-8 at byte 0"), "{error}");
        assert!(lines.next().is_none());
    }

    #[test]
    fn a_gzip_bomb_is_an_error_with_line_limit_and_fix() {
        // A thousandth of the real limit, with two good lines and one endless line.
        let text = format!("{{}}\n{{}}\n{}", "[".repeat(4 << 20));
        for bytes in [gzip(&text), text.into_bytes()] {
            let file = file(&bytes);
            let mut lines = FileLines::new(file.path(), open_text(file.path()).expect("opens"));
            lines.max_line_bytes = 1 << 16;
            let lines = TextLines::from_records(Box::new(lines));
            let parse = json::parse;
            let values: Vec<_> = JsonLines { lines, parse }.collect();
            assert_eq!(values.len(), 3);
            assert!(values[0].is_ok() && values[1].is_ok());
            let error = values[2].as_ref().expect_err("a bomb").to_string();
            let expected = ":3: the line has more than 65536 bytes, the limit; write";
            assert!(error.contains(expected), "{error}");

            let error = read_text_within(file.path(), 1 << 16).expect_err("a bomb");
            let error = error.to_string();
            let expected = ": the document has more than 65536 bytes, the limit; split";
            assert!(error.contains(expected), "{error}");
            assert!(read_text_within(file.path(), 6 + (4 << 20)).is_ok());
        }
    }

    #[test]
    fn json_that_nests_a_million_deep_is_an_error_in_lines_and_in_documents() {
        let deep = "[".repeat(1_000_000);
        for bytes in [gzip(&deep), deep.into_bytes()] {
            let file = file(&bytes);
            let mut lines = JsonLines::open(file.path()).expect("opens");
            let line_error = lines.next().expect("a line").expect_err("deep").to_string();
            let document_error = read_json(file.path()).expect_err("deep").to_string();
            for error in [line_error, document_error] {
                assert!(error.contains("nested deeper than 127 levels"), "{error}");
            }
        }
    }

    #[test]
    fn a_truncated_gzip_file_is_an_error_and_ends() {
        let compressed = gzip(&"{\"a\": 1}\n".repeat(1_000));
        let file = file(&compressed[..compressed.len() - 12]);
        let results: Vec<_> = JsonLines::open(file.path()).expect("opens").collect();
        let error = results.last().expect("lines").as_ref().expect_err("cut");
        assert!(error.to_string().contains("cannot read"), "{error}");
    }
}
