//! Stores replies on disk as they arrive, so that no answered request is sent again.
//!
//! Each line has a checksum, so a damaged line loses only its own reply, and a damaged first line
//! loses none. A line is written completely before the next one, so a killed process loses nothing.
//! It is synced before its reply is used, so a power failure loses no reply that was used. Only
//! requests in flight are sent again. If the journal is removed or truncated during a run, it is
//! rewritten from memory.

mod line;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tooltune_disk::appended::{Loss, detect_loss};
use tooltune_disk::atomic::write_atomic;
use tooltune_disk::regular_file;
use tooltune_json::budgets::LINE_BYTES;
use tooltune_json::lines::{BoundedRead, read_line};

use self::line::{JournalHeader, Line, settings_digest};
use crate::error::PipelineError;
use crate::generator::{Reply, Unanswered};

/// File name in the folder of a pipeline.
pub const JOURNAL_FILE: &str = "journal.jsonl";

/// Maximum number of unsynced lines, and the maximum time between syncs.
const LINES_PER_SYNC: usize = 64;
const MAX_UNSYNCED_TIME: Duration = Duration::from_secs(1);

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// The reply to a prompt.
    Reply(Reply),
    /// The request failed and is not repeated.
    Unanswered(Unanswered),
    /// The result of a step that is not a prompt, such as an API call.
    Output(Value),
}

/// The replies of a running or completed pipeline.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// The settings that replies depend on.
    settings: Map<String, Value>,
    /// Digest of the settings, stored in each line.
    settings_digest: String,
    /// The file for new entries; `None` for a read-only journal.
    file: Option<File>,
    /// Number of bytes of complete lines in the file.
    n_bytes: u64,
    entries: BTreeMap<String, Entry>,
    /// Number of repeated requests.
    n_replaced: usize,
    /// Prompt tokens and reply tokens of replaced replies.
    replaced_tokens: (usize, usize),
    n_unsynced: usize,
    synced: Instant,
    notes: Vec<String>,
}

/// State of a file when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    Complete,
    /// A crash cut off the last line.
    Truncated,
    /// The first line is missing or damaged.
    DamagedHeader,
}

impl Journal {
    /// Opens the journal in `dir`, or creates one; `settings` is everything that replies depend on.
    ///
    /// # Errors
    ///
    /// - the journal was created with other settings, which the error lists
    /// - it cannot be read or written
    pub fn open(dir: &Path, settings: &Map<String, Value>) -> Result<Self, PipelineError> {
        std::fs::create_dir_all(dir).map_err(PipelineError::io(dir, "create"))?;
        let path = dir.join(JOURNAL_FILE);
        let exists = exists(&path)?;
        let (mut journal, state) = match exists {
            true => Self::read(path, settings)?,
            false => (Self::empty(path, settings), FileState::DamagedHeader),
        };
        if state == FileState::DamagedHeader {
            let bytes = journal.bytes()?;
            write_atomic(&journal.path, &bytes)
                .map_err(PipelineError::io(&journal.path, "write"))?;
            journal.n_bytes = bytes.len() as u64;
        }
        let file = regular_file::open_own(&journal.path, OpenOptions::new().append(true));
        let file = file.map_err(PipelineError::io(&journal.path, "write"))?;
        if state == FileState::Truncated {
            // Truncate, so that the next entry starts on a new line.
            let cut = file.set_len(journal.n_bytes);
            let cut = cut.and_then(|()| file.sync_data());
            cut.map_err(PipelineError::io(&journal.path, "write"))?;
        }
        journal.file = Some(file);
        Ok(journal)
    }

    /// Opens the journal in `dir` read-only, to plan the remaining work. It is empty if there is no
    /// file.
    ///
    /// # Errors
    ///
    /// As for [`Journal::open`].
    pub fn open_read_only(
        dir: &Path,
        settings: &Map<String, Value>,
    ) -> Result<Self, PipelineError> {
        let path = dir.join(JOURNAL_FILE);
        match exists(&path)? {
            true => Ok(Self::read(path, settings)?.0),
            false => Ok(Self::empty(path, settings)),
        }
    }

    fn empty(path: PathBuf, settings: &Map<String, Value>) -> Self {
        Self {
            path,
            settings: settings.clone(),
            settings_digest: settings_digest(settings),
            file: None,
            n_bytes: 0,
            entries: BTreeMap::new(),
            n_replaced: 0,
            replaced_tokens: (0, 0),
            n_unsynced: 0,
            synced: Instant::now(),
            notes: Vec::new(),
        }
    }

    /// Reads the journal and the state of its file.
    fn read(
        path: PathBuf,
        settings: &Map<String, Value>,
    ) -> Result<(Self, FileState), PipelineError> {
        let unreadable = PipelineError::io(&path, "read");
        let file = regular_file::open_own_file_to_read(&path);
        let mut lines = BufReader::with_capacity(1 << 16, file.map_err(unreadable)?);
        let mut journal = Self::empty(path, settings);
        let mut line = Vec::new();
        let mut damaged = Vec::new();
        let (mut number, mut n_replies) = (0, 0);
        let mut head = Err("it is truncated".to_owned());
        let mut is_torn;
        loop {
            let read_result = read_line(&mut lines, &mut line, LINE_BYTES);
            let read_result = read_result.map_err(PipelineError::io(&journal.path, "read"))?;
            is_torn = read_result != BoundedRead::End && !line.ends_with(b"\n");
            if read_result == BoundedRead::End || is_torn {
                // An incomplete line is always the last one.
                break;
            }
            number += 1;
            journal.n_bytes += line.len() as u64;
            let bytes = line.trim_ascii_end();
            if number == 1 {
                head = JournalHeader::read(bytes);
                match &head {
                    Ok(head) => {
                        refuse_other_settings(&journal.path, &head.settings, settings)?;
                        continue;
                    }
                    // Without its first line, a file starts with a reply.
                    Err(_) if Line::read(bytes).is_none() => continue,
                    Err(_) => {}
                }
            }
            if bytes.is_empty() {
                continue;
            }
            match Line::read(bytes) {
                Some(line) => {
                    n_replies += 1;
                    if !journal.has_same_settings(&line, head.is_ok()) {
                        let reason = head.err().unwrap_or_default();
                        return Err(journal.foreign_line_error(number, reason));
                    }
                    journal.insert(line.key, line.entry);
                }
                None => damaged.push(number),
            }
        }
        if let Some(first_damaged) = damaged.first() {
            journal.note(&format!(
                ":{first_damaged}: {} of {} lines are damaged; their requests will be sent again",
                damaged.len(),
                damaged.len() + n_replies
            ));
        }
        if is_torn {
            journal.note(": the last line is truncated; its request will be sent again");
        }
        let state = match (head, is_torn) {
            (Err(reason), _) => {
                journal.note(&format!(
                    ":1: the line with the settings is damaged ({reason}); it is rewritten, and \
                     {n_replies} replies with these settings are kept"
                ));
                FileState::DamagedHeader
            }
            (Ok(_), true) => FileState::Truncated,
            (Ok(_), false) => FileState::Complete,
        };
        Ok((journal, state))
    }

    fn insert(&mut self, key: String, entry: Entry) {
        let earlier = self.entries.get(&key).filter(|earlier| **earlier != entry);
        if earlier.is_some() {
            self.forget(&key);
        }
        self.entries.insert(key, entry);
    }

    /// Removes an entry from memory, so that its request is sent again. The file keeps the entry,
    /// and its tokens still count.
    pub(crate) fn forget(&mut self, key: &str) {
        let earlier = self.entries.remove(key);
        self.n_replaced += usize::from(earlier.is_some());
        if let Some(Entry::Reply(reply)) = earlier {
            let (prompts, replies) = self.replaced_tokens;
            self.replaced_tokens = (
                prompts.saturating_add(reply.n_prompt_tokens),
                replies.saturating_add(reply.n_tokens),
            );
        }
    }

    /// Prompt tokens and reply tokens so far, including repeated requests. Sums saturate, because a
    /// server may report any numbers.
    pub(crate) fn used_tokens(&self) -> (usize, usize) {
        let replies = self.entries.values().filter_map(|entry| match entry {
            Entry::Reply(reply) => Some((reply.n_prompt_tokens, reply.n_tokens)),
            Entry::Unanswered(_) | Entry::Output(_) => None,
        });
        replies.fold(self.replaced_tokens, |sum, reply| {
            (sum.0.saturating_add(reply.0), sum.1.saturating_add(reply.1))
        })
    }

    fn note(&mut self, text: &str) {
        self.notes.push(format!("{}{text}", self.path.display()));
    }

    /// Whether a line was written with the current settings. A line of an earlier version has no
    /// settings digest; it belongs to the settings of the first line.
    fn has_same_settings(&self, line: &Line, has_head: bool) -> bool {
        let digest = line.settings.as_ref();
        digest.map_or(has_head, |settings| *settings == self.settings_digest)
    }

    /// The error for a line that was written, or may have been written, with other settings.
    fn foreign_line_error(&self, number: usize, head: String) -> PipelineError {
        let path = self.path.clone();
        match head.is_empty() {
            true => PipelineError::DifferentSettings {
                path,
                differences: format!("line {number} has other settings"),
            },
            false => PipelineError::JournalHead { path, reason: head },
        }
    }

    /// The complete content of the file.
    fn bytes(&self) -> Result<Vec<u8>, PipelineError> {
        let mut bytes = Vec::new();
        let unwritable = |error| PipelineError::io(&self.path, "write")(error);
        serde_json::to_writer(&mut bytes, &JournalHeader::new(&self.settings))
            .map_err(unwritable)?;
        bytes.push(b'\n');
        for (key, entry) in &self.entries {
            bytes.extend(self.line(key, entry)?);
        }
        Ok(bytes)
    }

    fn line(&self, key: &str, entry: &Entry) -> Result<Vec<u8>, PipelineError> {
        let line = Line::new(key, entry, &self.settings_digest);
        let line = serde_json::to_vec(&line).map_err(PipelineError::io(&self.path, "write"));
        line.map(|mut bytes| {
            bytes.push(b'\n');
            bytes
        })
    }

    /// The result of a request, if it is complete.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// All completed requests, by key.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries
            .iter()
            .map(|(key, entry)| (key.as_str(), entry))
    }

    /// The entries whose key starts with `prefix`.
    pub fn entries_of<'j>(&'j self, prefix: &'j str) -> impl Iterator<Item = (&'j str, &'j Entry)> {
        let from = self.entries.range(prefix.to_owned()..);
        from.take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(key, entry)| (key.as_str(), entry))
    }

    /// Number of requests whose result is stored, including repeated ones.
    pub fn n_requests(&self) -> usize {
        let is_request = |entry: &&Entry| !matches!(entry, Entry::Output(_));
        self.entries.values().filter(is_request).count() + self.n_replaced
    }

    /// Number of stored results that are not replies to prompts.
    pub fn n_outputs(&self) -> usize {
        let is_output = |entry: &&Entry| matches!(entry, Entry::Output(_));
        self.entries.values().filter(is_output).count()
    }

    /// Number of replies.
    pub fn n_replies(&self) -> usize {
        let is_reply = |entry: &&Entry| matches!(entry, Entry::Reply(_));
        self.entries.values().filter(is_reply).count()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Stores the result of a request. Call [`Journal::sync`] before using it.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn add(&mut self, key: &str, entry: Entry) -> Result<(), PipelineError> {
        let bytes = self.line(key, &entry)?;
        if let Some(file) = &mut self.file {
            if let Err(error) = file.write_all(&bytes) {
                // A partial line would damage the next one. If truncating fails, the next run does
                // it.
                let _ = file.set_len(self.n_bytes);
                return Err(PipelineError::io(&self.path, "write")(error));
            }
            self.n_bytes += bytes.len() as u64;
        }
        self.insert(key.to_owned(), entry);
        self.n_unsynced += 1;
        if self.n_unsynced >= LINES_PER_SYNC || self.synced.elapsed() > MAX_UNSYNCED_TIME {
            self.sync()?;
        }
        Ok(())
    }

    /// Waits until everything is on disk, and rewrites the file if it was removed or truncated.
    ///
    /// # Errors
    ///
    /// - the disk reports an error
    /// - another file has the same name, or the folder is gone
    pub fn sync(&mut self) -> Result<(), PipelineError> {
        if let Some(file) = &self.file {
            let loss = detect_loss(file, &self.path, self.n_bytes);
            match loss.map_err(PipelineError::io(&self.path, "read"))? {
                Some(loss) => self.rewrite(loss)?,
                None if self.n_unsynced > 0 => file
                    .sync_data()
                    .map_err(PipelineError::io(&self.path, "write"))?,
                None => {}
            }
        }
        self.n_unsynced = 0;
        self.synced = Instant::now();
        Ok(())
    }

    /// Rewrites a lost file from memory.
    fn rewrite(&mut self, loss: Loss) -> Result<(), PipelineError> {
        let bytes = self.bytes()?;
        let mut options = OpenOptions::new();
        options.append(true);
        let description = match loss {
            Loss::Removed => {
                // Never overwrite a file that someone else created.
                options.create_new(true);
                "removed"
            }
            Loss::Truncated => "truncated",
            Loss::Replaced => {
                return Err(PipelineError::io(&self.path, "read")(
                    "another file has replaced it; move that file away and run the same command \
                     again",
                ));
            }
        };
        let rewritten = regular_file::open_own(&self.path, &mut options).and_then(|mut file| {
            file.set_len(0)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            Ok(file)
        });
        self.file = Some(rewritten.map_err(PipelineError::io(&self.path, "write again"))?);
        self.n_bytes = bytes.len() as u64;
        let n = self.entries.len();
        self.note(&format!(
            ": the file was {description} during the run; it was written again with all {n} \
             replies"
        ));
        tracing::warn!("{}", self.notes.last().map_or("", String::as_str));
        Ok(())
    }

    /// Remarks about the state of the file.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

fn exists(path: &Path) -> Result<bool, PipelineError> {
    regular_file::own_file_exists(path).map_err(PipelineError::io(path, "read"))
}

fn refuse_other_settings(
    path: &Path,
    journal_settings: &Map<String, Value>,
    settings: &Map<String, Value>,
) -> Result<(), PipelineError> {
    let value_text = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
    let mut names: Vec<&String> = journal_settings.keys().chain(settings.keys()).collect();
    names.sort();
    names.dedup();
    let differences: Vec<String> = names
        .into_iter()
        .filter(|name| journal_settings.get(*name) != settings.get(*name))
        .map(|name| {
            let (was, is) = (
                value_text(journal_settings.get(name)),
                value_text(settings.get(name)),
            );
            format!("{name} was {was}, now {is}")
        })
        .collect();
    if differences.is_empty() {
        return Ok(());
    }
    Err(PipelineError::DifferentSettings {
        path: path.to_owned(),
        differences: differences.join("; "),
    })
}
