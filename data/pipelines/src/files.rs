//! Whole files under their names.

use std::error::Error;
use std::path::Path;

/// Puts a file under its name when it is whole and on the disk, in place of an earlier one, and
/// never a part of it. The trainer's is that of its checkpoints.
pub trait WholeFiles {
    /// Writes a file.
    ///
    /// # Errors
    ///
    /// It cannot be written; what was there before stays.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// For tests: a file beside, then its name.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Staged;

#[cfg(test)]
impl WholeFiles for Staged {
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let staged = path.with_extension("staged");
        std::fs::write(&staged, bytes)?;
        Ok(std::fs::rename(&staged, path)?)
    }
}
