//! The prompt files of a model: its chat template and the prompt of SLOT rows.
//!
//! Checkpoints and exports contain the prompts used in training as Jinja files, so that a server or
//! its client can prompt the model in the same way.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tooltune_disk::DiskError;
use tooltune_disk::atomic::{create_file, write_file};
use tooltune_disk::budgets::TEMPLATE_BYTES;

use crate::error::CheckpointError;
use crate::regular_file;

/// The chat template, with the file name that transformers and vLLM expect.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The user message of a SLOT row: a template with the variables `input_text` and `json_schema`.
pub const SLOT_PROMPT: &str = "prompt.jinja";

/// The contents of the two prompt files, if present.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptFiles {
    /// Content of [`CHAT_TEMPLATE`].
    pub chat_template: Option<String>,
    /// Content of [`SLOT_PROMPT`].
    pub slot_prompt: Option<String>,
}

impl PromptFiles {
    /// Reads the files of a checkpoint or an export.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is not UTF-8.
    pub fn read(dir: &Path) -> Result<Self, CheckpointError> {
        let text = |name: &str| {
            let path = dir.join(name);
            let exists = regular_file::is_there(&path)?;
            let text = exists.then(|| regular_file::read_text(&path, TEMPLATE_BYTES));
            text.transpose()
        };
        Ok(Self {
            chat_template: text(CHAT_TEMPLATE)?,
            slot_prompt: text(SLOT_PROMPT)?,
        })
    }

    /// The file contents by file name.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = self.present_files().into_iter();
        entries
            .map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))
            .collect()
    }

    /// Writes the files into a staging directory.
    ///
    /// # Errors
    ///
    /// A file exists or cannot be written.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), CheckpointError> {
        let mut files = self.present_files().into_iter();
        Ok(files.try_for_each(|(name, text)| write_file(&dir.join(name), text.as_bytes()))?)
    }

    /// Writes the files next to an output that cannot contain them, with its name as prefix:
    /// `my.chat_template.jinja` and `my.prompt.jinja` for `my.gguf`. Existing files with the same
    /// content are kept.
    ///
    /// # Errors
    ///
    /// `file` exists, or one of its prompt files exists with different content or cannot be
    /// written.
    pub fn write_next_to(&self, file: &Path) -> Result<(), CheckpointError> {
        if std::fs::symlink_metadata(file).is_ok() {
            let path = file.to_owned();
            return Err(DiskError::AlreadyExists { path }.into());
        }
        for (name, text) in self.present_files() {
            let path = path_next_to(file, name);
            let exists = regular_file::is_there(&path)?;
            if exists && regular_file::read(&path, TEMPLATE_BYTES)? == text.as_bytes() {
                continue;
            }
            create_file(&path, text.as_bytes())?;
        }
        Ok(())
    }

    fn present_files(&self) -> Vec<(&'static str, &str)> {
        let entries = [
            (CHAT_TEMPLATE, &self.chat_template),
            (SLOT_PROMPT, &self.slot_prompt),
        ];
        let entries = entries.into_iter();
        entries
            .filter_map(|(name, text)| Some((name, text.as_deref()?)))
            .collect()
    }
}

fn path_next_to(file: &Path, name: &str) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!("{stem}.{name}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn both() -> PromptFiles {
        PromptFiles {
            chat_template: Some("{{ messages }}".to_owned()),
            slot_prompt: Some("{{ input_text }}{{ json_schema }}\n".to_owned()),
        }
    }

    #[test]
    fn written_prompt_files_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        PromptFiles::default().write(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(
            PromptFiles::read(dir.path()).unwrap(),
            PromptFiles::default()
        );
        both().write(dir.path()).unwrap();
        assert_eq!(PromptFiles::read(dir.path()).unwrap(), both());
    }

    #[test]
    fn companion_files_share_the_output_name_and_are_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("my.v2.gguf");
        both().write_next_to(&file).unwrap();
        let template = dir.path().join("my.v2.chat_template.jinja");
        assert_eq!(fs::read_to_string(&template).unwrap(), "{{ messages }}");
        assert!(dir.path().join("my.v2.prompt.jinja").is_file());
        // Simulate an export that is repeated after an interruption.
        both().write_next_to(&file).unwrap();
        fs::write(&template, "another").unwrap();
        let error = both().write_next_to(&file).unwrap_err();
        assert!(
            matches!(
                error,
                CheckpointError::Disk(DiskError::AlreadyExists { .. })
            ),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&template).unwrap(), "another");
        fs::write(dir.path().join("made.gguf"), "").unwrap();
        let error = both().write_next_to(&dir.path().join("made.gguf"));
        assert!(error.is_err());
        assert!(!dir.path().join("made.prompt.jinja").exists());
    }
}
