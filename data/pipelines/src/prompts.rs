//! The prompts of a pipeline: Jinja files over named texts, built in or of the user's.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tooltune_rows::text::TextTemplate;

use crate::error::PipelineError;

/// A built-in prompt: a file of `configs/prompts`, which is part of the program, too.
#[derive(Debug, Clone, Copy)]
pub struct PromptFile {
    /// Its name without `.jinja`.
    pub name: &'static str,
    /// The texts that it prints.
    pub variables: &'static [&'static str],
    /// Its text.
    pub source: &'static str,
}

/// The prompts of one run.
#[derive(Debug)]
pub struct Prompts {
    templates: BTreeMap<&'static str, TextTemplate>,
}

/// How the file of a prompt ends.
const SUFFIX: &str = ".jinja";

impl Prompts {
    /// The built-in prompts, those that `folder` has replaced by its own.
    ///
    /// # Errors
    ///
    /// - the folder cannot be read, or holds a `.jinja` file of another name, or none
    /// - a file is no template, prints a text that it is not given, or does not print one that it
    ///   is given
    pub fn open(files: &[PromptFile], folder: Option<&Path>) -> Result<Self, PipelineError> {
        let own = match folder {
            Some(folder) => names(folder, files)?,
            None => Vec::new(),
        };
        let mut templates = BTreeMap::new();
        for file in files {
            let template = match folder {
                Some(folder) if own.iter().any(|name| name == file.name) => TextTemplate::read(
                    &folder.join(format!("{}{SUFFIX}", file.name)),
                    file.variables,
                ),
                _ => TextTemplate::new(
                    file.source,
                    &format!("the prompt {}", file.name),
                    file.variables,
                ),
            };
            templates.insert(file.name, template?);
        }
        Ok(Self { templates })
    }

    /// A prompt with its texts.
    ///
    /// # Errors
    ///
    /// The template fails, or asks for more than a rendering may (docs/limits.md).
    ///
    /// # Panics
    ///
    /// The pipeline has no prompt of this name, which is a mistake of its code.
    pub fn render(&self, name: &str, values: &[(&str, &str)]) -> Result<String, PipelineError> {
        let template = self.templates.get(name);
        let template = template.unwrap_or_else(|| panic!("the pipeline has no prompt {name:?}"));
        Ok(template.render(values)?)
    }

    /// A digest of each prompt, for the settings that replies follow from.
    pub fn digests(&self) -> Map<String, Value> {
        let digest = |template: &TextTemplate| digest(template.source().as_bytes());
        let templates = self.templates.iter();
        templates
            .map(|(name, template)| (format!("prompts/{name}{SUFFIX}"), digest(template).into()))
            .collect()
    }
}

/// The prompts of a folder, each of which is one of `files`.
fn names(folder: &Path, files: &[PromptFile]) -> Result<Vec<String>, PipelineError> {
    let unusable = |reason: String| PipelineError::PromptFolder {
        dir: folder.to_owned(),
        reason,
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(PipelineError::io(folder, "read"))? {
        let entry = entry.map_err(PipelineError::io(folder, "read"))?;
        if let Some(name) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_suffix(SUFFIX))
        {
            found.push(name.to_owned());
        }
    }
    found.sort();
    let known: Vec<String> = files
        .iter()
        .map(|file| format!("{}{SUFFIX}", file.name))
        .collect();
    let known = known.join(", ");
    if let Some(other) = found
        .iter()
        .find(|name| !files.iter().any(|file| file.name == **name))
    {
        let reason = format!("{other}{SUFFIX} is no prompt of this pipeline, which has {known}");
        return Err(unusable(reason));
    }
    if found.is_empty() {
        return Err(unusable(format!(
            "there is no prompt; the pipeline has {known}"
        )));
    }
    Ok(found)
}

/// SHA-256 in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
