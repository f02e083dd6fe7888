//! Reads rows of NESTFUL from JSON Lines, one at a time, and writes them.
//!
//! A fault names file, line and field, and the reader stands at the next line afterwards, so that
//! a caller can list all faults of a file instead of the first.

use std::path::Path;

use tooltune_rows::python::loads;
use tooltune_rows::tools::{TextLines, ToolsError};

use super::error::NestfulError;
use super::row::NestfulRow;

/// Opens a file of rows, gzip-compressed or not.
///
/// # Errors
///
/// - the file cannot be opened
///
/// The reader itself yields an error for a file without rows, a line that is not UTF-8 or not
/// JSON, and a row that [`NestfulRow::new`] refuses.
pub fn read_nestful_rows(path: &Path) -> Result<NestfulReader, NestfulError> {
    Ok(NestfulReader {
        lines: TextLines::open(path)?,
        n_rows: 0,
        is_done: false,
    })
}

/// The rows of a file in order, from [`read_nestful_rows`].
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
            let place = self.lines.path().display().to_string();
            let empty = ToolsError::Empty {
                what: "rows of NESTFUL",
            };
            return is_empty.then(|| Err(NestfulError::File(empty.at(place))));
        };
        self.n_rows += 1;
        Some(
            line.map_err(NestfulError::File)
                .and_then(|(place, text)| parse_row(&text).map_err(|error| error.at(place))),
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

/// Writes rows as JSON Lines, as `json.dumps` writes them.
pub fn nestful_lines(rows: &[NestfulRow]) -> String {
    rows.iter().map(|row| row.line() + "\n").collect()
}
