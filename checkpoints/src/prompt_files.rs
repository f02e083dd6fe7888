//! What a model is asked with, beside its weights: the chat template, and the prompt of SLOT rows.
//!
//! They are part of what an adapter has learned, so that checkpoints and exports carry them as the
//! Jinja files from which a server, or the code before it, asks as training did.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::atomic::{create_file, write_file};
use crate::budgets::TEMPLATE_BYTES;
use crate::error::CheckpointError;
use crate::regular_file;

/// The chat template, by the name that transformers and vLLM read.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The user's message of a SLOT row, over `input_text` and `json_schema`.
pub const SLOT_PROMPT: &str = "prompt.jinja";

/// The texts of these files, of those that there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptFiles {
    /// That of [`CHAT_TEMPLATE`].
    pub chat_template: Option<String>,
    /// That of [`SLOT_PROMPT`].
    pub slot_prompt: Option<String>,
}

impl PromptFiles {
    /// Those of a checkpoint or an export.
    ///
    /// # Errors
    ///
    /// - a file cannot be read, or is no text
    pub fn read(dir: &Path) -> Result<Self, CheckpointError> {
        let text = |name: &str| {
            let path = dir.join(name);
            let is_there = regular_file::is_there(&path)?;
            let text = is_there.then(|| regular_file::read_text(&path, TEMPLATE_BYTES));
            text.transpose()
        };
        Ok(Self {
            chat_template: text(CHAT_TEMPLATE)?,
            slot_prompt: text(SLOT_PROMPT)?,
        })
    }

    /// Their bytes by the names of the files.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let named = self.named().into_iter();
        named
            .map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))
            .collect()
    }

    /// Writes them into a directory in the making.
    ///
    /// # Errors
    ///
    /// - a file exists, or cannot be written
    pub(crate) fn write(&self, dir: &Path) -> Result<(), CheckpointError> {
        let mut files = self.named().into_iter();
        files.try_for_each(|(name, text)| write_file(&dir.join(name), text.as_bytes()))
    }

    /// Writes them for a file that is to be made beside them and carries no others, under its name:
    /// `my.chat_template.jinja` and `my.prompt.jinja` for `my.gguf`. Those that are there with the same
    /// text stay.
    ///
    /// # Errors
    ///
    /// - `file` is there already
    /// - one is there with another text, or cannot be written
    pub fn write_beside(&self, file: &Path) -> Result<(), CheckpointError> {
        if std::fs::symlink_metadata(file).is_ok() {
            let path = file.to_owned();
            return Err(CheckpointError::AlreadyExists { path });
        }
        for (name, text) in self.named() {
            let path = beside(file, name);
            let is_there = regular_file::is_there(&path)?;
            if is_there && regular_file::read(&path, TEMPLATE_BYTES)? == text.as_bytes() {
                continue;
            }
            create_file(&path, text.as_bytes())?;
        }
        Ok(())
    }

    fn named(&self) -> Vec<(&'static str, &str)> {
        let named = [
            (CHAT_TEMPLATE, &self.chat_template),
            (SLOT_PROMPT, &self.slot_prompt),
        ];
        let named = named.into_iter();
        named
            .filter_map(|(name, text)| Some((name, text.as_deref()?)))
            .collect()
    }
}

fn beside(file: &Path, name: &str) -> PathBuf {
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
    fn what_is_written_is_read_again_and_nothing_is_made_of_none() {
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
    fn files_beside_another_have_its_name_and_are_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("my.v2.gguf");
        both().write_beside(&file).unwrap();
        let template = dir.path().join("my.v2.chat_template.jinja");
        assert_eq!(fs::read_to_string(&template).unwrap(), "{{ messages }}");
        assert!(dir.path().join("my.v2.prompt.jinja").is_file());
        // As after an export that was stopped.
        both().write_beside(&file).unwrap();
        fs::write(&template, "another").unwrap();
        let error = both().write_beside(&file).unwrap_err();
        assert!(
            matches!(error, CheckpointError::AlreadyExists { .. }),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&template).unwrap(), "another");
        fs::write(dir.path().join("made.gguf"), "").unwrap();
        let error = both().write_beside(&dir.path().join("made.gguf"));
        assert!(error.is_err());
        assert!(!dir.path().join("made.prompt.jinja").exists());
    }
}
