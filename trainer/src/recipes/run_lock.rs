//! `run.lock.json`: the inputs of a run, file by file.
//!
//! Every checkpoint has a copy, in case the file of the run is missing or the checkpoint is copied
//! elsewhere. The copy omits modification times, which are valid on one machine only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::digest::sha256_bytes;
use tooltune_checkpoints::input_files::{FileDigest, ITSELF, all_files, model_files};
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_disk::atomic::write_atomic;
use tooltune_disk::regular_file;
use tooltune_files::SplitRecord;
use tooltune_rows::text::SlotPrompt;
use tooltune_template::ChatTemplate;

use super::starting::starting_folder;
use crate::config::budgets::RUN_FILE_BYTES;
use crate::config::{Config, HubOrigin, named_files};
use crate::error::Error;

/// File name in a run directory and in a checkpoint.
pub const LOCK_FILE: &str = "run.lock.json";

/// Setting of the base model.
pub const BASE_MODEL: &str = "model.model_name_or_path";

/// Setting of the encoder from which the retriever is trained.
pub const RETRIEVER: &str = "retriever.model_name_or_path";

/// Setting of the encoder for metrics.
pub const ENCODER: &str = "eval.encoder";

/// Setting of the adapter that a run continues from.
const STARTING_ADAPTER: &str = "lora.init_from";

/// Settings of the prompt files.
pub const PROMPTS: [&str; 2] = ["data.chat_template", "data.slot_prompt"];

/// Settings that name models; all others name files, or folders of plain files.
pub const MODELS: [&str; 3] = [BASE_MODEL, RETRIEVER, ENCODER];

/// Inputs of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunLock {
    /// Program version that started the run.
    pub tooltune: String,
    /// Device on which the run started.
    pub device: String,
    /// Digest of the settings that must not change on resume.
    pub resume_digest: String,
    /// Date for chat templates that print one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_date: Option<String>,
    /// All files that settings name.
    pub inputs: Vec<Input>,
    /// SHA-256 of each built-in template or prompt that a setting selects, keyed by `setting =
    /// "name"`. It may differ in another version of the program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub built_in: BTreeMap<String, String>,
    /// How the training rows were split, if some are held out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<SplitRecord>,
    /// Every extension of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extended: Vec<Extension>,
}

/// One extension of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// Steps done before the extension.
    pub at_step: u64,
    /// Changed settings, such as `train.max_steps: 4 -> 8`.
    pub changes: Vec<String>,
}

/// Input files named by one setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// Setting, such as `data.train[0]`.
    pub setting: String,
    /// Path as in the config.
    pub path: PathBuf,
    /// Hub repository and revision, if the files were downloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubOrigin>,
    /// Files by name relative to the path; `.` is the path itself.
    pub files: BTreeMap<String, FileDigest>,
}

/// The models and prompts that a command uses.
#[derive(Debug, Clone, Copy)]
pub struct Used<'a> {
    /// Settings from [`MODELS`] and [`PROMPTS`].
    pub settings: &'a [&'a str],
    /// Whether to hash large files completely, even if they look unchanged.
    pub hash_all: bool,
}

impl<'a> Used<'a> {
    /// Checks these settings, without hashing large files that look unchanged.
    pub fn settings(settings: &'a [&'a str]) -> Self {
        Self {
            settings,
            hash_all: false,
        }
    }
}

impl RunLock {
    /// Reads the current inputs of a config. Large files recorded in `earlier` are hashed only if
    /// they may have changed.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn read_inputs(config: &Config, earlier: Option<&RunLock>) -> Result<RunLock, Error> {
        let inputs = named_files(config)
            .into_iter()
            .filter(|(_, path)| path.exists());
        let inputs = inputs.map(|(setting, path)| {
            let known = earlier.and_then(|lock| lock.input(&setting, &path));
            let input = Input::read(setting, &path, known)?;
            Ok::<_, Error>(Input {
                hub: config.hub.origin_of(&path).cloned(),
                ..input
            })
        });
        Ok(RunLock {
            tooltune: env!("CARGO_PKG_VERSION").to_owned(),
            device: config.device.to_string(),
            resume_digest: config.resume_digest(),
            template_date: config.data.template_date.map(|date| date.to_string()),
            inputs: inputs.collect::<Result<_, _>>()?,
            built_in: built_in(config),
            validation: None,
            extended: Vec::new(),
        })
    }

    /// Reads the lock of a run directory, or of its newest checkpoint that has one.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is damaged.
    pub fn read_for_run(run_dir: &Path) -> Result<Option<RunLock>, Error> {
        if let Some(lock) = read(&run_dir.join(LOCK_FILE))? {
            return Ok(Some(lock));
        }
        if !run_dir.is_dir() {
            return Ok(None);
        }
        for checkpoint in RunDir::open_to_read(run_dir)?.list()?.iter().rev() {
            // Damaged checkpoints are skipped.
            if let Ok(Some(lock)) = read(&checkpoint.path.join(LOCK_FILE)) {
                return Ok(Some(lock));
            }
        }
        Ok(None)
    }

    /// Reads the lock of the run that a checkpoint belongs to, or the checkpoint's copy; `None` for
    /// adapters from other programs.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is damaged.
    pub fn read_for_checkpoint(checkpoint: &Path) -> Result<Option<RunLock>, Error> {
        let canonical = std::fs::canonicalize(checkpoint);
        let canonical = canonical.map_err(Error::io(checkpoint, "open"))?;
        if let Some(run) = canonical.parent()
            && let Some(lock) = read(&run.join(LOCK_FILE))?
            && (canonical.join(LOCK_FILE).exists() || canonical.join("manifest.json").exists())
        {
            return Ok(Some(lock));
        }
        read(&canonical.join(LOCK_FILE))
    }

    /// Writes the lock into a run directory.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&self, run_dir: &Path) -> Result<(), Error> {
        Ok(write_atomic(&run_dir.join(LOCK_FILE), &self.bytes())?)
    }

    /// Copy for a checkpoint.
    pub fn for_checkpoint(&self) -> Vec<u8> {
        let mut lock = self.clone();
        for input in &mut lock.inputs {
            for digest in input.files.values_mut() {
                *digest = digest.without_time();
            }
        }
        lock.bytes()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a lock serialises");
        bytes.push(b'\n');
        bytes
    }

    fn input(&self, setting: &str, path: &Path) -> Option<&Input> {
        let mut same = self.inputs.iter().filter(|input| input.path == path);
        let mut other = self.inputs.iter().filter(|input| input.setting == setting);
        same.next().or_else(|| other.next())
    }

    /// Checks that paths in both locks have the same content. Paths in only one lock are found by
    /// the comparison of settings.
    ///
    /// # Errors
    ///
    /// Files differ, are missing or are new; all of them are listed.
    pub fn check_same(&self, now: &RunLock, run_path: &Path) -> Result<(), Error> {
        let mut changed = Vec::new();
        for input in &now.inputs {
            let then = self.inputs.iter().find(|then| then.path == input.path);
            changed.extend(then.into_iter().flat_map(|then| then.differences(input)));
        }
        changed.extend(self.changed_built_ins(&now.built_in));
        refuse(changed, |listed| {
            format!(
                "{}: the inputs changed since the run started: {listed}; restore them, or set \
                 train.output_dir to another folder; to replace files that only evaluations read, \
                 give the new files other names",
                run_path.display()
            )
        })
    }

    /// Built-in templates and prompts that changed since the run started.
    fn changed_built_ins(&self, now: &BTreeMap<String, String>) -> Vec<String> {
        let is_other = |(setting, now): &(&String, &String)| {
            let then = self.built_in.get(*setting);
            then.is_some_and(|then| then != *now)
        };
        let others = now.iter().filter(is_other);
        others
            .map(|(setting, _)| {
                format!("{setting} (its built-in template differs in this version of tooltune)")
            })
            .collect()
    }

    /// Checks that a command uses the same models and prompts as the run at `run_path`, a run or
    /// checkpoint. For a base model at a different path, only the weights are compared.
    ///
    /// # Errors
    ///
    /// Weights or files differ; all of them are listed. A file cannot be read.
    pub fn check_used(
        &self,
        config: &Config,
        used: Used<'_>,
        run_path: &Path,
    ) -> Result<(), Error> {
        let (mut weights, mut others) = (Vec::new(), Vec::new());
        for (setting, path) in named_files(config) {
            let is_used = used.settings.contains(&setting.as_str());
            let is_base = setting == BASE_MODEL;
            let then = self.inputs.iter().find(|then| then.setting == setting);
            let Some(then) = then.filter(|_| is_used && path.exists()) else {
                continue;
            };
            let has_moved = then.path != path;
            if has_moved && !is_base {
                continue;
            }
            let known = Some(then).filter(|_| !used.hash_all);
            let now = Input::read(setting, &path, known)?;
            if has_moved {
                if then.weights() != now.weights() {
                    weights.push(path.display().to_string());
                }
                continue;
            }
            for file in then.differences(&now) {
                if is_base && is_weights(&file) {
                    weights.push(file)
                } else {
                    others.push(file)
                }
            }
        }
        if used
            .settings
            .iter()
            .any(|setting| PROMPTS.contains(setting))
        {
            others.extend(self.changed_built_ins(&built_in(config)));
        }
        refuse(weights, |listed| {
            format!(
                "{}: the weights of {listed} differ from the weights that the adapter was trained on \
                 (hashes in {LOCK_FILE}); restore them",
                run_path.display()
            )
        })?;
        refuse(others, |listed| {
            format!(
                "{}: files changed since the run was trained: {listed}; restore \
                 them, or use others with --set",
                run_path.display()
            )
        })
    }
}

/// SHA-256 of each file of the models that these settings name, as `SETTING FILE SHA256`. Large
/// files that `known` recorded are hashed only if they may have changed.
///
/// # Errors
///
/// A file cannot be read.
pub fn model_digests(
    config: &Config,
    settings: &[&str],
    known: Option<&RunLock>,
) -> Result<Vec<String>, Error> {
    let mut digests = Vec::new();
    for (setting, path) in named_files(config) {
        if !settings.contains(&setting.as_str()) || !path.exists() {
            continue;
        }
        let known = known.and_then(|lock| lock.input(&setting, &path));
        let input = Input::read(setting, &path, known)?;
        let files = input.files.iter();
        digests
            .extend(files.map(|(name, file)| format!("{} {name} {}", input.setting, file.sha256)));
    }
    Ok(digests)
}

/// SHA-256 of the built-in templates and prompts that a config selects.
fn built_in(config: &Config) -> BTreeMap<String, String> {
    let [chat_template, slot_prompt] = PROMPTS;
    let template = config.data.chat_template.as_deref().and_then(Path::to_str);
    let template = template.and_then(|name| {
        let text = ChatTemplate::built_in(name)?.to_owned();
        Some((chat_template, name, text))
    });
    let prompt = config.data.slot_prompt.as_deref().and_then(Path::to_str);
    let prompt = prompt.and_then(|name| {
        let text = SlotPrompt::built_in(name)?.source().to_owned();
        Some((slot_prompt, name, text))
    });
    let paths = template.into_iter().chain(prompt);
    paths
        .map(|(setting, name, text)| {
            let key = format!("{setting} = {name:?}");
            (key, sha256_bytes(text.as_bytes()))
        })
        .collect()
}

fn refuse(files: Vec<String>, message: impl FnOnce(&str) -> String) -> Result<(), Error> {
    if files.is_empty() {
        Ok(())
    } else {
        Err(Error::Usage(message(&files.join(", "))))
    }
}

fn is_weights(file: &str) -> bool {
    let end = |extension| {
        let file = file
            .trim_end_matches(" (missing)")
            .trim_end_matches(" (new)");
        Path::new(file).extension().is_some_and(|e| e == extension)
    };
    end("safetensors") || end("gguf")
}

/// Length and modification time of each file that a config names. If two listings differ in an
/// entry, the file was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputTimes(BTreeMap<PathBuf, (u64, Option<SystemTime>)>);

impl InputTimes {
    /// Lists the current files. Files that cannot be listed are omitted, because the code that
    /// reads them reports the error.
    pub fn list(config: &Config) -> Self {
        let mut times = BTreeMap::new();
        for (setting, path) in named_files(config) {
            let files = files_of(&setting, &path).unwrap_or_default();
            for file in files.into_values() {
                if let Ok(metadata) = std::fs::metadata(&file) {
                    times.insert(file, (metadata.len(), metadata.modified().ok()));
                }
            }
        }
        Self(times)
    }

    /// Files whose entries differ or are missing on one side.
    pub(super) fn changed_files(&self, now: &Self) -> BTreeSet<PathBuf> {
        let files = self.0.keys().chain(now.0.keys());
        let others = files.filter(|&file| self.0.get(file) != now.0.get(file));
        others.cloned().collect()
    }
}

/// Files of a setting, by name relative to its path.
fn files_of(setting: &str, path: &Path) -> Result<BTreeMap<String, PathBuf>, Error> {
    if MODELS.contains(&setting) {
        return Ok(model_files(path)?);
    }
    if setting != STARTING_ADAPTER {
        return Ok(all_files(path)?);
    }
    let mut files = all_files(&starting_folder(path)?)?;
    files.retain(|name, _| name.starts_with("adapter_"));
    Ok(files)
}

impl Input {
    fn read(setting: String, path: &Path, known: Option<&Input>) -> Result<Input, Error> {
        let files = files_of(&setting, path)?;
        let digest = |(name, file): (String, PathBuf)| -> Result<_, CheckpointError> {
            let known = known.and_then(|known| known.files.get(&name));
            let digest = FileDigest::compute(&file, known)?;
            Ok((name, digest))
        };
        Ok(Input {
            files: files.into_iter().map(digest).collect::<Result<_, _>>()?,
            path: path.to_owned(),
            hub: None,
            setting,
        })
    }

    /// Digests of the weight files, ordered by name.
    fn weights(&self) -> Vec<&str> {
        let weights = self.files.iter();
        let weights = weights.filter(|(name, _)| self.has_weights(name));
        weights.map(|(_, digest)| digest.sha256.as_str()).collect()
    }

    fn has_weights(&self, name: &str) -> bool {
        is_weights(&self.full_name(name))
    }

    fn full_name(&self, name: &str) -> String {
        let file = match name {
            ITSELF => self.path.clone(),
            name if self.files.contains_key(ITSELF) => self.path.with_file_name(name),
            name => self.path.join(name),
        };
        file.display().to_string()
    }

    /// Files that differ, by full name.
    fn differences(&self, now: &Input) -> Vec<String> {
        let mut differing = Vec::new();
        for (name, then) in &self.files {
            let name_now = self.full_name(name);
            match now.files.get(name) {
                Some(now) if now.is_same(then) => {}
                Some(_) => differing.push(name_now),
                None => differing.push(format!("{name_now} (missing)")),
            }
        }
        let new = now
            .files
            .keys()
            .filter(|name| !self.files.contains_key(*name));
        differing.extend(new.map(|name| format!("{} (new)", self.full_name(name))));
        differing
    }
}

fn read(path: &Path) -> Result<Option<RunLock>, Error> {
    let bytes =
        regular_file::read_if_there(path, RUN_FILE_BYTES).map_err(Error::io(path, "read"))?;
    let parsed = bytes.map(|bytes| tooltune_json::from_slice(&bytes));
    Ok(parsed.transpose().map_err(CheckpointError::json(path))?)
}
