//! What a command names as its target: settings, the base model, and the adapter of a checkpoint.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use tooltune_checkpoints::adapter::{Adapter, load_adapter};

use super::eprint_line;
use super::reading::say_recognised;
use crate::base_model::{BaseModel, same_name};
use crate::cli::TargetArgs;
use crate::config::{Config, LoadedConfig};
use crate::error::Error;
use crate::eval::saved::excerpt;
use crate::export::CheckpointChoice;
use crate::lora::{Adapters, adapter_slots};
use crate::models::Decoder;
use crate::recipes::run_lock::{BASE_MODEL, PROMPTS, RunLock, Used};
use crate::settings;

impl TargetArgs {
    /// The run's own config, or the given one, with the overrides and rows of the command line.
    ///
    /// # Errors
    ///
    /// A config that cannot be read, or is refused.
    pub(super) fn config(&self) -> Result<Config, Error> {
        let path = if self.path.is_dir() {
            self.path.join("config.resolved.toml")
        } else {
            self.path.clone()
        };
        let loaded = LoadedConfig::load(&path, &self.overrides)?;
        say_recognised(&loaded)?;
        let mut config = loaded.config;
        if !self.data.is_empty() {
            config.data.eval.clone_from(&self.data);
            config.eval.max_samples = None;
        }
        if self.max_samples.is_some() {
            config.eval.max_samples = self.max_samples;
        }
        Ok(config)
    }

    /// The directory of the chosen checkpoint, which is not `base`.
    ///
    /// # Errors
    ///
    /// The run has no such checkpoint, or it is damaged.
    pub(super) fn checkpoint_dir(&self, config: &Config) -> Result<PathBuf, Error> {
        let run = if self.path.is_dir() {
            &self.path
        } else {
            &config.train.output_dir
        };
        CheckpointChoice::parse(&self.checkpoint).resolve(run)
    }

    /// Compares models and prompts with those of the run that the target belongs to, where it keeps
    /// what it was made from.
    ///
    /// # Errors
    ///
    /// As [`Self::checkpoint_dir`], or models or prompts other than those of the run.
    pub(super) fn check_used(&self, config: &Config, settings: &[&str]) -> Result<(), Error> {
        let run = if self.path.is_dir() {
            &self.path
        } else {
            &config.train.output_dir
        };
        let is_base = self.checkpoint == "base";
        let (lock, place) = match settings.contains(&BASE_MODEL) {
            true if is_base && !self.path.is_dir() => return Ok(()),
            true if !is_base => {
                let dir = self.checkpoint_dir(config)?;
                (RunLock::of_checkpoint(&dir)?, dir)
            }
            // Where no checkpoint is computed with, there need be none.
            _ => (RunLock::of_run(run)?, run.clone()),
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
        match CheckpointChoice::parse(&self.checkpoint).describe(dir)? {
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
        if self.checkpoint != "base" {
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
    let expected: Vec<(String, Vec<usize>)> = slots
        .iter()
        .flat_map(|slot| slot.tensors())
        .map(|(name, shape, _)| (name, shape))
        .collect();
    adapter.check(path, &expected)?;
    Adapters::from_tensors(slots, &adapter.tensors, device).attach(decoder);
    Ok(())
}
