//! `metrics.jsonl`: one JSON object with a `step` per line, appended during the run.
//!
//! A killed run leaves lines beyond its last checkpoint, and perhaps half a line at the end. The
//! resumed run writes those again, so they are cut off first: the file ends up as if the run had
//! never stopped. A [`MetricsMark`] says to the byte where a checkpoint was saved, and whether the
//! lines up to there are those that were written.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::atomic::write_atomic;
use crate::budgets::{METRICS_BYTES, METRICS_LINE_BYTES};
use crate::digest::hex;
use crate::error::CheckpointError;
use crate::regular_file;

/// A metrics file opened to append.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
    /// Over all lines, for [`MetricsFile::mark`].
    hasher: Sha256,
    bytes: u64,
}

/// What a metrics file held at some moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsMark {
    /// Length of its lines.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: String,
}

impl MetricsFile {
    /// Opens `path` to append, creating it if need be, and cuts off a torn last line.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, read or shortened.
    pub fn open(path: &Path) -> Result<MetricsFile, CheckpointError> {
        let mut metrics = MetricsFile::unread(path)?;
        let mut end = 0;
        metrics.lines(|_, text| {
            end += text.len() as u64;
            Ok(())
        })?;
        metrics.go_on_at(end)?;
        Ok(metrics)
    }

    /// Opens `path` for a run that resumes after `step`: lines beyond are cut off. `mark` is what the
    /// file held when the checkpoint was saved, for files that do not tell the time; of a file that is
    /// as marked every line stays up to there, and of others those that `keep` accepts.
    ///
    /// Answers what is to be said of a file that is not as it was. One with lines that are no JSON
    /// objects is set aside under `aside-NAME`, and what can be read of it stands in a new one.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, read, shortened or written.
    pub fn resume(
        path: &Path,
        step: u64,
        mark: Option<&MetricsMark>,
        keep: &dyn Fn(&Value) -> bool,
    ) -> Result<(MetricsFile, Option<String>), CheckpointError> {
        let mut metrics = MetricsFile::unread(path)?;
        if let Some(mark) = mark.filter(|mark| metrics.begins_with(mark).unwrap_or(false)) {
            metrics.go_on_at(mark.bytes)?;
            return Ok((metrics, None));
        }
        // Lines of a course go up; the first one beyond the checkpoint ends what is kept.
        let (mut kept, mut end, mut n_bad, mut n_left_out) = (Vec::new(), 0, 0, 0);
        let mut is_over = false;
        metrics.lines(|_, text| {
            let line = serde_json::from_slice::<Value>(text).ok();
            let line = line.filter(Value::is_object);
            let at = line.as_ref().and_then(|line| line["step"].as_u64());
            is_over = is_over || at.is_some_and(|at| at > step);
            match line {
                _ if is_over => {}
                None => n_bad += 1,
                Some(line) if !keep(&line) => n_left_out += 1,
                Some(_) => {
                    kept.extend_from_slice(text);
                    end += text.len() as u64;
                }
            }
            Ok(())
        })?;
        let has = metrics.file.metadata().map_or(0, |metadata| metadata.len());
        let mut aside = String::new();
        if n_bad == 0 && n_left_out == 0 {
            metrics.go_on_at(end)?;
        } else {
            if n_bad > 0 {
                aside = keep_aside(path)?;
            }
            write_atomic(path, &kept)?;
            metrics = MetricsFile::open(path)?;
        }
        let damage = (n_bad > 0).then(|| {
            format!("{n_bad} of its lines are no JSON objects; the file as it was is {aside}")
        });
        let missing = mark.map(|mark| {
            format!(
                "its lines up to step {step} are not those that were written ({} bytes when \
                 {step} was saved, {has} now)",
                mark.bytes
            )
        });
        let remarks: Vec<String> = missing.into_iter().chain(damage).collect();
        let remark = (!remarks.is_empty()).then(|| remarks.join("; "));
        Ok((metrics, remark))
    }

    fn unread(path: &Path) -> Result<MetricsFile, CheckpointError> {
        // Opening a pipe would wait for whoever writes it.
        regular_file::is_there(path)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(CheckpointError::io("open", path))?;
        Ok(MetricsFile {
            path: path.to_owned(),
            file,
            hasher: Sha256::new(),
            bytes: 0,
        })
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
        if let Err(source) = self.file.write_all(&text) {
            // Shortening needs no space; should it fail, the next opening cuts the torn line.
            let _ = self.cut_at(self.bytes);
            return Err(CheckpointError::Write {
                path: self.path.clone(),
                bytes: text.len() as u64,
                source,
            });
        }
        self.hasher.update(&text);
        self.bytes += text.len() as u64;
        Ok(())
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

    /// What the file holds now.
    pub fn mark(&self) -> MetricsMark {
        MetricsMark {
            bytes: self.bytes,
            sha256: hex(&self.hasher.clone().finalize()),
        }
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

    /// Hands on every whole line with its number, from 1.
    fn lines(
        &mut self,
        mut take: impl FnMut(usize, &[u8]) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        self.file
            .rewind()
            .map_err(CheckpointError::io("seek", &self.path))?;
        let mut reader = BufReader::new(&self.file);
        let (mut line_number, mut text) = (0, Vec::new());
        while next_line(&self.path, &mut reader, &mut text)? {
            line_number += 1;
            take(line_number, &text)?;
        }
        Ok(())
    }

    /// Whether the file begins with what was marked.
    fn begins_with(&mut self, mark: &MetricsMark) -> std::io::Result<bool> {
        self.file.rewind()?;
        let mut hasher = Sha256::new();
        let bytes = std::io::copy(&mut (&self.file).take(mark.bytes), &mut hasher)?;
        Ok(bytes == mark.bytes && hex(&hasher.finalize()) == mark.sha256)
    }

    /// Cuts the file at `end`, behind which it is appended to.
    fn go_on_at(&mut self, end: u64) -> Result<(), CheckpointError> {
        self.cut_at(end)?;
        self.hasher = Sha256::new();
        let read = self
            .file
            .rewind()
            .and_then(|()| std::io::copy(&mut (&self.file).take(end), &mut self.hasher));
        self.bytes = read.map_err(CheckpointError::io("read", &self.path))?;
        Ok(())
    }

    fn cut_at(&mut self, end: u64) -> Result<(), CheckpointError> {
        let cut = self.file.set_len(end);
        cut.and_then(|()| self.file.sync_all())
            .and_then(|()| self.file.seek(SeekFrom::Start(end)))
            .map_err(CheckpointError::io("shorten", &self.path))?;
        Ok(())
    }
}

/// Keeps a copy of a damaged file beside it, once; answers its name.
fn keep_aside(path: &Path) -> Result<String, CheckpointError> {
    let bytes = regular_file::read(path, METRICS_BYTES)?;
    let own = path.file_name().unwrap_or_default().to_string_lossy();
    let mut name = format!("aside-{own}");
    let mut number = 2_u64;
    while let Ok(other) = regular_file::read(&path.with_file_name(&name), METRICS_BYTES) {
        if other == bytes {
            return Ok(name);
        }
        name = format!("aside-{number}-{own}");
        number += 1;
    }
    write_atomic(&path.with_file_name(&name), &bytes)?;
    Ok(name)
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
            "a line has more than {METRICS_LINE_BYTES} bytes, the most that is read of one \
             (METRICS_LINE_BYTES in docs/limits.md)"
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
