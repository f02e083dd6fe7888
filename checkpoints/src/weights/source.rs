//! A file that is read at given offsets, without a shared cursor.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::CheckpointError;
use crate::regular_file;

/// An open file and its length when it was opened.
#[derive(Debug)]
pub(crate) struct SourceFile {
    path: PathBuf,
    file: File,
    len: u64,
}

impl SourceFile {
    pub(crate) fn open(path: &Path) -> Result<SourceFile, CheckpointError> {
        let file = regular_file::open(path)?;
        let metadata = file.metadata().map_err(CheckpointError::io("read", path))?;
        Ok(SourceFile {
            path: path.to_owned(),
            file,
            len: metadata.len(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Fills `buffer` with the bytes at `offset`.
    pub(crate) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), CheckpointError> {
        read_exact_at(&self.file, offset, buffer).map_err(CheckpointError::io("read", &self.path))
    }

    /// The first bytes (at most eight) in printable form, for messages about wrong file types.
    pub(crate) fn beginning(&self) -> String {
        let mut first = vec![0; self.len.min(8) as usize];
        match self.read_at(0, &mut first) {
            Ok(()) => format!("\"{}\"", first.escape_ascii()),
            Err(_) => "unreadable bytes".to_owned(),
        }
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut buffer: &mut [u8]) -> std::io::Result<()> {
    while !buffer.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buffer, offset)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
        }
    }
    Ok(())
}
