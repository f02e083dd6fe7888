//! Scores lines of text, one line of scores for each, in order.
//!
//! Lines are read as bytes: one line that is not UTF-8 must not end the stream.
//! A blank line is malformed like any other, so that output line n always answers input line n.

use std::fmt;
use std::io::{BufRead, Write};

use serde_json::{Value, json};
use tooltune_rows::budgets::LINE_BYTES;
use tooltune_rows::json;
use tooltune_rows::lines::{Found, TooLong, read_line};

use tooltune_suites::operations::{LineError, Outside, Request};

use super::error::StreamError;
use super::operations;

/// The answer to one line.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreLine {
    /// The line's `id`, whatever it was; null if it had none or could not be read.
    pub id: Value,
    /// Number of the line, from 1.
    pub line_no: usize,
    /// The value, or why there is none.
    pub outcome: Result<Value, LineError>,
}

impl ScoreLine {
    /// Whether the line itself must be fixed; such a line makes the exit status 3.
    pub fn is_malformed(&self) -> bool {
        self.outcome.as_ref().is_err_and(LineError::is_malformed)
    }
}

/// Writes the line of the interface: `{"id", "value"}` or `{"id", "error": {kind, message, line}}`.
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

/// What a stream held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Lines read, and answered.
    pub n_lines: usize,
    /// Lines that must be fixed: unreadable, of an unknown operation, or with a bad field.
    pub n_malformed: usize,
    /// Well-formed lines for which the operation has no value.
    pub n_without_value: usize,
}

/// Scores one line; `line_no` counts from 1 and appears in its error.
pub fn score_line(line: &str, line_no: usize, outside: &Outside) -> ScoreLine {
    let malformed = |reason: String| malformed(reason, line_no);
    // Of two values of one key one was written by mistake; in the texts of completions the last
    // counts, as for Python.
    let fields = match json::parse_unique(line) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return malformed("the line is JSON but no object".to_owned()),
        Err(error) => return malformed(format!("the line is not JSON: {}", in_line(&error))),
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

/// The reason without the line number within the text, which is always 1 here.
fn in_line(error: &json::JsonError) -> String {
    match error {
        json::JsonError::Refused { column, reason, .. } => format!("column {column}: {reason}"),
        other => other.to_string(),
    }
}

/// Scores every line of `reader` onto `writer`.
///
/// Each answer is written before the next line is read, and the writer is flushed at the end. A line
/// of more than 256 MiB is malformed, and passed over without being held in memory.
///
/// # Errors
///
/// - the input cannot be read or the output cannot be written; lines in error are no error here
pub fn score_stream(
    reader: impl BufRead,
    writer: impl Write,
    outside: &Outside,
) -> Result<Summary, StreamError> {
    score_lines(reader, writer, outside, LINE_BYTES)
}

fn score_lines(
    mut reader: impl BufRead,
    mut writer: impl Write,
    outside: &Outside,
    max_line_bytes: usize,
) -> Result<Summary, StreamError> {
    let mut summary = Summary::default();
    let mut bytes = Vec::new();
    loop {
        let line_no = summary.n_lines + 1;
        let unreadable = |source| StreamError::Read { line_no, source };
        let scored = match read_line(&mut reader, &mut bytes, max_line_bytes) {
            Err(source) => return Err(unreadable(source)),
            Ok(Found::End) => break,
            Ok(Found::Whole) => {
                let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
                score_bytes(line, line_no, outside)
            }
            Ok(Found::TooLong) => {
                if !bytes.ends_with(b"\n") {
                    reader.skip_until(b'\n').map_err(unreadable)?;
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

fn score_bytes(bytes: &[u8], line_no: usize, outside: &Outside) -> ScoreLine {
    match std::str::from_utf8(bytes) {
        Ok(line) => score_line(line, line_no, outside),
        Err(error) => {
            let byte = error.valid_up_to() + 1;
            malformed(
                format!("the line is not UTF-8 from byte {byte} on"),
                line_no,
            )
        }
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
