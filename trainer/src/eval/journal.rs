//! Saves completions as they are generated, so that an interrupted evaluation can resume.
//!
//! The first line is the digest of the evaluation. Each further line is a completion with a prefix
//! of that digest and a checksum. If a crash or disk error damages a line, only its completion is
//! lost: a warning counts it, and the prompt is completed again. A damaged first line loses
//! nothing.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooltune_disk::appended::{Loss, detect_loss};
use tooltune_disk::atomic::write_atomic;
use tooltune_disk::regular_file;
use tooltune_json::budgets::LINE_BYTES;
use tooltune_json::line_check::{CHECK_CHARS, check_of_value};
use tooltune_json::lines::{BoundedRead, read_line};

use super::generator::Completion;
use crate::error::Error;

/// File name in the evaluation folder.
pub const JOURNAL_FILE: &str = "texts.partial.jsonl";

/// The journal of a running evaluation.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Digest of the evaluation.
    evaluation: String,
    written: HashMap<String, Completion>,
}

#[derive(Debug, Serialize, Deserialize)]
// `deny_unknown_fields` rejects completion lines, which also have an `evaluation` field.
#[serde(deny_unknown_fields)]
struct Head {
    /// Digest of everything that the completions depend on.
    evaluation: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    id: String,
    #[serde(flatten)]
    written: Completion,
    /// Prefix of the evaluation digest; missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    evaluation: Option<String>,
    /// Prefix of the digest of the other fields; missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<String>,
}

impl Journal {
    /// Opens the journal in `dir` or creates it; `evaluation` is a digest of everything that the
    /// completions depend on.
    ///
    /// # Errors
    ///
    /// The journal belongs to a different evaluation, or the file cannot be read or written.
    pub fn open(dir: &Path, evaluation: &str) -> Result<Self, Error> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir, "create"))?;
        let path = dir.join(JOURNAL_FILE);
        let exists = regular_file::own_file_exists(&path).map_err(Error::io(&path, "read"))?;
        let completions = if exists {
            read(&path, evaluation)?
        } else {
            HashMap::new()
        };
        // Rewrite the whole file, so that no damaged line remains in the middle.
        let file = write_all(&path, evaluation, &completions)?;
        Ok(Self {
            file,
            evaluation: evaluation.to_owned(),
            path,
            written: completions,
        })
    }

    /// Number of completions.
    pub fn len(&self) -> usize {
        self.written.len()
    }

    /// Whether there are no completions.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    /// The completion of a prompt, if saved.
    pub fn saved_completion(&self, id: &str) -> Option<Completion> {
        self.written.get(id).cloned()
    }

    /// Saves the completion of a prompt. Recreates the file if it was deleted.
    ///
    /// # Errors
    ///
    /// The disk is full, or the file was replaced by a different one.
    pub fn add(&mut self, id: &str, completion: &Completion) -> Result<(), Error> {
        if self.is_removed()? {
            tracing::warn!(
                "{}: the file was deleted during the evaluation; recreated it with all {} \
                 completions",
                self.path.display(),
                self.written.len()
            );
            self.file = write_all(&self.path, &self.evaluation, &self.written)?;
        }
        let bytes = line(&self.path, &Line::new(id, completion, &self.evaluation))?;
        self.file
            .write_all(&bytes)
            .map_err(Error::io(&self.path, "write"))?;
        self.written.insert(id.to_owned(), completion.clone());
        Ok(())
    }

    /// Whether the open file was deleted.
    fn is_removed(&self) -> Result<bool, Error> {
        let loss = detect_loss(&self.file, &self.path, 0);
        match loss.map_err(Error::io(&self.path, "read"))? {
            Some(Loss::Removed) => Ok(true),
            Some(Loss::Replaced) => Err(Error::Usage(format!(
                "{}: the journal was replaced by another file; move that file away and run the \
                 same command again",
                self.path.display()
            ))),
            Some(Loss::Truncated) | None => Ok(false),
        }
    }
}

/// Writes a journal with these completions and opens it for appending.
fn write_all(
    path: &Path,
    evaluation: &str,
    completions: &HashMap<String, Completion>,
) -> Result<File, Error> {
    let mut bytes = line(
        path,
        &Head {
            evaluation: evaluation.to_owned(),
        },
    )?;
    let mut texts: Vec<(&String, &Completion)> = completions.iter().collect();
    texts.sort_by_key(|(id, _)| *id);
    for (id, completions) in texts {
        bytes.extend(line(path, &Line::new(id, completions, evaluation))?);
    }
    write_atomic(path, &bytes)?;
    regular_file::open_own(path, OpenOptions::new().append(true)).map_err(Error::io(path, "write"))
}

impl Line {
    fn new(id: &str, completion: &Completion, evaluation: &str) -> Self {
        let mut line = Self {
            id: id.to_owned(),
            written: completion.clone(),
            evaluation: Some(prefix(evaluation).to_owned()),
            check: None,
        };
        line.check = Some(line.digest());
        line
    }

    fn digest(&self) -> String {
        match &self.evaluation {
            Some(evaluation) => check_of_value(&(&self.id, &self.written, evaluation)),
            None => check_of_value(&(&self.id, &self.written)),
        }
    }

    /// Parses a line; `None` if it is damaged.
    fn read(bytes: &[u8]) -> Option<Self> {
        let line: Self = tooltune_json::from_slice(bytes).ok()?;
        let is_intact = (line.check.as_ref()).is_none_or(|check| *check == line.digest());
        is_intact.then_some(line)
    }
}

/// The prefix of a digest that lines contain.
fn prefix(digest: &str) -> &str {
    digest.get(..CHECK_CHARS).unwrap_or(digest)
}

/// The number of completions in a folder's journal; `None` if there is no journal.
///
/// # Errors
///
/// The file cannot be read.
pub fn n_texts(dir: &Path) -> Result<Option<usize>, Error> {
    let path = dir.join(JOURNAL_FILE);
    let file = match regular_file::open_own_file_to_read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(Error::io(&path, "read"))?,
    };
    let n_lines = n_line_ends(&mut BufReader::new(file)).map_err(Error::io(&path, "read"))?;
    Ok(Some(n_lines.saturating_sub(1)))
}

/// Counts line breaks without storing the lines.
fn n_line_ends(reader: &mut impl BufRead) -> std::io::Result<usize> {
    let mut n = 0;
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return Ok(n);
        }
        n += bytes.iter().filter(|byte| **byte == b'\n').count();
        let n_read = bytes.len();
        reader.consume(n_read);
    }
}

/// Removes the journal of a complete evaluation.
///
/// # Errors
///
/// The file cannot be removed.
pub fn remove(dir: &Path) -> Result<(), Error> {
    let path = dir.join(JOURNAL_FILE);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(&path, "remove")(error))
        }
        _ => Ok(()),
    }
}

fn line<T: Serialize>(path: &Path, line: &T) -> Result<Vec<u8>, Error> {
    let unwritable = |error| Error::Usage(format!("{}: {error}", path.display()));
    let mut bytes = serde_json::to_vec(line).map_err(unwritable)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn read(path: &Path, evaluation: &str) -> Result<HashMap<String, Completion>, Error> {
    let unreadable = || Error::io(path, "read");
    let file = regular_file::open_own_file_to_read(path);
    let mut lines = BufReader::new(file.map_err(unreadable())?);
    let mut bytes = Vec::new();
    let mut completions = HashMap::new();
    let mut damaged = Vec::new();
    let mut head = None;
    let mut number = 0;
    loop {
        let line_kind = read_line(&mut lines, &mut bytes, LINE_BYTES).map_err(unreadable())?;
        if line_kind == BoundedRead::End {
            break;
        }
        number += 1;
        if line_kind == BoundedRead::TooLong {
            // This program never writes a line of this length, so the rest of the file is not a
            // journal either.
            damaged.push(number);
            break;
        }
        let bytes = bytes.trim_ascii_end();
        if number == 1 {
            head = tooltune_json::from_slice::<Head>(bytes).ok();
            // If the first line is missing, the file starts with a completion.
            if head.is_some() || Line::read(bytes).is_none() {
                continue;
            }
        }
        match Line::read(bytes) {
            _ if bytes.is_empty() => {}
            Some(line) => {
                let line_digest = line.evaluation.as_deref();
                let head_digest = head.as_ref().map(|head| prefix(&head.evaluation));
                match line_digest.or(head_digest) {
                    Some(digest) if digest == prefix(evaluation) => {
                        completions.insert(line.id, line.written);
                    }
                    Some(_) => return Err(different_evaluation(path)),
                    None => return Err(damaged_head(path)),
                }
            }
            None => damaged.push(number),
        }
    }
    match head {
        Some(head) if head.evaluation == evaluation => {}
        // The journal was started for a different evaluation and has no completions of this one.
        Some(_) if completions.is_empty() => return Err(different_evaluation(path)),
        _ => tracing::warn!(
            "{}:1: the line with the digest of the evaluation is damaged; rewrote it and kept {} \
             completions of this evaluation",
            path.display(),
            completions.len()
        ),
    }
    if let Some(first) = damaged.first() {
        tracing::warn!(
            "{}:{first}: {} of {} lines are damaged; their prompts are completed again",
            path.display(),
            damaged.len(),
            damaged.len() + completions.len()
        );
    }
    Ok(completions)
}

fn different_evaluation(path: &Path) -> Error {
    Error::Usage(format!(
        "{} has completions of a different evaluation (data, settings or weights differ); remove it, or \
         name another --output",
        path.display()
    ))
}

fn damaged_head(path: &Path) -> Error {
    Error::Usage(format!(
        "{}:1: the line with the digest of the evaluation is damaged, and the completions (of an \
         earlier version) do not repeat it; remove the file, or name another --output",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(text: &str) -> Completion {
        Completion {
            text: text.to_owned(),
            finish_reason: "stop".to_owned(),
            n_tokens: 3,
            without_text: None,
            error: None,
            tool_calls: Vec::new(),
            rewritten: None,
        }
    }

    #[test]
    fn completions_are_reread_and_a_truncated_line_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), "a").unwrap();
        journal.add("rows:1", &completion("{\"x\": 1}\n")).unwrap();
        journal.add("rows:2", &completion("é")).unwrap();
        drop(journal);
        let path = dir.path().join(JOURNAL_FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 9);
        std::fs::write(&path, &bytes).unwrap();
        let mut journal = Journal::open(dir.path(), "a").unwrap();
        assert_eq!(
            journal.saved_completion("rows:1"),
            Some(completion("{\"x\": 1}\n"))
        );
        assert_eq!(
            (journal.saved_completion("rows:2"), journal.len()),
            (None, 1)
        );
        journal.add("rows:2", &completion("b")).unwrap();
        drop(journal);
        assert_eq!(Journal::open(dir.path(), "a").unwrap().len(), 2);
    }

    /// Invariant: The same command completes an evaluation that died at any point.
    #[test]
    fn a_damaged_line_loses_only_its_completion() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(JOURNAL_FILE);
        let mut journal = Journal::open(dir.path(), "a").unwrap();
        for n in 1..=5 {
            journal
                .add(&format!("rows:{n}"), &completion("text"))
                .unwrap();
        }
        drop(journal);
        let original = std::fs::read(&path).unwrap();
        let third = original
            .split(|byte| *byte == b'\n')
            .take(3)
            .map(|line| line.len() + 1);
        let start: usize = third.sum();
        type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
        let damages: [Damage<'_>; 5] = [
            // Invalid UTF-8, invalid JSON, changed text, a line without an end, and a line of
            // zeros.
            &|bytes| bytes[start + 20] = 0xff,
            &|bytes| bytes[start] = b'x',
            &|bytes| {
                let position = bytes[start..]
                    .windows(4)
                    .position(|w| w == b"text")
                    .unwrap();
                // The first match is the field name, and the text starts 7 bytes after it.
                let position = start + position + 7;
                bytes[position] = b'T';
            },
            &|bytes| {
                let end = bytes[start..]
                    .iter()
                    .position(|byte| *byte == b'\n')
                    .unwrap();
                bytes.drain(start + 10..start + end);
            },
            &|bytes| bytes[start..start + 30].fill(0),
        ];
        for (n, damage) in damages.iter().enumerate() {
            let mut bytes = original.clone();
            damage(&mut bytes);
            std::fs::write(&path, &bytes).unwrap();
            let journal = Journal::open(dir.path(), "a").unwrap();
            assert_eq!(journal.len(), 4, "{n}");
            assert_eq!(journal.saved_completion("rows:3"), None, "{n}");
            assert_eq!(
                journal.saved_completion("rows:5"),
                Some(completion("text")),
                "{n}"
            );
        }
        // A damaged or missing first line loses nothing.
        let end = original.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        let mut heads: Vec<Vec<u8>> = (0..end - 1)
            .map(|idx| {
                let mut bytes = original.clone();
                bytes[idx] ^= 1;
                bytes
            })
            .collect();
        heads.push(original[end..].to_vec());
        for bytes in &heads {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(Journal::open(dir.path(), "a").unwrap().len(), 5);
            std::fs::write(&path, bytes).unwrap();
            assert!(Journal::open(dir.path(), "b").is_err());
        }
        // Files of earlier versions have no digests in their lines.
        let text = String::from_utf8(original).unwrap();
        let old = regex::Regex::new(",\"(check|evaluation)\":\"[0-9a-z]+\"").unwrap();
        let headless = text.replacen("\"evaluation\"", "\"evaluatiom\"", 1);
        std::fs::write(&path, old.replace_all(&headless, "").as_bytes()).unwrap();
        let error = Journal::open(dir.path(), "a").unwrap_err().to_string();
        assert!(error.contains(":1: the line with the digest"), "{error}");
        std::fs::write(&path, old.replace_all(&text, "").as_bytes()).unwrap();
        assert_eq!(Journal::open(dir.path(), "a").unwrap().len(), 5);
    }

    #[test]
    fn a_removed_journal_is_recreated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(JOURNAL_FILE);
        let mut journal = Journal::open(dir.path(), "a").unwrap();
        journal.add("rows:1", &completion("x")).unwrap();
        std::fs::remove_file(&path).unwrap();
        journal.add("rows:2", &completion("y")).unwrap();
        assert_eq!(Journal::open(dir.path(), "a").unwrap().len(), 2);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "of somebody else").unwrap();
        let error = journal
            .add("rows:3", &completion("z"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("replaced by another file"), "{error}");
    }

    #[test]
    fn a_journal_is_counted_without_links_and_its_lines_have_a_value_budget() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(n_texts(dir.path()).unwrap(), None);
        let mut journal = Journal::open(dir.path(), "a").unwrap();
        journal.add("rows:1", &completion("x")).unwrap();
        drop(journal);
        assert_eq!(n_texts(dir.path()).unwrap(), Some(1));
        let line = serde_json::to_string(&Line::new("rows:1", &completion("x"), "a")).unwrap();
        let with_values = |n: usize| {
            let unknown = format!("{{\"unknown\":[{}0],", "0,".repeat(n));
            line.replacen('{', &unknown, 1)
        };
        assert!(Line::read(with_values(9).as_bytes()).is_some());
        assert!(Line::read(with_values(5_000_000).as_bytes()).is_none());
        let path = dir.path().join(JOURNAL_FILE);
        let victim = dir.path().join("victim");
        std::fs::rename(&path, &victim).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        let error = n_texts(dir.path()).unwrap_err().to_string();
        assert!(error.contains("a symbolic link"), "{error}");
    }

    #[test]
    fn completions_of_another_evaluation_are_not_reused() {
        let dir = tempfile::tempdir().unwrap();
        drop(Journal::open(dir.path(), "a").unwrap());
        let error = Journal::open(dir.path(), "b").unwrap_err().to_string();
        assert!(error.contains("a different evaluation"), "{error}");
    }
}
