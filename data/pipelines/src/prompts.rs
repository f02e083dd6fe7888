//! The prompts of a pipeline: Jinja templates with named variables, built in or user-provided.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tooltune_template::TextTemplate;

use crate::error::PipelineError;

/// A built-in prompt: a file of `configs/prompts`, embedded in the program.
#[derive(Debug, Clone, Copy)]
pub struct PromptFile {
    /// File name without `.jinja`.
    pub name: &'static str,
    /// The variables that the template must print.
    pub variables: &'static [&'static str],
    /// The template source.
    pub source: &'static str,
}

/// The prompts of a run.
#[derive(Debug)]
pub struct Prompts {
    templates: BTreeMap<&'static str, TextTemplate>,
}

/// File extension of a prompt.
const SUFFIX: &str = ".jinja";

impl Prompts {
    /// Opens the built-in prompts; files in `folder` replace them.
    ///
    /// # Errors
    ///
    /// - the folder cannot be read, has a `.jinja` file with an unknown name, or has no `.jinja`
    ///   file
    /// - a file is not a template, prints an unknown variable, or does not print all variables
    pub fn open(files: &[PromptFile], folder: Option<&Path>) -> Result<Self, PipelineError> {
        let overrides = match folder {
            Some(folder) => override_names(folder, files)?,
            None => Vec::new(),
        };
        let mut templates = BTreeMap::new();
        for file in files {
            let template = match folder {
                Some(folder) if overrides.iter().any(|name| name == file.name) => {
                    TextTemplate::read(
                        &folder.join(format!("{}{SUFFIX}", file.name)),
                        file.variables,
                    )
                }
                _ => TextTemplate::new(
                    file.source,
                    &format!("prompt {}", file.name),
                    file.variables,
                ),
            };
            templates.insert(file.name, template?);
        }
        Ok(Self { templates })
    }

    /// Renders a prompt.
    ///
    /// # Errors
    ///
    /// The template fails, or exceeds the rendering limits (docs/limits.md).
    ///
    /// # Panics
    ///
    /// The pipeline has no prompt of this name, which is a bug.
    pub fn render(&self, name: &str, values: &[(&str, &str)]) -> Result<String, PipelineError> {
        let template = self.templates.get(name);
        let template = template.unwrap_or_else(|| panic!("the pipeline has no prompt {name:?}"));
        Ok(template.render(values)?)
    }

    /// A digest of each prompt, for the settings that replies depend on.
    pub fn digests(&self) -> Map<String, Value> {
        let digest = |template: &TextTemplate| digest(template.source().as_bytes());
        let templates = self.templates.iter();
        templates
            .map(|(name, template)| (format!("prompts/{name}{SUFFIX}"), digest(template).into()))
            .collect()
    }
}

/// Names of the prompt files in `folder`, checked against `files`.
fn override_names(folder: &Path, files: &[PromptFile]) -> Result<Vec<String>, PipelineError> {
    let unusable = |reason: String| PipelineError::PromptFolder {
        dir: folder.to_owned(),
        reason,
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(PipelineError::io(folder, "read"))? {
        let entry = entry.map_err(PipelineError::io(folder, "read"))?;
        if let Some(name) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_suffix(SUFFIX))
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    let known_names: Vec<String> = files
        .iter()
        .map(|file| format!("{}{SUFFIX}", file.name))
        .collect();
    let known_names = known_names.join(", ");
    if let Some(other) = names
        .iter()
        .find(|name| !files.iter().any(|file| file.name == **name))
    {
        let reason = format!(
            "{other}{SUFFIX} is not a prompt of this pipeline; its prompts are {known_names}"
        );
        return Err(unusable(reason));
    }
    if names.is_empty() {
        return Err(unusable(format!(
            "the folder has no prompts; the pipeline's prompts are {known_names}"
        )));
    }
    Ok(names)
}

/// SHA-256 in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
