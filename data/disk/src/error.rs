//! Errors when reading and writing files and folders.

use std::path::{Path, PathBuf};

/// A file or folder that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The operating system failed to read, list, rename or remove something.
    #[error("cannot {doing} {path}: {source}", path = path.display())]
    Io {
        /// File or directory concerned.
        path: PathBuf,
        /// Verb for the message, as in "read".
        doing: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },

    /// A file could not be written completely, most often because the disk is full.
    #[error(
        "cannot write {path} ({bytes} bytes needed): {source}; {advice}",
        path = path.display(), advice = write_advice(source)
    )]
    Write {
        /// The file that could not be written.
        path: PathBuf,
        /// Final size of the whole file.
        bytes: u64,
        /// The operating system's error.
        source: std::io::Error,
    },

    /// The output already exists and would be overwritten.
    #[error("{path} already exists; remove it or choose another name", path = path.display())]
    AlreadyExists {
        /// The existing file or directory.
        path: PathBuf,
    },

    /// Another process uses the same folder.
    #[error(
        "{path} is in use by another process; wait for it, stop it, or choose another folder",
        path = path.display()
    )]
    FolderInUse {
        /// The folder that another process has locked.
        path: PathBuf,
    },
}

impl DiskError {
    /// Creates an [`Io`](Self::Io) error with the failed operation, for `map_err`.
    pub fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> DiskError {
        let path = path.to_owned();
        move |source| DiskError::Io {
            path,
            doing,
            source,
        }
    }
}

/// Advice on a failed write, and what is unaffected.
fn write_advice(source: &std::io::Error) -> String {
    use std::io::ErrorKind;
    let advice = match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free space on that file system, lower save_total_limit, or choose another output directory"
        }
        ErrorKind::FileTooLarge => {
            "the file system or a process limit does not allow a larger file: choose another file \
             system, or raise the limit"
        }
        ErrorKind::IsADirectory | ErrorKind::DirectoryNotEmpty => {
            "the path is a folder: move it away, or choose another name"
        }
        ErrorKind::ReadOnlyFilesystem => {
            "that file system is read-only: mount it writable, or choose another output directory"
        }
        ErrorKind::PermissionDenied => "choose a writable folder, or change its permissions",
        // If the folder does not exist, nothing was saved in it.
        ErrorKind::NotFound => {
            return "its folder does not exist: create it, or choose another one".to_owned();
        }
        _ => "look for the cause in the system log (dmesg), then run the same command again",
    };
    format!("{advice}; files saved earlier are unchanged")
}
