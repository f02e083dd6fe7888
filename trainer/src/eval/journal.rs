//! Texts to disk as they come, so that an evaluation that was interrupted resumes where it was.
//!
//! The first line says which evaluation the texts belong to; each further line is one text with a
//! digest of itself. A line that a crash has cut or a disk has damaged costs its own text alone: it is
//! passed over with a word, and its prompt is asked again.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooltune_checkpoints::atomic::write_atomic;
use tooltune_checkpoints::digest::sha256_bytes;
use tooltune_rows::regular_file;

use super::generator::Completion;
use crate::error::Error;

/// Its name in the folder of an evaluation.
pub const JOURNAL_FILE: &str = "texts.partial.jsonl";

/// The texts of an evaluation that is under way.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    written: HashMap<String, Completion>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    /// A digest of everything that the texts follow from.
    evaluation: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    id: String,
    #[serde(flatten)]
    written: Completion,
    /// The first characters of a digest of the rest; absent in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<String>,
}

impl Journal {
    /// Opens the journal in `dir`, or begins one; `evaluation` is a digest of everything that the
    /// texts follow from.
    ///
    /// # Errors
    ///
    /// A journal of another evaluation, or a file that cannot be read or written.
    pub fn open(dir: &Path, evaluation: &str) -> Result<Self, Error> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir, "create"))?;
        let path = dir.join(JOURNAL_FILE);
        let is_there = regular_file::is_there(&path).map_err(Error::io(&path, "read"))?;
        let written = if is_there {
            read(&path, evaluation)?
        } else {
            HashMap::new()
        };
        // Completion anew, so that no half line stays in the middle.
        let mut bytes = line(
            &path,
            &Head {
                evaluation: evaluation.to_owned(),
            },
        )?;
        let mut texts: Vec<(&String, &Completion)> = written.iter().collect();
        texts.sort_by_key(|(id, _)| *id);
        for (id, written) in texts {
            bytes.extend(line(&path, &Line::new(id, written))?);
        }
        write_atomic(&path, &bytes)?;
        let file = OpenOptions::new().append(true).open(&path);
        Ok(Self {
            file: file.map_err(Error::io(&path, "write"))?,
            path,
            written,
        })
    }

    /// How many texts there are.
    pub fn len(&self) -> usize {
        self.written.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty()
    }

    /// The text of a prompt, if there is one.
    pub fn written(&self, id: &str) -> Option<Completion> {
        self.written.get(id).cloned()
    }

    /// Keeps the text of a prompt.
    ///
    /// # Errors
    ///
    /// A disk that is full.
    pub fn add(&mut self, id: &str, written: &Completion) -> Result<(), Error> {
        let bytes = line(&self.path, &Line::new(id, written))?;
        self.file
            .write_all(&bytes)
            .map_err(Error::io(&self.path, "write"))?;
        self.written.insert(id.to_owned(), written.clone());
        Ok(())
    }
}

impl Line {
    fn new(id: &str, written: &Completion) -> Self {
        let mut line = Self {
            id: id.to_owned(),
            written: written.clone(),
            check: None,
        };
        line.check = line.digest();
        line
    }

    fn digest(&self) -> Option<String> {
        const N_CHARACTERS: usize = 16;
        let rest = serde_json::to_vec(&(&self.id, &self.written)).ok()?;
        let mut digest = sha256_bytes(&rest);
        digest.truncate(N_CHARACTERS);
        Some(digest)
    }

    /// The line, if it is whole and as it was written.
    fn read(bytes: &[u8]) -> Option<Self> {
        let line: Self = serde_json::from_slice(bytes).ok()?;
        let is_whole = line.check.is_none() || line.check == line.digest();
        is_whole.then_some(line)
    }
}

/// How many texts the journal in a folder has; nothing where there is none.
///
/// # Errors
///
/// A file that cannot be read.
pub fn n_texts(dir: &Path) -> Result<Option<usize>, Error> {
    let path = dir.join(JOURNAL_FILE);
    let mut bytes = Vec::new();
    let read = regular_file::open(&path).and_then(|mut file| file.read_to_end(&mut bytes));
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(Error::io(&path, "read"))?,
    };
    let n_lines = bytes.iter().filter(|byte| **byte == b'\n').count();
    Ok(Some(n_lines.saturating_sub(1)))
}

/// Removes the journal of an evaluation that is complete.
///
/// # Errors
///
/// A file that cannot be removed.
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
    let mut bytes = Vec::new();
    regular_file::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(Error::io(path, "read"))?;
    let mut lines = bytes.split(|byte| *byte == b'\n').enumerate();
    let head = lines.next().map(|(_, head)| head).unwrap_or_default();
    let head: Head = serde_json::from_slice(head).map_err(|error| {
        Error::Usage(format!(
            "{}:1: the line that says which evaluation the texts belong to is damaged ({error}); \
             remove the file, or name another --output",
            path.display()
        ))
    })?;
    if head.evaluation != evaluation {
        return Err(Error::Usage(format!(
            "{} holds texts of another evaluation, with other data, settings or weights; remove \
             it, or name another --output",
            path.display()
        )));
    }
    let mut written = HashMap::new();
    let mut damaged = Vec::new();
    for (idx, bytes) in lines.filter(|(_, line)| !line.is_empty()) {
        match Line::read(bytes) {
            Some(line) => {
                written.insert(line.id, line.written);
            }
            None => damaged.push(idx + 1),
        }
    }
    if let Some(first) = damaged.first() {
        tracing::warn!(
            "{}:{first}: {} of {} lines are damaged; their texts are asked for again",
            path.display(),
            damaged.len(),
            damaged.len() + written.len()
        );
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Completion {
        Completion {
            text: text.to_owned(),
            finish_reason: "stop".to_owned(),
            n_tokens: 3,
            without_text: None,
            error: None,
            tool_calls: Vec::new(),
        }
    }

    #[test]
    fn texts_are_found_again_and_a_cut_line_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), "a").unwrap();
        journal.add("rows:1", &written("{\"x\": 1}\n")).unwrap();
        journal.add("rows:2", &written("é")).unwrap();
        drop(journal);
        let path = dir.path().join(JOURNAL_FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 9);
        std::fs::write(&path, &bytes).unwrap();
        let mut journal = Journal::open(dir.path(), "a").unwrap();
        assert_eq!(journal.written("rows:1"), Some(written("{\"x\": 1}\n")));
        assert_eq!((journal.written("rows:2"), journal.len()), (None, 1));
        journal.add("rows:2", &written("b")).unwrap();
        drop(journal);
        assert_eq!(Journal::open(dir.path(), "a").unwrap().len(), 2);
    }

    #[test]
    fn a_damaged_line_costs_its_own_text_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(JOURNAL_FILE);
        let mut journal = Journal::open(dir.path(), "a").unwrap();
        for n in 1..=5 {
            journal.add(&format!("rows:{n}"), &written("text")).unwrap();
        }
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let third = whole
            .split(|byte| *byte == b'\n')
            .take(3)
            .map(|line| line.len() + 1);
        let start: usize = third.sum();
        type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
        let damages: [Damage<'_>; 5] = [
            // No UTF-8, no JSON, another text, a line without an end, and a line of zeros.
            &|bytes| bytes[start + 20] = 0xff,
            &|bytes| bytes[start] = b'x',
            &|bytes| {
                let place = bytes[start..]
                    .windows(4)
                    .position(|w| w == b"text")
                    .unwrap();
                // The name of the field comes first.
                let place = start + place + 7;
                bytes[place] = b'T';
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
            let mut bytes = whole.clone();
            damage(&mut bytes);
            std::fs::write(&path, &bytes).unwrap();
            let journal = Journal::open(dir.path(), "a").unwrap();
            assert_eq!(journal.len(), 4, "{n}");
            assert_eq!(journal.written("rows:3"), None, "{n}");
            assert_eq!(journal.written("rows:5"), Some(written("text")), "{n}");
        }
        let mut bytes = whole.clone();
        bytes[2] = 0xff;
        std::fs::write(&path, &bytes).unwrap();
        let error = Journal::open(dir.path(), "a").unwrap_err().to_string();
        assert!(error.contains(":1: the line that says"), "{error}");
        // Files of earlier versions have no digests.
        let text = String::from_utf8(whole).unwrap();
        let old = regex::Regex::new(",\"check\":\"[0-9a-f]{16}\"").unwrap();
        std::fs::write(&path, old.replace_all(&text, "").as_bytes()).unwrap();
        assert_eq!(Journal::open(dir.path(), "a").unwrap().len(), 5);
    }

    #[test]
    fn texts_of_another_evaluation_are_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        drop(Journal::open(dir.path(), "a").unwrap());
        let error = Journal::open(dir.path(), "b").unwrap_err().to_string();
        assert!(error.contains("another evaluation"), "{error}");
    }
}
