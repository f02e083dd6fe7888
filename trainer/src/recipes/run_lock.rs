//! `run.lock.json`: what a run was made from, file by file.
//!
//! A copy lies in every checkpoint, so that a run whose own is gone, and a checkpoint that was copied
//! elsewhere, still know it. The copy leaves out the times of modification, which are of one machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tooltune_checkpoints::CheckpointError;
use tooltune_checkpoints::atomic::write_atomic;
use tooltune_checkpoints::digest::sha256_bytes;
use tooltune_checkpoints::input_files::{FileDigest, ITSELF, all_files, model_files};
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_files::SplitRecord;
use tooltune_rows::regular_file;
use tooltune_rows::text::{ChatTemplate, SlotPrompt};

use super::starting::starting_folder;
use crate::budgets::RUN_FILE_BYTES;
use crate::config::{Config, HubOrigin, named_files};
use crate::error::Error;

/// Its name in a run directory and in a checkpoint.
pub const LOCK_FILE: &str = "run.lock.json";

/// The base model of a run among its inputs.
pub const BASE_MODEL: &str = "model.model_name_or_path";

/// The retriever before it learned.
pub const RETRIEVER: &str = "retriever.model_name_or_path";

/// The encoder of the metrics.
pub const ENCODER: &str = "eval.encoder";

/// The adapter that a run continues from.
const STARTING_ADAPTER: &str = "lora.init_from";

/// What models are asked with.
pub const PROMPTS: [&str; 2] = ["data.chat_template", "data.slot_prompt"];

/// Settings that name folders of models; all others name files, or folders of plain files.
pub const MODELS: [&str; 3] = [BASE_MODEL, RETRIEVER, ENCODER];

/// What a run was made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunLock {
    /// The version that began the run.
    pub tooltune: String,
    /// The device that it began on.
    pub device: String,
    /// Of the settings that must not change when it resumes.
    pub resume_digest: String,
    /// The day that its templates read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_date: Option<String>,
    /// All files that settings name.
    pub inputs: Vec<Input>,
    /// SHA-256 of each built-in text that a setting names, by `setting = "name"`: another version
    /// may have another text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub built_in: BTreeMap<String, String>,
    /// How the training rows were split, where some are kept back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<SplitRecord>,
    /// How often the run was made longer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extended: Vec<Extension>,
}

/// A run that was made longer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// The steps that it had taken by then.
    pub at_step: u64,
    /// What was changed, such as `train.max_steps: 4 -> 8`.
    pub changes: Vec<String>,
}

/// What one setting names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Input {
    /// Such as `data.train[0]`.
    pub setting: String,
    /// As the config has it.
    pub path: PathBuf,
    /// What the path is on the hub, if it came from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubOrigin>,
    /// Its files by their names below it; `.` is the path itself.
    pub files: BTreeMap<String, FileDigest>,
}

/// Which models and prompts a command is about to use.
#[derive(Debug, Clone, Copy)]
pub struct Used<'a> {
    /// Their settings, of [`MODELS`] and [`PROMPTS`].
    pub settings: &'a [&'a str],
    /// Whether large files are read whole, whatever is known of them.
    pub whole: bool,
}

impl<'a> Used<'a> {
    /// Those of these settings, large files by what is known of them.
    pub fn of(settings: &'a [&'a str]) -> Self {
        Self {
            settings,
            whole: false,
        }
    }
}

impl RunLock {
    /// What a config is made from now. Large files that `earlier` knows are read whole only where
    /// they may have changed.
    ///
    /// # Errors
    ///
    /// A file that cannot be read.
    pub fn of(config: &Config, earlier: Option<&RunLock>) -> Result<RunLock, Error> {
        let inputs = named_files(config)
            .into_iter()
            .filter(|(_, path)| path.exists());
        let inputs = inputs.map(|(setting, path)| {
            let known = earlier.and_then(|lock| lock.input(&setting, &path));
            let input = Input::read(setting, &path, known)?;
            Ok::<_, Error>(Input {
                hub: config.hub.of(&path).cloned(),
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

    /// The lock of a run directory, or of its newest checkpoint that has one.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is damaged.
    pub fn of_run(run_dir: &Path) -> Result<Option<RunLock>, Error> {
        if let Some(lock) = read(&run_dir.join(LOCK_FILE))? {
            return Ok(Some(lock));
        }
        if !run_dir.is_dir() {
            return Ok(None);
        }
        for checkpoint in RunDir::open_to_read(run_dir)?.list()?.iter().rev() {
            // A damaged checkpoint is passed over, as it is for everything else.
            if let Ok(Some(lock)) = read(&checkpoint.path.join(LOCK_FILE)) {
                return Ok(Some(lock));
            }
        }
        Ok(None)
    }

    /// The lock of the run that a checkpoint belongs to, or the checkpoint's own copy; none of an
    /// adapter from elsewhere.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is damaged.
    pub fn of_checkpoint(checkpoint: &Path) -> Result<Option<RunLock>, Error> {
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

    /// Writes it into a run directory.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&self, run_dir: &Path) -> Result<(), Error> {
        Ok(write_atomic(&run_dir.join(LOCK_FILE), &self.bytes())?)
    }

    /// The copy for a checkpoint.
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

    /// Checks that what both name by one path holds the same as before. What a config no longer
    /// names, or names anew, is the business of the settings.
    ///
    /// # Errors
    ///
    /// Files that differ, are gone or are new; all of them are named.
    pub fn check_same(&self, now: &RunLock, place: &Path) -> Result<(), Error> {
        let mut changed = Vec::new();
        for input in &now.inputs {
            let then = self.inputs.iter().find(|then| then.path == input.path);
            changed.extend(then.into_iter().flat_map(|then| then.differences(input)));
        }
        changed.extend(self.other_texts(&now.built_in));
        refuse(changed, |listed| {
            format!(
                "{}: the run began with other inputs: {listed}; bring them back, or set \
                 train.output_dir to another folder; what only evaluations read may change under \
                 another name",
                place.display()
            )
        })
    }

    /// The built-in texts that are not those of the run.
    fn other_texts(&self, now: &BTreeMap<String, String>) -> Vec<String> {
        let is_other = |(setting, now): &(&String, &String)| {
            let then = self.built_in.get(*setting);
            then.is_some_and(|then| then != *now)
        };
        let others = now.iter().filter(is_other);
        others
            .map(|(setting, _)| format!("{setting} (its text is another one in this version)"))
            .collect()
    }

    /// Checks that the models and prompts which a command uses for the checkpoint or run at `place`
    /// are those of the run. Of a base model that lies elsewhere now, the weights count alone.
    ///
    /// # Errors
    ///
    /// Weights or files that differ; all of them are named. A file that cannot be read.
    pub fn check_used(&self, config: &Config, used: Used<'_>, place: &Path) -> Result<(), Error> {
        let (mut weights, mut others) = (Vec::new(), Vec::new());
        for (setting, path) in named_files(config) {
            let counts = used.settings.contains(&setting.as_str());
            let is_base = setting == BASE_MODEL;
            let then = self.inputs.iter().find(|then| then.setting == setting);
            let Some(then) = then.filter(|_| counts && path.exists()) else {
                continue;
            };
            let has_moved = then.path != path;
            if has_moved && !is_base {
                continue;
            }
            let known = Some(then).filter(|_| !used.whole);
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
            others.extend(self.other_texts(&built_in(config)));
        }
        refuse(weights, |listed| {
            format!(
                "{}: {listed} has other weights than those that the adapter was trained on \
                 ({LOCK_FILE} has their hash); bring them back",
                place.display()
            )
        })?;
        refuse(others, |listed| {
            format!(
                "{}: other files than those that the run was trained with: {listed}; bring them \
                 back, or name others with --set",
                place.display()
            )
        })
    }
}

/// SHA-256 of the built-in texts that a config names.
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
    let named = template.into_iter().chain(prompt);
    named
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
        let file = file.trim_end_matches(" (gone)").trim_end_matches(" (new)");
        Path::new(file).extension().is_some_and(|e| e == extension)
    };
    end("safetensors") || end("gguf")
}

/// Length and time of modification of each file that a config names: if two readings differ, a file changed
/// between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputTimes(BTreeMap<PathBuf, (u64, Option<SystemTime>)>);

impl InputTimes {
    /// As they are now. What cannot be listed or read is left out: whoever reads it says so.
    pub fn of(config: &Config) -> Self {
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

    /// The files whose entries differ, or that only one of both has.
    pub(super) fn changed(&self, now: &Self) -> BTreeSet<PathBuf> {
        let files = self.0.keys().chain(now.0.keys());
        let others = files.filter(|&file| self.0.get(file) != now.0.get(file));
        others.cloned().collect()
    }
}

/// The files of a setting by their names below its path.
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
            let digest = FileDigest::of(&file, known)?;
            Ok((name, digest))
        };
        Ok(Input {
            files: files.into_iter().map(digest).collect::<Result<_, _>>()?,
            path: path.to_owned(),
            hub: None,
            setting,
        })
    }

    /// The digests of its weights, in the order of their names.
    fn weights(&self) -> Vec<&str> {
        let weights = self.files.iter();
        let weights = weights.filter(|(name, _)| self.is_file_of_weights(name));
        weights.map(|(_, digest)| digest.sha256.as_str()).collect()
    }

    fn is_file_of_weights(&self, name: &str) -> bool {
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

    /// The files that are not the same in both, by their whole names.
    fn differences(&self, now: &Input) -> Vec<String> {
        let mut differing = Vec::new();
        for (name, then) in &self.files {
            let name_now = self.full_name(name);
            match now.files.get(name) {
                Some(now) if now.is_same(then) => {}
                Some(_) => differing.push(name_now),
                None => differing.push(format!("{name_now} (gone)")),
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
    let parsed = bytes.map(|bytes| serde_json::from_slice(&bytes));
    Ok(parsed.transpose().map_err(CheckpointError::json(path))?)
}
