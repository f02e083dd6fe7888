//! Reads the entries of a file: lines, items of an array, or one document.

use std::path::Path;

use serde::de::IgnoredAny;
use serde_json::Value;
use tooltune_json::budgets::DOCUMENT_BYTES;
use tooltune_json::lines::{BoundedRead, Records, open_text, read_document};
use tooltune_json::{JsonError, ReadError, oversized_integer, parse_unique};

use crate::error::TraceError;
use crate::trace::Problem;

const NOT_UTF8: Problem = "an entry is not UTF-8";
const NOT_JSON: Problem = "an entry is not JSON, or is cut off";
const TOO_DEEP: Problem = "an entry is nested deeper than 127 levels";
const TOO_MANY: Problem = "an entry has too many JSON values (JSON_VALUES in docs/limits.md)";
const TWICE: Problem = "an entry has a key twice in one object";
const OVERSIZED: Problem = "an entry has an integer beyond 64 bits";

/// An entry with its location, or the reason why it cannot be read.
pub(crate) struct Entry {
    /// `file:line`, or `file:number` for an item of an array.
    pub(crate) location: String,
    /// Length of its text in bytes.
    pub(crate) n_bytes: usize,
    pub(crate) value: Result<Value, Problem>,
}

/// The entries of a file.
pub(crate) struct Entries {
    records: Box<dyn Records>,
    /// The first record, which is read to see whether the file is one document.
    first: Option<(String, Vec<u8>)>,
    /// The file has no more entries.
    is_done: bool,
}

impl Entries {
    /// Opens a file of any format that holds rows, or one JSON document over several lines.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or is neither JSON nor a file of rows
    pub(crate) fn open(path: &Path) -> Result<Self, TraceError> {
        let in_file = |error| TraceError::Read {
            location: path.display().to_string(),
            error,
        };
        let mut records = tooltune_files::open(path).map_err(in_file)?;
        let first = records.next_record();
        let location = records.location();
        let document = match &first {
            Err(ReadError::Foreign(_)) => read_whole(path),
            Ok(Some(line)) if is_cut_off(line) => read_whole(path),
            _ => None,
        };
        let (first, is_done) = match (document, first) {
            (Some(document), _) => (Some((format!("{}:1", path.display()), document)), true),
            (None, Ok(Some(line))) => (Some((location, line)), false),
            (None, Ok(None)) => (None, true),
            (None, Err(error)) => return Err(TraceError::Read { location, error }),
        };
        Ok(Self {
            records,
            first,
            is_done,
        })
    }

    /// The next entry.
    ///
    /// # Errors
    ///
    /// - the file cannot be read further
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, TraceError> {
        if let Some((location, record)) = self.first.take() {
            return Ok(Some(parse(location, &record)));
        }
        if self.is_done {
            return Ok(None);
        }
        let record = self.records.next_record();
        let location = self.records.location();
        match record {
            Ok(Some(record)) => Ok(Some(parse(location, &record))),
            Ok(None) => Ok(None),
            Err(error) => Err(TraceError::Read { location, error }),
        }
    }
}

fn parse(location: String, record: &[u8]) -> Entry {
    let read = || {
        let text = std::str::from_utf8(record).map_err(|_| NOT_UTF8)?;
        let value = parse_unique(text.trim()).map_err(|error| match error {
            JsonError::DuplicateKey(_) => TWICE,
            JsonError::TooManyValues(_) => TOO_MANY,
            JsonError::Refused { reason, .. } if reason.starts_with("nested deeper") => TOO_DEEP,
            _ => NOT_JSON,
        })?;
        // `parse_unique` has rounded such an integer.
        match oversized_integer(text.trim(), |_| true) {
            Some(_) => Err(OVERSIZED),
            None => Ok(value),
        }
    };
    Entry {
        n_bytes: record.len(),
        value: read(),
        location,
    }
}

/// Whether a line is the beginning of an object.
fn is_cut_off(line: &[u8]) -> bool {
    line.trim_ascii_start().starts_with(b"{")
        && serde_json::from_slice::<IgnoredAny>(line).is_err_and(|error| error.is_eof())
}

/// The whole file, if it is one JSON value.
fn read_whole(path: &Path) -> Option<Vec<u8>> {
    let mut document = Vec::new();
    let mut reader = open_text(path).ok()?;
    let read = read_document(&mut reader, &mut document, DOCUMENT_BYTES).ok()?;
    let text = document.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&document);
    let is_json = serde_json::from_slice::<IgnoredAny>(text).is_ok();
    (read == BoundedRead::Whole && is_json).then(|| text.to_vec())
}
