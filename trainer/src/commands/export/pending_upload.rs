//! Remembers an export that was written but not uploaded, so that the same command can upload it.
//!
//! A file next to the export records its inputs, and once it is written also its files. The next
//! run uploads the export only if neither changed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooltune_checkpoints::digest::{sha256_bytes, sha256_file};
use tooltune_checkpoints::prompt_files::{CHAT_TEMPLATE, SLOT_PROMPT};
use tooltune_disk::atomic::write_atomic;
use tooltune_disk::regular_file;

use crate::cli::{ExportArgs, ExportFormat};
use crate::config::Config;
use crate::config::budgets::RUN_FILE_BYTES;
use crate::error::Error;
use crate::recipes::retriever::files::PARAMETERS_FILE;
use crate::recipes::run_lock::{BASE_MODEL, RETRIEVER, RunLock, model_digests};

/// Checkpoint files that an export is made from.
const EXPORTED: [&str; 5] = [
    "adapter_config.json",
    "adapter_model.safetensors",
    CHAT_TEMPLATE,
    PARAMETERS_FILE,
    SLOT_PROMPT,
];

/// Suffix of the record, after the name of the export.
const SUFFIX: &str = ".upload.json";

/// Record of an export's inputs and files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::commands) struct PendingUpload {
    /// Digest of the checkpoint, base model, settings and options.
    made_of: String,
    /// SHA-256 of each file by its path within the export. `None` until the export is written and
    /// its files are hashed.
    files: Option<BTreeMap<String, String>>,
}

impl PendingUpload {
    /// Returns the digest of all inputs of an export.
    ///
    /// # Errors
    ///
    /// A file of the checkpoint or base model cannot be read.
    pub(in crate::commands) fn made_of(
        args: &ExportArgs,
        config: &Config,
        checkpoint: Option<&Path>,
    ) -> Result<String, Error> {
        let settings = config.to_toml();
        let settings = settings.map_err(|error| Error::Usage(format!("the settings: {error}")))?;
        let options = format!(
            "{} {:?} {} {} {:?} {:?}",
            env!("CARGO_PKG_VERSION"),
            args.to,
            args.merged,
            args.neutral,
            args.dtype,
            args.max_shard_size
        );
        let mut parts = vec![sha256_bytes(settings.as_bytes()), options];
        if let Some(checkpoint) = checkpoint {
            for name in EXPORTED {
                let path = checkpoint.join(name);
                if regular_file::is_there(&path).map_err(Error::io(&path, "read"))? {
                    parts.push(format!("{name} {}", sha256_file(&path)?));
                }
            }
        }
        let base = match args.to {
            ExportFormat::SentenceTransformers => RETRIEVER,
            _ => BASE_MODEL,
        };
        let known = match checkpoint {
            Some(checkpoint) => RunLock::of_checkpoint(checkpoint)?,
            None => None,
        };
        parts.extend(model_digests(config, &[base], known.as_ref())?);
        Ok(sha256_bytes(parts.join("\n").as_bytes()))
    }

    /// Records that an export begins. It gets its name only when complete, so if a kill prevents
    /// [`Self::write_record`], an export with this record is complete.
    ///
    /// # Errors
    ///
    /// The folder of the export or the record cannot be written.
    pub(in crate::commands) fn begin(output: &Path, made_of: &str) -> Result<(), Error> {
        if let Some(folder) = output.parent() {
            std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
        }
        let pending = Self {
            made_of: made_of.to_owned(),
            files: None,
        };
        pending.write(output)
    }

    /// Records a complete export before its upload.
    ///
    /// # Errors
    ///
    /// Its files cannot be read, or the record cannot be written.
    pub(in crate::commands) fn write_record(output: &Path, made_of: &str) -> Result<(), Error> {
        let pending = Self {
            made_of: made_of.to_owned(),
            files: Some(digests(output)?),
        };
        pending.write(output)
    }

    fn write(&self, output: &Path) -> Result<(), Error> {
        let path = note_path(output);
        let bytes = serde_json::to_vec_pretty(self);
        let bytes = bytes.map_err(|error| Error::Usage(format!("{}: {error}", path.display())))?;
        Ok(write_atomic(&path, &bytes)?)
    }

    /// Whether `output` is an unchanged export of the same inputs that was not uploaded.
    ///
    /// # Errors
    ///
    /// It is another export or was changed, or a file cannot be read.
    pub(in crate::commands) fn is_pending(output: &Path, made_of: &str) -> Result<bool, Error> {
        let path = note_path(output);
        let bytes = regular_file::read_own_if_there(&path, RUN_FILE_BYTES);
        let Some(bytes) = bytes.map_err(Error::io(&path, "read"))? else {
            return Ok(false);
        };
        if std::fs::symlink_metadata(output).is_err() {
            // It was removed and is exported again.
            return Ok(false);
        }
        let refused = |what: &str| {
            Err(Error::Usage(format!(
                "{}: this export, which was not uploaded yet, {what}; remove it and {}, or name \
                 another --output",
                output.display(),
                path.display()
            )))
        };
        let Ok(pending) = serde_json::from_slice::<Self>(&bytes) else {
            return refused("cannot be checked, because its record is damaged");
        };
        if pending.made_of != made_of {
            return refused(
                "was made from another checkpoint or base model, or with other settings or options",
            );
        }
        match pending.files {
            Some(files) if files != digests(output)? => refused("was changed since it was written"),
            Some(_) | None => Ok(true),
        }
    }

    /// Deletes the record of an uploaded export, or of one that another export replaced. Files of
    /// this name without a record are left alone.
    ///
    /// # Errors
    ///
    /// The record cannot be read or removed.
    pub(in crate::commands) fn remove_record(output: &Path) -> Result<(), Error> {
        let path = note_path(output);
        let bytes = regular_file::read_own_if_there(&path, RUN_FILE_BYTES);
        let bytes = bytes.map_err(Error::io(&path, "read"))?.unwrap_or_default();
        if serde_json::from_slice::<Self>(&bytes).is_err() {
            return Ok(());
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(&path, "remove")(error))
            }
            _ => Ok(()),
        }
    }
}

fn note_path(output: &Path) -> PathBuf {
    let mut name = OsString::from(output.as_os_str());
    name.push(SUFFIX);
    name.into()
}

/// SHA-256 of a file, or of each file in a folder and its subfolders.
fn digests(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut digests = BTreeMap::new();
    if path.is_dir() {
        add_digests(path, "", &mut digests)?;
    } else {
        digests.insert(String::new(), sha256_file(path)?);
    }
    Ok(digests)
}

fn add_digests(
    dir: &Path,
    prefix: &str,
    digests: &mut BTreeMap<String, String>,
) -> Result<(), Error> {
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir, "list"))? {
        let entry = entry.map_err(Error::io(dir, "list"))?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.file_type().map_err(Error::io(dir, "list"))?.is_dir() {
            true => add_digests(&entry.path(), &format!("{name}/"), digests)?,
            false => {
                digests.insert(name, sha256_file(&entry.path())?);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_is_pending_until_it_or_its_inputs_change() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("export");
        assert!(!PendingUpload::is_pending(&output, "a").unwrap());
        std::fs::create_dir_all(output.join("sub")).unwrap();
        std::fs::write(output.join("sub/config.json"), "{}").unwrap();
        // An export of a command without an upload.
        assert!(!PendingUpload::is_pending(&output, "a").unwrap());
        PendingUpload::write_record(&output, "a").unwrap();
        assert!(PendingUpload::is_pending(&output, "a").unwrap());
        let error = PendingUpload::is_pending(&output, "b").unwrap_err();
        assert!(error.to_string().contains("another checkpoint"), "{error}");
        std::fs::write(output.join("sub/config.json"), "[]").unwrap();
        let error = PendingUpload::is_pending(&output, "a").unwrap_err();
        assert!(error.to_string().contains("was changed since"), "{error}");
        std::fs::write(output.join("sub/config.json"), "{}").unwrap();
        std::fs::write(output.join("more"), "").unwrap();
        assert!(PendingUpload::is_pending(&output, "a").is_err());
        std::fs::write(note_path(&output), "{").unwrap();
        let error = PendingUpload::is_pending(&output, "a").unwrap_err();
        assert!(error.to_string().contains("is damaged"), "{error}");
        PendingUpload::remove_record(&output).unwrap();
        assert!(note_path(&output).exists(), "not a record");
        PendingUpload::write_record(&output, "a").unwrap();
        PendingUpload::remove_record(&output).unwrap();
        assert!(!PendingUpload::is_pending(&output, "a").unwrap());
        let file = dir.path().join("m.gguf");
        std::fs::write(&file, "GGUF").unwrap();
        PendingUpload::write_record(&file, "a").unwrap();
        assert!(PendingUpload::is_pending(&file, "a").unwrap());
        // A kill after the export got its name, and before its files were hashed.
        PendingUpload::begin(&file, "a").unwrap();
        assert!(PendingUpload::is_pending(&file, "a").unwrap());
        assert!(PendingUpload::is_pending(&file, "b").is_err());
        // An export that was removed is made again.
        std::fs::remove_file(&file).unwrap();
        assert!(!PendingUpload::is_pending(&file, "a").unwrap());
    }
}
