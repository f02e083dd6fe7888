//! The incomplete output file: JSON Lines with an answer, its row number and a checksum.
//!
//! The first line identifies the inputs. If a line is damaged, only its answer is lost; it is
//! generated again and appended. The complete file has the answers in row order, without numbers
//! and checksums.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_disk::atomic::create_in_parts;
use tooltune_disk::regular_file;
use tooltune_json::budgets::LINE_BYTES;
use tooltune_json::line_check::{CHECK_CHARS, check_of_bytes};
use tooltune_json::lines::{BoundedRead, read_line};

use super::output::json_line;
use crate::error::Error;

/// Suffix of an incomplete file.
pub(super) const SUFFIX: &str = ".partial";

/// Beginning of the first line.
const BEGIN: &[u8] = b"{\"structure\":\"";

/// Beginning of a line without a checksum, which earlier versions wrote.
const UNCHECKED: &[u8] = b"{\"id\":";

/// The text of a line around the checksum, the row number and the answer.
const CHECK: &[u8] = b"{\"check\":\"";
const ROW: &[u8] = b"\"row\":";
const ANSWER: &[u8] = b",\"answer\":";

/// Maximum bytes of a line. An answer is hardly longer than its row, whose line is limited, plus
/// the text of the first model.
const MAX_LINE_BYTES: usize = LINE_BYTES.saturating_mul(2);

/// An incomplete file, locked by this process.
#[derive(Debug)]
pub(super) struct PartialFile {
    pub(super) path: PathBuf,
    file: File,
    /// Identifies all inputs.
    digest: String,
}

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    /// Digest of everything that the answers depend on.
    structure: String,
    /// The same digest a second time, in case the line is damaged; missing in files of earlier
    /// versions.
    #[serde(default)]
    again: String,
}

impl Head {
    /// Whether a possibly damaged first line contains the digest.
    fn contains_digest(line: &[u8], digest: &str) -> bool {
        !digest.is_empty()
            && line
                .windows(digest.len())
                .any(|part| part == digest.as_bytes())
    }
}

/// Answers of an earlier process.
#[derive(Debug)]
pub struct Earlier {
    path: PathBuf,
    reader: BufReader<File>,
    /// Byte offset of each line, keyed by row number.
    offsets: BTreeMap<usize, u64>,
}

/// The fields of an answer that identify its row or are counted.
#[derive(Debug, Deserialize)]
pub struct EarlierAnswer {
    /// Id of the row, or its location.
    pub id: Value,
    /// Whether the JSON satisfies its schema.
    pub valid: bool,
    /// Why the row could not be read.
    pub error: Option<String>,
}

impl PartialFile {
    /// Opens or creates the file at `path`. Also returns the answers of an interrupted process.
    ///
    /// # Errors
    ///
    /// The file has different inputs, another process writes it, or it cannot be read or written.
    pub(super) fn open(path: PathBuf, digest: &str) -> Result<(Self, Earlier), Error> {
        let exists = regular_file::own_file_exists(&path).map_err(Error::io(&path, "read"))?;
        let mut options = OpenOptions::new();
        let file = regular_file::open_own(&path, options.append(true).create(true));
        let mut file = file.map_err(Error::io(&path, "write"))?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(Error::Usage(format!(
                "{}: another process is writing these answers; wait until it ends, or name \
                 another --output",
                path.display()
            )));
        }
        let scanned = match exists {
            true => scan(&path, digest)?,
            false => None,
        };
        let offsets = match scanned {
            Some(scanned) => {
                scanned.warn_of_damage(&path);
                // Remove an incomplete last line; its answer is generated again.
                let cut = file.set_len(scanned.complete_bytes);
                cut.map_err(Error::io(&path, "write"))?;
                scanned.offsets
            }
            None => {
                let head = json_line(&Head {
                    structure: digest.to_owned(),
                    again: digest.to_owned(),
                })?;
                let begun = file.set_len(0).and_then(|()| file.write_all(&head));
                begun.map_err(Error::io(&path, "write"))?;
                BTreeMap::new()
            }
        };
        let reader = regular_file::open(&path).map_err(Error::io(&path, "read"))?;
        let earlier = Earlier {
            path: path.clone(),
            reader: BufReader::new(reader),
            offsets,
        };
        let digest = digest.to_owned();
        Ok((Self { path, file, digest }, earlier))
    }

    /// A second file handle, for appending lines.
    pub(super) fn writer(&self) -> Result<File, Error> {
        self.file
            .try_clone()
            .map_err(Error::io(&self.path, "write"))
    }

    /// Writes the `n_answers` answers to `output` in row order, and removes the file.
    ///
    /// # Errors
    ///
    /// Lines were damaged after they were written, `output` exists, or the disk is full.
    pub(super) fn finish(self, output: &Path, n_answers: usize) -> Result<(), Error> {
        let damaged = || {
            Error::Usage(format!(
                "{}: lines were damaged or removed after this command wrote them; run the same \
                 command again, which keeps the other answers",
                self.path.display()
            ))
        };
        let scanned = scan(&self.path, &self.digest)?;
        let scanned = scanned.filter(|scanned| scanned.offsets.len() == n_answers);
        let scanned = scanned.ok_or_else(damaged)?;
        let file = regular_file::open(&self.path).map_err(Error::io(&self.path, "read"))?;
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        create_in_parts(output, scanned.answer_bytes, |file| -> Result<(), Error> {
            for &offset in scanned.offsets.values() {
                read_at(&mut reader, offset, &mut line, &self.path)?;
                let stored = StoredAnswer::parse(&line).ok_or_else(damaged)?;
                file.write(stored.answer)?;
                file.write(b"\n")?;
            }
            Ok(())
        })?;
        drop(self.file);
        std::fs::remove_file(&self.path).map_err(Error::io(&self.path, "remove"))
    }
}

impl Earlier {
    /// Number of answers that were not retrieved yet.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether no answers remain.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// The error if there are more answers than rows.
    pub(super) fn too_many_answers(&self) -> Error {
        Error::Usage(format!(
            "{}: {} answers belong to no row; remove the file, or name another --output",
            self.path.display(),
            self.len()
        ))
    }

    /// Returns the answer of row number `row`, whose ID is `id`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The answer belongs to a different row, or the file cannot be read.
    pub fn take(&mut self, row: usize, id: &Value) -> Result<Option<EarlierAnswer>, Error> {
        let Some(offset) = self.offsets.remove(&row) else {
            return Ok(None);
        };
        let mut line = Vec::new();
        read_at(&mut self.reader, offset, &mut line, &self.path)?;
        let stored = StoredAnswer::parse(&line);
        let answer = stored.and_then(|stored| tooltune_json::from_slice(stored.answer).ok());
        match answer.filter(|answer: &EarlierAnswer| answer.id == *id) {
            Some(answer) => Ok(Some(answer)),
            None => Err(Error::Usage(format!(
                "{}: the answers do not match the rows: the answer of row {} should be for {id}; \
                 remove the file, or name another --output",
                self.path.display(),
                row + 1
            ))),
        }
    }
}

/// Formats an answer as a line of the file.
pub(super) fn stored_line(row: usize, answer: &[u8]) -> Vec<u8> {
    let mut rest = [ROW, row.to_string().as_bytes(), ANSWER, answer].concat();
    rest.push(b'}');
    let check = check_of_bytes(&rest);
    [CHECK, check.as_bytes(), b"\",", &rest, b"\n"].concat()
}

/// A parsed line of the file.
struct StoredAnswer<'l> {
    row: usize,
    /// The JSON of the answer.
    answer: &'l [u8],
}

impl<'l> StoredAnswer<'l> {
    /// Parses a line; `None` if it is damaged.
    fn parse(line: &'l [u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\n")?.strip_prefix(CHECK)?;
        let (check, rest) = line.split_at_checked(CHECK_CHARS)?;
        let rest = rest.strip_prefix(b"\",")?;
        if check != check_of_bytes(rest).as_bytes() {
            return None;
        }
        let rest = rest.strip_prefix(ROW)?;
        let n_digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (row, rest) = rest.split_at(n_digits);
        Some(Self {
            row: std::str::from_utf8(row).ok()?.parse().ok()?,
            answer: rest.strip_prefix(ANSWER)?.strip_suffix(b"}")?,
        })
    }
}

/// Reads the line that starts at `offset`.
fn read_at(
    reader: &mut BufReader<File>,
    offset: u64,
    line: &mut Vec<u8>,
    path: &Path,
) -> Result<(), Error> {
    let unreadable = || Error::io(path, "read");
    // Lines are mostly in order. Seek only if necessary, because it would discard the buffer.
    if reader.stream_position().map_err(unreadable())? != offset {
        reader.seek(SeekFrom::Start(offset)).map_err(unreadable())?;
    }
    read_line(reader, line, MAX_LINE_BYTES).map_err(unreadable())?;
    Ok(())
}

/// The content of an incomplete file.
#[derive(Debug, Default)]
struct Scanned {
    /// Offset after the last complete line.
    complete_bytes: u64,
    /// Byte offset of each undamaged line, keyed by row number.
    offsets: BTreeMap<usize, u64>,
    /// Bytes of the complete file.
    answer_bytes: u64,
    n_damaged: usize,
    /// Line number of the first damaged line.
    first_damaged: Option<usize>,
}

impl Scanned {
    fn add(&mut self, line: &[u8], number: usize, offset: u64) {
        match StoredAnswer::parse(line) {
            Some(stored) => {
                let replaced = self.offsets.insert(stored.row, offset);
                if replaced.is_none() {
                    self.answer_bytes += stored.answer.len() as u64 + 1;
                }
            }
            None => {
                self.n_damaged += 1;
                self.first_damaged.get_or_insert(number);
            }
        }
    }

    fn warn_of_damage(&self, path: &Path) {
        if let Some(first) = self.first_damaged {
            tracing::warn!(
                "{}:{first}: {} of {} lines are damaged; their answers are generated again",
                path.display(),
                self.n_damaged,
                self.n_damaged + self.offsets.len()
            );
        }
    }
}

/// Scans the answers of an earlier process; `None` if the file has no complete first line.
fn scan(path: &Path, digest: &str) -> Result<Option<Scanned>, Error> {
    let file = regular_file::open_own_file_to_read(path);
    let mut reader = BufReader::new(file.map_err(Error::io(path, "read"))?);
    let mut line = Vec::new();
    let mut scanned = Scanned::default();
    let (mut number, mut offset) = (0, 0);
    loop {
        let found = read_line(&mut reader, &mut line, MAX_LINE_BYTES);
        let found = found.map_err(Error::io(path, "read"))?;
        let is_complete = line.ends_with(b"\n");
        if number == 0 && !is_complete {
            let is_begun = BEGIN.starts_with(&line) || line.starts_with(BEGIN);
            return match is_begun {
                true => Ok(None),
                false => Err(other_inputs(path)),
            };
        }
        // Only the last line can be incomplete.
        if found == BoundedRead::End || (found == BoundedRead::Whole && !is_complete) {
            return Ok(Some(scanned));
        }
        number += 1;
        let start = offset;
        offset += line.len() as u64;
        if is_complete {
            scanned.complete_bytes = offset;
        }
        if number > 1 {
            if line.starts_with(UNCHECKED) {
                return Err(earlier_version(path, number));
            }
            scanned.add(&line, number, start);
            continue;
        }
        let head: Option<Head> = tooltune_json::from_slice(&line).ok();
        let is_own = head.is_some_and(|head| head.structure == digest);
        if !is_own && !Head::contains_digest(&line, digest) {
            return Err(other_inputs(path));
        }
    }
}

fn other_inputs(path: &Path) -> Error {
    Error::Usage(format!(
        "{}: the file has answers for other rows, settings or weights; remove it, or name \
         another --output",
        path.display()
    ))
}

fn earlier_version(path: &Path, number: usize) -> Error {
    Error::Usage(format!(
        "{}:{number}: the line has no checksum, because an earlier version of tooltune wrote it; \
         complete the file with that version, or remove it to generate all answers again",
        path.display()
    ))
}
