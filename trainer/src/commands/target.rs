//! What a command names as its target: settings, the base model, and the adapter of a checkpoint.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::Value;
use tooltune_checkpoints::adapter::{Adapter, load_adapter};
use tooltune_checkpoints::digest::sha256_file;
use tooltune_checkpoints::prompt_files::{CHAT_TEMPLATE, SLOT_PROMPT};
use tooltune_checkpoints::run_dir::RunDir;
use tooltune_hub::RepoKind;
use tooltune_rows::text::{DataFormat, RecognisedFormat, recognise_file};

use super::eprint_line;
use super::reading::say_recognised;
use crate::base_model::{BaseModel, same_name};
use crate::cli::{ModelArgs, TargetArgs};
use crate::config::{Config, LoadedConfig, Names, Source, fetch_hint};
use crate::error::Error;
use crate::eval::saved::excerpt;
use crate::export::CheckpointChoice;
use crate::lora::{Adapters, adapter_slots, whole_weights};
use crate::models::Decoder;
use crate::recipes::run_lock::{BASE_MODEL, PROMPTS, RunLock, Used};
use crate::settings;

/// The files that tell what a folder is.
const RUN_CONFIG: &str = "config.resolved.toml";
const ADAPTER_CONFIG: &str = "adapter_config.json";
const MODEL_CONFIG: &str = "config.json";
const ENCODER_MODULES: &str = "modules.json";

/// What a target is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TargetKind {
    /// The directory of a run.
    Run,
    /// A config file, whose run is `train.output_dir`.
    Config,
    /// A checkpoint of this run.
    Checkpoint(PathBuf),
    /// An adapter of no run that is here: an export, or one of PEFT.
    Adapter,
    /// A folder of a model, or a GGUF file, without an adapter.
    Model,
}

impl TargetKind {
    /// # Errors
    ///
    /// A folder that is none of them.
    fn of(path: &Path) -> Result<Self, Error> {
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
            // A relative path stays one, as in all messages.
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
        let found = if has(ENCODER_MODULES) {
            "a folder of sentence-transformers, which embeds texts and writes none".to_owned()
        } else {
            format!("a folder without {RUN_CONFIG}, {ADAPTER_CONFIG} or {MODEL_CONFIG}")
        };
        Err(Error::Usage(format!(
            "{}: this is {found}; name a run, a config file, a checkpoint, an exported adapter or a \
             model",
            path.display()
        )))
    }
}

/// Refuses what is no path here and could be a name of the hub.
///
/// # Errors
///
/// It is such a name; the error has the command that fetches it.
pub(super) fn refuse_hub_name(kind: RepoKind, path: &Path) -> Result<(), Error> {
    match fetch_hint(kind, path) {
        None => Ok(()),
        Some(hint) => Err(Error::Usage(format!(
            "{}: there is no such file or folder here, and {hint}",
            path.display()
        ))),
    }
}

/// The folder of a run: itself, or that of the config file which it was trained with.
///
/// # Errors
///
/// What is no run, a config that cannot be read, or is refused, or one that was not trained with.
pub(super) fn run_folder(path: &Path) -> Result<PathBuf, Error> {
    if path.is_dir() {
        must_be_a_run(path)?;
        return Ok(path.to_owned());
    }
    if !path.exists() && !is_config(path) {
        return Err(Error::Usage(format!(
            "{}: there is no such run; name its folder, or the config that it was trained with",
            path.display()
        )));
    }
    let run = LoadedConfig::load(path, &[])?.config.train.output_dir;
    if !run.is_dir() {
        let (config, run) = (path.display(), run.display());
        return Err(Error::Usage(format!(
            "{config}: its run, train.output_dir = {run}, is not there; begin it with `tooltune train \
             {config}`, or name the folder of a run"
        )));
    }
    Ok(run)
}

/// Refuses a folder of another kind. One that holds a part of a run is read as one, and says what it
/// lacks.
fn must_be_a_run(path: &Path) -> Result<(), Error> {
    let found = match TargetKind::of(path) {
        Ok(TargetKind::Run | TargetKind::Config) => return Ok(()),
        Ok(TargetKind::Checkpoint(run)) => {
            format!("this is a checkpoint; name its run, {}", run.display())
        }
        Ok(TargetKind::Adapter) => {
            "this is an adapter, and no run; name the folder of a run".to_owned()
        }
        Ok(TargetKind::Model) => "this is a model, and no run; name the folder of a run".to_owned(),
        Err(_) if RunDir::open_to_read(path)?.list()?.is_empty() => {
            format!("this folder holds no run, which has a {RUN_CONFIG}; name the folder of a run")
        }
        Err(_) => return Ok(()),
    };
    Err(Error::Usage(format!("{}: {found}", path.display())))
}

/// Whether a path names a run, by its folder or by the config that it was trained with.
pub(super) fn is_run(path: &Path) -> bool {
    is_config(path) || path.join(RUN_CONFIG).exists()
}

/// Whether a path is that of a config, which need not be there.
fn is_config(path: &Path) -> bool {
    let end = path.extension().and_then(|end| end.to_str());
    !path.is_dir() && matches!(end, Some("toml" | "yaml" | "yml"))
}

impl TargetArgs {
    /// As [`ModelArgs::config`], with the rows of the command line.
    ///
    /// # Errors
    ///
    /// As [`ModelArgs::config`].
    pub(super) fn config(&self) -> Result<Config, Error> {
        let mut config = self.model.config(&self.data)?;
        if !self.data.is_empty() {
            config.data.evaluate_on(self.data.clone());
            config.eval.max_samples = None;
        }
        if self.max_samples.is_some() {
            config.eval.max_samples = self.max_samples;
        }
        Ok(config)
    }

    /// Refuses an adapter of no run and a model alone without rows: no config names some, and what is
    /// to be measured follows from them.
    ///
    /// # Errors
    ///
    /// Neither the command line nor `data.eval` names a file.
    pub(super) fn must_have_rows(&self, config: &Config) -> Result<(), Error> {
        let is_alone = matches!(
            TargetKind::of(&self.model.path)?,
            TargetKind::Adapter | TargetKind::Model
        );
        if is_alone && !config.data.has_eval_rows() {
            return Err(Error::Usage(format!(
                "{}: there is nothing to evaluate on; name rows with --data",
                self.model.path.display()
            )));
        }
        Ok(())
    }
}

impl ModelArgs {
    /// The run's own config, or the given one, with the overrides of the command line. An adapter of
    /// no run and a model alone have defaults, and the format of `rows`.
    ///
    /// # Errors
    ///
    /// A target that is nothing of the kind, a config that cannot be read, or is refused, or an
    /// adapter whose base is not here.
    pub(super) fn config(&self, rows: &[PathBuf]) -> Result<Config, Error> {
        refuse_hub_name(RepoKind::Model, &self.path)?;
        for file in rows {
            refuse_hub_name(RepoKind::Dataset, file)?;
        }
        let names = Names::ForEvaluation;
        let load = |path: &Path| LoadedConfig::load_with(path, &self.overrides, names);
        let loaded = match TargetKind::of(&self.path)? {
            TargetKind::Run => load(&self.path.join(RUN_CONFIG)),
            TargetKind::Config => load(&self.path),
            TargetKind::Checkpoint(run) => load(&run.join(RUN_CONFIG)),
            TargetKind::Adapter => {
                let source = self.settings_of_adapter(rows)?;
                LoadedConfig::parse(source, &self.overrides)
            }
            TargetKind::Model => {
                LoadedConfig::parse(self.settings_of_model(&self.path, rows), &self.overrides)
            }
        }?;
        say_recognised(&loaded)?;
        self.say_what_does_not_count()?;
        Ok(loaded.config)
    }

    /// Says which settings of the command line are of training alone. The folder of a config's run is
    /// none of them: it says where checkpoints are.
    fn say_what_does_not_count(&self) -> Result<(), Error> {
        const OF_TRAINING: [&str; 4] = ["lora.", "train.", "checkpoint.", "log."];
        for text in &self.overrides {
            let key = text.split('=').next().unwrap_or_default().trim();
            let is_of_training = OF_TRAINING.iter().any(|table| key.starts_with(table));
            if is_of_training && key != "train.output_dir" {
                eprint_line(&format!(
                    "--set {key} is a setting of training and changes nothing here: what was trained \
                     keeps its own"
                ))?;
            }
        }
        Ok(())
    }

    /// What a config would say of an adapter that no run is known of.
    fn settings_of_adapter(&self, rows: &[PathBuf]) -> Result<Source, Error> {
        const MODEL: &str = "model.model_name_or_path";
        let base = load_adapter(&self.path)?.config.base_model_name_or_path;
        let is_named = |text: &String| text.trim_start().starts_with(MODEL);
        let base = base.unwrap_or_default();
        if !Path::new(&base).exists() && !self.overrides.iter().any(is_named) {
            return Err(Error::Usage(format!(
                "{}: the adapter is of the base model {:?}, and there is no such file or folder here; \
                 name the base with --set {MODEL}=FOLDER",
                self.path.display(),
                excerpt(&base)
            )));
        }
        Ok(self.settings_of_model(Path::new(&base), rows))
    }

    /// What a config would say of a model that no run is known of: its place, the rows that it is
    /// given, from which their format follows, and what training asked with, where it lies beside.
    fn settings_of_model(&self, model: &Path, rows: &[PathBuf]) -> Source {
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
            let found = recognise_file(rows).map(|found| found.format);
            matches!(found, Ok(RecognisedFormat::Rows(DataFormat::Slot)))
        };
        let asks_slot = rows.iter().all(is_slot);
        // Nothing is learned; a config has to say all the same from what, and where to.
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

    /// The chosen checkpoint: that of the command line, else the target itself where it is one,
    /// `base` for a model alone, and `best` for a run.
    ///
    /// # Errors
    ///
    /// A target that is nothing of the kind, or a model alone of which a checkpoint is asked.
    pub(super) fn checkpoint(&self) -> Result<String, Error> {
        let kind = TargetKind::of(&self.path)?;
        match (&self.checkpoint, kind) {
            (Some(typed), TargetKind::Model) if typed != "base" => Err(Error::Usage(format!(
                "{}: a model alone has no checkpoints; name a run, or leave --checkpoint out",
                self.path.display()
            ))),
            (Some(typed), TargetKind::Adapter) if typed != "base" && !Path::new(typed).exists() => {
                Err(Error::Usage(format!(
                    "{}: an adapter of no run has no checkpoints, and {typed} is none; name a run, or \
                     leave --checkpoint out",
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

    /// The directory of the run that the target belongs to.
    fn run<'t>(&'t self, config: &'t Config) -> Result<Cow<'t, Path>, Error> {
        Ok(match TargetKind::of(&self.path)? {
            TargetKind::Run => Cow::Borrowed(&self.path),
            TargetKind::Checkpoint(run) => Cow::Owned(run),
            TargetKind::Config | TargetKind::Adapter | TargetKind::Model => {
                Cow::Borrowed(&config.train.output_dir)
            }
        })
    }

    /// The directory of the chosen checkpoint, which is not `base`.
    ///
    /// # Errors
    ///
    /// The run has no such checkpoint, or it is damaged.
    pub(super) fn checkpoint_dir(&self, config: &Config) -> Result<PathBuf, Error> {
        CheckpointChoice::parse(&self.checkpoint()?).resolve(&self.run(config)?)
    }

    /// The directory of the chosen checkpoint, for commands that are about an adapter.
    ///
    /// # Errors
    ///
    /// As [`Self::checkpoint_dir`], or a base model, which has no adapter.
    pub(super) fn adapter(&self, config: &Config) -> Result<PathBuf, Error> {
        if self.checkpoint()? == "base" {
            return Err(Error::Usage(format!(
                "{}: a base model has no adapter; name a run, a checkpoint or an adapter",
                self.path.display()
            )));
        }
        self.checkpoint_dir(config)
    }

    /// What tells the adapter of the target from others.
    ///
    /// # Errors
    ///
    /// As [`Self::checkpoint_dir`], or its weights cannot be read.
    pub(super) fn adapter_digest(&self, config: &Config) -> Result<String, Error> {
        if self.checkpoint()? == "base" {
            return Ok("base".to_owned());
        }
        let dir = self.checkpoint_dir(config)?;
        Ok(sha256_file(&dir.join("adapter_model.safetensors"))?)
    }

    /// Compares models and prompts with those of the run that the target belongs to, where it keeps
    /// what it was made from.
    ///
    /// # Errors
    ///
    /// As [`Self::checkpoint_dir`], or models or prompts other than those of the run.
    pub(super) fn check_used(&self, config: &Config, settings: &[&str]) -> Result<(), Error> {
        let kind = TargetKind::of(&self.path)?;
        let is_base = self.checkpoint()? == "base";
        let (lock, place) = match settings.contains(&BASE_MODEL) {
            true if is_base && kind == TargetKind::Config => return Ok(()),
            true if !is_base => {
                let dir = self.checkpoint_dir(config)?;
                (RunLock::of_checkpoint(&dir)?, dir)
            }
            _ if matches!(kind, TargetKind::Adapter | TargetKind::Model) => return Ok(()),
            // Where no checkpoint is computed with, there need be none.
            _ => {
                let run = self.run(config)?;
                (RunLock::of_run(&run)?, run.into_owned())
            }
        };
        match lock {
            Some(lock) => {
                let settings = [settings, &PROMPTS].concat();
                lock.check_used(config, Used::of(&settings), &place)
            }
            None => Ok(()),
        }
    }

    /// Which checkpoint stands behind `best` or `last`, and what is `doing` with it; a path says it
    /// by itself.
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

    /// The model with the adapter of the chosen checkpoint, or without one for `base`.
    ///
    /// # Errors
    ///
    /// As [`Self::checkpoint_dir`] and [`attach`], or weights that cannot be read.
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
/// A damaged directory, or an adapter of another model.
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
            "{} names {:?} as its base model and is put on {}; are they the same weights?",
            dir.display(),
            excerpt(other),
            base_model.display()
        ))?;
    }
    attach_adapter(decoder, &adapter, dir, device)
}

/// Loads an adapter into the projections of `decoder`; `path` is its place, for messages.
///
/// # Errors
///
/// An adapter of another model.
pub(super) fn attach_adapter(
    decoder: &mut Decoder,
    adapter: &Adapter,
    path: &Path,
    device: &Device,
) -> Result<(), Error> {
    let slots = adapter_slots(&adapter.config, &decoder.config)?;
    let whole = whole_weights(&adapter.config, &decoder.config, &slots)?;
    let expected: Vec<(String, Vec<usize>)> = slots
        .iter()
        .flat_map(|slot| slot.tensors())
        .chain(whole.iter().map(|weight| weight.tensor()))
        .map(|(name, shape, _)| (name, shape))
        .collect();
    adapter.check(path, &expected)?;
    let adapters = Adapters::from_tensors(slots, &adapter.tensors, device);
    adapters.with_whole(whole, &adapter.tensors).attach(decoder);
    Ok(())
}
