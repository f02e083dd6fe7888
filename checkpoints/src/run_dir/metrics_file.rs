//! `metrics.jsonl`: one JSON object with a `step` per line, appended during the run.
//!
//! A killed run leaves lines after its last checkpoint, and possibly a partial last line. The
//! resumed run repeats these steps, so it first removes the lines. The file is then the same as if
//! the run had never stopped. A [`MetricsMark`] stores the position of a checkpoint in the file,
//! and a digest of the lines up to it.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tooltune_disk::DiskError;
use tooltune_disk::appended::{Loss, detect_loss, write_again};
use tooltune_disk::atomic::write_atomic;

use crate::budgets::{METRICS_BYTES, METRICS_LINE_BYTES};
use crate::digest::hex;
use crate::error::CheckpointError;
use crate::regular_file;

/// A metrics file opened for appending.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
    /// Hash of all lines, for [`MetricsFile::mark`].
    hasher: Sha256,
    bytes: u64,
    remarks: Vec<String>,
}

/// Length and digest of a metrics file when a checkpoint was saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsMark {
    /// Length of the lines in bytes.
    pub bytes: u64,
    /// SHA-256 of the lines.
    pub sha256: String,
}

impl MetricsFile {
    /// Opens or creates `path` for appending, and removes a partial last line.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, read or truncated.
    pub fn open(path: &Path) -> Result<MetricsFile, CheckpointError> {
        let mut metrics = MetricsFile::open_unhashed(path)?;
        let mut end = 0;
        metrics.lines(|_, text| {
            end += text.len() as u64;
            Ok(())
        })?;
        metrics.truncate_at(end)?;
        Ok(metrics)
    }

    /// Opens `path` for a run that resumes after `step`, and removes later lines. `mark` is the
    /// state of the file when the checkpoint was saved; `None` for files without a mark. If the
    /// file matches the mark, every line up to it is kept; otherwise, only the lines that `keep`
    /// accepts.
    ///
    /// Returns a remark for the user if the file differs from the mark. A file with lines that are
    /// not JSON objects is kept as `aside-NAME`, and its readable lines are copied to a new file.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, read, truncated or written.
    pub fn resume(
        path: &Path,
        step: u64,
        mark: Option<&MetricsMark>,
        keep: &dyn Fn(&Value) -> bool,
    ) -> Result<(MetricsFile, Option<String>), CheckpointError> {
        let mut metrics = MetricsFile::open_unhashed(path)?;
        if let Some(mark) = mark.filter(|mark| metrics.begins_with(mark).unwrap_or(false)) {
            metrics.truncate_at(mark.bytes)?;
            return Ok((metrics, None));
        }
        // Steps only increase; the first line after the checkpoint ends the kept part.
        let (mut kept, mut end, mut n_bad, mut n_left_out) = (Vec::new(), 0, 0, 0);
        let mut is_past_step = false;
        metrics.lines(|_, text| {
            let line = serde_json::from_slice::<Value>(text).ok();
            let line = line.filter(Value::is_object);
            let line_step = line.as_ref().and_then(|line| line["step"].as_u64());
            is_past_step = is_past_step || line_step.is_some_and(|line_step| line_step > step);
            match line {
                _ if is_past_step => {}
                None => n_bad += 1,
                Some(line) if !keep(&line) => n_left_out += 1,
                Some(_) => {
                    kept.extend_from_slice(text);
                    end += text.len() as u64;
                }
            }
            Ok(())
        })?;
        let n_bytes = metrics.file.metadata().map_or(0, |metadata| metadata.len());
        let mut aside = String::new();
        if n_bad == 0 && n_left_out == 0 {
            metrics.truncate_at(end)?;
        } else {
            if n_bad > 0 {
                aside = copy_aside(path)?;
            }
            write_atomic(path, &kept)?;
            metrics = MetricsFile::open(path)?;
        }
        let damage = (n_bad > 0).then(|| {
            format!("{n_bad} of its lines are not JSON objects; the original file is now {aside}")
        });
        let missing = mark.map(|mark| {
            format!(
                "its lines up to step {step} differ from the checkpoint's lines ({} bytes when \
                 step {step} was saved, {n_bytes} now)",
                mark.bytes
            )
        });
        let remarks: Vec<String> = missing.into_iter().chain(damage).collect();
        let remark = (!remarks.is_empty()).then(|| remarks.join("; "));
        Ok((metrics, remark))
    }

    fn open_unhashed(path: &Path) -> Result<MetricsFile, CheckpointError> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        let file = tooltune_disk::regular_file::open_own(path, &mut options)
            .map_err(CheckpointError::io("open", path))?;
        Ok(MetricsFile {
            path: path.to_owned(),
            file,
            hasher: Sha256::new(),
            bytes: 0,
            remarks: Vec::new(),
        })
    }

    /// Appends `line`, which must be an object, without buffering.
    ///
    /// # Errors
    ///
    /// - `line` is not an object.
    /// - The line cannot be written completely, for example because the disk is full. A partial
    ///   line is removed if possible.
    pub fn append(&mut self, line: &Value) -> Result<(), CheckpointError> {
        if !line.is_object() {
            let problem = "a metrics line must be a JSON object";
            return Err(CheckpointError::field(&self.path, "line", problem));
        }
        let mut text = serde_json::to_vec(line).map_err(CheckpointError::json(&self.path))?;
        text.push(b'\n');
        self.accept_truncation()?;
        if let Err(source) = self.file.write_all(&text) {
            // Truncation needs no disk space. If it fails, the partial line is removed when the
            // file is opened again.
            let _ = self.truncate_file(self.bytes);
            return Err(DiskError::Write {
                path: self.path.clone(),
                bytes: text.len() as u64,
                source,
            }
            .into());
        }
        self.hasher.update(&text);
        self.bytes += text.len() as u64;
        Ok(())
    }

    /// Syncs the appended lines to disk, and writes the file again if another program removed or
    /// replaced it. Call this before saving a checkpoint.
    ///
    /// # Errors
    ///
    /// The operating system cannot write them.
    pub fn sync(&mut self) -> Result<(), CheckpointError> {
        self.accept_truncation()?;
        let loss = detect_loss(&self.file, &self.path, self.bytes);
        match loss.map_err(CheckpointError::io("read", &self.path))? {
            Some(Loss::Removed) => {
                self.file = write_again(&mut self.file, &self.path)?;
                self.remark(
                    "the file was removed during the run; wrote it again with all its lines",
                );
            }
            Some(Loss::Replaced) => {
                let aside = copy_aside(&self.path)?;
                std::fs::remove_file(&self.path)
                    .map_err(CheckpointError::io("remove", &self.path))?;
                self.file = write_again(&mut self.file, &self.path)?;
                self.remark(&format!(
                    "another file replaced it during the run and is now {aside}; wrote the file \
                     again with all its lines"
                ));
            }
            Some(Loss::Truncated) | None => {}
        }
        self.file
            .sync_all()
            .map_err(CheckpointError::io("sync", &self.path))
    }

    /// Remarks for the user about changes by other programs since the last call.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    fn remark(&mut self, remark: &str) {
        self.remarks
            .push(format!("{}: {remark}", self.path.display()));
    }

    /// Continues after the last complete line if another program truncated the file.
    fn accept_truncation(&mut self) -> Result<(), CheckpointError> {
        let found = self.file.metadata();
        let found = found
            .map_err(CheckpointError::io("read", &self.path))?
            .len();
        let before = self.bytes;
        if found >= before {
            return Ok(());
        }
        let mut end = 0;
        self.lines(|_, text| {
            end += text.len() as u64;
            Ok(())
        })?;
        self.truncate_at(end)?;
        self.remark(&format!(
            "another program truncated the file during the run, from {before} to {found} bytes; \
             its last lines are lost"
        ));
        Ok(())
    }

    /// The current length and digest.
    pub fn mark(&self) -> MetricsMark {
        MetricsMark {
            bytes: self.bytes,
            sha256: hex(&self.hasher.clone().finalize()),
        }
    }

    /// All complete lines of a metrics file, in order. A partial last line is ignored.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a complete line is not a JSON object; the error contains its
    /// line number.
    pub fn read(path: &Path) -> Result<Vec<Value>, CheckpointError> {
        let mut reader = BufReader::new(regular_file::open(path)?);
        let mut lines = Vec::new();
        let mut text = Vec::new();
        while next_line(path, &mut reader, &mut text)? {
            lines.push(parse_line(path, lines.len() + 1, &text)?);
        }
        Ok(lines)
    }

    /// Calls the closure with every complete line and its number, from 1.
    fn lines(
        &mut self,
        mut visit: impl FnMut(usize, &[u8]) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        self.file
            .rewind()
            .map_err(CheckpointError::io("seek", &self.path))?;
        let mut reader = BufReader::new(&self.file);
        let (mut line_number, mut text) = (0, Vec::new());
        while next_line(&self.path, &mut reader, &mut text)? {
            line_number += 1;
            visit(line_number, &text)?;
        }
        Ok(())
    }

    /// Whether the file begins with the marked lines.
    fn begins_with(&mut self, mark: &MetricsMark) -> std::io::Result<bool> {
        self.file.rewind()?;
        let mut hasher = Sha256::new();
        let bytes = std::io::copy(&mut (&self.file).take(mark.bytes), &mut hasher)?;
        Ok(bytes == mark.bytes && hex(&hasher.finalize()) == mark.sha256)
    }

    /// Truncates the file at `end` and continues appending there.
    fn truncate_at(&mut self, end: u64) -> Result<(), CheckpointError> {
        self.truncate_file(end)?;
        self.hasher = Sha256::new();
        let n_read = self
            .file
            .rewind()
            .and_then(|()| std::io::copy(&mut (&self.file).take(end), &mut self.hasher));
        self.bytes = n_read.map_err(CheckpointError::io("read", &self.path))?;
        Ok(())
    }

    fn truncate_file(&mut self, end: u64) -> Result<(), CheckpointError> {
        let truncated = self.file.set_len(end);
        truncated
            .and_then(|()| self.file.sync_all())
            .and_then(|()| self.file.seek(SeekFrom::Start(end)))
            .map_err(CheckpointError::io("shorten", &self.path))?;
        Ok(())
    }
}

/// Copies a damaged file to a new name in the same folder, unless a copy exists, and returns that
/// name.
fn copy_aside(path: &Path) -> Result<String, CheckpointError> {
    let bytes = regular_file::read(path, METRICS_BYTES)?;
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut name = format!("aside-{file_name}");
    let mut number = 2_u64;
    while let Ok(existing) = regular_file::read(&path.with_file_name(&name), METRICS_BYTES) {
        if existing == bytes {
            return Ok(name);
        }
        name = format!("aside-{number}-{file_name}");
        number += 1;
    }
    write_atomic(&path.with_file_name(&name), &bytes)?;
    Ok(name)
}

/// Reads the next complete line into `text`. Returns false at the end.
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
            "a line exceeds the limit of {METRICS_LINE_BYTES} bytes \
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

#[cfg(test)]
mod tests;
