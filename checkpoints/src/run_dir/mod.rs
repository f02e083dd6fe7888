//! The directory of one run: numbered checkpoints, `LATEST`, `BEST`, and rotation.
//!
//! A checkpoint is a directory such as `checkpoint-000100`. It is written under a temporary name,
//! completed with a manifest of checksums, and then renamed. A directory is used only if it has a
//! checkpoint name and matches its manifest. The pointers are for users and for selecting the best
//! checkpoint. The newest checkpoint is found by listing the directories, so a crash between the
//! rename and the pointer update loses nothing.

mod manifest;
mod metrics_file;
mod pointer;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use tooltune_disk::atomic::{HeldLock, STAGING_MARK, remove_dir_if_present, sync_dir, sync_parent};
use tooltune_disk::regular_file::is_same_file;

pub use metrics_file::{MetricsFile, MetricsMark};
pub use pointer::{Pointer, Selected};

use crate::error::CheckpointError;

const CHECKPOINT_PREFIX: &str = "checkpoint-";
const LOCK_FILE: &str = ".lock";
const ASIDE_PREFIX: &str = "aside-";
const REPLACED_MARK: &str = ".old-";

/// A run directory, opened for writing (with an exclusive lock) or for reading.
#[derive(Debug)]
pub struct RunDir {
    root: PathBuf,
    /// The lock, held while this value lives. The operating system releases it when the process
    /// ends.
    lock: Option<HeldLock>,
    /// The directory itself, for [`RunDir::check_still_there`]; `None` if it cannot be opened.
    folder: Option<File>,
}

/// A checkpoint directory under its final name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Checkpoint {
    /// Number of optimizer steps when the checkpoint was saved.
    pub step: u64,
    /// The directory.
    pub path: PathBuf,
}

/// The result of [`RunDir::latest_valid`].
#[derive(Debug)]
pub struct LatestValid {
    /// The newest checkpoint that matches its manifest; `None` if there is none.
    pub checkpoint: Option<Checkpoint>,
    /// Newer checkpoints that were rejected, newest first, each with the reason.
    pub rejected: Vec<(Checkpoint, CheckpointError)>,
}

impl RunDir {
    /// Opens a run directory for writing, creating it if necessary, and cleans up after a crash.
    ///
    /// Removes the staging directories of interrupted saves. At most one `RunDir` per directory is
    /// open for writing, across all processes.
    ///
    /// # Errors
    ///
    /// - The directory is already open for writing.
    /// - The directory cannot be created, locked or cleaned up.
    pub fn create_or_open(root: &Path) -> Result<RunDir, CheckpointError> {
        fs::create_dir_all(root).map_err(CheckpointError::io("create", root))?;
        let lock_path = root.join(LOCK_FILE);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let lock = tooltune_disk::regular_file::open_own(&lock_path, &mut options);
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
            lock: Some(HeldLock::new(lock)),
            folder: File::open(root).ok(),
        };
        run.clean_up()?;
        Ok(run)
    }

    /// Opens a run directory for reading, even while another process writes to it.
    ///
    /// # Errors
    ///
    /// The directory does not exist.
    pub fn open_to_read(root: &Path) -> Result<RunDir, CheckpointError> {
        fs::read_dir(root).map_err(CheckpointError::io("open", root))?;
        Ok(RunDir {
            root: root.to_owned(),
            lock: None,
            folder: None,
        })
    }

    /// The directory path.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// The path of the checkpoint of `step`, whether or not it exists.
    pub fn checkpoint_path(&self, step: u64) -> PathBuf {
        self.root.join(checkpoint_name(step))
    }

    /// Checks that the directory was not removed or replaced since it was opened for writing.
    ///
    /// # Errors
    ///
    /// The directory or its lock file was removed or replaced, so further writes would be lost.
    pub fn check_still_there(&self) -> Result<(), CheckpointError> {
        let Some(lock) = &self.lock else {
            return Ok(());
        };
        let lock_metadata = lock.file().metadata();
        let lock_path = self.root.join(LOCK_FILE);
        let path_metadata = fs::metadata(&lock_path);
        match (lock_metadata, path_metadata) {
            (Ok(lock_metadata), Ok(path_metadata))
                if is_same_file(&lock_metadata, &path_metadata) =>
            {
                Ok(())
            }
            (Ok(_), Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(CheckpointError::io("read", &self.root)(error))
            }
            _ if self.is_same_folder() => Err(CheckpointError::LockGone { path: lock_path }),
            _ => Err(CheckpointError::RunDirGone {
                path: self.root.clone(),
            }),
        }
    }

    /// Whether the path still refers to the opened directory.
    fn is_same_folder(&self) -> bool {
        let held = self
            .folder
            .as_ref()
            .and_then(|folder| folder.metadata().ok());
        let named = fs::metadata(&self.root).ok();
        held.zip(named)
            .is_some_and(|(held, named)| is_same_file(&held, &named))
    }

    /// Saves a checkpoint atomically.
    ///
    /// `write` fills the empty directory it receives. Its files are then synced and listed with
    /// size and SHA-256 in a manifest, the directory is renamed, and `LATEST` points to it. A
    /// checkpoint of the same step is replaced; it exists if the run resumed from an older one.
    ///
    /// # Errors
    ///
    /// - The run directory was removed or replaced, see
    ///   [`check_still_there`](Self::check_still_there).
    /// - `write` returns an error.
    /// - A file cannot be synced or the manifest cannot be written, for example because the disk is
    ///   full.
    ///
    /// In each case the staging directory is removed and earlier checkpoints stay unchanged.
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
            // Report the first error. The next opening removes leftover files.
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
            // Restore the old checkpoint; report the first error.
            let _ = fs::rename(&replaced, &path);
            let _ = fs::remove_dir_all(&staging);
            return Err(CheckpointError::io("rename", &staging)(source));
        }
        sync_dir(&self.root)?;
        remove_dir_if_present(&replaced)?;
        self.set_latest(step)?;
        Ok(Checkpoint { step, path })
    }

    /// All checkpoints under their final names, oldest first, without reading their contents.
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

    /// The newest complete and undamaged checkpoint, and the newer ones that were rejected.
    ///
    /// Compares every file with its checksum, so this reads whole checkpoints.
    ///
    /// # Errors
    ///
    /// The directory cannot be listed, or an existing checkpoint cannot be read. Such a checkpoint
    /// may be complete, and skipping it would discard its steps.
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
    /// The checkpoints named by `BEST` and `LATEST` and the newest one are never removed, but count
    /// toward the limit. Returns the removed steps.
    ///
    /// # Errors
    ///
    /// A pointer is damaged, or a directory cannot be removed.
    ///
    /// # Source
    ///
    /// `rotate_checkpoints` of transformers 5.23 with `load_best_model_at_end`.
    pub fn rotate(&self, save_total_limit: usize) -> Result<Vec<u64>, CheckpointError> {
        let checkpoints = self.list()?;
        let newest = checkpoints.last().map(|checkpoint| checkpoint.step);
        let pointed_steps = [self.best()?, self.latest()?].map(|pointer| pointer.map(|p| p.step));
        let excess = checkpoints.len().saturating_sub(save_total_limit);
        let removable = checkpoints.iter().filter(|checkpoint| {
            Some(checkpoint.step) != newest && !pointed_steps.contains(&Some(checkpoint.step))
        });
        let mut removed = Vec::new();
        for checkpoint in removable.take(excess) {
            // Rename it first, so that a crash during removal leaves no partial checkpoint.
            let name = checkpoint_name(checkpoint.step);
            let removal_path = self
                .root
                .join(format!(".{name}{STAGING_MARK}{}", std::process::id()));
            remove_dir_if_present(&removal_path)?;
            fs::rename(&checkpoint.path, &removal_path)
                .map_err(CheckpointError::io("rename", &checkpoint.path))?;
            remove_dir_if_present(&removal_path)?;
            removed.push(checkpoint.step);
        }
        Ok(removed)
    }

    /// Renames the checkpoints after `step`, so that a run that resumes at `step` does not use
    /// them. Returns their new paths.
    ///
    /// These checkpoints are damaged and were rejected by [`latest_valid`](Self::latest_valid), or
    /// belong to training that was abandoned when the run resumed from an older checkpoint. The
    /// newest one is renamed first, so that the remaining checkpoints belong together even if the
    /// process dies. `BEST` is removed if it points to one of them.
    ///
    /// # Errors
    ///
    /// A directory cannot be renamed, or `BEST` cannot be removed.
    pub fn set_aside_after(&self, step: u64) -> Result<Vec<PathBuf>, CheckpointError> {
        let mut moved = Vec::new();
        let checkpoints = self.list()?;
        for checkpoint in checkpoints
            .iter()
            .rev()
            .filter(|checkpoint_path| checkpoint_path.step > step)
        {
            let aside = self.unused_aside_path(checkpoint)?;
            fs::rename(&checkpoint.path, &aside)
                .map_err(CheckpointError::io("rename", &checkpoint.path))?;
            moved.push(aside);
        }
        sync_dir(&self.root)?;
        let is_stale = match self.best() {
            Ok(best) => best.is_some_and(|best| best.step > step),
            // Ignore a damaged `BEST`; the caller repairs it.
            Err(CheckpointError::DamagedPointer { .. }) => false,
            Err(error) => return Err(error),
        };
        if is_stale {
            self.remove_best()?;
        }
        moved.reverse();
        Ok(moved)
    }

    /// An unused name for a checkpoint that is set aside. An earlier copy is replaced only if its
    /// content is the same.
    fn unused_aside_path(&self, checkpoint: &Checkpoint) -> Result<PathBuf, CheckpointError> {
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
            "has too many copies set aside; remove some of them",
        ))
    }

    /// Removes leftovers of interrupted saves. Restores a checkpoint if the save that should
    /// replace it did not finish.
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

    /// The names in the directory, sorted. Names that are not Unicode are skipped, because this
    /// program never creates them.
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
    /// SHA-256 of the manifest, which changes with every file.
    ///
    /// # Errors
    ///
    /// The manifest cannot be read.
    pub fn digest(&self) -> Result<String, CheckpointError> {
        manifest::digest(&self.path)
    }

    /// Compares every file with the manifest.
    ///
    /// Files added later, such as evaluation results, are ignored.
    ///
    /// # Errors
    ///
    /// The manifest is absent or damaged, or a file differs from it.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        manifest::verify(&self.path, self.step)
    }
}

fn checkpoint_name(step: u64) -> String {
    format!("{CHECKPOINT_PREFIX}{step:06}")
}

/// The step in a checkpoint name; `None` for any other name, such as one without leading zeros.
fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(CHECKPOINT_PREFIX)?.parse().ok()?;
    (checkpoint_name(step) == name).then_some(step)
}

#[cfg(test)]
mod tests;
