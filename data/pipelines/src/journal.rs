//! Replies to disk as they come, so that no request is paid for twice.
//!
//! The first line says what the replies follow from; each further line is one reply with a digest of
//! itself. A line is written whole before the next one, so that a process that is killed loses
//! nothing, and synced before the reply is used, so that a machine that loses its power loses no
//! reply that anything was made of. A request that was under way is asked again; it is the only one.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_rows::regular_file;

use crate::error::PipelineError;
use crate::files::WholeFiles;
use crate::generator::{Reply, Unanswered};
use crate::prompts::digest;

/// Its name in the folder of a pipeline.
pub const JOURNAL_FILE: &str = "journal.jsonl";

/// Lines that may wait for the disk, and how long.
const LINES_PER_SYNC: usize = 64;
const LONGEST_UNSYNCED: Duration = Duration::from_secs(1);
/// Characters of a digest that tell a damaged line.
const CHECK_CHARS: usize = 16;

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// It has its reply.
    Reply(Reply),
    /// It has none, and is not asked again.
    Unanswered(Unanswered),
    /// It was no prompt, such as the call of an API, and this came of it.
    Output(Value),
}

/// The replies of a pipeline that is under way, or done.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Where entries go; none for one that is only looked at.
    file: Option<File>,
    /// Bytes of its whole lines.
    n_bytes: u64,
    entries: BTreeMap<String, Entry>,
    n_unsynced: usize,
    synced: Instant,
    notes: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    settings: Map<String, Value>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    #[serde(flatten)]
    entry: Entry,
    check: String,
}

impl Journal {
    /// Opens the journal in `dir`, or begins one; `settings` is everything that replies follow
    /// from.
    ///
    /// # Errors
    ///
    /// - the journal was begun with other settings; each one is named
    /// - it cannot be read or written
    pub fn open(
        dir: &Path,
        settings: &Map<String, Value>,
        files: &dyn WholeFiles,
    ) -> Result<Self, PipelineError> {
        std::fs::create_dir_all(dir).map_err(PipelineError::io(dir, "create"))?;
        let path = dir.join(JOURNAL_FILE);
        let is_there = regular_file::is_there(&path).map_err(PipelineError::io(&path, "read"))?;
        if !is_there {
            let settings = settings.clone();
            let mut head = serde_json::to_vec(&Head { settings }).unwrap_or_default();
            head.push(b'\n');
            files
                .write(&path, &head)
                .map_err(PipelineError::io(&path, "write"))?;
        }
        let (mut journal, is_torn) = Self::read(path, settings)?;
        let file = OpenOptions::new().append(true).open(&journal.path);
        let file = file.map_err(PipelineError::io(&journal.path, "write"))?;
        if is_torn {
            // So that the next line begins on its own.
            let cut = file.set_len(journal.n_bytes);
            let cut = cut.and_then(|()| file.sync_data());
            cut.map_err(PipelineError::io(&journal.path, "write"))?;
        }
        journal.file = Some(file);
        Ok(journal)
    }

    /// The journal in `dir` as it is, for a look at what is left to do; an empty one where there is
    /// none.
    ///
    /// # Errors
    ///
    /// As [`Journal::open`].
    pub fn look(dir: &Path, settings: &Map<String, Value>) -> Result<Self, PipelineError> {
        let path = dir.join(JOURNAL_FILE);
        if regular_file::is_there(&path).map_err(PipelineError::io(&path, "read"))? {
            Ok(Self::read(path, settings)?.0)
        } else {
            Ok(Self::empty(path))
        }
    }

    fn empty(path: PathBuf) -> Self {
        Self {
            path,
            file: None,
            n_bytes: 0,
            entries: BTreeMap::new(),
            n_unsynced: 0,
            synced: Instant::now(),
            notes: Vec::new(),
        }
    }

    /// The journal, and whether a crash has cut off its last line.
    fn read(path: PathBuf, settings: &Map<String, Value>) -> Result<(Self, bool), PipelineError> {
        let file = regular_file::open(&path).map_err(PipelineError::io(&path, "read"))?;
        let mut lines = BufReader::with_capacity(1 << 16, file);
        let mut journal = Self::empty(path);
        let mut line = Vec::new();
        let mut damaged = Vec::new();
        let mut number = 0;
        let mut is_torn;
        loop {
            line.clear();
            let n_bytes = lines.read_until(b'\n', &mut line);
            let n_bytes = n_bytes.map_err(PipelineError::io(&journal.path, "read"))?;
            is_torn = n_bytes > 0 && !line.ends_with(b"\n");
            if n_bytes == 0 || is_torn {
                break;
            }
            number += 1;
            journal.n_bytes += n_bytes as u64;
            let bytes = line.trim_ascii_end();
            if number == 1 {
                journal.read_head(bytes, settings)?;
            } else if !bytes.is_empty() {
                match Line::read(bytes) {
                    Some(line) => {
                        journal.entries.insert(line.key, line.entry);
                    }
                    None => damaged.push(number),
                }
            }
        }
        if number == 0 {
            journal.read_head(&[], settings)?;
        }
        if let Some(first) = damaged.first() {
            journal.notes.push(format!(
                "{}:{first}: {} of {} lines are damaged; their requests are sent again",
                journal.path.display(),
                damaged.len(),
                damaged.len() + journal.entries.len()
            ));
        }
        if is_torn {
            journal.notes.push(format!(
                "{}: its last line was cut off; that request is sent again",
                journal.path.display()
            ));
        }
        Ok((journal, is_torn))
    }

    fn read_head(&self, bytes: &[u8], settings: &Map<String, Value>) -> Result<(), PipelineError> {
        let head: Head =
            serde_json::from_slice(bytes).map_err(|error| PipelineError::JournalHead {
                path: self.path.clone(),
                reason: error.to_string(),
            })?;
        refuse_other_settings(&self.path, &head.settings, settings)
    }

    /// What became of a request, if it has been sent and is done with.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// All requests that are done with, by their keys.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries
            .iter()
            .map(|(key, entry)| (key.as_str(), entry))
    }

    /// Those whose key begins with `prefix`.
    pub fn entries_of<'j>(&'j self, prefix: &'j str) -> impl Iterator<Item = (&'j str, &'j Entry)> {
        let from = self.entries.range(prefix.to_owned()..);
        from.take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(key, entry)| (key.as_str(), entry))
    }

    /// How many prompts were sent and are done with.
    pub fn n_requests(&self) -> usize {
        let is_request = |entry: &&Entry| !matches!(entry, Entry::Output(_));
        self.entries.values().filter(is_request).count()
    }

    /// How many calls were made that are no prompts.
    pub fn n_outputs(&self) -> usize {
        let is_output = |entry: &&Entry| matches!(entry, Entry::Output(_));
        self.entries.values().filter(is_output).count()
    }

    /// How many replies there are.
    pub fn n_replies(&self) -> usize {
        let is_reply = |entry: &&Entry| matches!(entry, Entry::Reply(_));
        self.entries.values().filter(is_reply).count()
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keeps what became of a request. Before it is used, [`Journal::sync`] must have been called.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn add(&mut self, key: &str, entry: Entry) -> Result<(), PipelineError> {
        let mut bytes = serde_json::to_vec(&Line::new(key, &entry))
            .map_err(PipelineError::io(&self.path, "write"))?;
        bytes.push(b'\n');
        if let Some(file) = &mut self.file {
            if let Err(error) = file.write_all(&bytes) {
                // A part of a line would damage the next one; the next run cuts off what stays.
                let _ = file.set_len(self.n_bytes);
                return Err(PipelineError::io(&self.path, "write")(error));
            }
            self.n_bytes += bytes.len() as u64;
        }
        self.entries.insert(key.to_owned(), entry);
        self.n_unsynced += 1;
        if self.n_unsynced >= LINES_PER_SYNC || self.synced.elapsed() > LONGEST_UNSYNCED {
            self.sync()?;
        }
        Ok(())
    }

    /// Waits until the disk has everything.
    ///
    /// # Errors
    ///
    /// The disk refuses it.
    pub fn sync(&mut self) -> Result<(), PipelineError> {
        if let Some(file) = self.file.as_ref().filter(|_| self.n_unsynced > 0) {
            file.sync_data()
                .map_err(PipelineError::io(&self.path, "write"))?;
        }
        self.n_unsynced = 0;
        self.synced = Instant::now();
        Ok(())
    }

    /// What there is to say of the file as it was found.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Line {
    fn new(key: &str, entry: &Entry) -> Self {
        Self {
            key: key.to_owned(),
            entry: entry.clone(),
            check: Self::digest(key, entry),
        }
    }

    fn digest(key: &str, entry: &Entry) -> String {
        let rest = serde_json::to_vec(&(key, entry)).unwrap_or_default();
        let mut digest = digest(&rest);
        digest.truncate(CHECK_CHARS);
        digest
    }

    /// The line, if it is whole and as it was written.
    fn read(bytes: &[u8]) -> Option<Self> {
        let line: Self = serde_json::from_slice(bytes).ok()?;
        (line.check == Self::digest(&line.key, &line.entry)).then_some(line)
    }
}

fn refuse_other_settings(
    path: &Path,
    there: &Map<String, Value>,
    here: &Map<String, Value>,
) -> Result<(), PipelineError> {
    let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
    let mut names: Vec<&String> = there.keys().chain(here.keys()).collect();
    names.sort();
    names.dedup();
    let differences: Vec<String> = names
        .into_iter()
        .filter(|name| there.get(*name) != here.get(*name))
        .map(|name| {
            let (was, is) = (shown(there.get(name)), shown(here.get(name)));
            format!("{name} was {was} and is {is}")
        })
        .collect();
    if differences.is_empty() {
        return Ok(());
    }
    Err(PipelineError::OtherSettings {
        path: path.to_owned(),
        differences: differences.join("; "),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::files::Staged;

    fn settings(rows: usize) -> Map<String, Value> {
        Map::from_iter([
            ("rows".to_owned(), json!(rows)),
            ("seed".to_owned(), json!(1)),
        ])
    }

    fn reply(text: &str) -> Entry {
        Entry::Reply(Reply {
            text: text.to_owned(),
            finish_reason: "stop".to_owned(),
            n_prompt_tokens: 3,
            n_tokens: 2,
            without_text: None,
        })
    }

    fn opened(dir: &Path) -> Journal {
        Journal::open(dir, &settings(1), &Staged).unwrap()
    }

    #[test]
    fn replies_are_found_again_and_a_cut_line_costs_its_own_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = opened(dir.path());
        let fault = Unanswered {
            kind: "context".to_owned(),
            message: "too long".to_owned(),
            is_final: false,
        };
        journal.add("judge/1", reply("{\"x\": \"é\n\"}")).unwrap();
        journal
            .add("judge/2", Entry::Unanswered(fault.clone()))
            .unwrap();
        journal.add("write/1", reply("b")).unwrap();
        journal.sync().unwrap();
        drop(journal);
        let path = dir.path().join(JOURNAL_FILE);
        let whole = std::fs::read(&path).unwrap();
        let ends: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] == b'\n').collect();
        for length in ends[0] + 1..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let mut journal = opened(dir.path());
            let n_whole = ends[1..].iter().filter(|end| **end < length).count();
            assert_eq!(journal.len(), n_whole, "{length}");
            let is_torn = !ends.contains(&(length - 1));
            assert_eq!(journal.notes().len(), usize::from(is_torn), "{length}");
            journal.add("write/1", reply("again")).unwrap();
            drop(journal);
            let journal = opened(dir.path());
            assert_eq!(journal.get("write/1"), Some(&reply("again")), "{length}");
            assert_eq!(
                journal.len(),
                n_whole.max(1) + usize::from(n_whole == 1 || n_whole == 2),
                "{length}"
            );
        }
        std::fs::write(&path, &whole).unwrap();
        let journal = opened(dir.path());
        assert_eq!(journal.get("judge/2"), Some(&Entry::Unanswered(fault)));
        let of_judge: Vec<&str> = journal.entries_of("judge/").map(|(key, _)| key).collect();
        assert_eq!(of_judge, ["judge/1", "judge/2"]);
    }

    #[test]
    fn a_damaged_line_costs_its_own_reply_alone_and_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = opened(dir.path());
        for n in 1..=3 {
            journal.add(&format!("a/{n}"), reply("text")).unwrap();
        }
        drop(journal);
        let path = dir.path().join(JOURNAL_FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        let damaged: Vec<String> = text
            .lines()
            .enumerate()
            .map(|(n, line)| match n {
                2 => line.replace("\"text\":\"text\"", "\"text\":\"Text\""),
                _ => line.to_owned(),
            })
            .collect();
        std::fs::write(&path, damaged.join("\n") + "\n").unwrap();
        let journal = opened(dir.path());
        assert_eq!((journal.len(), journal.get("a/2")), (2, None));
        assert!(journal.notes()[0].contains(":3: 1 of 3 lines are damaged"));
    }

    #[test]
    fn other_settings_are_named_and_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(opened(dir.path()));
        let error = Journal::open(dir.path(), &settings(2), &Staged).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("rows was 1 and is 2"), "{error}");
        assert!(!error.contains("seed"), "{error}");
        std::fs::write(dir.path().join(JOURNAL_FILE), "{\n").unwrap();
        let error = Journal::open(dir.path(), &settings(1), &Staged).unwrap_err();
        assert!(error.to_string().contains(":1: the line that says"));
    }
}
