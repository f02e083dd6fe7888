//! Scores lines of text and writes one line of scores for each, in order.
//!
//! Lines are read as bytes, so a line that is not UTF-8 does not end the stream. A blank line is
//! malformed, so output line n always belongs to input line n.

use std::fmt;
use std::io::{self, BufRead, Read as _, Write};

use serde_json::{Value, json};
use tooltune_json as json;
use tooltune_json::budgets::{LINE_BYTES, SKIPPED_LINE_BYTES};
use tooltune_json::lines::{BoundedRead, TooLong, read_line};

use tooltune_suites::operations::{LineError, Outside, Request};

use super::error::StreamError;
use super::operations;

/// The score of one line.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreLine {
    /// The line's `id` of any type; null if it is absent or unreadable.
    pub id: Value,
    /// Number of the line, from 1.
    pub line_no: usize,
    /// The value, or why there is none.
    pub outcome: Result<Value, LineError>,
}

impl ScoreLine {
    /// Whether the line itself must be fixed; such a line leads to exit status 3.
    pub fn is_malformed(&self) -> bool {
        self.outcome.as_ref().is_err_and(LineError::is_malformed)
    }
}

/// Writes the output line: `{"id", "value"}` or `{"id", "error": {kind, message, line}}`.
impl fmt::Display for ScoreLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match &self.outcome {
            Ok(value) => json!({"id": self.id, "value": value}),
            Err(error) => json!({"id": self.id, "error": {
                "kind": error.kind(),
                "message": format!("line {}: {error}", self.line_no),
                "line": self.line_no,
            }}),
        };
        formatter.write_str(&json::dumps(&line, json::Style::Python))
    }
}

/// Line counts of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of lines read and scored.
    pub n_lines: usize,
    /// Number of lines that must be fixed: unreadable, with an unknown operation, or with an
    /// invalid field.
    pub n_malformed: usize,
    /// Number of well-formed lines for which the operation has no value.
    pub n_without_value: usize,
}

/// Scores one line. Errors contain `line_no`, which counts from 1.
pub fn score_line(line: &str, line_no: usize, outside: &Outside) -> ScoreLine {
    let malformed = |reason: String| malformed(reason, line_no);
    // A duplicate key in the line is an error. In completions, the last value is used, as in
    // Python.
    let fields = match json::parse_unique(line) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return malformed("the line is JSON but not an object".to_owned()),
        Err(error) => {
            return malformed(format!(
                "the line is not JSON: {}",
                reason_without_line(&error)
            ));
        }
    };
    let outcome = Request::parse(&fields, line, outside, operations())
        .and_then(|(operation, request)| (operation.run)(&request));
    ScoreLine {
        id: fields.get("id").cloned().unwrap_or_default(),
        line_no,
        outcome,
    }
}

fn malformed(reason: String, line_no: usize) -> ScoreLine {
    ScoreLine {
        id: Value::Null,
        line_no,
        outcome: Err(LineError::MalformedLine { reason }),
    }
}

/// The reason without the parser's line number, which is always 1.
fn reason_without_line(error: &json::JsonError) -> String {
    match error {
        json::JsonError::Refused { column, reason, .. } => format!("column {column}: {reason}"),
        other => other.to_string(),
    }
}

/// Scores every line of `reader` and writes to `writer`.
///
/// Each score is written before the next line is read, and the writer is flushed at the end. A line
/// longer than 256 MiB is malformed and is skipped without being buffered.
///
/// # Errors
///
/// - The input cannot be read or the output cannot be written.
/// - A line has more than [`SKIPPED_LINE_BYTES`]. Other malformed lines are not an error here.
pub fn score_stream(
    reader: impl BufRead,
    writer: impl Write,
    outside: &Outside,
) -> Result<Summary, StreamError> {
    score_lines(reader, writer, outside, LINE_BYTES, SKIPPED_LINE_BYTES)
}

fn score_lines(
    mut reader: impl BufRead,
    mut writer: impl Write,
    outside: &Outside,
    max_line_bytes: usize,
    max_skipped_bytes: u64,
) -> Result<Summary, StreamError> {
    let mut summary = Summary::default();
    let mut bytes = Vec::new();
    loop {
        let line_no = summary.n_lines + 1;
        let unreadable = |source| StreamError::Read { line_no, source };
        let scored = match read_line(&mut reader, &mut bytes, max_line_bytes) {
            Err(source) => return Err(unreadable(source)),
            Ok(BoundedRead::End) => break,
            Ok(BoundedRead::Whole) => {
                let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
                score_bytes(line, line_no, outside)
            }
            Ok(BoundedRead::TooLong) => {
                let rest = max_skipped_bytes.saturating_sub(bytes.len() as u64);
                let is_over =
                    bytes.ends_with(b"\n") || skip_line(&mut reader, rest).map_err(unreadable)?;
                if !is_over {
                    let limit = max_skipped_bytes;
                    return Err(StreamError::LineWithoutEnd { line_no, limit });
                }
                malformed(TooLong::line(max_line_bytes).to_string(), line_no)
            }
        };
        writeln!(writer, "{scored}").map_err(|source| StreamError::Write { line_no, source })?;
        summary.n_lines += 1;
        summary.n_malformed += usize::from(scored.is_malformed());
        summary.n_without_value += usize::from(scored.outcome.is_err() && !scored.is_malformed());
    }
    let line_no = summary.n_lines;
    writer
        .flush()
        .map_err(|source| StreamError::Write { line_no, source })?;
    Ok(summary)
}

/// Skips the rest of a line; returns false if it has more than `limit` bytes.
fn skip_line(reader: &mut impl BufRead, limit: u64) -> io::Result<bool> {
    // One byte more than the longest allowed rest including its line feed.
    let mut rest = reader.take(limit.saturating_add(2));
    rest.skip_until(b'\n')?;
    Ok(rest.limit() > 0)
}

fn score_bytes(bytes: &[u8], line_no: usize, outside: &Outside) -> ScoreLine {
    match std::str::from_utf8(bytes) {
        Ok(line) => score_line(line, line_no, outside),
        Err(error) => {
            let byte = error.valid_up_to() + 1;
            malformed(
                format!("the line is not valid UTF-8 at byte {byte}"),
                line_no,
            )
        }
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
