//! Texts to disk as they come, so that an evaluation that was interrupted goes on where it was.
//!
//! The first line says which evaluation the texts belong to; each further line is one text. A line
//! that a crash has cut is passed over.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooltune_checkpoints::atomic::write_atomic;
use tooltune_data::regular_file;

use super::writer::Written;
use crate::error::Error;

/// Its name in the folder of an evaluation.
pub const JOURNAL_FILE: &str = "texts.partial.jsonl";

/// The texts of an evaluation that is under way.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    written: HashMap<String, Written>,
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
    written: Written,
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
        let written = match is_there {
            true => read(&path, evaluation)?,
            false => HashMap::new(),
        };
        // Written anew, so that no half line stays in the middle.
        let mut bytes = line(
            &path,
            &Head {
                evaluation: evaluation.to_owned(),
            },
        )?;
        let mut texts: Vec<(&String, &Written)> = written.iter().collect();
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
    pub fn written(&self, id: &str) -> Option<Written> {
        self.written.get(id).cloned()
    }

    /// Keeps the text of a prompt.
    ///
    /// # Errors
    ///
    /// A disk that is full.
    pub fn add(&mut self, id: &str, written: &Written) -> Result<(), Error> {
        let bytes = line(&self.path, &Line::new(id, written))?;
        self.file
            .write_all(&bytes)
            .map_err(Error::io(&self.path, "write"))?;
        self.written.insert(id.to_owned(), written.clone());
        Ok(())
    }
}

impl Line {
    fn new(id: &str, written: &Written) -> Self {
        Self {
            id: id.to_owned(),
            written: written.clone(),
        }
    }
}

fn line<T: Serialize>(path: &Path, line: &T) -> Result<Vec<u8>, Error> {
    let unwritable = |error| Error::Usage(format!("{}: {error}", path.display()));
    let mut bytes = serde_json::to_vec(line).map_err(unwritable)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn read(path: &Path, evaluation: &str) -> Result<HashMap<String, Written>, Error> {
    let file = regular_file::open(path).map_err(Error::io(path, "read"))?;
    let mut lines = BufReader::new(file).lines().map_while(Result::ok);
    let head = lines.next().unwrap_or_default();
    let head: Option<Head> = serde_json::from_str(&head).ok();
    if head.is_none_or(|head| head.evaluation != evaluation) {
        return Err(Error::Usage(format!(
            "{} holds texts of another evaluation, with other data, settings or weights; remove \
             it, or name another --output",
            path.display()
        )));
    }
    let lines = lines.filter_map(|line| serde_json::from_str::<Line>(&line).ok());
    Ok(lines.map(|line| (line.id, line.written)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Written {
        Written {
            text: text.to_owned(),
            finish_reason: "stop".to_owned(),
            n_tokens: 3,
            without_text: None,
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
    fn texts_of_another_evaluation_are_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        drop(Journal::open(dir.path(), "a").unwrap());
        let error = Journal::open(dir.path(), "b").unwrap_err().to_string();
        assert!(error.contains("another evaluation"), "{error}");
    }
}
