//! Bytes to disk such that a crash at any moment leaves either the old state or the new one.
//!
//! A rename is atomic but not durable: the file must be synced before it and the directory after
//! it. Both happen here and nowhere else.
//!
//! What is in the making has the name `.NAME.tmp-PID` and is locked by its writer. A writer that was
//! killed leaves it behind; the next writer of the same name removes what nobody has locked.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::CheckpointError;
use crate::regular_file;

/// Between the name of what is in the making and the process that makes it.
pub(crate) const STAGING_MARK: &str = ".tmp-";

/// Bytes of a file that are copied at once.
const PART_BYTES: usize = 1 << 20;

/// Writes a file of a folder in the making, such as that of [`write_directory`], and syncs it to
/// disk. A file under its final name is for [`create_file`].
///
/// # Errors
///
/// - `path` exists
/// - it cannot be written completely; the error tells how many bytes it needs
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    write_in_parts(path, bytes.len() as u64, |file| file.write(bytes))
}

/// [`write_file`] part by part, for files that are larger than memory. It will have `n_bytes`
/// bytes, which errors name. Where `fill` or the disk fails, nothing is left behind.
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

/// Makes a file that does not exist yet, complete or not at all: whoever looks never sees a part.
///
/// # Errors
///
/// - `path` exists
/// - it cannot be written completely; the error tells how many bytes it needs
pub fn create_file(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    create_in_parts(path, bytes.len() as u64, |file| file.write(bytes))
}

/// [`create_file`] part by part, for files that are larger than memory.
///
/// # Errors
///
/// As [`create_file`], and what `fill` says.
pub(crate) fn create_in_parts(
    path: &Path,
    n_bytes: u64,
    fill: impl FnOnce(&mut NewFile) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(CheckpointError::AlreadyExists {
            path: path.to_owned(),
        });
    }
    remove_abandoned(path);
    let staged = staged_name(path);
    remove_if_present(&staged).map_err(CheckpointError::io("remove", &staged))?;
    let mut file = NewFile {
        path: path.to_owned(),
        ..NewFile::create(&staged, n_bytes).map_err(|error| renamed(error, path))?
    };
    // Where files cannot be locked, those of a killed writer stay.
    let _ = file.file.get_ref().try_lock();
    let written = fill(&mut file).and_then(|()| file.sync());
    let written = written
        .and_then(|()| fs::rename(&staged, path).map_err(CheckpointError::io("create", path)));
    if written.is_err() {
        // The error to report is the first one.
        let _ = fs::remove_file(&staged);
        return written;
    }
    sync_parent(path)
}

/// [`create_file`] by whoever writes into the file as it grows, which may be larger than memory.
///
/// # Errors
///
/// - as [`create_file`]
/// - what `fill` says
pub fn create_by<T, E: From<CheckpointError>>(
    path: &Path,
    fill: impl FnOnce(&File) -> Result<T, E>,
) -> Result<T, E> {
    let mut filled = None;
    let written = create_in_parts(path, 0, |file| {
        let done = fill(file.file.get_ref());
        let is_good = done.is_ok();
        filled = Some(done);
        if is_good {
            return Ok(());
        }
        // Ends the file in the making; what is told is the error that is kept.
        let stopped = std::io::Error::other("not all of it is there");
        Err(CheckpointError::io("write", path)(stopped))
    });
    match (filled, written) {
        (Some(Ok(done)), Ok(())) => Ok(done),
        (Some(Err(error)), _) => Err(error),
        (_, written) => Err(written.err().map_or_else(
            || {
                E::from(CheckpointError::AlreadyExists {
                    path: path.to_owned(),
                })
            },
            E::from,
        )),
    }
}

/// [`create_file`] of what stands in another file from `offset` on, which may be larger than memory.
///
/// # Errors
///
/// - as [`create_file`]
/// - the other file cannot be read
pub fn create_from_rest(path: &Path, from: &Path, offset: u64) -> Result<(), CheckpointError> {
    let unreadable = || CheckpointError::io("read", from);
    let mut rest = regular_file::open(from)?;
    let n_bytes = rest.seek(SeekFrom::End(0)).map_err(unreadable())?;
    rest.seek(SeekFrom::Start(offset)).map_err(unreadable())?;
    create_in_parts(path, n_bytes.saturating_sub(offset), |file| {
        let mut part = vec![0; PART_BYTES];
        loop {
            match rest.read(&mut part).map_err(unreadable())? {
                0 => return Ok(()),
                n => file.write(&part[..n])?,
            }
        }
    })
}

/// An error about a staged file as one about the file that it was to become.
fn renamed(error: CheckpointError, path: &Path) -> CheckpointError {
    match error {
        CheckpointError::Write { bytes, source, .. } => CheckpointError::Write {
            path: path.to_owned(),
            bytes,
            source,
        },
        other => other,
    }
}

/// The name of what is to become `path` while this process makes it.
fn staged_name(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!("{STAGING_MARK}{}", std::process::id()));
    path.with_file_name(name)
}

/// Removes what killed writers of `path` have left beside it. What cannot be removed harms nobody,
/// and the next writer tries again.
fn remove_abandoned(path: &Path) {
    let Some(name) = path.file_name() else {
        return;
    };
    let begin = format!(".{}{STAGING_MARK}", name.to_string_lossy());
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    remove_abandoned_where(dir, |name| name.strip_prefix(&begin));
}

/// Removes what killed writers have left in a folder, of whatever name.
pub fn remove_all_abandoned(dir: &Path) {
    remove_abandoned_where(dir, |name| {
        let name = name.strip_prefix('.')?;
        name.rsplit_once(STAGING_MARK).map(|(_, process)| process)
    });
}

/// Removes what nobody has locked of the names that `process_of` finds a process in.
fn remove_abandoned_where(dir: &Path, process_of: impl Fn(&str) -> Option<&str>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| {
            process_of(name)
                .is_some_and(|id| !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit()))
        });
        let Some(kind) = entry.file_type().ok().filter(|_| is_ours) else {
            continue;
        };
        // Nothing else is opened: a pipe would wait for its writer.
        if (kind.is_file() || kind.is_dir()) && is_abandoned(&entry.path()) {
            let _ = if kind.is_dir() {
                fs::remove_dir_all(entry.path())
            } else {
                fs::remove_file(entry.path())
            };
        }
    }
}

/// Whether no process has a file or folder locked.
fn is_abandoned(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock().is_ok())
}

/// The one process that works in a folder; let go of with the process, whatever ends it.
#[derive(Debug)]
pub struct FolderLock {
    /// Windows has no handle on a folder to lock; then nobody is kept out.
    _folder: Option<HeldLock>,
}

/// A locked file or folder. A child process that is just being started shares the lock until its own
/// program begins; closing the file alone would leave it held until then.
#[derive(Debug)]
pub(crate) struct HeldLock(File);

impl HeldLock {
    /// Of what is locked already.
    pub(crate) fn of(locked: File) -> Self {
        Self(locked)
    }

    pub(crate) fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        // Where it cannot be let go of, it ends with the file.
        let _ = self.0.unlock();
    }
}

impl FolderLock {
    /// Takes the lock of `dir`, which leaves no file there.
    ///
    /// # Errors
    ///
    /// - another process has it
    /// - the folder cannot be opened
    pub fn take(dir: &Path) -> Result<FolderLock, CheckpointError> {
        if cfg!(not(unix)) {
            return Ok(FolderLock { _folder: None });
        }
        let folder = File::open(dir).map_err(CheckpointError::io("open", dir))?;
        match folder.try_lock() {
            Err(TryLockError::WouldBlock) => Err(CheckpointError::FolderInUse {
                path: dir.to_owned(),
            }),
            // Some network file systems lock no folders; then nobody is kept out.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(FolderLock {
                _folder: Some(HeldLock::of(folder)),
            }),
        }
    }
}

/// A file in the making, see [`write_in_parts`].
#[derive(Debug)]
pub(crate) struct NewFile {
    /// Its name, or that which it will have.
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
    remove_abandoned(path);
    let staged = staged_name(path);
    let written = File::create(&staged).and_then(|mut file| {
        // Where files cannot be locked, those of a killed writer stay.
        let _ = file.try_lock();
        file.write_all(bytes)?;
        file.sync_all()?;
        // Let go of with the name that says so.
        fs::rename(&staged, path)
    });
    if let Err(source) = written {
        // The error to report is the first one.
        let _ = fs::remove_file(&staged);
        return Err(write_error(path, bytes.len() as u64)(source));
    }
    sync_parent(path)
}

/// A new file in a folder in the making, such as that of [`write_directory`], to be written in parts
/// and synced by the caller.
///
/// # Errors
///
/// - `path` exists, or cannot be made
pub fn new_file(path: &Path) -> Result<File, CheckpointError> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(path);
    file.map_err(CheckpointError::io("create", path))
}

/// Removes a folder such that it is there whole or not at all, whoever looks and whatever ends this
/// process.
///
/// # Errors
///
/// - it cannot be renamed or removed; one that is not there is none
pub fn remove_directory(dir: &Path) -> Result<(), CheckpointError> {
    let staged = staged_name(dir);
    match fs::rename(dir, &staged) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed.map_err(CheckpointError::io("remove", dir))?,
    }
    remove_dir_if_present(&staged)
}

/// Says of a file that it was used now.
///
/// # Errors
///
/// - it cannot be opened to write
pub fn touch(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().append(true).open(path)?;
    file.set_modified(std::time::SystemTime::now())
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
    remove_abandoned(dir);
    let staging = staged_name(dir);
    remove_dir_if_present(&staging)?;
    fs::create_dir_all(&staging).map_err(CheckpointError::io("create", &staging))?;
    // Held while the folder is in the making, where folders can be locked.
    let lock = File::open(&staging);
    if let Ok(lock) = &lock {
        let _ = lock.try_lock();
    }
    let written = fill(&staging)
        .and_then(|()| sync_tree(&staging))
        .and_then(|()| fs::rename(&staging, dir).map_err(CheckpointError::io("create", dir)));
    if written.is_err() {
        // The error to report is the first one.
        let _ = fs::remove_dir_all(&staging);
    }
    written.and_then(|()| sync_parent(dir))
}

/// Syncs a folder and those in it; their files are synced by whoever writes them.
fn sync_tree(dir: &Path) -> Result<(), CheckpointError> {
    for entry in fs::read_dir(dir).map_err(CheckpointError::io("list", dir))? {
        let entry = entry.map_err(CheckpointError::io("list", dir))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sync_tree(&entry.path())?;
        }
    }
    sync_dir(dir)
}

/// Removes a folder with all that is in it; none is no error.
pub(crate) fn remove_dir_if_present(path: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(CheckpointError::io("remove", path)(e))
        }
        _ => Ok(()),
    }
}

/// Removes a file; none is no error.
fn remove_if_present(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
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

fn write_error(path: &Path, n_bytes: u64) -> impl FnOnce(std::io::Error) -> CheckpointError + '_ {
    move |source| CheckpointError::Write {
        path: path.to_owned(),
        bytes: n_bytes,
        source,
    }
}

#[cfg(test)]
mod tests;
