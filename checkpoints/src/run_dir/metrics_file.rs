//! `metrics.jsonl`: one JSON object with a `step` per line, appended during the run.
//!
//! A killed run leaves lines beyond its last checkpoint, and perhaps half a line at the end. The
//! resumed run writes those again, so they are cut off first: the file ends up as if the run had
//! never stopped.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::budgets::METRICS_LINE_BYTES;
use crate::error::CheckpointError;
use crate::regular_file;

/// A metrics file opened to append.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
}

impl MetricsFile {
    /// Opens `path` to append, creating it if need be, and cuts off a torn last line.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, read or shortened.
    pub fn open(path: &Path) -> Result<MetricsFile, CheckpointError> {
        // Opening a pipe would wait for whoever writes it.
        regular_file::is_there(path)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(CheckpointError::io("open", path))?;
        let mut metrics = MetricsFile {
            path: path.to_owned(),
            file,
        };
        let end = metrics.end_of_lines(|_, _| Ok(true))?;
        metrics.cut_at(end)?;
        Ok(metrics)
    }

    /// Appends `line`, which must be an object, and hands it to the operating system at once.
    ///
    /// # Errors
    ///
    /// - `line` is no object
    /// - it cannot be written completely, for example because the disk is full; the part that
    ///   was written is taken back if possible
    pub fn append(&mut self, line: &Value) -> Result<(), CheckpointError> {
        if !line.is_object() {
            let problem = "a metrics line must be a JSON object";
            return Err(CheckpointError::field(&self.path, "line", problem));
        }
        let mut text = serde_json::to_vec(line).map_err(CheckpointError::json(&self.path))?;
        text.push(b'\n');
        let begin = self
            .file
            .stream_position()
            .map_err(CheckpointError::io("seek", &self.path))?;
        self.file.write_all(&text).map_err(|source| {
            // Shortening needs no space; should it fail, the next opening cuts the torn line.
            let _ = self.cut_at(begin);
            CheckpointError::Write {
                path: self.path.clone(),
                bytes: text.len() as u64,
                source,
            }
        })
    }

    /// Makes the lines appended so far survive a power cut; due before a checkpoint is saved.
    ///
    /// # Errors
    ///
    /// The operating system reports that they could not be written.
    pub fn sync(&self) -> Result<(), CheckpointError> {
        self.file
            .sync_all()
            .map_err(CheckpointError::io("sync", &self.path))
    }

    /// Cuts the file before the first line whose `step` is greater than `step`.
    ///
    /// Lines without a `step` stay if they stand before that.
    ///
    /// # Errors
    ///
    /// - a whole line is no JSON object; the error tells its number
    /// - the file cannot be read or shortened
    pub fn truncate_after(&mut self, step: u64) -> Result<(), CheckpointError> {
        let path = self.path.clone();
        let end = self.end_of_lines(|line_number, line| {
            let line = parse_line(&path, line_number, line)?;
            Ok(line
                .get("step")
                .and_then(Value::as_u64)
                .is_none_or(|at| at <= step))
        })?;
        self.cut_at(end)
    }

    /// All whole lines of a metrics file, in order; a torn last line is passed over.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a whole line is no JSON object; the error tells its number.
    pub fn read(path: &Path) -> Result<Vec<Value>, CheckpointError> {
        let mut reader = BufReader::new(regular_file::open(path)?);
        let mut lines = Vec::new();
        let mut text = Vec::new();
        while next_line(path, &mut reader, &mut text)? {
            lines.push(parse_line(path, lines.len() + 1, &text)?);
        }
        Ok(lines)
    }

    /// Offset behind the last of the leading whole lines that `keep` accepts.
    fn end_of_lines(
        &mut self,
        mut keep: impl FnMut(usize, &[u8]) -> Result<bool, CheckpointError>,
    ) -> Result<u64, CheckpointError> {
        self.file
            .rewind()
            .map_err(CheckpointError::io("seek", &self.path))?;
        let mut reader = BufReader::new(&self.file);
        let (mut end, mut line_number, mut text) = (0, 0, Vec::new());
        while next_line(&self.path, &mut reader, &mut text)? {
            line_number += 1;
            if !keep(line_number, &text)? {
                break;
            }
            end += text.len() as u64;
        }
        Ok(end)
    }

    fn cut_at(&mut self, end: u64) -> Result<(), CheckpointError> {
        let cut = self.file.set_len(end);
        cut.and_then(|()| self.file.sync_all())
            .and_then(|()| self.file.seek(SeekFrom::Start(end)))
            .map_err(CheckpointError::io("shorten", &self.path))?;
        Ok(())
    }
}

/// Reads the next line that ends in a line feed into `text`; false at the end.
fn next_line(
    path: &Path,
    reader: &mut impl BufRead,
    text: &mut Vec<u8>,
) -> Result<bool, CheckpointError> {
    text.clear();
    let n_bytes = reader
        .take(METRICS_LINE_BYTES + 1)
        .read_until(b'\n', text)
        .map_err(CheckpointError::io("read", path))?;
    if n_bytes as u64 > METRICS_LINE_BYTES {
        let problem = format!(
            "a line has more than {METRICS_LINE_BYTES} bytes, the most that is read of one"
        );
        return Err(CheckpointError::malformed(path, "a line", problem));
    }
    Ok(text.last() == Some(&b'\n'))
}

fn parse_line(path: &Path, line_number: usize, text: &[u8]) -> Result<Value, CheckpointError> {
    let wrong = |column: usize, problem: String| CheckpointError::Json {
        path: path.to_owned(),
        line: line_number,
        column,
        problem,
    };
    let value: Value =
        serde_json::from_slice(text).map_err(|e| wrong(e.column(), e.to_string()))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(wrong(0, "must be a JSON object".to_owned()))
    }
}
