//! Writes answers in row order, to a file or to standard output.
//!
//! If the output is a file, answers are first written to `NAME.partial`. The same command resumes
//! after an interruption, and an incomplete file cannot be mistaken for a complete one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::answer::Answer;
use super::partial::{Earlier, PartialFile, SUFFIX, stored_line};
use crate::error::Error;
use tooltune_terminal::write_between_bars;

/// Destination of the answers.
pub struct Answers {
    writer: Box<dyn Write>,
    path: PathBuf,
    partial: Option<PartialFile>,
    /// Index of the next answer to write.
    next: usize,
    /// Answers that must wait for earlier ones; `None` for rows without an answer.
    waiting: BTreeMap<usize, Option<Vec<u8>>>,
    /// Number of written answers, with answers of an earlier process.
    n_written: usize,
    /// Whether the output was closed by its reader.
    is_closed: bool,
}

impl std::fmt::Debug for Answers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Answers({}, next {})",
            self.path.display(),
            self.next
        )
    }
}

impl Answers {
    /// Writes answers to a terminal, device or pipe.
    pub fn to_stream(writer: Box<dyn Write>, path: &Path) -> Self {
        Self {
            writer,
            path: path.to_owned(),
            partial: None,
            next: 0,
            waiting: BTreeMap::new(),
            n_written: 0,
            is_closed: false,
        }
    }

    /// Opens a device or pipe for writing.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub fn open_stream(path: &Path) -> Result<Box<dyn Write>, Error> {
        let file = OpenOptions::new().write(true).open(path);
        Ok(Box::new(file.map_err(Error::io(path, "write"))?))
    }

    /// Writes answers to a new file, and continues after an interrupted process; `digest`
    /// identifies all inputs.
    ///
    /// # Errors
    ///
    /// The incomplete file has different inputs, another process writes it, or it cannot be
    /// written.
    pub fn to_file(path: &Path, digest: &str) -> Result<(Self, Option<Earlier>), Error> {
        let mut name = OsString::from(path.as_os_str());
        name.push(SUFFIX);
        let (partial, earlier) = PartialFile::open(PathBuf::from(name), digest)?;
        let answers = Self {
            writer: Box::new(BufWriter::new(partial.writer()?)),
            path: path.to_owned(),
            partial: Some(partial),
            next: 0,
            waiting: BTreeMap::new(),
            n_written: earlier.len(),
            is_closed: false,
        };
        Ok((answers, Some(earlier).filter(|earlier| !earlier.is_empty())))
    }

    /// Adds the answer of row `number` (`None` for a row without an answer), and writes all answers
    /// that are next in order.
    ///
    /// # Errors
    ///
    /// The answers cannot be written.
    pub fn add(&mut self, number: usize, answer: Option<&Answer>) -> Result<(), Error> {
        let answer = answer.map(|answer| self.line(number, answer)).transpose()?;
        self.waiting.insert(number, answer);
        let mut result = Ok(());
        while let Some(ready) = self.waiting.remove(&self.next) {
            self.next += 1;
            if let Some(bytes) = ready {
                self.n_written += 1;
                result = result.and_then(|()| write_between_bars(|| self.writer.write_all(&bytes)));
            }
        }
        let result = result.and_then(|()| write_between_bars(|| self.writer.flush()));
        match result {
            Err(error)
                if self.partial.is_none() && error.kind() == std::io::ErrorKind::BrokenPipe =>
            {
                self.is_closed = true;
                Ok(())
            }
            result => result.map_err(Error::io(&self.path, "write")),
        }
    }

    /// Formats an answer for the output.
    fn line(&self, number: usize, answer: &Answer) -> Result<Vec<u8>, Error> {
        let line = json_line(answer)?;
        Ok(match self.partial {
            Some(_) => stored_line(number, line.trim_ascii_end()),
            None => line,
        })
    }

    /// Whether the stream was closed by its reader.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Number of written answers, with answers of an earlier process.
    pub fn n_written(&self) -> usize {
        self.n_written
    }

    /// Path of the incomplete file, which is kept after an interruption; `None` for a stream.
    pub fn partial_path(&self) -> Option<&Path> {
        Some(&self.partial.as_ref()?.path)
    }

    /// Writes the complete file after all rows were answered, and removes the incomplete file.
    ///
    /// # Errors
    ///
    /// The disk is full, a file of this name was created in the meantime, or lines of the
    /// incomplete file were damaged.
    pub fn finish(self) -> Result<(), Error> {
        match self.partial {
            Some(partial) => partial.finish(&self.path, self.n_written),
            None => Ok(()),
        }
    }
}

/// Formats a value as a line of JSON.
pub(super) fn json_line<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    let mut bytes = serde_json::to_vec(value).map_err(|error| Error::Usage(error.to_string()))?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A digest as long as a real one.
    fn digest() -> String {
        "0a".repeat(32)
    }

    fn answer(id: usize) -> Answer {
        Answer::blank_text(json!(id))
    }

    /// Creates an incomplete file with the answers of rows 0, 1 and 2. Returns the paths of the
    /// complete and the incomplete file.
    fn unfinished(dir: &Path) -> (PathBuf, PathBuf) {
        let path = dir.join("answers.jsonl");
        let (mut answers, earlier) = Answers::to_file(&path, &digest()).expect("a new file");
        assert!(earlier.is_none());
        for row in 0..3 {
            answers.add(row, Some(&answer(row))).expect("written");
        }
        (path, dir.join("answers.jsonl.partial"))
    }

    /// The rows that have an answer in an incomplete file.
    fn earlier_rows(path: &Path) -> Vec<usize> {
        let (_, earlier) = Answers::to_file(path, &digest()).expect("it continues");
        let Some(mut earlier) = earlier else {
            return Vec::new();
        };
        let mut has_answer = |row: &usize| {
            let answer = earlier.take(*row, &json!(row)).expect("its own answer");
            answer.is_some()
        };
        (0..3).filter(|row| has_answer(row)).collect()
    }

    /// Completes a file like the command: answers each row that has no answer.
    fn complete(path: &Path) -> Result<String, Error> {
        let (mut answers, mut earlier) = Answers::to_file(path, &digest())?;
        for row in 0..3 {
            let earlier = earlier.as_mut();
            let earlier = earlier.map(|earlier| earlier.take(row, &json!(row)));
            let missing = earlier.transpose()?.flatten().is_none();
            answers.add(row, missing.then(|| answer(row)).as_ref())?;
        }
        answers.finish()?;
        Ok(std::fs::read_to_string(path).expect("the complete file"))
    }

    #[test]
    fn a_damaged_byte_costs_the_answer_of_its_line_and_no_other() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, growing) = unfinished(dir.path());
        assert_eq!(earlier_rows(&path), [0, 1, 2]);
        let complete = std::fs::read(&growing).expect("there");
        let ends = complete
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n');
        let ends: Vec<usize> = ends.map(|(at, _)| at).collect();
        for at in 0..ends[3] {
            let mut bytes = complete.clone();
            bytes[at] ^= 1;
            std::fs::write(&growing, bytes).expect("written");
            let mut expected = vec![0, 1, 2];
            match ends.iter().position(|&end| at <= end) {
                // The first line contains the digest twice. If its line break is damaged, the next
                // line is lost.
                Some(0) if at < ends[0] => {}
                Some(0) => expected.retain(|row| *row != 0),
                Some(line) if at < ends[line] => expected.retain(|row| row + 1 != line),
                // Without the line break between them, two lines become one damaged line.
                Some(line) => expected.retain(|row| row + 1 != line && *row != line),
                None => {}
            }
            assert_eq!(earlier_rows(&path), expected, "byte {at}");
        }
        let other = Answers::to_file(&path, &"1b".repeat(32));
        assert!(other.is_err(), "the answers belong to other rows");
    }

    /// Invariant: `structure` returns one answer per row in order, and an interruption changes none.
    #[test]
    fn a_file_with_a_damaged_line_is_completed_in_row_order() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, growing) = unfinished(dir.path());
        let damaged = std::fs::read_to_string(&growing).expect("there");
        let expected = complete(&path).expect("completed");
        assert_eq!(expected.lines().count(), 3);
        assert!(!expected.contains("check"), "{expected}");
        assert!(!growing.exists());
        std::fs::remove_file(&path).expect("removed");
        // The checksum of row 1 no longer matches.
        let damaged = damaged.replacen("\"id\":1,", "\"id\":7,", 1);
        std::fs::write(&growing, damaged).expect("written");
        assert_eq!(complete(&path).expect("completed"), expected);
    }

    #[test]
    fn a_line_without_a_checksum_is_refused_by_its_version() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, growing) = unfinished(dir.path());
        let text = std::fs::read_to_string(&growing).expect("there");
        let head = text.lines().next().expect("a first line");
        let unchecked = "{\"id\":1,\"valid\":true,\"error\":null}";
        std::fs::write(&growing, format!("{head}\n{unchecked}\n")).expect("written");
        let error = Answers::to_file(&path, &digest()).expect_err("refused");
        let error = error.to_string();
        assert!(error.contains(":2: the line has no checksum"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_instead_of_a_partial_file_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "precious").expect("written");
        let growing = dir.path().join("answers.jsonl.partial");
        for target in [victim.clone(), dir.path().join("new")] {
            std::os::unix::fs::symlink(&target, &growing).expect("a link");
            let error = Answers::to_file(&dir.path().join("answers.jsonl"), &digest());
            let error = error.expect_err("a link").to_string();
            assert!(error.contains("a symbolic link"), "{error}");
            std::fs::remove_file(&growing).expect("removed");
        }
        assert_eq!(std::fs::read(&victim).expect("there"), b"precious");
        assert!(!dir.path().join("new").exists());
    }
}
