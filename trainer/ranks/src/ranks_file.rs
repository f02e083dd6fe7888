//! `ranks.json`: where the leader listens, for launchers that give no address.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooltune_disk::{DiskError, atomic, regular_file};

use crate::budgets::RANKS_FILE_BYTES;
use crate::error::{RanksError, Result};

/// The content of `ranks.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RanksFile {
    /// The launcher's name of the run.
    pub(crate) run_id: String,
    /// Address and port of the leader.
    pub(crate) address: String,
    /// The run's token. Only the owner may read the file.
    pub(crate) token: String,
}

impl RanksFile {
    /// The path in a directory.
    pub(crate) fn path(directory: &Path) -> PathBuf {
        directory.join("ranks.json")
    }

    /// Reads the file if there is one.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>> {
        let path = Self::path(directory);
        let error = |reason: String| RanksError::RanksFile {
            reason: format!("cannot read {}: {reason}", path.display()),
        };
        let bytes = regular_file::read_own_file_if_exists(&path, RANKS_FILE_BYTES);
        let Some(bytes) = bytes.map_err(|e| error(e.to_string()))? else {
            return Ok(None);
        };
        let file = serde_json::from_slice(&bytes);
        file.map(Some)
            .map_err(|e| error(format!("{e}; remove it and start all ranks again")))
    }
}

/// The file of this leader, which is removed at the end of the meeting.
#[derive(Debug)]
pub(crate) struct WrittenFile {
    directory: PathBuf,
    content: RanksFile,
}

impl WrittenFile {
    /// Writes the file. One of an earlier run, which was killed during its meeting, is replaced.
    pub(crate) fn create(directory: &Path, content: RanksFile) -> Result<Self> {
        let path = RanksFile::path(directory);
        let error = |e: &dyn std::fmt::Display| RanksError::RanksFile {
            reason: e.to_string(),
        };
        // The ranks meet before the first run in a directory creates it.
        std::fs::create_dir_all(directory)
            .map_err(|e| error(&DiskError::io("create", directory)(e)))?;
        if regular_file::own_file_exists(&path)
            .map_err(|e| error(&format!("{}: {e}", path.display())))?
        {
            std::fs::remove_file(&path).map_err(|e| error(&DiskError::io("remove", &path)(e)))?;
        }
        let bytes = serde_json::to_vec(&content).expect("strings are JSON");
        let written = atomic::create_with(&path, |mut file| {
            only_for_owner(file).map_err(DiskError::io("write", &path))?;
            std::io::Write::write_all(&mut file, &bytes).map_err(DiskError::io("write", &path))
        });
        written.map_err(|e: DiskError| error(&e))?;
        Ok(Self {
            directory: directory.to_owned(),
            content,
        })
    }
}

impl Drop for WrittenFile {
    fn drop(&mut self) {
        // A leader that started later may have written its own.
        let is_own =
            RanksFile::read(&self.directory).is_ok_and(|f| f.as_ref() == Some(&self.content));
        let path = RanksFile::path(&self.directory);
        if is_own && let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!("cannot remove {}: {error}", path.display());
        }
    }
}

/// Other users must not read the token. Set before the content is written.
#[cfg(unix)]
fn only_for_owner(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
}

/// Permissions of the folder apply.
#[cfg(not(unix))]
fn only_for_owner(_file: &std::fs::File) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(run_id: &str) -> RanksFile {
        RanksFile {
            run_id: run_id.to_owned(),
            address: "127.0.0.1:4000".to_owned(),
            token: "secret".to_owned(),
        }
    }

    #[test]
    fn the_file_replaces_an_old_one_and_is_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(RanksFile::read(dir.path()).expect("no file"), None);
        let old = WrittenFile::create(dir.path(), content("old")).expect("written");
        let new = WrittenFile::create(dir.path(), content("new")).expect("written");
        drop(old);
        assert_eq!(
            RanksFile::read(dir.path()).expect("read"),
            Some(content("new"))
        );
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let path = RanksFile::path(dir.path());
            let mode = path.metadata().expect("metadata").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        drop(new);
        assert_eq!(RanksFile::read(dir.path()).expect("no file"), None);
    }

    #[test]
    fn the_directory_of_a_new_run_is_created() {
        let dir = tempfile::tempdir().expect("a folder");
        let run = dir.path().join("runs/new");
        assert_eq!(RanksFile::read(&run).expect("no folder"), None);
        drop(WrittenFile::create(&run, content("run")).expect("written"));
        let left = std::fs::read_dir(&run).expect("the folder").count();
        assert_eq!(left, 0);
    }

    #[test]
    fn a_file_that_is_not_ours_is_an_error() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = RanksFile::path(dir.path());
        std::fs::write(&path, "[]").expect("written");
        let error = RanksFile::read(dir.path()).expect_err("not ours");
        assert!(error.to_string().contains("remove it"), "{error}");
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("elsewhere", &path).expect("a link");
        assert!(RanksFile::read(dir.path()).is_err());
        assert!(WrittenFile::create(dir.path(), content("new")).is_err());
    }
}
