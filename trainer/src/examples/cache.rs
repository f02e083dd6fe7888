//! The cache of prepared examples. Each key has one folder, which is either complete or absent.
//!
//! The cache is a subfolder of `TOOLTUNE_CACHE`, `XDG_CACHE_HOME` or `~/.cache`. If it exceeds
//! [`EXAMPLE_CACHE_BYTES`], the least recently used sets are removed. All checksums of a set are
//! compared before it is used, and a damaged set is prepared again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tooltune_checkpoints::digest::sha256_bytes;
use tooltune_disk::DiskError;
use tooltune_disk::atomic::{
    create_staged_file, remove_all_abandoned, remove_directory, touch, write_directory, write_file,
};
use tooltune_disk::regular_file;
use tooltune_rows::examples::{Checksums, Examples, ExamplesError};

use super::key::Key;
use super::prepare::Work;
use super::{Account, PrepareError, TrainingExamples, report_cached, write_into};
use crate::budgets::EXAMPLE_CACHE_BYTES;
use crate::config::budgets::RUN_FILE_BYTES;
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

/// Size of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Number of sets of examples.
    pub n_sets: usize,
    /// Total size.
    pub n_bytes: u64,
}

/// The last line of `account.json`: checksums of the set's files.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SetChecksums {
    /// SHA-256 of the previous lines.
    account: String,
    files: Checksums,
}

struct Entry {
    path: PathBuf,
    n_bytes: u64,
    used: SystemTime,
}

impl ExampleCache {
    /// The cache of this process. If its folder cannot be created, logs a warning and returns
    /// `None`.
    pub fn from_env() -> Option<Self> {
        let folder = cache_folder()?.join("examples");
        let result = fs::create_dir_all(&folder).and_then(|()| tempfile::tempfile_in(&folder));
        if let Err(error) = result {
            tracing::warn!(
                "prepared examples are not cached: no file can be created in {}: {error}; set {CACHE_VARIABLE} \
                 to a writable folder",
                folder.display()
            );
            return None;
        }
        Some(Self { folder })
    }

    /// Folder of the cache.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Size of the cache.
    pub fn used(&self) -> CacheUse {
        let entries = self.entries();
        CacheUse {
            n_sets: entries.len(),
            n_bytes: entries.iter().map(|entry| entry.n_bytes).sum(),
        }
    }

    /// Removes all sets. A process that is reading a set is not affected.
    ///
    /// # Errors
    ///
    /// A file cannot be removed.
    pub fn purge(&self) -> Result<CacheUse, Error> {
        let used = self.used();
        for entry in self.entries() {
            remove_directory(&entry.path)?;
        }
        remove_all_abandoned(&self.folder);
        Ok(used)
    }

    /// Returns the examples of a key. If they are not cached, `work` prepares them.
    pub(super) fn examples(&self, key: &Key, work: Work<'_>) -> Result<TrainingExamples, Error> {
        let path = self.folder.join(&key.name);
        match open_cached(&path) {
            Ok(Some(examples)) => {
                // If this fails, the set is only removed from the cache earlier.
                let _ = touch(&path.join(ACCOUNT));
                report_cached(&examples.account);
                return Ok(examples);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!("{error}; the examples are prepared again");
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
        let result = write_directory(path, |staging| {
            match self.fill(staging, key, work) {
                Ok(done) => prepared = Some(done),
                Err(error) => {
                    failed = Some(error);
                    // Returning an error removes the unfinished folder. The stored error is
                    // reported instead of this one.
                    let stopped = std::io::Error::other("preparing ended");
                    return Err(DiskError::io("prepare", staging)(stopped));
                }
            }
            Ok(())
        });
        match (result, failed, prepared) {
            (_, Some(error), _) => Err(error),
            // Another process finished first. Its files are equal, and ours are still open.
            (_, None, Some(prepared)) => Ok(prepared),
            (result, None, None) => {
                // Another process finished before this one started.
                if let Ok(Some(examples)) = open_cached(path) {
                    return Ok(examples);
                }
                Err(result.err().map_or_else(
                    || Error::Usage(format!("{} changed while it was read", path.display())),
                    Error::from,
                ))
            }
        }
    }

    fn fill(&self, staging: &Path, key: &Key, work: Work<'_>) -> Result<TrainingExamples, Error> {
        let examples = create_staged_file(&staging.join(EXAMPLES))?;
        let index = create_staged_file(&staging.join(INDEX))?;
        let unwritable = |error: std::io::Error| {
            Error::Usage(format!(
                "{}: cannot write prepared examples: {error}; set {CACHE_VARIABLE} to a folder with more \
                 space",
                self.folder.display()
            ))
        };
        let account = write_into(work, &examples, &index).map_err(|failed| match failed {
            PrepareError::Work(error) => error,
            PrepareError::Write(error) => unwritable(error),
        })?;
        if !key.is_current(work.files)? {
            return Err(Error::Usage(
                "a file of data.train changed while it was read; start again when no other program writes to it"
                    .to_owned(),
            ));
        }
        for file in [&examples, &index] {
            file.sync_data().map_err(unwritable)?;
        }
        let examples = Examples::open(&self.folder, examples, index)?;
        let unwritten = |error: serde_json::Error| Error::Usage(error.to_string());
        let mut bytes = serde_json::to_vec(&account.for_writing()).map_err(unwritten)?;
        let sums = SetChecksums {
            account: sha256_bytes(&bytes),
            files: examples.checksums()?,
        };
        bytes.push(b'\n');
        bytes.extend(serde_json::to_vec(&sums).map_err(unwritten)?);
        write_file(&staging.join(ACCOUNT), &bytes)?;
        Ok(TrainingExamples { examples, account })
    }

    /// Removes the least recently used sets until the rest fits into the limit. Never removes
    /// `current`.
    fn evict(&self, current: &Path) {
        let mut entries = self.entries();
        entries.sort_by_key(|entry| entry.used);
        let mut n_bytes: u64 = entries.iter().map(|entry| entry.n_bytes).sum();
        for entry in entries.iter().filter(|entry| entry.path != current) {
            if n_bytes <= EXAMPLE_CACHE_BYTES {
                break;
            }
            // Another process may have removed it at the same time.
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
            let length = |name: &str| file(name).map_or(0, |metadata| metadata.len());
            Some(Entry {
                n_bytes: length(EXAMPLES) + length(INDEX) + length(ACCOUNT),
                used: file(ACCOUNT)
                    .and_then(|metadata| metadata.modified().ok())
                    .unwrap_or(SystemTime::UNIX_EPOCH),
                path,
            })
        });
        entries.collect()
    }
}

/// Opens a cache folder, if it exists.
fn open_cached(path: &Path) -> Result<Option<TrainingExamples>, Error> {
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
    let damaged = || Error::Usage(format!("{}: prepared examples are damaged", path.display()));
    let end = bytes.iter().rposition(|&byte| byte == b'\n');
    let (account, sums) = bytes.split_at(end.ok_or_else(damaged)?);
    let sums: SetChecksums = serde_json::from_slice(sums).map_err(|_| damaged())?;
    if sha256_bytes(account) != sums.account {
        return Err(damaged());
    }
    let account: Account = serde_json::from_slice(account).map_err(|_| damaged())?;
    let account = account.after_reading();
    let examples = Examples::open(path, open(EXAMPLES)?, open(INDEX)?);
    // The error of `Examples` suggests restarting the command, which only helps if the damage
    // occurs during a run.
    let examples = examples.map_err(|error| match error {
        ExamplesError::Damaged { .. } => damaged(),
        error => error.into(),
    })?;
    if examples.checksums()? != sums.files {
        return Err(damaged());
    }
    if examples.len() != account.n_of_file.iter().sum::<usize>() {
        let path = path.display();
        return Err(Error::Usage(format!(
            "{path}: prepared examples are missing"
        )));
    }
    Ok(Some(TrainingExamples { examples, account }))
}
