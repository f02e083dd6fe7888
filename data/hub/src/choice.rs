//! Chooses the required files of a repository.
//!
//! Small files are downloaded first, because an index determines the shards and a module list the
//! folders.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tooltune_disk::regular_file;
use tooltune_json::TooManyValues;

use crate::budgets::{ANSWER_VALUES, INDEX_BYTES};
use crate::error::HubError;
use crate::name::{NamePart, RepoName, is_safe};
use crate::refusal::nearest_names;

/// The required part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedFiles {
    /// All files that are read.
    All,
    /// The files that define its shape, without weights and tokenizer.
    Shape,
}

/// Files of a model folder other than weights and modules.
const FILES_OF_MODELS: [&str; 13] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "modules.json",
    "config_sentence_transformers.json",
    ADAPTER_CONFIG,
];

const CONFIG: &str = "config.json";
const ADAPTER_CONFIG: &str = "adapter_config.json";
const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
const SINGLE_WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const MODULES: &str = "modules.json";

/// The required files of a commit, chosen in two rounds.
#[derive(Debug)]
pub(crate) struct Choice<'a> {
    repo: &'a RepoName,
    part: &'a NamePart,
    need: WantedFiles,
    names: BTreeSet<&'a str>,
}

impl<'a> Choice<'a> {
    pub(crate) fn new(
        repo: &'a RepoName,
        part: &'a NamePart,
        need: WantedFiles,
        names: impl Iterator<Item = &'a str>,
    ) -> Self {
        Self {
            repo,
            part,
            need,
            names: names.collect(),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The file names with one of these endings.
    fn with_suffix(&self, suffixes: &[&str]) -> Vec<String> {
        let names = self.names.iter();
        names
            .filter(|name| {
                suffixes
                    .iter()
                    .any(|end| name.to_lowercase().ends_with(end))
            })
            .map(|name| (*name).to_owned())
            .collect()
    }

    /// The requested single file, if any.
    ///
    /// # Errors
    ///
    /// There is no such file, or several files have the quantisation.
    pub(crate) fn file(&self) -> Result<Option<String>, HubError> {
        let repo = || self.repo.clone();
        match self.part {
            NamePart::Model => Ok(None),
            NamePart::File(path) if path.is_empty() => Err(HubError::NoFileNamed {
                repo: repo(),
                known: self.with_suffix(&[".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet"]),
            }),
            NamePart::File(path) if self.has(path) => Ok(Some(path.clone())),
            NamePart::File(path) => {
                let names = self.names.iter().map(|name| (*name).to_owned());
                let mut known = nearest_names(path, names);
                if known.is_empty() {
                    let end = path.rfind('.').map_or("", |dot| &path[dot..]);
                    known = self.with_suffix(&[&end.to_lowercase()]);
                }
                Err(HubError::NoFile {
                    repo: repo(),
                    file: path.clone(),
                    known,
                })
            }
            NamePart::Quantisation(tag) => {
                let gguf_files = self.with_suffix(&[".gguf"]);
                let has_tag = |name: &&String| has_word(name, tag);
                let matching: Vec<&String> = gguf_files.iter().filter(has_tag).collect();
                match matching.as_slice() {
                    [one] => Ok(Some((*one).clone())),
                    several => Err(HubError::Quantisation {
                        repo: repo(),
                        tag: tag.clone(),
                        n: several.len(),
                        known: match several.is_empty() {
                            true => gguf_files,
                            false => several.iter().map(|name| (*name).clone()).collect(),
                        },
                    }),
                }
            }
        }
    }

    /// The files of the first round: everything except weights and modules, or the named file with
    /// the tokenizer files next to it.
    ///
    /// # Errors
    ///
    /// As for [`Self::file`], or the repository does not contain a model.
    pub(crate) fn first_files(&self) -> Result<Vec<String>, HubError> {
        if let Some(file) = self.file()? {
            let model_folder = match file.rsplit_once('/') {
                Some((folder, _)) => format!("{folder}/tokenizer.json"),
                None => "tokenizer.json".to_owned(),
            };
            let is_gguf = file.to_lowercase().ends_with(".gguf");
            let model_folder = (is_gguf && self.has(&model_folder)).then_some(model_folder);
            return Ok(std::iter::once(file).chain(model_folder).collect());
        }
        self.check_model()?;
        if self.need == WantedFiles::Shape && self.has(CONFIG) {
            return Ok(vec![CONFIG.to_owned()]);
        }
        let is_read = |name: &&&str| {
            let is_template =
                name.starts_with("additional_chat_templates/") && name.ends_with(".jinja");
            let is_sentence_config =
                name.starts_with("sentence_") && name.ends_with(".json") && !name.contains('/');
            FILES_OF_MODELS.contains(name) || is_template || is_sentence_config
        };
        let mut files: Vec<String> = (self.names.iter().filter(is_read))
            .map(|name| (*name).to_owned())
            .collect();
        if !self.has(SINGLE_WEIGHTS) && self.has(INDEX) {
            files.push(INDEX.to_owned());
        }
        Ok(files)
    }

    fn check_model(&self) -> Result<(), HubError> {
        let lacks = |lacking, missing_error, fix| {
            Err(HubError::NoModel {
                repo: self.repo.clone(),
                lacking,
                known: missing_error,
                fix,
            })
        };
        if !self.has(CONFIG) && !self.has(ADAPTER_CONFIG) {
            let gguf = self.with_suffix(&[".gguf"]);
            return match gguf.is_empty() {
                true => lacks(
                    "no config.json",
                    Vec::new(),
                    "name a repository with a transformers model",
                ),
                false => lacks(
                    "GGUF files but no config.json",
                    gguf,
                    "name one of them as owner/name/FILE.gguf, or its quantisation as \
                     owner/name:Q4_K_M",
                ),
            };
        }
        let is_weights_file = |name: &&str| name.ends_with(".safetensors") && !name.contains('/');
        if self.need == WantedFiles::All && !self.names.iter().any(is_weights_file) {
            return lacks(
                "no weights in safetensors",
                self.with_suffix(&[".bin", ".pth", ".pt", ".gguf", ".h5", ".msgpack"]),
                "use a repository with safetensors, or save this model again with transformers: \
                 AutoModelForCausalLM.from_pretrained(...).save_pretrained(directory)",
            );
        }
        Ok(())
    }

    /// The files of the second round: weights and module folders. They depend on the index and the
    /// module list in the commit's folder.
    ///
    /// # Errors
    ///
    /// The index or the module list cannot be read, or names a missing file.
    pub(crate) fn second_files(&self, snapshot: &Path) -> Result<Vec<String>, HubError> {
        if self.need == WantedFiles::Shape || *self.part != NamePart::Model {
            return Ok(Vec::new());
        }
        let mut files = self.weights(snapshot)?;
        if self.has(MODULES) {
            let modules = read_json(&snapshot.join(MODULES))?;
            let folders = modules.as_array().into_iter().flatten();
            let folders: Vec<&str> = (folders.filter_map(|module| module["path"].as_str()))
                .filter(|folder| is_safe(folder))
                .collect();
            let is_read = |name: &&&str| {
                let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
                folders.contains(&folder)
                    && (name.ends_with(".json") || name.ends_with(".safetensors"))
            };
            files.extend(
                self.names
                    .iter()
                    .filter(is_read)
                    .map(|name| (*name).to_owned()),
            );
        }
        Ok(files)
    }

    fn weights(&self, snapshot: &Path) -> Result<Vec<String>, HubError> {
        if !self.has(CONFIG) {
            return Ok(vec![ADAPTER_WEIGHTS.to_owned()]);
        }
        if self.has(SINGLE_WEIGHTS) {
            return Ok(vec![SINGLE_WEIGHTS.to_owned()]);
        }
        if !self.has(INDEX) {
            let weights = self.names.iter();
            let is_weights_file =
                |name: &&&str| name.ends_with(".safetensors") && !name.contains('/');
            return Ok(weights
                .filter(is_weights_file)
                .map(|name| (*name).to_owned())
                .collect());
        }
        let index = read_json(&snapshot.join(INDEX))?;
        let shards = index["weight_map"].as_object().into_iter().flatten();
        let shards: BTreeSet<&str> = shards.filter_map(|(_, shard)| shard.as_str()).collect();
        let missing = shards.iter().find(|shard| !self.has(shard));
        match missing {
            Some(shard) => Err(HubError::NoFile {
                repo: self.repo.clone(),
                file: (*shard).to_owned(),
                known: self.with_suffix(&[".safetensors"]),
            }),
            None => Ok(shards.into_iter().map(str::to_owned).collect()),
        }
    }
}

/// Whether the name of a GGUF file contains the quantisation as a separate word, ignoring case.
fn has_word(name: &str, tag: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let tag = tag.to_lowercase();
    let is_border = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
    name.match_indices(&tag).any(|(position, _)| {
        let before = name[..position].chars().next_back();
        let after = name[position + tag.len()..].chars().next();
        is_border(before) && is_border(after)
    })
}

fn read_json(path: &Path) -> Result<Value, HubError> {
    let failed = |error| HubError::io("read", path)(error);
    let bytes = regular_file::read(path, INDEX_BYTES).map_err(failed)?;
    let checked = ANSWER_VALUES.check(&bytes);
    let too_many = |error: TooManyValues| {
        let reason = format!(
            "it contains {}; remove the file and fetch it again",
            error.limit_message()
        );
        failed(std::io::Error::other(reason))
    };
    checked.map_err(too_many)?;
    serde_json::from_slice(&bytes).map_err(|error| failed(std::io::Error::from(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::RepoKind;

    fn choose(
        part: &NamePart,
        need: WantedFiles,
        names: &[&str],
    ) -> Result<(Vec<String>, Vec<String>), HubError> {
        let repo = RepoName::new(RepoKind::Model, "a/b").expect("a name");
        let choice = Choice::new(&repo, part, need, names.iter().copied());
        let dir = tempfile::tempdir().expect("a folder");
        let index = r#"{"weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}}"#;
        std::fs::write(dir.path().join(INDEX), index).expect("written");
        let modules = r#"[{"path": ""}, {"path": "1_Pooling"}]"#;
        std::fs::write(dir.path().join(MODULES), modules).expect("written");
        Ok((choice.first_files()?, choice.second_files(dir.path())?))
    }

    #[test]
    fn only_required_files_are_fetched() {
        let (first_files, second) = choose(
            &NamePart::Model,
            WantedFiles::All,
            &[
                "README.md",
                "config.json",
                "tokenizer.json",
                "additional_chat_templates/tool_use.jinja",
                "model-1.safetensors",
                "model-2.safetensors",
                "model.safetensors.index.json",
                "consolidated.safetensors",
                "pytorch_model.bin",
                "original/params.json",
                "onnx/model.onnx",
            ],
        )
        .expect("a model");
        let expected = [
            "additional_chat_templates/tool_use.jinja",
            "config.json",
            "tokenizer.json",
            "model.safetensors.index.json",
        ];
        assert_eq!(first_files, expected);
        assert_eq!(second, ["model-1.safetensors", "model-2.safetensors"]);
        let (first_files, second) = choose(
            &NamePart::Model,
            WantedFiles::All,
            &[
                "config.json",
                "modules.json",
                "sentence_bert_config.json",
                "1_Pooling/config.json",
                "model.safetensors",
                "openvino/openvino_model.bin",
            ],
        )
        .expect("an encoder");
        assert_eq!(
            first_files,
            ["config.json", "modules.json", "sentence_bert_config.json"]
        );
        assert_eq!(second, ["model.safetensors", "1_Pooling/config.json"]);
        let names = ["config.json", "model.safetensors"];
        let (first_files, second) =
            choose(&NamePart::Model, WantedFiles::Shape, &names).expect("a shape");
        assert_eq!(
            (first_files, second),
            (vec!["config.json".to_owned()], Vec::new())
        );
    }

    #[test]
    fn a_gguf_file_is_named_by_itself_or_by_its_quantisation() {
        let names = [
            "x-Q4_K_M.gguf",
            "x-Q4_K_S.gguf",
            "x-Q8_0.gguf",
            "y-q8_0.gguf",
            "tokenizer.json",
        ];
        let part = NamePart::Quantisation("q4_k_m".into());
        let (first_files, _) = choose(&part, WantedFiles::All, &names).expect("one");
        assert_eq!(first_files, ["x-Q4_K_M.gguf", "tokenizer.json"]);
        for (part, expected) in [
            (
                NamePart::Quantisation("Q8_0".into()),
                "several GGUF files with \"Q8_0\"",
            ),
            (
                NamePart::Quantisation("Q4".into()),
                "no GGUF files with \"Q4\"",
            ),
            (
                NamePart::File("x-Q4_KM.gguf".into()),
                "it has x-Q4_K_M.gguf",
            ),
            (NamePart::Model, "name one of them as owner/name/FILE.gguf"),
        ] {
            let error = choose(&part, WantedFiles::All, &names)
                .expect_err(expected)
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_repository_without_a_model_is_an_error() {
        for (names, expected) in [
            (&["README.md"][..], "no config.json"),
            (
                &["config.json", "pytorch_model.bin"],
                "it has pytorch_model.bin",
            ),
            (
                &[
                    "config.json",
                    "model-1.safetensors",
                    "model.safetensors.index.json",
                ],
                "no file \"model-2.safetensors\"",
            ),
        ] {
            let error = choose(&NamePart::Model, WantedFiles::All, names)
                .expect_err(expected)
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
