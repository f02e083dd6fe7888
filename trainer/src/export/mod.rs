//! Exports a checkpoint for serving: as an adapter for PEFT or llama.cpp, or as merged weights.
//!
//! `--neutral` multiplies B by the scaling and sets alpha to r, so that servers that ignore some
//! config fields compute the same results.

mod gguf;
mod nf4;
mod refusals;
mod served;

pub use gguf::{GgufMatrices, GgufTarget, export_gguf, export_whole_gguf};
pub use nf4::{MergeBase, Nf4Projections};

use std::collections::BTreeMap;
use std::path::Path;

use tooltune_checkpoints::PromptFiles;
use tooltune_checkpoints::adapter::{
    Adapter, Consumer, PeftConfig, Scalings, ServedBase, TargetModules, compatibility,
    load_adapter, neutral, peft_rules, save_adapter_with_files, with_named_targets,
};
use tooltune_checkpoints::merged::{
    MergeOptions, Nf4Weights, refused_by_llama_cpp, save_merged, tokenizer_files,
};
use tooltune_checkpoints::model_files::TokenizerSource;
use tooltune_checkpoints::weights::FloatDtype;

use crate::base_model::BaseModel;
use crate::config::BaseModelSettings;
use crate::error::Error;

pub use refusals::{Refusal, refusals, refusals_of_shape};

/// How the scaling is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// As configured: `lora_alpha`, patterns and rsLoRA are written to the config.
    AsConfigured,
    /// Multiplied into B: `lora_alpha = r`, no patterns, no rsLoRA, one rank for all modules.
    Neutral,
}

/// File that describes an export.
const README: &str = "README.md";

/// Additional files for using an adapter on another machine.
#[derive(Debug, Clone, Copy)]
pub struct ExportExtras<'a> {
    /// The base model: its hub name and its tokenizer files.
    pub base: &'a BaseModelSettings,
    /// Content of README.md.
    pub card: &'a str,
}

/// Writes the adapter of `checkpoint` as the PEFT directory `output`, with tensors in `dtype`.
///
/// Targets selected by a pattern or "all-linear" are written as names, which every server supports.
/// `linear` lists the linear layers of the base, if known, which makes the list of names shorter.
///
/// # Errors
///
/// The checkpoint is damaged, all B factors of the adapter are zero (it changes nothing), `output`
/// exists, or the disk is full.
pub fn export_peft(
    checkpoint: &Path,
    scaling: Scaling,
    dtype: FloatDtype,
    linear: Option<&[String]>,
    extras: ExportExtras<'_>,
    output: &Path,
) -> Result<(), Error> {
    let mut adapter = trained_adapter(checkpoint)?;
    let scalings = peft_rules(&adapter)?;
    if scaling == Scaling::Neutral {
        adapter = neutral(&adapter.config, &adapter.tensors, &scalings)?;
    }
    let adapted: Vec<&str> = scalings.keys().map(String::as_str).collect();
    adapter.config = with_named_targets(&adapter.config, &adapted, linear);
    let prompts = PromptFiles::read(checkpoint)?;
    let model = extras.base;
    if let Some(hub_id) = &model.hub_id {
        adapter.config.base_model_name_or_path = Some(hub_id.clone());
    }
    // The tokenizer files are omitted if the base is not on this machine.
    let mut files = if model.model_name_or_path.exists() {
        tokenizer_files(&model.model_name_or_path)?
    } else {
        BTreeMap::new()
    };
    files.insert(README.to_owned(), extras.card.into());
    Ok(save_adapter_with_files(
        output, &adapter, dtype, &prompts, &files,
    )?)
}

/// A change to the weights of a base model, with the prompt files of training.
#[derive(Debug)]
pub struct Addition {
    adapter: Adapter,
    scalings: Scalings,
    prompts: PromptFiles,
}

impl Addition {
    /// Loads the adapter of a checkpoint with the prompt files of training.
    ///
    /// # Errors
    ///
    /// As for [`export_peft`].
    pub fn read(checkpoint: &Path) -> Result<Self, Error> {
        let adapter = trained_adapter(checkpoint)?;
        Ok(Self {
            scalings: peft_rules(&adapter)?,
            adapter,
            prompts: PromptFiles::read(checkpoint)?,
        })
    }

    /// No change: the base is written unchanged.
    pub fn none() -> Self {
        Self {
            adapter: Adapter {
                config: PeftConfig::new(1, 1.0, TargetModules::Names(Vec::new())),
                tensors: BTreeMap::new(),
            },
            scalings: Scalings::new(),
            prompts: PromptFiles::default(),
        }
    }

    fn is_none(&self) -> bool {
        self.adapter.tensors.is_empty()
    }
}

/// How a merged folder is written.
#[derive(Debug, Clone, Copy)]
pub struct MergedFolder<'a> {
    /// Dtype of all tensors if the base is a GGUF file; other bases keep their dtype.
    pub gguf_dtype: FloatDtype,
    /// Maximum bytes of tensors per file.
    pub max_shard_bytes: u64,
    /// Content of README.md.
    pub card: Option<&'a str>,
    /// Weights of a plain base that are merged as their NF4 values.
    pub dequantised: Option<Nf4Weights<'a>>,
    /// Weights that are written in NF4, in the layout of bitsandbytes.
    pub quantised: Option<Nf4Weights<'a>>,
}

/// Writes `base` merged with `addition` into the directory `output`.
///
/// # Errors
///
/// `output` exists, or a merged value does not fit the dtype of the base.
pub fn export_merged(
    addition: &Addition,
    base: &BaseModel,
    folder: MergedFolder<'_>,
    output: &Path,
) -> Result<(), Error> {
    // A vocabulary inside a GGUF file is written to a separate file.
    let tokenizer_json = match base.files.tokenizer {
        TokenizerSource::Json(_) => None,
        TokenizerSource::Gguf(_) => Some(base.tokenizer.to_json()?),
    };
    let card = folder.card.map(|card| (README.to_owned(), card.into()));
    let extra_files = BTreeMap::from_iter(card);
    let options = MergeOptions {
        extra_files: Some(&extra_files),
        max_shard_bytes: folder.max_shard_bytes,
        gguf_dtype: folder.gguf_dtype,
        tokenizer_json: tokenizer_json.as_deref(),
        prompts: Some(&addition.prompts),
        dequantised: folder.dequantised,
        quantised: folder.quantised,
    };
    Ok(save_merged(
        output,
        &base.path,
        &addition.adapter,
        &addition.scalings,
        &options,
    )?)
}

/// A table that shows how each server loads the adapter of `checkpoint`.
///
/// # Errors
///
/// The checkpoint is damaged, or a pattern is not a valid regular expression.
pub fn compatibility_table(checkpoint: &Path, base: &BaseModel) -> Result<String, Error> {
    let adapter = load_adapter(checkpoint)?;
    let report = compatibility(
        &adapter,
        ServedBase {
            tied_head: base.files.config["tie_word_embeddings"] == true,
            within_vision_model: base.files.weights.n_vision() > 0,
        },
    )?;
    let mut lines = vec![
        format!(
            "| | {} | fix |",
            Consumer::ALL.map(Consumer::name).join(" | ")
        ),
        format!("|---|{}", "---|".repeat(Consumer::ALL.len() + 1)),
    ];
    for row in report.rows.iter().chain([&report.whole]) {
        let verdicts: Vec<String> = row.verdicts.iter().map(ToString::to_string).collect();
        let fix = row.fix.as_deref().unwrap_or("");
        lines.push(format!(
            "| {} | {} | {fix} |",
            row.feature,
            verdicts.join(" | ")
        ));
    }
    if let Some(refused) = refused_by_llama_cpp(&base.path, &base.files)? {
        lines.push(String::new());
        lines.push(format!("llama.cpp does not compute the base: {refused}"));
    }
    Ok(lines.join("\n"))
}

fn trained_adapter(checkpoint: &Path) -> Result<Adapter, Error> {
    let adapter = load_adapter(checkpoint)?;
    let is_b = |name: &str| name.ends_with(".lora_B.weight");
    let is_trained = adapter
        .tensors
        .iter()
        .any(|(name, tensor)| is_b(name) && tensor.values.iter().any(|&value| value != 0.0));
    if is_trained && !is_untrained_pissa(&adapter) {
        Ok(adapter)
    } else {
        Err(Error::Usage(format!(
            "{}: the adapter changes nothing, because B·A is zero in every module: this checkpoint is \
             from the start of the run, and no later checkpoint was better; export another one, for \
             example with --checkpoint last",
            checkpoint.display()
        )))
    }
}

/// Whether this is an untrained PiSSA checkpoint: the two halves of all factors cancel. Fully
/// trained weights are not checked, because they are updated only together with the factors.
fn is_untrained_pissa(adapter: &Adapter) -> bool {
    let is_factor = |name: &str| name.contains(".lora_");
    let mut factors = adapter.tensors.iter().filter(|(name, _)| is_factor(name));
    factors.all(|(name, tensor)| {
        let [rows, columns] = tensor.shape[..] else {
            return false;
        };
        let values = &tensor.values;
        if name.ends_with(".lora_B.weight") {
            let cancels = |row: &[f32]| {
                let (now, before) = row.split_at(columns / 2);
                now.iter().zip(before).all(|(now, before)| *now == -before)
            };
            columns % 2 == 0 && columns > 0 && values.chunks(columns).all(cancels)
        } else {
            let (now, before) = values.split_at(values.len() / 2);
            rows % 2 == 0 && now == before
        }
    })
}

#[cfg(test)]
mod tests;
