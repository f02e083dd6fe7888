//! `manifest.json`: size and SHA-256 of every file of a checkpoint. It is written last.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooltune_disk::DiskError;
use tooltune_disk::atomic::{sync_dir, write_file};

use crate::budgets::JSON_BYTES;
use crate::digest::{sha256_file, size_and_sha256};
use crate::error::CheckpointError;
use crate::regular_file;

const MANIFEST: &str = "manifest.json";

#[derive(Serialize, Deserialize)]
struct Manifest {
    step: u64,
    /// Entries by relative path, with "/" as separator on every system.
    files: BTreeMap<String, FileEntry>,
}

#[derive(Serialize, Deserialize)]
struct FileEntry {
    /// Size in bytes.
    size: u64,
    sha256: String,
}

/// Syncs all files below `dir`, then writes the manifest and syncs the directory.
pub(super) fn write(dir: &Path, step: u64) -> Result<(), CheckpointError> {
    let mut files = BTreeMap::new();
    add_files(dir, "", &mut files)?;
    let path = dir.join(MANIFEST);
    let manifest = Manifest { step, files };
    let mut text = serde_json::to_vec_pretty(&manifest).map_err(CheckpointError::json(&path))?;
    text.push(b'\n');
    write_file(&path, &text)?;
    Ok(sync_dir(dir)?)
}

fn add_files(
    dir: &Path,
    prefix: &str,
    files: &mut BTreeMap<String, FileEntry>,
) -> Result<(), CheckpointError> {
    for entry in fs::read_dir(dir).map_err(CheckpointError::io("list", dir))? {
        let entry = entry.map_err(CheckpointError::io("list", dir))?;
        let path = entry.path();
        let name = entry.file_name().into_string().map_err(|name| {
            let name = name.to_string_lossy();
            CheckpointError::malformed(dir, name, "checkpoint file names must be valid Unicode")
        })?;
        let name = format!("{prefix}{name}");
        let kind = entry
            .file_type()
            .map_err(CheckpointError::io("read", &path))?;
        if kind.is_dir() {
            add_files(&path, &format!("{name}/"), files)?;
            sync_dir(&path)?;
        } else if kind.is_file() {
            sync_file(&path)?;
            let (size, sha256) = size_and_sha256(&path, u64::MAX)?;
            files.insert(name, FileEntry { size, sha256 });
        } else {
            let problem = "a checkpoint can contain only files and directories, not links";
            return Err(CheckpointError::malformed(dir, name, problem));
        }
    }
    Ok(())
}

/// Syncs a file. A full disk may be detected only here.
fn sync_file(path: &Path) -> Result<(), CheckpointError> {
    let file = File::options()
        .write(true)
        .open(path)
        .map_err(CheckpointError::io("open", path))?;
    file.sync_all().map_err(|source| {
        DiskError::Write {
            path: path.to_owned(),
            bytes: file.metadata().map_or(0, |metadata| metadata.len()),
            source,
        }
        .into()
    })
}

/// SHA-256 of the manifest in `dir`.
pub(super) fn digest(dir: &Path) -> Result<String, CheckpointError> {
    sha256_file(&dir.join(MANIFEST))
}

/// Compares the files below `dir` with its manifest. A file that exists but cannot be read has a
/// separate error, because it may be intact.
pub(super) fn verify(dir: &Path, step: u64) -> Result<(), CheckpointError> {
    let damaged = |problem: String| CheckpointError::DamagedCheckpoint {
        path: dir.to_owned(),
        problem,
    };
    let read_error = |name: &str, error: CheckpointError| match error {
        CheckpointError::Disk(DiskError::Io { source, .. }) if is_damage(&source) => {
            damaged(format!("{name}: {source}"))
        }
        CheckpointError::Disk(DiskError::Io { source, .. }) => {
            CheckpointError::UnreadableCheckpoint {
                path: dir.join(name),
                source,
            }
        }
        other => other,
    };
    let text = regular_file::read(&dir.join(MANIFEST), JSON_BYTES);
    let text = text.map_err(|e| read_error(MANIFEST, e))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| damaged(format!("{MANIFEST}: {e}")))?;
    if manifest.step != step {
        return Err(damaged(format!(
            "{MANIFEST} belongs to step {}",
            manifest.step
        )));
    }
    for (name, entry) in &manifest.files {
        let path = name
            .split('/')
            .fold(PathBuf::from(dir), |path, part| path.join(part));
        let metadata = fs::metadata(&path).map_err(CheckpointError::io("read", &path));
        let size = metadata.map_err(|e| read_error(name, e))?.len();
        if size != entry.size {
            return Err(damaged(format!(
                "{name} has {size} bytes instead of {}",
                entry.size
            )));
        }
        let (_, sha256) = size_and_sha256(&path, u64::MAX).map_err(|e| read_error(name, e))?;
        if sha256 != entry.sha256 {
            return Err(damaged(format!(
                "{name} does not match the SHA-256 in the manifest"
            )));
        }
    }
    Ok(())
}

/// Whether a read error means that the file is gone or is not a regular file.
fn is_damage(source: &std::io::Error) -> bool {
    matches!(
        source.kind(),
        ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidInput
            | ErrorKind::FileTooLarge
    )
}
