//! Checks that the disk has room for the checkpoints of a run, for `plan` and `doctor`.

use std::path::{Path, PathBuf};

use tooltune_checkpoints::run_dir::RunDir;

use super::size;
use crate::config::Config;
use crate::error::Error;
use crate::recipes::run_files::nearest_folder;

/// Free space below which the metrics and one small checkpoint do not fit.
const SCARCE_BYTES: u64 = 256 << 20;

/// What to do if the disk is too small.
pub(crate) const REMEDY: &str =
    "free space, lower checkpoint.save_total_limit, or set train.output_dir elsewhere";

/// Free and needed disk space of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The folder of the run, or its nearest existing parent.
    pub dir: PathBuf,
    /// Free bytes, if the system reports them.
    pub free: Option<u64>,
    /// Bytes of all checkpoints of the run, minus the bytes of existing checkpoints.
    pub needed: Option<u64>,
}

impl Disk {
    /// Measures the free space for a run. `checkpoint_bytes` is the total size of its checkpoints,
    /// or `None` if it is unknown.
    pub fn measure(output_dir: &Path, checkpoint_bytes: Option<u64>) -> Self {
        let dir = nearest_folder(output_dir);
        Self {
            free: free_bytes(&dir),
            needed: checkpoint_bytes
                .map(|bytes| bytes.saturating_sub(checkpoint_bytes_on_disk(output_dir))),
            dir,
        }
    }

    /// Whether the run would fill the disk.
    pub fn is_scarce(&self) -> bool {
        let needed = SCARCE_BYTES.max(self.needed.unwrap_or_default());
        self.free.is_some_and(|free| free <= needed)
    }

    /// Describes the free and the needed space.
    pub fn describe(&self) -> String {
        let dir = self.dir.display();
        let Some(free) = self.free else {
            return format!("{dir}: free space is unknown");
        };
        match self.needed {
            Some(needed) => format!(
                "{dir}: {} free; checkpoints need {}",
                size(free),
                size(needed)
            ),
            None => format!("{dir}: {} free", size(free)),
        }
    }

    /// Returns an error if the disk has not enough space.
    ///
    /// # Errors
    ///
    /// The checkpoints need more space than is free.
    pub fn check(&self) -> Result<(), Error> {
        match self.is_scarce() {
            true => Err(Error::NoDiskSpace {
                found: self.describe(),
                remedy: REMEDY,
            }),
            false => Ok(()),
        }
    }
}

/// Measures the free space for a run whose plan needs `disk_bytes`.
pub fn disk_of_run(config: &Config, disk_bytes: u64) -> Disk {
    Disk::measure(&config.train.output_dir, Some(disk_bytes))
}

/// Bytes of existing checkpoints, which rotation will free.
fn checkpoint_bytes_on_disk(output_dir: &Path) -> u64 {
    let checkpoints = RunDir::open_to_read(output_dir).and_then(|run| run.list());
    let checkpoints = checkpoints.unwrap_or_default();
    checkpoints
        .iter()
        .map(|checkpoint| folder_bytes(&checkpoint.path))
        .sum()
}

fn folder_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => folder_bytes(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

#[cfg(unix)]
fn free_bytes(dir: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(dir).ok()?;
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(free: Option<u64>, needed: Option<u64>) -> Disk {
        Disk {
            dir: PathBuf::from("runs"),
            free,
            needed,
        }
    }

    #[test]
    fn a_disk_too_small_for_the_checkpoints_is_refused() {
        let gib = |n: u64| Some(n << 30);
        for (free, needed) in [(gib(1), gib(2)), (Some(0), None), (Some(1 << 20), Some(1))] {
            let error = disk(free, needed).check().unwrap_err().to_string();
            for part in ["runs: ", " free", "checkpoint.save_total_limit"] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
        for (free, needed) in [(gib(3), gib(2)), (gib(3), None), (None, gib(2))] {
            assert!(disk(free, needed).check().is_ok(), "{free:?} {needed:?}");
        }
    }

    #[test]
    fn existing_checkpoints_are_not_counted_again() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("run");
        let before = Disk::measure(&dir, Some(5_000));
        assert_eq!(before.needed, Some(5_000));
        assert!(before.free.is_some_and(|free| free > 0));
        let run = RunDir::create_or_open(&dir).unwrap();
        let saved = run.save_checkpoint(10, |dir| {
            Ok(tooltune_disk::atomic::write_file(
                &dir.join("adapter"),
                &[7; 1_000],
            )?)
        });
        saved.unwrap();
        let needed = Disk::measure(&dir, Some(5_000)).needed.unwrap();
        assert!((3_000..=4_000).contains(&needed), "{needed}");
        assert_eq!(Disk::measure(&dir, Some(10)).needed, Some(0));
    }
}
