//! Wraps [`tooltune_disk`]'s functions for regular files with errors that name the file.

use std::fs::File;
use std::path::Path;

use tooltune_disk::budgets::Limit;
use tooltune_disk::regular_file;

use crate::error::CheckpointError;

/// [`regular_file::open`] with this crate's error.
pub(crate) fn open(path: &Path) -> Result<File, CheckpointError> {
    regular_file::open(path).map_err(CheckpointError::io("open", path))
}

/// [`regular_file::read`] with this crate's error.
pub(crate) fn read(path: &Path, limit: Limit) -> Result<Vec<u8>, CheckpointError> {
    regular_file::read(path, limit).map_err(CheckpointError::io("read", path))
}

/// [`regular_file::read_text`] with this crate's error.
pub(crate) fn read_text(path: &Path, limit: Limit) -> Result<String, CheckpointError> {
    regular_file::read_text(path, limit).map_err(CheckpointError::io("read", path))
}

/// [`regular_file::is_there`] with this crate's error.
pub(crate) fn is_there(path: &Path) -> Result<bool, CheckpointError> {
    regular_file::is_there(path).map_err(CheckpointError::io("read", path))
}
