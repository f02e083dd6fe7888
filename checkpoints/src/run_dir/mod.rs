//! The directory of one run: numbered checkpoints, `LATEST` and `BEST`, and what may be removed.
//!
//! A checkpoint is a directory `checkpoint-000100` that is made under another name, closed with a
//! manifest of checksums, and renamed; what has that name and fits its manifest is complete, and
//! nothing else is ever taken. The pointers are for people and for selection: finding the newest
//! checkpoint reads the directories, so that a crash between the rename and the pointer loses
//! nothing.

mod manifest;
mod metrics_file;
mod pointer;

use std::fs::{self, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

pub use metrics_file::{MetricsFile, MetricsMark};
pub use pointer::{Pointer, Selected};

use crate::atomic::{HeldLock, STAGING_MARK, remove_dir_if_present, sync_dir, sync_parent};
use crate::error::CheckpointError;
use crate::regular_file;

const CHECKPOINT_PREFIX: &str = "checkpoint-";
const LOCK_FILE: &str = ".lock";
const ASIDE_PREFIX: &str = "aside-";
const REPLACED_MARK: &str = ".old-";

/// A run directory, opened to write (with an exclusive lock) or to read.
#[derive(Debug)]
pub struct RunDir {
    root: PathBuf,
    /// Held as long as the value lives; the operating system lets go of it with the process.
    lock: Option<HeldLock>,
}

/// A checkpoint directory that carries its final name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checkpoint {
    /// Optimizer steps taken when it was saved.
    pub step: u64,
    /// The directory.
    pub path: PathBuf,
}

/// What [`RunDir::latest_valid`] found.
#[derive(Debug)]
pub struct LatestValid {
    /// The newest checkpoint that fits its manifest; `None` if there is none.
    pub checkpoint: Option<Checkpoint>,
    /// Newer checkpoints that were passed over, newest first, each with what is wrong with it.
    pub rejected: Vec<(Checkpoint, CheckpointError)>,
}

impl RunDir {
    /// Opens a run directory to write, creating it if need be, and cleans up after a crash.
    ///
    /// Staging directories of interrupted saves are removed. At most one `RunDir` of a directory
    /// is open to write, in this process and all others.
    ///
    /// # Errors
    ///
    /// - another one is open to write
    /// - the directory cannot be created, locked or cleaned
    pub fn create_or_open(root: &Path) -> Result<RunDir, CheckpointError> {
        fs::create_dir_all(root).map_err(CheckpointError::io("create", root))?;
        let lock_path = root.join(LOCK_FILE);
        // Opening a pipe would wait for whoever reads it.
        regular_file::is_there(&lock_path)?;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path);
        let lock = lock.map_err(CheckpointError::io("create", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(CheckpointError::RunInUse {
                    path: root.to_owned(),
                });
            }
            Err(TryLockError::Error(e)) => return Err(CheckpointError::io("lock", &lock_path)(e)),
        }
        let run = RunDir {
            root: root.to_owned(),
            lock: Some(HeldLock::of(lock)),
        };
        run.clean_up()?;
        Ok(run)
    }

    /// Opens a run directory to read, beside a process that may be writing to it.
    ///
    /// # Errors
    ///
    /// The directory does not exist.
    pub fn open_to_read(root: &Path) -> Result<RunDir, CheckpointError> {
        fs::read_dir(root).map_err(CheckpointError::io("open", root))?;
        Ok(RunDir {
            root: root.to_owned(),
            lock: None,
        })
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// The place of the checkpoint of `step`, whether or not it exists.
    pub fn checkpoint_path(&self, step: u64) -> PathBuf {
        self.root.join(checkpoint_name(step))
    }

    /// Checks that a directory that is open to write is still the one that was opened.
    ///
    /// # Errors
    ///
    /// - it, or its lock file, was removed or replaced: what is written goes nowhere
    pub fn check_still_there(&self) -> Result<(), CheckpointError> {
        let Some(lock) = &self.lock else {
            return Ok(());
        };
        let held = lock.file().metadata();
        let named = fs::metadata(self.root.join(LOCK_FILE));
        match (held, named) {
            (Ok(held), Ok(named)) if is_same_file(&held, &named) => Ok(()),
            (Ok(_), Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(CheckpointError::io("read", &self.root)(error))
            }
            _ => Err(CheckpointError::RunDirGone {
                path: self.root.clone(),
            }),
        }
    }

    /// Saves a checkpoint: all of it or nothing.
    ///
    /// `write` fills the empty directory it is given. Its files are then synced and listed with
    /// size and SHA-256 in a manifest, the directory gets its name, and `LATEST` points to it. A
    /// checkpoint of the same step is replaced, which happens after resuming from an older one.
    ///
    /// # Errors
    ///
    /// - as [`check_still_there`](Self::check_still_there)
    /// - whatever `write` returns
    /// - a file cannot be synced or the manifest not written, for example because the disk is
    ///   full
    ///
    /// In each case the staging directory is removed and earlier checkpoints are as they were.
    pub fn save_checkpoint(
        &self,
        step: u64,
        write: impl FnOnce(&Path) -> Result<(), CheckpointError>,
    ) -> Result<Checkpoint, CheckpointError> {
        self.check_still_there()?;
        let path = self.checkpoint_path(step);
        let pid = std::process::id();
        let name = checkpoint_name(step);
        let staging = self.root.join(format!(".{name}{STAGING_MARK}{pid}"));
        remove_dir_if_present(&staging)?;
        fs::create_dir(&staging).map_err(CheckpointError::io("create", &staging))?;
        let staged = write(&staging).and_then(|()| manifest::write(&staging, step));
        if let Err(error) = staged {
            // The error to report is the first one; what cannot be removed now goes at the next
            // opening.
            let _ = fs::remove_dir_all(&staging);
            self.check_still_there()?;
            return Err(error);
        }
        let replaced = self.root.join(format!(".{name}{REPLACED_MARK}{pid}"));
        if path.exists() {
            remove_dir_if_present(&replaced)?;
            fs::rename(&path, &replaced).map_err(CheckpointError::io("rename", &path))?;
        }
        if let Err(source) = fs::rename(&staging, &path) {
            // As it was; the error to report is the first one.
            let _ = fs::rename(&replaced, &path);
            let _ = fs::remove_dir_all(&staging);
            return Err(CheckpointError::io("rename", &staging)(source));
        }
        sync_dir(&self.root)?;
        remove_dir_if_present(&replaced)?;
        self.set_latest(step)?;
        Ok(Checkpoint { step, path })
    }

    /// All checkpoints by their final name, oldest first; contents are not looked at.
    ///
    /// # Errors
    ///
    /// The directory cannot be listed.
    pub fn list(&self) -> Result<Vec<Checkpoint>, CheckpointError> {
        let mut checkpoints: Vec<Checkpoint> = self
            .entries()?
            .into_iter()
            .filter_map(|name| {
                Some(Checkpoint {
                    step: step_of(&name)?,
                    path: self.root.join(name),
                })
            })
            .filter(|checkpoint| checkpoint.path.is_dir())
            .collect();
        checkpoints.sort();
        Ok(checkpoints)
    }

    /// The newest checkpoint that is complete and undamaged, with the newer ones that are not.
    ///
    /// Compares every file with its checksum, so this reads whole checkpoints.
    ///
    /// # Errors
    ///
    /// The directory cannot be listed, or a checkpoint cannot be read although it is there: it may be
    /// whole, and passing over it would give up its steps.
    pub fn latest_valid(&self) -> Result<LatestValid, CheckpointError> {
        let mut rejected = Vec::new();
        for checkpoint in self.list()?.into_iter().rev() {
            match checkpoint.verify() {
                Ok(()) => {
                    return Ok(LatestValid {
                        checkpoint: Some(checkpoint),
                        rejected,
                    });
                }
                Err(error @ CheckpointError::UnreadableCheckpoint { .. }) => return Err(error),
                Err(error) => rejected.push((checkpoint, error)),
            }
        }
        Ok(LatestValid {
            checkpoint: None,
            rejected,
        })
    }

    /// Removes the oldest checkpoints until at most `save_total_limit` are left.
    ///
    /// Those that `BEST` and `LATEST` point to, and the newest one, stay whatever the limit, and
    /// count within it. Returns the steps removed.
    ///
    /// # Errors
    ///
    /// A pointer is damaged, or a directory cannot be removed.
    ///
    /// # Source
    ///
    /// `rotate_checkpoints` of transformers 5.23, with the best checkpoint loaded at the end.
    pub fn rotate(&self, save_total_limit: usize) -> Result<Vec<u64>, CheckpointError> {
        let checkpoints = self.list()?;
        let newest = checkpoints.last().map(|checkpoint| checkpoint.step);
        let pointed = [self.best()?, self.latest()?].map(|pointer| pointer.map(|p| p.step));
        let excess = checkpoints.len().saturating_sub(save_total_limit);
        let removable = checkpoints.iter().filter(|checkpoint| {
            Some(checkpoint.step) != newest && !pointed.contains(&Some(checkpoint.step))
        });
        let mut removed = Vec::new();
        for checkpoint in removable.take(excess) {
            // Renamed first, so that a crash in between leaves no half checkpoint behind.
            let name = checkpoint_name(checkpoint.step);
            let leaving = self
                .root
                .join(format!(".{name}{STAGING_MARK}{}", std::process::id()));
            remove_dir_if_present(&leaving)?;
            fs::rename(&checkpoint.path, &leaving)
                .map_err(CheckpointError::io("rename", &checkpoint.path))?;
            remove_dir_if_present(&leaving)?;
            removed.push(checkpoint.step);
        }
        Ok(removed)
    }

    /// Renames the checkpoints behind `step`, so that a run resumed from there never takes them for
    /// its own; returns their new places.
    ///
    /// They are damaged ones that [`latest_valid`](Self::latest_valid) passed over, or belong to a
    /// course that was given up for an older checkpoint. The newest goes first: whatever moment the
    /// process dies at, what is left is the beginning of one course. `BEST` is removed if it pointed
    /// to one.
    ///
    /// # Errors
    ///
    /// A directory cannot be renamed, or `BEST` cannot be removed.
    pub fn set_aside_after(&self, step: u64) -> Result<Vec<PathBuf>, CheckpointError> {
        let mut moved = Vec::new();
        let checkpoints = self.list()?;
        for checkpoint in checkpoints.iter().rev().filter(|one| one.step > step) {
            let aside = self.free_aside(checkpoint)?;
            fs::rename(&checkpoint.path, &aside)
                .map_err(CheckpointError::io("rename", &checkpoint.path))?;
            moved.push(aside);
        }
        sync_dir(&self.root)?;
        let is_stale = match self.best() {
            Ok(best) => best.is_some_and(|best| best.step > step),
            // For the caller to fix.
            Err(CheckpointError::DamagedPointer { .. }) => false,
            Err(error) => return Err(error),
        };
        if is_stale {
            self.remove_best()?;
        }
        moved.reverse();
        Ok(moved)
    }

    /// A name for a checkpoint that is set aside. One that was set aside before stays, unless it
    /// holds the same.
    fn free_aside(&self, checkpoint: &Checkpoint) -> Result<PathBuf, CheckpointError> {
        let name = checkpoint_name(checkpoint.step);
        let digest = checkpoint.digest().ok();
        for number in 1_u64.. {
            let aside = match number {
                1 => self.root.join(format!("{ASIDE_PREFIX}{name}")),
                _ => self.root.join(format!("{ASIDE_PREFIX}{name}-{number}")),
            };
            if !aside.exists() {
                return Ok(aside);
            }
            if digest.is_some() && manifest::digest(&aside).ok() == digest {
                remove_dir_if_present(&aside)?;
                return Ok(aside);
            }
        }
        Err(CheckpointError::field(
            &self.root,
            &name,
            "has too many copies set aside",
        ))
    }

    /// Removes what interrupted saves left, and brings back a checkpoint whose replacement never
    /// got its name.
    fn clean_up(&self) -> Result<(), CheckpointError> {
        for name in self.entries()? {
            let Some(hidden) = name.strip_prefix('.') else {
                continue;
            };
            let path = self.root.join(&name);
            if let Some((checkpoint, _)) = hidden.split_once(REPLACED_MARK)
                && step_of(checkpoint).is_some()
            {
                let original = self.root.join(checkpoint);
                if original.exists() {
                    remove_dir_if_present(&path)?;
                } else {
                    fs::rename(&path, &original).map_err(CheckpointError::io("rename", &path))?;
                    sync_parent(&original)?;
                }
            } else if let Some((staged, _)) = hidden.split_once(STAGING_MARK) {
                match staged {
                    pointer::LATEST | pointer::BEST => {
                        fs::remove_file(&path).map_err(CheckpointError::io("remove", &path))?;
                    }
                    _ if step_of(staged).is_some() => remove_dir_if_present(&path)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Names in the directory, sorted; names that are no Unicode are not ours.
    fn entries(&self) -> Result<Vec<String>, CheckpointError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(CheckpointError::io("list", &self.root))? {
            let entry = entry.map_err(CheckpointError::io("list", &self.root))?;
            names.extend(entry.file_name().into_string().ok());
        }
        names.sort();
        Ok(names)
    }
}

impl Checkpoint {
    /// SHA-256 of the manifest, which changes with any file.
    ///
    /// # Errors
    ///
    /// The manifest cannot be read.
    pub fn digest(&self) -> Result<String, CheckpointError> {
        manifest::digest(&self.path)
    }

    /// Compares every file with the manifest.
    ///
    /// Files added later, such as evaluation results, are passed over.
    ///
    /// # Errors
    ///
    /// The manifest is absent or damaged, or a file differs from it.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        manifest::verify(&self.path, self.step)
    }
}

#[cfg(unix)]
fn is_same_file(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Windows does not let go of a file that is open.
#[cfg(not(unix))]
fn is_same_file(_one: &fs::Metadata, _other: &fs::Metadata) -> bool {
    true
}

fn checkpoint_name(step: u64) -> String {
    format!("{CHECKPOINT_PREFIX}{step:06}")
}

/// The step of a checkpoint's name; `None` for any other name, other spellings included.
fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(CHECKPOINT_PREFIX)?.parse().ok()?;
    (checkpoint_name(step) == name).then_some(step)
}

#[cfg(test)]
mod tests;
