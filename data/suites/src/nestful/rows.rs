//! Reads NESTFUL rows one at a time, and writes them.
//!
//! An error contains file, line and field, and the reader continues at the next line, so that a
//! caller can list all errors in a file.

use tooltune_apis::{TextLines, ToolsError};
use tooltune_json::python::loads;

use super::error::NestfulError;
use super::row::NestfulRow;

/// Reads the rows of a file in any supported format.
///
/// The reader yields an error for a file without rows, for a row that is not UTF-8 or not JSON, and
/// for a row that [`NestfulRow::new`] rejects.
pub fn read_nestful_rows(lines: TextLines) -> NestfulReader {
    NestfulReader {
        lines,
        n_rows: 0,
        is_done: false,
    }
}

/// Iterator over the rows of a file, from [`read_nestful_rows`].
#[derive(Debug)]
pub struct NestfulReader {
    lines: TextLines,
    n_rows: usize,
    is_done: bool,
}

impl Iterator for NestfulReader {
    type Item = Result<NestfulRow, NestfulError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(line) = self.lines.next() else {
            let is_empty = self.n_rows == 0 && !self.is_done;
            self.is_done = true;
            let location = self.lines.path().display().to_string();
            let empty = ToolsError::Empty {
                what: "NESTFUL rows",
            };
            return is_empty.then(|| Err(NestfulError::File(empty.at(location))));
        };
        self.n_rows += 1;
        Some(
            line.map_err(NestfulError::File)
                .and_then(|(location, text)| {
                    parse_row(&text).map_err(|error| error.with_location(location))
                }),
        )
    }
}

fn parse_row(line: &str) -> Result<NestfulRow, NestfulError> {
    let not_json = |error| NestfulError::NotJson {
        field: "the line",
        error,
    };
    NestfulRow::new(&loads(line).map_err(not_json)?)
}
