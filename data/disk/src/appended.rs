//! Files that this program appends to while other programs may remove, replace or truncate them.

use std::fs::{File, OpenOptions, symlink_metadata};
use std::io::{self, Seek as _, Write as _};
use std::path::Path;

use crate::DiskError;
use crate::atomic::create_with;
use crate::regular_file::{is_same_file, open_own};

/// What another program did to an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The file has no name any longer.
    Removed,
    /// The name belongs to a different file.
    Replaced,
    /// The file is shorter than before.
    Truncated,
}

/// Compares an open file with its path, and its length with the `n_bytes` written so far.
///
/// # Errors
///
/// The system cannot inspect the file or the path.
pub fn detect_loss(file: &File, path: &Path, n_bytes: u64) -> io::Result<Option<Loss>> {
    let opened = file.metadata()?;
    Ok(match symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Loss::Removed),
        Err(error) => return Err(error),
        Ok(named) if !is_same_file(&opened, &named) => Some(Loss::Replaced),
        Ok(_) if opened.len() < n_bytes => Some(Loss::Truncated),
        Ok(_) => None,
    })
}

/// Opens an existing file of this program for reading and appending.
///
/// # Errors
///
/// As for [`open_own`].
pub fn open_to_append(path: &Path) -> io::Result<File> {
    open_own(path, OpenOptions::new().read(true).append(true))
}

/// Creates a removed file again from its open handle, which must be readable, and opens the new
/// file for reading and appending.
///
/// # Errors
///
/// - `path` exists.
/// - The file cannot be read or written.
pub fn write_again(file: &mut File, path: &Path) -> Result<File, DiskError> {
    file.rewind().map_err(DiskError::io("read", path))?;
    create_with(path, |mut output| {
        let copied = io::copy(file, &mut output).and_then(|_| output.flush());
        copied.map_err(DiskError::io("write again", path))
    })?;
    open_to_append(path).map_err(DiskError::io("open", path))
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_removed_file_is_written_again_and_other_losses_are_distinguished() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lines");
        fs::write(&path, "1\n2\n").expect("written");
        let mut file = open_to_append(&path).expect("opened");
        let loss = |file: &File| detect_loss(file, &path, 4).expect("inspected");
        assert_eq!(loss(&file), None);
        fs::remove_file(&path).expect("removed");
        assert_eq!(loss(&file), Some(Loss::Removed));
        file.write_all(b"3\n").expect("written");
        file = write_again(&mut file, &path).expect("written again");
        assert_eq!(fs::read_to_string(&path).expect("read"), "1\n2\n3\n");
        assert_eq!(loss(&file), None);
        fs::write(&path, "1\n").expect("truncated");
        assert_eq!(loss(&file), Some(Loss::Truncated));
        fs::write(folder.path().join("other"), "other").expect("written");
        fs::rename(folder.path().join("other"), &path).expect("replaced");
        assert_eq!(loss(&file), Some(Loss::Replaced));
        assert!(write_again(&mut file, &path).is_err());
        assert_eq!(fs::read_to_string(&path).expect("read"), "other");
    }
}
