//! A checkpoint of a run to an adapter directory that serving loads.
//!
//! With `--neutral` the scaling is folded into B and alpha becomes r: the same function in every
//! server, whatever fields of the config it ignores.

use std::path::{Path, PathBuf};

use tooltune_checkpoints::adapter::{Adapter, Patterns, load_adapter, save_adapter};
use tooltune_checkpoints::run_dir::RunDir;

use crate::error::Error;
use crate::lora::LoraSpec;
use crate::models::ModelConfig;

/// Which checkpoint of a run is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointChoice {
    /// What `BEST` points to, or the last where nothing was selected.
    Best,
    /// The newest undamaged one.
    Last,
    /// A directory.
    Path(PathBuf),
}

impl CheckpointChoice {
    /// Reads `best`, `last` or a path.
    pub fn parse(text: &str) -> Self {
        match text {
            "best" => Self::Best,
            "last" => Self::Last,
            path => Self::Path(PathBuf::from(path)),
        }
    }

    /// The directory of the checkpoint, whose files have been compared with their checksums.
    ///
    /// # Errors
    ///
    /// The run has no such checkpoint, or it is damaged.
    pub fn resolve(&self, run: &Path) -> Result<PathBuf, Error> {
        if let Self::Path(path) = self {
            return verified(path);
        }
        let run_dir = RunDir::open_to_read(run)?;
        let best = run_dir.best()?.filter(|_| *self == Self::Best);
        if let Some(best) = best {
            let listed = run_dir.list()?.into_iter().find(|c| c.step == best.step);
            if let Some(checkpoint) = listed {
                checkpoint.verify()?;
                return Ok(checkpoint.path);
            }
        }
        let latest = run_dir
            .latest_valid()?
            .checkpoint
            .map(|checkpoint| checkpoint.path);
        latest.ok_or_else(|| {
            Error::Usage(format!(
                "{} holds no complete checkpoint; train first, or name one with --checkpoint",
                run.display()
            ))
        })
    }
}

/// An adapter directory as it is; a checkpoint of any run only if it is whole.
fn verified(path: &Path) -> Result<PathBuf, Error> {
    let canonical = std::fs::canonicalize(path).map_err(Error::io(path, "open"))?;
    if let Some(run) = canonical.parent() {
        let listed = RunDir::open_to_read(run)?.list()?;
        if let Some(checkpoint) = listed.iter().find(|c| c.path == canonical) {
            checkpoint.verify()?;
        }
    }
    Ok(path.to_owned())
}

/// How the scaling is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// As configured: `lora_alpha`, patterns and rsLoRA stay in the config.
    AsConfigured,
    /// Folded into B; `lora_alpha = r`, no patterns, no rsLoRA, one rank for all.
    Neutral,
}

/// Writes the adapter of `checkpoint` as the PEFT directory `output`.
///
/// # Errors
///
/// A damaged checkpoint, an adapter whose B factors are all zero (it changes nothing), `output`
/// that exists, or a disk that is full.
pub fn export_peft(
    checkpoint: &Path,
    model: &ModelConfig,
    scaling: Scaling,
    output: &Path,
) -> Result<(), Error> {
    let mut adapter = load_adapter(checkpoint)?;
    let is_b = |name: &str| name.ends_with(".lora_B.weight");
    let learned = adapter
        .tensors
        .iter()
        .any(|(name, tensor)| is_b(name) && tensor.values.iter().any(|&value| value != 0.0));
    if !learned {
        return Err(Error::Usage(format!(
            "{}: every lora_B is zero, so the adapter changes nothing: it is the beginning of the \
             run, and no later checkpoint was better; export another one, as with --checkpoint last",
            checkpoint.display()
        )));
    }
    if scaling == Scaling::Neutral {
        fold_scaling(&mut adapter, model)?;
    }
    let template_path = checkpoint.join("chat_template.jinja");
    let template = match template_path.exists() {
        true => Some(
            std::fs::read_to_string(&template_path).map_err(Error::io(&template_path, "read"))?,
        ),
        false => None,
    };
    Ok(save_adapter(output, &adapter, template.as_deref())?)
}

/// Multiplies each B by its scaling and fills smaller ranks up with zeros.
fn fold_scaling(adapter: &mut Adapter, model: &ModelConfig) -> Result<(), Error> {
    let slots = LoraSpec::from_peft(&adapter.config).slots(model)?;
    let rank = slots
        .iter()
        .map(|slot| slot.rank)
        .max()
        .unwrap_or(adapter.config.r);
    for slot in &slots {
        let [(a_name, ..), (b_name, ..)] = slot.tensors();
        if let Some(a) = adapter.tensors.get_mut(&a_name) {
            a.values.resize(rank * slot.in_features, 0.0);
            a.shape = vec![rank, slot.in_features];
        }
        if let Some(b) = adapter.tensors.get_mut(&b_name) {
            b.values = b
                .values
                .chunks(slot.rank)
                .flat_map(|row| {
                    let scaled = row
                        .iter()
                        .map(|value| (f64::from(*value) * slot.scaling) as f32);
                    scaled.chain(std::iter::repeat_n(0.0, rank - slot.rank))
                })
                .collect();
            b.shape = vec![slot.out_features, rank];
        }
    }
    adapter.config.r = rank;
    adapter.config.lora_alpha = rank as f64;
    adapter.config.use_rslora = false;
    adapter.config.rank_pattern = Patterns(Vec::new());
    adapter.config.alpha_pattern = Patterns(Vec::new());
    adapter.config.lora_dropout = 0.0;
    Ok(())
}
