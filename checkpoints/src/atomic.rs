//! Bytes to disk such that a crash at any moment leaves either the old state or the new one.
//!
//! A rename is atomic but not durable: the file must be synced before it and the directory after
//! it. Both happen here and nowhere else.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::CheckpointError;

/// Writes a file that does not exist yet and syncs it to disk.
///
/// # Errors
///
/// - `path` exists
/// - it cannot be written completely; the error tells how many bytes it needs
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    write_in_parts(path, bytes.len() as u64, |file| file.write(bytes))
}

/// Writes a file that does not exist yet part by part, and syncs it to disk; for files that are
/// larger than memory. It will have `n_bytes` bytes, which errors name. Where `fill` or the disk
/// fails, nothing is left behind.
///
/// # Errors
///
/// - `path` exists
/// - what `fill` says
/// - it cannot be written completely; the error tells how many bytes it needs
pub(crate) fn write_in_parts(
    path: &Path,
    n_bytes: u64,
    fill: impl FnOnce(&mut NewFile) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let mut file = NewFile::create(path, n_bytes)?;
    let written = fill(&mut file).and_then(|()| file.sync());
    if written.is_err() {
        // The error to report is the first one.
        let _ = fs::remove_file(path);
    }
    written
}

/// A file in the making, see [`write_in_parts`].
#[derive(Debug)]
pub(crate) struct NewFile {
    path: PathBuf,
    file: BufWriter<File>,
    /// Length that the whole file will have.
    n_bytes: u64,
}

impl NewFile {
    fn create(path: &Path, n_bytes: u64) -> Result<NewFile, CheckpointError> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|source| match source.kind() {
                std::io::ErrorKind::AlreadyExists => CheckpointError::AlreadyExists {
                    path: path.to_owned(),
                },
                _ => write_error(path, n_bytes)(source),
            })?;
        Ok(NewFile {
            path: path.to_owned(),
            file: BufWriter::new(file),
            n_bytes,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends `bytes`.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        let written = self.file.write_all(bytes);
        written.map_err(write_error(&self.path, self.n_bytes))
    }

    fn sync(&mut self) -> Result<(), CheckpointError> {
        let synced = self.file.flush();
        let synced = synced.and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(write_error(&self.path, self.n_bytes))
    }
}

/// Replaces or creates a file in one step: readers see the old bytes or the new, never a part.
///
/// What is there and no file, such as `/dev/null`, `/dev/stdout` or a pipe, is written to and stays
/// what it is: a file in its place would harm every program of the machine.
///
/// # Errors
///
/// The file cannot be written completely; the old one is then untouched.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        let written = File::options().write(true).open(path);
        let written = written.and_then(|mut file| file.write_all(bytes));
        return written.map_err(write_error(path, bytes.len() as u64));
    }
    let mut staged_name = std::ffi::OsString::from(".");
    staged_name.push(path.file_name().unwrap_or_default());
    staged_name.push(format!(".tmp-{}", std::process::id()));
    let staged = path.with_file_name(staged_name);
    let written = File::create(&staged)
        .and_then(|file| write_all_synced(file, bytes))
        .and_then(|()| fs::rename(&staged, path));
    if let Err(source) = written {
        // The error to report is the first one; the file left behind harms nobody.
        let _ = fs::remove_file(&staged);
        return Err(write_error(path, bytes.len() as u64)(source));
    }
    sync_parent(path)
}

/// Makes a directory that does not exist yet, complete or not at all: `fill` gets a temporary
/// sibling, which is renamed to `dir` at the end.
///
/// # Errors
///
/// - `dir` exists
/// - what `fill` says, or a file or name that cannot be written
pub fn write_directory(
    dir: &Path,
    fill: impl FnOnce(&Path) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    if dir.exists() {
        return Err(CheckpointError::AlreadyExists {
            path: dir.to_owned(),
        });
    }
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let staging = dir.with_file_name(format!(".{name}.tmp-{}", std::process::id()));
    if staging.exists() {
        fs::remove_dir_all(&staging).map_err(CheckpointError::io("remove", &staging))?;
    }
    fs::create_dir_all(&staging).map_err(CheckpointError::io("create", &staging))?;
    let written = fill(&staging)
        .and_then(|()| sync_dir(&staging))
        .and_then(|()| fs::rename(&staging, dir).map_err(CheckpointError::io("create", dir)));
    if written.is_err() {
        // The error to report is the first one.
        let _ = fs::remove_dir_all(&staging);
    }
    written.and_then(|()| sync_parent(dir))
}

/// Makes renames and new names in the directory of `path` survive a power cut.
pub(crate) fn sync_parent(path: &Path) -> Result<(), CheckpointError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        _ => sync_dir(Path::new(".")),
    }
}

#[cfg(unix)]
pub(crate) fn sync_dir(dir: &Path) -> Result<(), CheckpointError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(CheckpointError::io("sync", dir))
}

/// Windows has no handle on a directory to sync.
#[cfg(not(unix))]
pub(crate) fn sync_dir(_dir: &Path) -> Result<(), CheckpointError> {
    Ok(())
}

fn write_all_synced(mut file: File, bytes: &[u8]) -> std::io::Result<()> {
    file.write_all(bytes)?;
    file.sync_all()
}

fn write_error(path: &Path, n_bytes: u64) -> impl FnOnce(std::io::Error) -> CheckpointError + '_ {
    move |source| CheckpointError::Write {
        path: path.to_owned(),
        bytes: n_bytes,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_file_is_not_overwritten_by_write_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        write_file(&path, b"first").unwrap();
        let error = write_file(&path, b"second").unwrap_err();
        assert!(
            matches!(error, CheckpointError::AlreadyExists { .. }),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), b"first");
    }

    #[test]
    fn an_atomic_write_replaces_the_file_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LATEST");
        write_atomic(&path, b"old").unwrap();
        write_atomic(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_whose_parts_fail_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let error = write_in_parts(&path, 9, |file| {
            file.write(b"first")?;
            Err(CheckpointError::field(
                Path::new("b"),
                "second",
                "is absent",
            ))
        });
        assert!(error.unwrap_err().to_string().contains("second: is absent"));
        assert!(!path.exists());
        write_in_parts(&path, 9, |file| {
            file.write(b"first")?;
            file.write(b", second")
        })
        .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first, second");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error_that_tells_path_and_bytes() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut file = NewFile {
            path: PathBuf::from("/runs/a/adapter.safetensors"),
            file: BufWriter::new(full),
            n_bytes: 70_000,
        };
        // The buffer takes the first part; the disk refuses it with the second, or with the sync.
        let parts = file.write(b"12345").and_then(|()| file.write(&[0; 69_995]));
        let error = parts.and_then(|()| file.sync()).unwrap_err().to_string();
        assert!(
            error.contains("/runs/a/adapter.safetensors (70000 bytes needed)"),
            "{error}"
        );
        assert!(error.contains("No space left"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_written_to_and_not_replaced() {
        use std::os::unix::fs::FileTypeExt;

        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        write_atomic(&pipe, b"metrics").unwrap();
        assert_eq!(reader.join().unwrap(), b"metrics");
        let still = fs::symlink_metadata(&pipe).unwrap().file_type();
        assert!(still.is_fifo());
    }
}
