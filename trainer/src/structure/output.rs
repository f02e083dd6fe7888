//! Answers to lines of a file, or of the terminal, in the order of their rows.
//!
//! A file grows as `NAME.partial`, whose first line says what its answers follow from, and has its
//! name when it is whole: the same command goes on after an interruption, and nobody takes a part
//! for the whole.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_checkpoints::atomic::create_from_rest;
use tooltune_rows::budgets::LINE_BYTES;
use tooltune_rows::lines::{Found, read_line};
use tooltune_rows::regular_file;

use super::answer::Answer;
use crate::error::Error;
use crate::progress::between_bars;

/// What an unfinished file is called after its name.
const PARTIAL: &str = ".partial";

/// How the first line of one begins.
const BEGIN: &[u8] = b"{\"structure\":\"";

/// Where answers go.
pub struct Answers {
    writer: Box<dyn Write>,
    place: PathBuf,
    partial: Option<Partial>,
    /// The number of the answer that is written next.
    next: usize,
    /// Answers that others are still awaited before; a row that has none is passed over.
    waiting: BTreeMap<usize, Option<Vec<u8>>>,
    /// Whether a reader of the terminal has gone away.
    is_gone: bool,
}

impl std::fmt::Debug for Answers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Answers({}, next {})",
            self.place.display(),
            self.next
        )
    }
}

/// A file that is not whole yet.
#[derive(Debug)]
struct Partial {
    path: PathBuf,
    file: File,
    head_bytes: u64,
}

/// The first line of a file that is not whole.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    /// A digest of everything that the answers follow from.
    structure: String,
}

/// The answers of an earlier process, in their order.
#[derive(Debug)]
pub struct Earlier {
    path: PathBuf,
    reader: BufReader<File>,
    n_left: usize,
}

/// What of an answer tells its row, and counts.
#[derive(Debug, Deserialize)]
pub struct EarlierAnswer {
    /// The row's own name, or its place.
    pub id: Value,
    /// Whether it satisfies its schema.
    pub valid: bool,
    /// Why the row could not be read.
    pub error: Option<String>,
}

impl Answers {
    /// Answers for a terminal, a device or a pipe.
    pub fn to_stream(writer: Box<dyn Write>, place: &Path) -> Self {
        Self {
            writer,
            place: place.to_owned(),
            partial: None,
            next: 0,
            waiting: BTreeMap::new(),
            is_gone: false,
        }
    }

    /// Opens a device or a pipe to write to.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub fn open_stream(path: &Path) -> Result<Box<dyn Write>, Error> {
        let file = OpenOptions::new().write(true).open(path);
        Ok(Box::new(file.map_err(Error::io(path, "write"))?))
    }

    /// Answers for a file that is not there yet, after those of an earlier process that was
    /// interrupted; `digest` is one of everything that they follow from.
    ///
    /// # Errors
    ///
    /// Answers of something else are in the way, another process writes them, or the file cannot be
    /// written.
    pub fn to_file(path: &Path, digest: &str) -> Result<(Self, Option<Earlier>), Error> {
        let mut name = OsString::from(path.as_os_str());
        name.push(PARTIAL);
        let growing = PathBuf::from(name);
        let is_there = regular_file::is_there(&growing).map_err(Error::io(&growing, "read"))?;
        let file = OpenOptions::new().append(true).create(true).open(&growing);
        let mut file = file.map_err(Error::io(&growing, "write"))?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(Error::Usage(format!(
                "{}: another process writes these answers; wait for its end, or name another --output",
                growing.display()
            )));
        }
        let found = if is_there {
            scan(&growing, digest)?
        } else {
            None
        };
        let (head_bytes, earlier) = match found {
            Some(found) => {
                // A line that was cut is written anew.
                let cut = file.set_len(found.whole_bytes);
                cut.map_err(Error::io(&growing, "write"))?;
                let earlier = Earlier::open(&growing, found)?;
                (found.head_bytes, Some(earlier))
            }
            None => {
                let head = line(&Head {
                    structure: digest.to_owned(),
                })?;
                let begun = file.set_len(0).and_then(|()| file.write_all(&head));
                begun.map_err(Error::io(&growing, "write"))?;
                (head.len() as u64, None)
            }
        };
        let writer = file.try_clone().map_err(Error::io(&growing, "write"))?;
        let answers = Self {
            writer: Box::new(BufWriter::new(writer)),
            place: path.to_owned(),
            partial: Some(Partial {
                path: growing,
                file,
                head_bytes,
            }),
            next: 0,
            waiting: BTreeMap::new(),
            is_gone: false,
        };
        Ok((answers, earlier.filter(|earlier| earlier.n_left > 0)))
    }

    /// Takes the answer of a row by its number, or that it has none, and writes those that no other is
    /// awaited before.
    ///
    /// # Errors
    ///
    /// They cannot be written.
    pub fn put(&mut self, number: usize, answer: Option<&Answer>) -> Result<(), Error> {
        let answer = answer.map(line).transpose()?;
        self.waiting.insert(number, answer);
        let mut written = Ok(());
        while let Some(ready) = self.waiting.remove(&self.next) {
            self.next += 1;
            if let Some(bytes) = ready {
                written = written.and_then(|()| between_bars(|| self.writer.write_all(&bytes)));
            }
        }
        let written = written.and_then(|()| between_bars(|| self.writer.flush()));
        match written {
            Err(error)
                if self.partial.is_none() && error.kind() == std::io::ErrorKind::BrokenPipe =>
            {
                self.is_gone = true;
                Ok(())
            }
            written => written.map_err(Error::io(&self.place, "write")),
        }
    }

    /// Whether a reader of the stream has gone away.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Rows whose answers are written, those of an earlier process among them.
    pub fn n_written(&self) -> usize {
        self.next
    }

    /// Where the answers are that an interruption leaves, if they are kept.
    pub fn kept(&self) -> Option<&Path> {
        Some(&self.partial.as_ref()?.path)
    }

    /// Gives a file its name; all rows have their answers.
    ///
    /// # Errors
    ///
    /// The disk is full, or a file of this name has come in the meantime.
    pub fn finish(self) -> Result<(), Error> {
        let Some(partial) = self.partial else {
            return Ok(());
        };
        create_from_rest(&self.place, &partial.path, partial.head_bytes)?;
        drop(partial.file);
        std::fs::remove_file(&partial.path).map_err(Error::io(&partial.path, "remove"))
    }
}

/// What a file that is not whole holds.
#[derive(Debug, Clone, Copy)]
struct Scanned {
    head_bytes: u64,
    whole_bytes: u64,
    n_answers: usize,
}

/// Looks through the answers of an earlier process; none where it had begun no answer.
fn scan(path: &Path, digest: &str) -> Result<Option<Scanned>, Error> {
    let file = regular_file::open(path).map_err(Error::io(path, "read"))?;
    let mut reader = BufReader::new(file);
    let mut bytes = Vec::new();
    let mut found = Scanned {
        head_bytes: 0,
        whole_bytes: 0,
        n_answers: 0,
    };
    while next_line(&mut reader, &mut bytes, path)? {
        if found.head_bytes == 0 {
            let head: Option<Head> = serde_json::from_slice(&bytes).ok();
            if head.is_none_or(|head| head.structure != digest) {
                return Err(of_others(path));
            }
            found.head_bytes = bytes.len() as u64;
        } else {
            found.n_answers += 1;
        }
        found.whole_bytes += bytes.len() as u64;
    }
    let is_begun = BEGIN.starts_with(&bytes) || bytes.starts_with(BEGIN);
    if found.head_bytes == 0 && !is_begun {
        return Err(of_others(path));
    }
    Ok((found.head_bytes > 0).then_some(found))
}

fn of_others(path: &Path) -> Error {
    Error::Usage(format!(
        "{}: what is there is not of these rows, settings and weights; remove the file, or name \
         another --output",
        path.display()
    ))
}

/// Reads a line that is whole; whether there is one.
fn next_line(reader: &mut impl BufRead, bytes: &mut Vec<u8>, path: &Path) -> Result<bool, Error> {
    // An answer is little longer than its row, whose line is bounded; with it stands its text.
    let read = read_line(reader, bytes, LINE_BYTES.saturating_mul(2));
    let read = read.map_err(Error::io(path, "read"))?;
    Ok(read == Found::Whole && bytes.ends_with(b"\n"))
}

impl Earlier {
    fn open(path: &Path, found: Scanned) -> Result<Self, Error> {
        let mut file = regular_file::open(path).map_err(Error::io(path, "read"))?;
        let sought = file.seek(SeekFrom::Start(found.head_bytes));
        sought.map_err(Error::io(path, "read"))?;
        Ok(Self {
            path: path.to_owned(),
            reader: BufReader::new(file),
            n_left: found.n_answers,
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.n_left
    }

    /// Whether there is none left.
    pub fn is_empty(&self) -> bool {
        self.n_left == 0
    }

    /// That there are more answers than rows.
    pub(super) fn beyond_the_rows(&self) -> Error {
        Error::Usage(format!(
            "{}: {} answers there are of no row; remove the file, or name another --output",
            self.path.display(),
            self.n_left
        ))
    }

    /// The answer of the next row, whose name is `id`; none after the last.
    ///
    /// # Errors
    ///
    /// It is that of another row, or damaged.
    pub fn take(&mut self, id: &Value) -> Result<Option<EarlierAnswer>, Error> {
        if self.is_empty() {
            return Ok(None);
        }
        self.n_left -= 1;
        let mut bytes = Vec::new();
        next_line(&mut self.reader, &mut bytes, &self.path)?;
        let answer: Option<EarlierAnswer> = serde_json::from_slice(&bytes).ok();
        match answer.filter(|answer| answer.id == *id) {
            Some(answer) => Ok(Some(answer)),
            None => Err(Error::Usage(format!(
                "{}: the answers there are not those of the first rows: one is expected of {id}; \
                 remove the file, or name another --output",
                self.path.display()
            ))),
        }
    }
}

fn line<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    let mut bytes = serde_json::to_vec(value).map_err(|error| Error::Usage(error.to_string()))?;
    bytes.push(b'\n');
    Ok(bytes)
}
