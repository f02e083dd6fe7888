//! Resolves the target of a command to its settings, base model and adapter.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::Value;
use tooltune_checkpoints::adapter::{Adapter, load_adapter};
use tooltune_checkpoints::digest::sha256_file;
use tooltune_checkpoints::prompt_files::{CHAT_TEMPLATE, SLOT_PROMPT};
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_hub::RepoKind;
use tooltune_rows::text::{
    Columns, DataError, DataFormat, RecognisedFormat, recognise_file, recognise_records,
};

use super::eprint_line;
use crate::base_model::{BaseModel, same_name};
use crate::checkpoint_choice::CheckpointChoice;
use crate::cli::{ModelArgs, TargetArgs};
use crate::commands::reading_report::say_detected_format;
use crate::config::{Config, LoadedConfig, Names, Source, Suite, fetch_hint};
use crate::error::Error;
use crate::eval::saved::excerpt;
use crate::lora::{Adapters, adapter_slots, whole_weights};
use crate::models::Decoder;
use crate::recipes::run_lock::{BASE_MODEL, PROMPTS, RunLock, Used};
use crate::settings;

/// The files that identify the kind of a folder.
const RUN_CONFIG: &str = "config.resolved.toml";
const ADAPTER_CONFIG: &str = "adapter_config.json";
const MODEL_CONFIG: &str = "config.json";
const ENCODER_MODULES: &str = "modules.json";

/// Kind of target.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TargetKind {
    /// A run directory.
    Run,
    /// A config file; its run is `train.output_dir`.
    Config,
    /// A checkpoint of this run.
    Checkpoint(PathBuf),
    /// An adapter without a local run: an export or a PEFT adapter.
    Adapter,
    /// A model folder or GGUF file without an adapter.
    Model,
}

impl TargetKind {
    /// # Errors
    ///
    /// The path is not one of these kinds.
    fn detect(path: &Path) -> Result<Self, Error> {
        if !path.is_dir() {
            let is_gguf = path.extension().is_some_and(|end| end == "gguf");
            return Ok(if is_gguf { Self::Model } else { Self::Config });
        }
        let has = |file: &str| path.join(file).exists();
        if has(RUN_CONFIG) {
            return Ok(Self::Run);
        }
        if has(ADAPTER_CONFIG) {
            let canonical = path.canonicalize().map_err(Error::io(path, "open"))?;
            let run = canonical
                .parent()
                .filter(|run| run.join(RUN_CONFIG).exists());
            // Keep relative paths relative, as in all messages.
            return Ok(match (run, path.parent()) {
                (None, _) => Self::Adapter,
                (Some(_), Some(run)) if run.join(RUN_CONFIG).exists() => {
                    Self::Checkpoint(run.to_owned())
                }
                (Some(run), _) => Self::Checkpoint(run.to_owned()),
            });
        }
        if has(MODEL_CONFIG) && !has(ENCODER_MODULES) {
            return Ok(Self::Model);
        }
        let kind = if has(ENCODER_MODULES) {
            "a sentence-transformers folder, which embeds text and does not generate".to_owned()
        } else {
            format!("a folder without {RUN_CONFIG}, {ADAPTER_CONFIG} or {MODEL_CONFIG}")
        };
        Err(Error::Usage(format!(
            "{}: this is {kind}; name a run, a config file, a checkpoint, an exported adapter or \
             a model",
            path.display()
        )))
    }
}

/// Rejects a path that does not exist and looks like a hub name.
///
/// # Errors
///
/// The path looks like a hub name; the error has the command that downloads it.
pub(super) fn refuse_hub_name(kind: RepoKind, path: &Path) -> Result<(), Error> {
    match fetch_hint(kind, path) {
        None => Ok(()),
        Some(hint) => Err(Error::Usage(format!(
            "{}: no such file or folder; {hint}",
            path.display()
        ))),
    }
}

/// Resolves a run folder from the folder itself or from its config file.
///
/// # Errors
///
/// The path is not a run, or the config is invalid, cannot be read, or has no run.
pub(super) fn run_folder(path: &Path) -> Result<PathBuf, Error> {
    if path.is_dir() {
        check_is_run(path)?;
        return Ok(path.to_owned());
    }
    if !path.exists() && !is_config(path) {
        return Err(Error::Usage(format!(
            "{}: no such run; name its folder, or the config that it was trained with",
            path.display()
        )));
    }
    let run = LoadedConfig::load(path, &[])?.config.train.output_dir;
    if !run.is_dir() {
        let (config, run) = (path.display(), run.display());
        return Err(Error::Usage(format!(
            "{config}: its run (train.output_dir = {run}) does not exist; start it with `tooltune \
             train {config}`, or name the folder of a run"
        )));
    }
    Ok(run)
}

/// Rejects folders that are not runs. A folder with only some files of a run is accepted; the
/// missing files are reported later.
fn check_is_run(path: &Path) -> Result<(), Error> {
    let message = match TargetKind::detect(path) {
        Ok(TargetKind::Run | TargetKind::Config) => return Ok(()),
        Ok(TargetKind::Checkpoint(run)) => {
            format!("this is a checkpoint; name its run, {}", run.display())
        }
        Ok(TargetKind::Adapter) => {
            "this is an adapter, not a run; name the folder of a run".to_owned()
        }
        Ok(TargetKind::Model) => "this is a model, not a run; name the folder of a run".to_owned(),
        Err(_) if RunDir::open_to_read(path)?.list()?.is_empty() => {
            format!("not a run (no {RUN_CONFIG}); name the folder of a run")
        }
        Err(_) => return Ok(()),
    };
    Err(Error::Usage(format!("{}: {message}", path.display())))
}

/// Whether a path names a run by its folder or config.
pub(super) fn is_run(path: &Path) -> bool {
    is_config(path) || path.join(RUN_CONFIG).exists()
}

/// Whether a path looks like a config; it need not exist.
fn is_config(path: &Path) -> bool {
    let end = path.extension().and_then(|end| end.to_str());
    !path.is_dir() && matches!(end, Some("toml" | "yaml" | "yml"))
}

impl TargetArgs {
    /// Same as [`ModelArgs::config`], with the rows of the command line.
    ///
    /// # Errors
    ///
    /// As for [`ModelArgs::config`].
    pub(super) fn config(&self) -> Result<Config, Error> {
        self.config_of(&self.data)
    }

    /// Like [`Self::config`], for an optional suite. No training format is detected for rows in the
    /// suite's own format.
    ///
    /// # Errors
    ///
    /// As for [`Self::config`]. If rows have no training format and no suite is given, the error
    /// asks for a suite.
    pub(super) fn config_for(&self, suite: Option<Suite>) -> Result<Config, Error> {
        match suite {
            Some(suite) if suite.needs().rows.is_none() => self.config_of(&[]),
            Some(_) => self.config(),
            None => self.config().map_err(with_suite_hint),
        }
    }

    fn config_of(&self, rows: &[PathBuf]) -> Result<Config, Error> {
        for file in &self.data {
            refuse_hub_name(RepoKind::Dataset, file)?;
        }
        let config = self.model.config(rows);
        let mut config =
            config.map_err(|error| self.undetected_format_error(rows).unwrap_or(error))?;
        if !self.data.is_empty() {
            config.data.evaluate_on(self.data.clone());
            config.eval.max_samples = None;
        }
        if self.max_samples.is_some() {
            config.eval.max_samples = self.max_samples;
        }
        Ok(config)
    }

    /// The error if the row format cannot be detected. An adapter or model without a run has a
    /// generated config, so the error of that config would name a line that the user never wrote.
    fn undetected_format_error(&self, rows: &[PathBuf]) -> Option<Error> {
        let kind = TargetKind::detect(&self.model.path).ok()?;
        let is_alone = matches!(kind, TargetKind::Adapter | TargetKind::Model);
        let sets_format = |text: &String| text.trim_start().starts_with("data.");
        if !is_alone || self.model.overrides.iter().any(sets_format) {
            return None;
        }
        rows.iter().find_map(|file| {
            let records = tooltune_files::open(file).map_err(DataError::from);
            let recognised =
                records.and_then(|records| recognise_records(records, &Columns::default()));
            recognised.err().map(Error::Data)
        })
    }

    /// Rejects an adapter or model without a run if no rows are given, because it has no config
    /// that could name rows.
    ///
    /// # Errors
    ///
    /// Neither the command line nor `data.eval` names a file.
    pub(super) fn require_rows(&self, config: &Config) -> Result<(), Error> {
        let is_alone = matches!(
            TargetKind::detect(&self.model.path)?,
            TargetKind::Adapter | TargetKind::Model
        );
        if is_alone && !config.data.has_eval_rows() {
            return Err(Error::Usage(format!(
                "{}: no rows to evaluate; name some with --data",
                self.model.path.display()
            )));
        }
        Ok(())
    }
}

/// Adds the list of suites to the error about rows without a training format.
fn with_suite_hint(error: Error) -> Error {
    match error {
        Error::Data(error) if matches!(error.fault(), DataError::Format(_)) => {
            Error::Usage(format!(
                "{error}\nif the rows have the format of a suite, name the suite with --suite: {}",
                Suite::words().join(", ")
            ))
        }
        error => error,
    }
}

impl ModelArgs {
    /// Loads the config of the run, or the given config, with the overrides of the command line. An
    /// adapter or model without a run gets defaults and the format of `rows`.
    ///
    /// # Errors
    ///
    /// The target has an unknown kind, its config is invalid or cannot be read, or the base of the
    /// adapter does not exist.
    pub(super) fn config(&self, rows: &[PathBuf]) -> Result<Config, Error> {
        refuse_hub_name(RepoKind::Model, &self.path)?;
        for file in rows {
            refuse_hub_name(RepoKind::Dataset, file)?;
        }
        let names = Names::ForEvaluation;
        let load = |path: &Path| LoadedConfig::load_with(path, &self.overrides, names);
        let loaded = match TargetKind::detect(&self.path)? {
            TargetKind::Run => load(&self.path.join(RUN_CONFIG)),
            TargetKind::Config => load(&self.path),
            TargetKind::Checkpoint(run) => load(&run.join(RUN_CONFIG)),
            TargetKind::Adapter => {
                let source = self.adapter_config(rows)?;
                LoadedConfig::parse(source, &self.overrides)
            }
            TargetKind::Model => {
                LoadedConfig::parse(self.model_config(&self.path, rows), &self.overrides)
            }
        }?;
        say_detected_format(&loaded)?;
        self.warn_of_ignored_overrides()?;
        Ok(loaded.config)
    }

    /// Warns if `--set` changes training settings, which have no effect here. `train.output_dir` is
    /// allowed, because it locates the checkpoints.
    fn warn_of_ignored_overrides(&self) -> Result<(), Error> {
        const TRAINING_TABLES: [&str; 4] = ["lora.", "train.", "checkpoint.", "log."];
        for text in &self.overrides {
            let key = text.split('=').next().unwrap_or_default().trim();
            let is_of_training = TRAINING_TABLES.iter().any(|table| key.starts_with(table));
            if is_of_training && key != "train.output_dir" {
                eprint_line(&format!(
                    "--set {key} is a training setting and has no effect here: the trained model \
                     keeps its own"
                ))?;
            }
        }
        Ok(())
    }

    /// Generates a config for an adapter without a run.
    fn adapter_config(&self, rows: &[PathBuf]) -> Result<Source, Error> {
        const MODEL: &str = "model.model_name_or_path";
        let base = load_adapter(&self.path)?.config.base_model_name_or_path;
        let is_named = |text: &String| text.trim_start().starts_with(MODEL);
        let base = base.unwrap_or_default();
        if !Path::new(&base).exists() && !self.overrides.iter().any(is_named) {
            return Err(Error::Usage(format!(
                "{}: its base model {:?} does not exist on this machine; \
                 name the base with --set {MODEL}=FOLDER",
                self.path.display(),
                excerpt(&base)
            )));
        }
        Ok(self.model_config(Path::new(&base), rows))
    }

    /// Generates a config for a model without a run: its path, the given rows with their format,
    /// and the prompt files in its folder.
    fn model_config(&self, model: &Path, rows: &[PathBuf]) -> Source {
        let texts = |paths: &[PathBuf]| -> Value {
            paths
                .iter()
                .map(|path| path.display().to_string())
                .collect()
        };
        let mut text = format!(
            "[model]\nmodel_name_or_path = {}\n[lora]\n[train]\noutput_dir = \"runs\"\n[eval]\n\
             eval_strategy = \"no\"\n[data]\n",
            Value::from(model.display().to_string())
        );
        let is_slot = |rows: &PathBuf| {
            let recognised = recognise_file(rows).map(|found| found.format);
            matches!(recognised, Ok(RecognisedFormat::Rows(DataFormat::Slot)))
        };
        let asks_slot = rows.iter().all(is_slot);
        // Nothing is trained, but a config requires these keys.
        let rows = match rows {
            [] => Value::from(vec!["-"]),
            rows => texts(rows),
        };
        text.push_str(&format!("train = {rows}\n"));
        let files = [
            ("chat_template", CHAT_TEMPLATE, true),
            ("slot_prompt", SLOT_PROMPT, asks_slot),
        ];
        for (setting, name, is_used) in files {
            let file = self.path.join(name);
            if is_used && file.exists() {
                let file = Value::from(file.display().to_string());
                text.push_str(&format!("{setting} = {file}\n"));
            }
        }
        Source {
            name: self.path.display().to_string(),
            text,
        }
    }

    /// The selected checkpoint: from the command line, otherwise the target itself, `base` for a
    /// model, or `best` for a run.
    ///
    /// # Errors
    ///
    /// The target has an unknown kind, or --checkpoint is given with a model.
    pub(super) fn checkpoint(&self) -> Result<String, Error> {
        let kind = TargetKind::detect(&self.path)?;
        match (&self.checkpoint, kind) {
            (Some(typed), TargetKind::Model) if typed != "base" => Err(Error::Usage(format!(
                "{}: a base model has no checkpoints; name a run, or omit --checkpoint",
                self.path.display()
            ))),
            (Some(typed), TargetKind::Adapter) if typed != "base" && !Path::new(typed).exists() => {
                Err(Error::Usage(format!(
                    "{}: an adapter without a run has no checkpoint {typed}; name a run, or \
                     omit --checkpoint",
                    self.path.display()
                )))
            }
            (Some(typed), _) => Ok(typed.clone()),
            (None, TargetKind::Run | TargetKind::Config) => Ok("best".to_owned()),
            (None, TargetKind::Checkpoint(_) | TargetKind::Adapter) => {
                Ok(self.path.display().to_string())
            }
            (None, TargetKind::Model) => Ok("base".to_owned()),
        }
    }

    /// The run directory of the target.
    fn run<'t>(&'t self, config: &'t Config) -> Result<Cow<'t, Path>, Error> {
        Ok(match TargetKind::detect(&self.path)? {
            TargetKind::Run => Cow::Borrowed(&self.path),
            TargetKind::Checkpoint(run) => Cow::Owned(run),
            TargetKind::Config | TargetKind::Adapter | TargetKind::Model => {
                Cow::Borrowed(&config.train.output_dir)
            }
        })
    }

    /// The directory of the selected checkpoint, which must not be `base`.
    ///
    /// # Errors
    ///
    /// The run has no such checkpoint, or it is damaged.
    pub(super) fn checkpoint_dir(&self, config: &Config) -> Result<PathBuf, Error> {
        let choice = CheckpointChoice::parse(&self.checkpoint()?);
        let is_elsewhere = matches!(&choice, CheckpointChoice::Path(_));
        if !is_elsewhere && let Some(run) = self.missing_run(config)? {
            let (target, run) = (self.path.display(), run.display());
            return Err(Error::Usage(format!(
                "{target}: its run (train.output_dir = {run}) does not exist; start it with \
                 `tooltune train {target}`, or use the untrained model with --checkpoint base"
            )));
        }
        choice.resolve(&self.run(config)?)
    }

    /// The run folder of the config, if it does not exist yet.
    ///
    /// # Errors
    ///
    /// The target has an unknown kind.
    pub(super) fn missing_run<'t>(&self, config: &'t Config) -> Result<Option<&'t Path>, Error> {
        let run = config.train.output_dir.as_path();
        let is_config = TargetKind::detect(&self.path)? == TargetKind::Config;
        Ok(Some(run).filter(|run| is_config && !run.is_dir()))
    }

    /// The directory of the selected checkpoint, for commands that need an adapter.
    ///
    /// # Errors
    ///
    /// As for [`Self::checkpoint_dir`], or the target is a base model without an adapter.
    pub(super) fn adapter(&self, config: &Config) -> Result<PathBuf, Error> {
        if self.checkpoint()? == "base" {
            return Err(Error::Usage(format!(
                "{}: a base model has no adapter; name a run, a checkpoint or an adapter",
                self.path.display()
            )));
        }
        self.checkpoint_dir(config)
    }

    /// Digest that identifies the adapter of the target.
    ///
    /// # Errors
    ///
    /// As for [`Self::checkpoint_dir`], or its weights cannot be read.
    pub(super) fn adapter_digest(&self, config: &Config) -> Result<String, Error> {
        if self.checkpoint()? == "base" {
            return Ok("base".to_owned());
        }
        let dir = self.checkpoint_dir(config)?;
        Ok(sha256_file(&dir.join("adapter_model.safetensors"))?)
    }

    /// Checks that models and prompts are the same as in the target's run, if the run recorded
    /// them.
    ///
    /// # Errors
    ///
    /// As for [`Self::checkpoint_dir`], or models or prompts differ.
    pub(super) fn check_used(&self, config: &Config, settings: &[&str]) -> Result<(), Error> {
        let kind = TargetKind::detect(&self.path)?;
        let is_base = self.checkpoint()? == "base";
        let (lock, path) = match settings.contains(&BASE_MODEL) {
            true if is_base && kind == TargetKind::Config => return Ok(()),
            true if !is_base => {
                let dir = self.checkpoint_dir(config)?;
                (RunLock::read_for_checkpoint(&dir)?, dir)
            }
            _ if matches!(kind, TargetKind::Adapter | TargetKind::Model) => return Ok(()),
            // A checkpoint is only required if it is used.
            _ => {
                let run = self.run(config)?;
                (RunLock::read_for_run(&run)?, run.into_owned())
            }
        };
        match lock {
            Some(lock) => {
                let settings = [settings, &PROMPTS].concat();
                lock.check_used(config, Used::settings(&settings), &path)
            }
            None => Ok(()),
        }
    }

    /// Prints which checkpoint `best` or `last` is, and its use (`doing`). Prints nothing for a
    /// path.
    ///
    /// # Errors
    ///
    /// The run directory cannot be read.
    pub(super) fn say_checkpoint(&self, doing: &str, dir: &Path) -> Result<(), Error> {
        match CheckpointChoice::parse(&self.checkpoint()?).describe(dir)? {
            Some(words) => eprint_line(&format!("{doing} {} ({words})", dir.display())),
            None => Ok(()),
        }
    }

    /// Loads the model with the adapter of the selected checkpoint, or without an adapter for
    /// `base`.
    ///
    /// # Errors
    ///
    /// As for [`Self::checkpoint_dir`] and [`attach`], or weights cannot be read.
    pub(super) fn decoder(
        &self,
        config: &Config,
        base: &BaseModel,
        doing: &str,
        device: &Device,
    ) -> Result<Decoder, Error> {
        let model = config.language_model()?;
        let compute_dtype = settings::compute_dtype(model.compute_dtype, device)?;
        let mut decoder = base.decoder(compute_dtype, device)?;
        if self.checkpoint()? != "base" {
            let dir = self.checkpoint_dir(config)?;
            self.say_checkpoint(doing, &dir)?;
            attach(&mut decoder, &dir, &model.model_name_or_path, device)?;
        }
        Ok(decoder)
    }
}

/// Loads a PEFT adapter directory into the projections of `decoder`.
///
/// # Errors
///
/// The directory is damaged, or the adapter belongs to a different model.
pub(super) fn attach(
    decoder: &mut Decoder,
    dir: &Path,
    base_model: &Path,
    device: &Device,
) -> Result<(), Error> {
    let adapter = load_adapter(dir)?;
    let trained_on = adapter.config.base_model_name_or_path.as_deref();
    if let Some(other) = trained_on.filter(|name| !same_name(Path::new(name), base_model)) {
        eprint_line(&format!(
            "{} names {:?} as its base model, but is loaded onto {}; check that the weights are \
             the same",
            dir.display(),
            excerpt(other),
            base_model.display()
        ))?;
    }
    attach_adapter(decoder, &adapter, dir, device)
}

/// Loads an adapter into the projections of `decoder`; `path` is used in messages.
///
/// # Errors
///
/// The adapter belongs to a different model.
pub(super) fn attach_adapter(
    decoder: &mut Decoder,
    adapter: &Adapter,
    path: &Path,
    device: &Device,
) -> Result<(), Error> {
    let slots = adapter_slots(&adapter.config, &decoder.config)?;
    let saved_modules = whole_weights(&adapter.config, &decoder.config, &slots)?;
    let expected: Vec<(String, Vec<usize>)> = slots
        .iter()
        .flat_map(|slot| slot.tensors())
        .chain(saved_modules.iter().map(|weight| weight.tensor()))
        .map(|(name, shape, _)| (name, shape))
        .collect();
    adapter.check(path, &expected)?;
    let adapters = Adapters::from_tensors(slots, &adapter.tensors, device);
    adapters
        .with_whole(saved_modules, &adapter.tensors)
        .attach(decoder);
    Ok(())
}
