//! Crash-safe file writes: a crash at any moment leaves either the old state or the new one.
//!
//! A rename is atomic but not durable. The file must be synced before the rename, and the directory
//! after it. Only this module does both.
//!
//! A staged file or folder is named `.NAME.tmp-PID` (a long name is shortened) and locked by its
//! writer. If the writer is killed, the next writer of the same name removes staged files that no
//! process has locked.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::DiskError;
use crate::regular_file;

/// Separates the final name from the process ID in the name of a staged file.
pub const STAGING_MARK: &str = ".tmp-";

/// Maximum bytes of a file name on common file systems.
const NAME_BYTES: usize = 255;

/// Maximum digits of a process ID.
const PROCESS_DIGITS: usize = 10;

/// Writes a file inside a staged folder, such as one of [`write_directory`], and syncs it to disk.
/// To write a file under its final name, use [`create_file`].
///
/// # Errors
///
/// - `path` exists.
/// - The file cannot be written completely. The error contains the number of bytes needed.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    write_in_parts(path, bytes.len() as u64, |file| file.write(bytes))
}

/// Like [`write_file`], but writes in parts, for files that are larger than memory. `n_bytes` is
/// the final size, which errors report. If `fill` or the disk fails, no partial file remains.
///
/// # Errors
///
/// - `path` exists.
/// - `fill` returns an error.
/// - The file cannot be written completely. The error contains the number of bytes needed.
pub fn write_in_parts<E: From<DiskError>>(
    path: &Path,
    n_bytes: u64,
    fill: impl FnOnce(&mut NewFile) -> Result<(), E>,
) -> Result<(), E> {
    let mut file = NewFile::create(path, n_bytes)?;
    let result = fill(&mut file).and_then(|()| Ok(file.sync()?));
    if result.is_err() {
        // Report the first error.
        let _ = fs::remove_file(path);
    }
    result
}

/// Creates a file atomically: readers see the complete file or none.
///
/// # Errors
///
/// - `path` exists.
/// - The file cannot be written completely. The error contains the number of bytes needed.
pub fn create_file(path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    create_in_parts(path, bytes.len() as u64, |file| file.write(bytes))
}

/// Like [`create_file`], but writes in parts, for files that are larger than memory.
///
/// # Errors
///
/// As for [`create_file`], or `fill` returns an error.
pub fn create_in_parts<E: From<DiskError>>(
    path: &Path,
    n_bytes: u64,
    fill: impl FnOnce(&mut NewFile) -> Result<(), E>,
) -> Result<(), E> {
    if fs::symlink_metadata(path).is_ok() {
        let path = path.to_owned();
        return Err(DiskError::AlreadyExists { path }.into());
    }
    remove_abandoned(path);
    let staged = staging_path(path);
    remove_if_present(&staged).map_err(DiskError::io("remove", &staged))?;
    let mut file = NewFile {
        path: path.to_owned(),
        ..NewFile::create(&staged, n_bytes).map_err(|error| with_final_path(error, path))?
    };
    // On file systems without locks, files of a killed writer remain.
    let _ = file.file.get_ref().try_lock();
    let result = fill(&mut file).and_then(|()| Ok(file.sync()?));
    let result =
        result.and_then(|()| Ok(fs::rename(&staged, path).map_err(DiskError::io("create", path))?));
    if result.is_err() {
        // Report the first error.
        let _ = fs::remove_file(&staged);
        return result;
    }
    Ok(sync_parent(path)?)
}

/// Like [`create_file`], but a closure writes the file, which may be larger than memory.
///
/// # Errors
///
/// As for [`create_file`], or the closure returns an error.
pub fn create_with<T, E: From<DiskError>>(
    path: &Path,
    fill: impl FnOnce(&File) -> Result<T, E>,
) -> Result<T, E> {
    let mut fill_result = None;
    let result = create_in_parts(path, 0, |file| {
        let done = fill(file.file.get_ref());
        let is_good = done.is_ok();
        fill_result = Some(done);
        if is_good {
            return Ok(());
        }
        // Aborts the staged file; the closure's error is the one reported.
        let stopped = std::io::Error::other("the writer stopped early");
        Err(DiskError::io("write", path)(stopped))
    });
    match (fill_result, result) {
        (Some(Ok(done)), Ok(())) => Ok(done),
        (Some(Err(error)), _) => Err(error),
        (_, result) => Err(result.err().map_or_else(
            || {
                E::from(DiskError::AlreadyExists {
                    path: path.to_owned(),
                })
            },
            E::from,
        )),
    }
}

/// Turns an error about a staged file into an error about its final path.
fn with_final_path(error: DiskError, path: &Path) -> DiskError {
    match error {
        DiskError::Write { bytes, source, .. } => DiskError::Write {
            path: path.to_owned(),
            bytes,
            source,
        },
        other => other,
    }
}

/// The staging path for `path` in this process.
fn staging_path(path: &Path) -> PathBuf {
    let mut name = staged_prefix(path.file_name().unwrap_or_default());
    name.push(std::process::id().to_string());
    path.with_file_name(name)
}

/// The name of a staged file without the process ID. A hash replaces the end of a name that would
/// be longer than the system allows.
fn staged_prefix(name: &OsStr) -> OsString {
    let longest = NAME_BYTES - 1 - STAGING_MARK.len() - PROCESS_DIGITS;
    let mut prefix = OsString::from(".");
    if name.len() <= longest {
        prefix.push(name);
    } else {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let hash = format!("-{:016x}", hasher.finish());
        let begin = name.to_string_lossy();
        prefix.push(&begin[..begin.floor_char_boundary(longest - hash.len())]);
        prefix.push(hash);
    }
    prefix.push(STAGING_MARK);
    prefix
}

/// Removes the files that killed writers of `path` have left next to it. A failed removal is
/// harmless; the next writer tries again.
fn remove_abandoned(path: &Path) {
    let Some(name) = path.file_name() else {
        return;
    };
    let begin = staged_prefix(name).to_string_lossy().into_owned();
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    remove_abandoned_where(dir, |name| name.strip_prefix(&begin));
}

/// Removes the files of killed writers in a folder, regardless of name.
pub fn remove_all_abandoned(dir: &Path) {
    remove_abandoned_where(dir, |name| {
        let name = name.strip_prefix('.')?;
        name.rsplit_once(STAGING_MARK).map(|(_, process)| process)
    });
}

/// Removes unlocked entries for which `process_of` finds a process ID in the name.
fn remove_abandoned_where(dir: &Path, process_of: impl Fn(&str) -> Option<&str>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| {
            process_of(name)
                .is_some_and(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit()))
        });
        let Some(kind) = entry.file_type().ok().filter(|_| is_ours) else {
            continue;
        };
        // Never open other file types: opening a pipe would block until it has a writer.
        if (kind.is_file() || kind.is_dir()) && is_abandoned(&entry.path()) {
            let _ = if kind.is_dir() {
                fs::remove_dir_all(entry.path())
            } else {
                fs::remove_file(entry.path())
            };
        }
    }
}

/// Whether no process has locked this file or folder.
fn is_abandoned(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock().is_ok())
}

/// The exclusive lock on a folder. It is released when the process ends, for whatever reason.
#[derive(Debug)]
pub struct FolderLock {
    /// `None` on Windows, which cannot lock folders; other processes are not excluded there.
    _folder: Option<HeldLock>,
}

/// A locked file or folder. A child process that is being started shares the lock until its own
/// program begins, so closing the file is not enough to release it.
#[derive(Debug)]
pub struct HeldLock(File);

impl HeldLock {
    /// Wraps a file that is already locked.
    pub fn new(locked: File) -> Self {
        Self(locked)
    }

    /// The locked file.
    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        // If unlocking fails, closing the file releases the lock.
        let _ = self.0.unlock();
    }
}

impl FolderLock {
    /// Locks `dir` without creating a lock file.
    ///
    /// # Errors
    ///
    /// - Another process has locked it.
    /// - The folder cannot be opened.
    pub fn take(dir: &Path) -> Result<FolderLock, DiskError> {
        if cfg!(not(unix)) {
            return Ok(FolderLock { _folder: None });
        }
        let folder = File::open(dir).map_err(DiskError::io("open", dir))?;
        match folder.try_lock() {
            Err(TryLockError::WouldBlock) => Err(DiskError::FolderInUse {
                path: dir.to_owned(),
            }),
            // Some network file systems cannot lock folders; other processes are not excluded
            // there.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(FolderLock {
                _folder: Some(HeldLock::new(folder)),
            }),
        }
    }
}

/// A staged file, see [`write_in_parts`].
#[derive(Debug)]
pub struct NewFile {
    /// The final path, which errors name.
    path: PathBuf,
    file: BufWriter<File>,
    /// Final length of the file.
    n_bytes: u64,
}

impl NewFile {
    fn create(path: &Path, n_bytes: u64) -> Result<NewFile, DiskError> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|source| match source.kind() {
                std::io::ErrorKind::AlreadyExists => DiskError::AlreadyExists {
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

    /// The final path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends `bytes`.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        let result = self.file.write_all(bytes);
        result.map_err(write_error(&self.path, self.n_bytes))
    }

    fn sync(&mut self) -> Result<(), DiskError> {
        let synced = self.file.flush();
        let synced = synced.and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(write_error(&self.path, self.n_bytes))
    }
}

/// Replaces or creates a file atomically: readers see the old bytes or the new, never a part.
///
/// A path that exists and is not a regular file, such as `/dev/null`, `/dev/stdout` or a pipe, is
/// written to directly. Replacing it with a file would harm every program on the machine.
///
/// # Errors
///
/// The file cannot be written completely. In that case, the old file is unchanged.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
        let result = File::options().write(true).open(path);
        let result = result.and_then(|mut file| file.write_all(bytes));
        return result.map_err(write_error(path, bytes.len() as u64));
    }
    remove_abandoned(path);
    let staged = staging_path(path);
    // An earlier process with the same ID may have left a file or link with this name.
    let _ = fs::remove_file(&staged);
    let result = File::create_new(&staged).and_then(|mut file| {
        // On file systems without locks, files of a killed writer remain.
        let _ = file.try_lock();
        file.write_all(bytes)?;
        file.sync_all()?;
        // The lock is released after the rename.
        fs::rename(&staged, path)
    });
    if let Err(source) = result {
        // Report the first error.
        let _ = fs::remove_file(&staged);
        return Err(write_error(path, bytes.len() as u64)(source));
    }
    sync_parent(path)
}

/// Creates a file in a staged folder, such as one of [`write_directory`]. The caller writes it in
/// parts and syncs it.
///
/// # Errors
///
/// `path` exists or cannot be created.
pub fn create_staged_file(path: &Path) -> Result<File, DiskError> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(path);
    file.map_err(DiskError::io("create", path))
}

/// Removes a folder atomically: other processes see the whole folder or none, even if this process
/// is killed.
///
/// # Errors
///
/// The folder cannot be renamed or removed. An absent folder is not an error.
pub fn remove_directory(dir: &Path) -> Result<(), DiskError> {
    let staged = staging_path(dir);
    match fs::rename(dir, &staged) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed.map_err(DiskError::io("remove", dir))?,
    }
    remove_dir_if_present(&staged)
}

/// Sets a file's modification time to now.
///
/// # Errors
///
/// The file cannot be opened for writing.
pub fn touch(path: &Path) -> std::io::Result<()> {
    let file = regular_file::open_own(path, OpenOptions::new().append(true))?;
    file.set_modified(std::time::SystemTime::now())
}

/// Creates a directory atomically. `fill` receives a temporary sibling, which is then renamed to
/// `dir`.
///
/// # Errors
///
/// - `dir` exists.
/// - `fill` returns an error, or a file cannot be written or renamed.
pub fn write_directory<E: From<DiskError>>(
    dir: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    if dir.exists() {
        let path = dir.to_owned();
        return Err(DiskError::AlreadyExists { path }.into());
    }
    remove_abandoned(dir);
    let staging = staging_path(dir);
    remove_dir_if_present(&staging)?;
    fs::create_dir_all(&staging).map_err(DiskError::io("create", &staging))?;
    // The lock is held while the folder is staged, if the system can lock folders.
    let lock = File::open(&staging);
    if let Ok(lock) = &lock {
        let _ = lock.try_lock();
    }
    let result = fill(&staging)
        .and_then(|()| Ok(sync_tree(&staging)?))
        .and_then(|()| Ok(fs::rename(&staging, dir).map_err(DiskError::io("create", dir))?));
    if result.is_err() {
        // Report the first error.
        let _ = fs::remove_dir_all(&staging);
    }
    result.and_then(|()| Ok(sync_parent(dir)?))
}

/// Syncs a folder and its subfolders. The writers of the files sync the files.
fn sync_tree(dir: &Path) -> Result<(), DiskError> {
    for entry in fs::read_dir(dir).map_err(DiskError::io("list", dir))? {
        let entry = entry.map_err(DiskError::io("list", dir))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sync_tree(&entry.path())?;
        }
    }
    sync_dir(dir)
}

/// Removes a folder recursively. An absent folder is not an error.
pub fn remove_dir_if_present(path: &Path) -> Result<(), DiskError> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(DiskError::io("remove", path)(e)),
        _ => Ok(()),
    }
}

/// Removes a file. An absent file is not an error.
fn remove_if_present(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Makes renames and new names in the directory of `path` durable.
pub fn sync_parent(path: &Path) -> Result<(), DiskError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        _ => sync_dir(Path::new(".")),
    }
}

/// Makes the names in a folder durable.
///
/// # Errors
///
/// The folder cannot be opened or synced.
#[cfg(unix)]
pub fn sync_dir(dir: &Path) -> Result<(), DiskError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(DiskError::io("sync", dir))
}

/// Windows cannot sync a directory.
#[cfg(not(unix))]
pub fn sync_dir(_dir: &Path) -> Result<(), DiskError> {
    Ok(())
}

fn write_error(path: &Path, n_bytes: u64) -> impl FnOnce(std::io::Error) -> DiskError + '_ {
    move |source| DiskError::Write {
        path: path.to_owned(),
        bytes: n_bytes,
        source,
    }
}

#[cfg(test)]
mod tests;
