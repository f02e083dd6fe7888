//! The cache of prepared examples: a folder for each key, whole or not there.
//!
//! `TOOLTUNE_CACHE` says where it lies, else `XDG_CACHE_HOME` or `~/.cache`. It holds at most
//! [`EXAMPLE_CACHE_BYTES`]: what was not used for the longest time goes first.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::atomic::{
    new_file, remove_all_abandoned, remove_directory, touch, write_directory, write_file,
};
use tooltune_rows::examples::Examples;
use tooltune_rows::regular_file;

use super::key::Key;
use super::prepare::Work;
use super::{Account, Failed, TrainingExamples, say_found, write_into};
use crate::budgets::{EXAMPLE_CACHE_BYTES, RUN_FILE_BYTES};
use crate::error::Error;
use crate::process::{CACHE_VARIABLE, cache_folder};

const EXAMPLES: &str = "examples";
const INDEX: &str = "index";
const ACCOUNT: &str = "account.json";

/// The cache of prepared examples.
#[derive(Debug)]
pub struct ExampleCache {
    folder: PathBuf,
}

/// What the cache holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Sets of examples.
    pub n_sets: usize,
    /// Their bytes.
    pub n_bytes: u64,
}

struct Entry {
    path: PathBuf,
    n_bytes: u64,
    used: SystemTime,
}

impl ExampleCache {
    /// The cache of this process; none where no folder can be made for it, which is said.
    pub fn of_process() -> Option<Self> {
        let folder = cache_folder()?.join("examples");
        let made = fs::create_dir_all(&folder).and_then(|()| tempfile::tempfile_in(&folder));
        if let Err(error) = made {
            tracing::warn!(
                "prepared examples are not kept: no file can be made in {}: {error}; set {CACHE_VARIABLE} to \
                 a folder that you may write to",
                folder.display()
            );
            return None;
        }
        Some(Self { folder })
    }

    /// Where it lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it holds.
    pub fn used(&self) -> CacheUse {
        let entries = self.entries();
        CacheUse {
            n_sets: entries.len(),
            n_bytes: entries.iter().map(|entry| entry.n_bytes).sum(),
        }
    }

    /// Removes all that it holds; whoever reads some of it now reads on.
    ///
    /// # Errors
    ///
    /// What cannot be removed.
    pub fn purge(&self) -> Result<CacheUse, Error> {
        let used = self.used();
        for entry in self.entries() {
            remove_directory(&entry.path)?;
        }
        remove_all_abandoned(&self.folder);
        Ok(used)
    }

    /// The examples of a key, which `work` prepares unless they are there.
    pub(super) fn examples(&self, key: &Key, work: Work<'_>) -> Result<TrainingExamples, Error> {
        let path = self.folder.join(&key.name);
        match found(&path) {
            Ok(Some(found)) => {
                // What cannot be said to be used is removed sooner.
                let _ = touch(&path.join(ACCOUNT));
                say_found(&found.account);
                return Ok(found);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!("{error}; they are prepared again");
                remove_directory(&path)?;
            }
        }
        remove_all_abandoned(&self.folder);
        let prepared = self.prepare(&path, key, work)?;
        self.evict(&path);
        Ok(prepared)
    }

    fn prepare(&self, path: &Path, key: &Key, work: Work<'_>) -> Result<TrainingExamples, Error> {
        let (mut prepared, mut failed) = (None, None);
        let written = write_directory(path, |staging| {
            match self.fill(staging, key, work) {
                Ok(done) => prepared = Some(done),
                Err(error) => {
                    failed = Some(error);
                    // Ends the folder in the making; what is told is the error that is kept.
                    let stopped = std::io::Error::other("preparing ended");
                    return Err(CheckpointError::io("prepare", staging)(stopped));
                }
            }
            Ok(())
        });
        match (written, failed, prepared) {
            (_, Some(error), _) => Err(error),
            // Another process was first; its files are the same, and ours are open.
            (_, None, Some(prepared)) => Ok(prepared),
            (written, None, None) => {
                // The other one was first before we began.
                if let Ok(Some(found)) = found(path) {
                    return Ok(found);
                }
                Err(written.err().map_or_else(
                    || Error::Usage(format!("{} changed while it was read", path.display())),
                    Error::from,
                ))
            }
        }
    }

    fn fill(&self, staging: &Path, key: &Key, work: Work<'_>) -> Result<TrainingExamples, Error> {
        let examples = new_file(&staging.join(EXAMPLES))?;
        let index = new_file(&staging.join(INDEX))?;
        let unwritable = |error: std::io::Error| {
            Error::Usage(format!(
                "{}: prepared examples cannot be written: {error}; set {CACHE_VARIABLE} to a folder with more \
                 room",
                self.folder.display()
            ))
        };
        let account = write_into(work, &examples, &index).map_err(|failed| match failed {
            Failed::Work(error) => error,
            Failed::Write(error) => unwritable(error),
        })?;
        if !key.is_still_of(work.files)? {
            return Err(Error::Usage(
                "a file of data.train changed while it was read; start again when nothing writes to it"
                    .to_owned(),
            ));
        }
        for file in [&examples, &index] {
            file.sync_data().map_err(unwritable)?;
        }
        let bytes = serde_json::to_vec(&account.to_write());
        let bytes = bytes.map_err(|error| Error::Usage(error.to_string()))?;
        write_file(&staging.join(ACCOUNT), &bytes)?;
        let examples = Examples::open(&self.folder, examples, index)?;
        Ok(TrainingExamples { examples, account })
    }

    /// Removes what was not used for the longest time until the rest is small enough; `kept` stays.
    fn evict(&self, kept: &Path) {
        let mut entries = self.entries();
        entries.sort_by_key(|entry| entry.used);
        let mut n_bytes: u64 = entries.iter().map(|entry| entry.n_bytes).sum();
        for entry in entries.iter().filter(|entry| entry.path != kept) {
            if n_bytes <= EXAMPLE_CACHE_BYTES {
                break;
            }
            // What another process removes at the same time is gone all the same.
            let _ = remove_directory(&entry.path);
            n_bytes -= entry.n_bytes;
        }
    }

    fn entries(&self) -> Vec<Entry> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let entries = entries.filter_map(|entry| {
            let path = entry.path();
            let is_key =
                |name: &str| name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
            entry.file_name().to_str().filter(|name| is_key(name))?;
            let file = |name: &str| fs::metadata(path.join(name)).ok();
            let length = |name: &str| file(name).map_or(0, |found| found.len());
            Some(Entry {
                n_bytes: length(EXAMPLES) + length(INDEX) + length(ACCOUNT),
                used: file(ACCOUNT)
                    .and_then(|found| found.modified().ok())
                    .unwrap_or(SystemTime::UNIX_EPOCH),
                path,
            })
        });
        entries.collect()
    }
}

/// What lies in a folder of the cache, if it is there.
fn found(path: &Path) -> Result<Option<TrainingExamples>, Error> {
    if !path.is_dir() {
        return Ok(None);
    }
    let open = |name: &str| {
        let path = path.join(name);
        regular_file::open(&path).map_err(Error::io(&path, "read"))
    };
    let account = path.join(ACCOUNT);
    let bytes = regular_file::read(&account, RUN_FILE_BYTES);
    let bytes = bytes.map_err(Error::io(&account, "read"))?;
    let account: Account = serde_json::from_slice(&bytes)
        .map_err(|error| Error::Usage(format!("{}: {error}", account.display())))?;
    let account = account.read_again();
    let examples = Examples::open(path, open(EXAMPLES)?, open(INDEX)?)?;
    if examples.len() != account.n_of_file.iter().sum::<usize>() {
        let path = path.display();
        return Err(Error::Usage(format!(
            "{path}: prepared examples are missing"
        )));
    }
    Ok(Some(TrainingExamples { examples, account }))
}
