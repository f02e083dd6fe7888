//! Records an export that was written but not uploaded, so that the same command can upload it.
//!
//! The record is a file next to the export. It has a digest of the export's inputs and, once the
//! export is complete, the digests of its files. The next command uploads the export only if its
//! inputs and files are unchanged.

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

/// Files of a checkpoint that determine the export.
const CHECKPOINT_FILES: [&str; 5] = [
    "adapter_config.json",
    "adapter_model.safetensors",
    CHAT_TEMPLATE,
    PARAMETERS_FILE,
    SLOT_PROMPT,
];

/// Suffix of the record's file name, after the name of the export.
const SUFFIX: &str = ".upload.json";

/// Record of an export's inputs and files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::commands) struct PendingUpload {
    /// Digest of the checkpoint, base model, settings and options.
    #[serde(rename = "made_of")]
    input_digest: String,
    /// SHA-256 of each file, keyed by its path within the export. `None` until the export is
    /// written and hashed.
    files: Option<BTreeMap<String, String>>,
}

impl PendingUpload {
    /// Returns the digest of all inputs of an export.
    ///
    /// # Errors
    ///
    /// A file of the checkpoint or base model cannot be read.
    pub(in crate::commands) fn input_digest(
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
            for name in CHECKPOINT_FILES {
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
            Some(checkpoint) => RunLock::read_for_checkpoint(checkpoint)?,
            None => None,
        };
        parts.extend(model_digests(config, &[base], known.as_ref())?);
        Ok(sha256_bytes(parts.join("\n").as_bytes()))
    }

    /// Records that an export begins. An export gets its final name only when it is complete.
    /// Therefore an existing export is complete even if the process was killed before
    /// [`Self::write_record`].
    ///
    /// # Errors
    ///
    /// The folder of the export or the record cannot be written.
    pub(in crate::commands) fn begin(output: &Path, input_digest: &str) -> Result<(), Error> {
        if let Some(folder) = output.parent() {
            std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
        }
        let pending = Self {
            input_digest: input_digest.to_owned(),
            files: None,
        };
        pending.write(output)
    }

    /// Records a complete export before its upload.
    ///
    /// # Errors
    ///
    /// The files of the export cannot be read, or the record cannot be written.
    pub(in crate::commands) fn write_record(
        output: &Path,
        input_digest: &str,
    ) -> Result<(), Error> {
        let pending = Self {
            input_digest: input_digest.to_owned(),
            files: Some(digests(output)?),
        };
        pending.write(output)
    }

    fn write(&self, output: &Path) -> Result<(), Error> {
        let path = record_path(output);
        let bytes = serde_json::to_vec_pretty(self);
        let bytes = bytes.map_err(|error| Error::Usage(format!("{}: {error}", path.display())))?;
        Ok(write_atomic(&path, &bytes)?)
    }

    /// Whether `output` is an unchanged export of the same inputs that was not uploaded.
    ///
    /// # Errors
    ///
    /// The export has different inputs or was changed, or a file cannot be read.
    pub(in crate::commands) fn is_pending(
        output: &Path,
        input_digest: &str,
    ) -> Result<bool, Error> {
        let path = record_path(output);
        let bytes = regular_file::read_own_file_if_exists(&path, RUN_FILE_BYTES);
        let Some(bytes) = bytes.map_err(Error::io(&path, "read"))? else {
            return Ok(false);
        };
        if std::fs::symlink_metadata(output).is_err() {
            // The export was removed, so it is written again.
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
        if pending.input_digest != input_digest {
            return refused(
                "was made from another checkpoint or base model, or with other settings or options",
            );
        }
        match pending.files {
            Some(files) if files != digests(output)? => refused("was changed since it was written"),
            Some(_) | None => Ok(true),
        }
    }

    /// Deletes the record of an export that was uploaded or replaced. A file with this name that is
    /// not a record is left unchanged.
    ///
    /// # Errors
    ///
    /// The record cannot be read or removed.
    pub(in crate::commands) fn remove_record(output: &Path) -> Result<(), Error> {
        let path = record_path(output);
        let bytes = regular_file::read_own_file_if_exists(&path, RUN_FILE_BYTES);
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

fn record_path(output: &Path) -> PathBuf {
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
        // An export that was written without an upload has no record.
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
        std::fs::write(record_path(&output), "{").unwrap();
        let error = PendingUpload::is_pending(&output, "a").unwrap_err();
        assert!(error.to_string().contains("is damaged"), "{error}");
        PendingUpload::remove_record(&output).unwrap();
        assert!(record_path(&output).exists(), "not a record");
        PendingUpload::write_record(&output, "a").unwrap();
        PendingUpload::remove_record(&output).unwrap();
        assert!(!PendingUpload::is_pending(&output, "a").unwrap());
        let file = dir.path().join("m.gguf");
        std::fs::write(&file, "GGUF").unwrap();
        PendingUpload::write_record(&file, "a").unwrap();
        assert!(PendingUpload::is_pending(&file, "a").unwrap());
        // The process was killed after the export got its name and before its files were hashed.
        PendingUpload::begin(&file, "a").unwrap();
        assert!(PendingUpload::is_pending(&file, "a").unwrap());
        assert!(PendingUpload::is_pending(&file, "b").is_err());
        // A removed export is written again.
        std::fs::remove_file(&file).unwrap();
        assert!(!PendingUpload::is_pending(&file, "a").unwrap());
    }
}
