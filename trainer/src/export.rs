//! A checkpoint of a run to what serving loads: an adapter of PEFT or llama.cpp, or merged weights.
//!
//! With `--neutral` the scaling is folded into B and alpha becomes r: the same function in every
//! server, whatever fields of the config it ignores.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tooltune_checkpoints::PromptFiles;
use tooltune_checkpoints::adapter::{
    Adapter, Consumer, GgufBase, PeftConfig, Scalings, TargetModules, compatibility, load_adapter,
    neutral, peft_rules, save_adapter_beside, with_named_targets, write_gguf_adapter,
};
use tooltune_checkpoints::merged::{
    GgufMergeOptions, MergeOptions, OLLAMA_MODEL, OllamaFolder, refused_by_llama_cpp, save_merged,
    save_merged_gguf, save_ollama, tokenizer_files,
};
use tooltune_checkpoints::model_files::{GgufVocabulary, TokenizerSource};
use tooltune_checkpoints::run_dir::{Checkpoint, RunDir};
use tooltune_checkpoints::weights::{FloatDtype, GgufDtype};
use tooltune_rows::text::{ByteLevelBpe, SentencePiece, VocabularyError};

use crate::base_model::BaseModel;
use crate::config::BaseModelSettings;
use crate::error::Error;
use crate::modelfile::{MODELFILE, modelfile};

/// Which checkpoint of a run is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointChoice {
    /// What `BEST` points to, or the last where nothing was selected.
    Best,
    /// The newest undamaged one.
    Last,
    /// That of an optimizer step.
    Step(u64),
    /// A directory, or the name of a checkpoint in the run.
    Path(PathBuf),
}

impl CheckpointChoice {
    /// Reads `best`, `last`, a step such as `20`, a name such as `checkpoint-000020`, or a path.
    pub fn parse(text: &str) -> Self {
        match (text, text.parse()) {
            ("best", _) => Self::Best,
            ("last", _) => Self::Last,
            (_, Ok(step)) => Self::Step(step),
            (path, Err(_)) => Self::Path(PathBuf::from(path)),
        }
    }

    /// The directory of the checkpoint, whose files have been compared with their checksums.
    ///
    /// # Errors
    ///
    /// The run has no such checkpoint, or it is damaged.
    pub fn resolve(&self, run: &Path) -> Result<PathBuf, Error> {
        match self {
            Self::Path(path) if path.exists() => return verified(path),
            Self::Path(path) if run.is_dir() && is_name(path) => return named(run, path),
            Self::Path(path) => return verified(path),
            Self::Step(step) => return at_step(run, *step),
            Self::Best | Self::Last => {}
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
        let found = run_dir.latest_valid()?;
        for (checkpoint, problem) in &found.rejected {
            tracing::warn!(
                "{} is damaged and passed over: {problem}",
                checkpoint.path.display()
            );
        }
        let latest = found.checkpoint.map(|checkpoint| checkpoint.path);
        latest.ok_or_else(|| {
            Error::Usage(format!(
                "{} holds no complete checkpoint; train first, or name one with --checkpoint",
                run.display()
            ))
        })
    }

    /// Step and rank of what [`resolve`](Self::resolve) has found; `None` for a path, which the user
    /// has named.
    ///
    /// # Errors
    ///
    /// The run directory cannot be read.
    pub fn describe(&self, checkpoint: &Path) -> Result<Option<String>, Error> {
        let run = match self {
            Self::Best | Self::Last => checkpoint.parent().unwrap_or(Path::new("")),
            Self::Step(_) | Self::Path(_) => return Ok(None),
        };
        let run_dir = RunDir::open_to_read(run)?;
        let checkpoints = run_dir.list()?;
        let Some(found) = checkpoints.iter().find(|c| c.path == checkpoint) else {
            return Ok(None);
        };
        let best = run_dir.best()?.filter(|best| best.step == found.step);
        let rank = match (self, best.and_then(|best| best.metric)) {
            (Self::Best, Some(metric)) => format!("the best by {metric}"),
            (Self::Best, None) => "the last: none is the best yet".to_string(),
            _ => "the last".to_string(),
        };
        let state = match found.step {
            0 => ", the untrained model",
            _ => "",
        };
        Ok(Some(format!("step {}, {rank}{state}", found.step)))
    }
}

fn is_name(path: &Path) -> bool {
    path.parent()
        .is_some_and(|folder| folder.as_os_str().is_empty())
}

/// The checkpoint of `run` that has this name, whose files have been compared with their checksums.
fn named(run: &Path, name: &Path) -> Result<PathBuf, Error> {
    let listed = RunDir::open_to_read(run)?.list()?;
    let found = listed
        .iter()
        .find(|one| one.path.file_name() == Some(name.as_os_str()));
    match found {
        Some(checkpoint) => {
            checkpoint.verify()?;
            Ok(checkpoint.path.clone())
        }
        None => Err(no_checkpoint(run, &name.display().to_string(), &listed)),
    }
}

/// The checkpoint of `run` at this step, whose files have been compared with their checksums.
fn at_step(run: &Path, step: u64) -> Result<PathBuf, Error> {
    let listed = RunDir::open_to_read(run)?.list()?;
    match listed.iter().find(|one| one.step == step) {
        Some(checkpoint) => {
            checkpoint.verify()?;
            Ok(checkpoint.path.clone())
        }
        None => Err(no_checkpoint(run, &format!("step {step}"), &listed)),
    }
}

/// The refusal of a checkpoint that a run does not have.
pub(crate) fn no_checkpoint(run: &Path, wanted: &str, listed: &[Checkpoint]) -> Error {
    let steps: Vec<String> = listed.iter().map(|one| one.step.to_string()).collect();
    let there = match steps.as_slice() {
        [] => "it has none".to_owned(),
        steps => format!("it has those of the steps {}", steps.join(", ")),
    };
    Error::Usage(format!(
        "{wanted}: there is no such checkpoint in {}; {there}",
        run.display()
    ))
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

/// The file that says what an export is.
const README: &str = "README.md";

/// What goes with an adapter to another machine.
#[derive(Debug, Clone, Copy)]
pub struct HandedOn<'a> {
    /// The base: its name on the hub, and the files of its tokenizer.
    pub base: &'a BaseModelSettings,
    /// The text of its README.md.
    pub card: &'a str,
}

/// Writes the adapter of `checkpoint` as the PEFT directory `output`, with tensors of `dtype`.
///
/// Targets that a pattern or "all-linear" chose are listed by name, which every server reads;
/// `linear` are the linear layers of the base, if they are known, which makes the list short.
///
/// # Errors
///
/// A damaged checkpoint, an adapter whose B factors are all zero (it changes nothing), `output`
/// that exists, or a disk that is full.
pub fn export_peft(
    checkpoint: &Path,
    scaling: Scaling,
    dtype: FloatDtype,
    linear: Option<&[String]>,
    handed: HandedOn<'_>,
    output: &Path,
) -> Result<(), Error> {
    let mut adapter = learned_adapter(checkpoint)?;
    let scalings = peft_rules(&adapter)?;
    if scaling == Scaling::Neutral {
        adapter = neutral(&adapter.config, &adapter.tensors, &scalings)?;
    }
    let adapted: Vec<&str> = scalings.keys().map(String::as_str).collect();
    adapter.config = with_named_targets(&adapter.config, &adapted, linear);
    let prompts = PromptFiles::read(checkpoint)?;
    let model = handed.base;
    if let Some(hub_id) = &model.hub_id {
        adapter.config.base_model_name_or_path = Some(hub_id.clone());
    }
    // The base may be elsewhere; then it keeps its tokenizer.
    let mut beside = if model.model_name_or_path.exists() {
        tokenizer_files(&model.model_name_or_path)?
    } else {
        BTreeMap::new()
    };
    beside.insert(README.to_owned(), handed.card.into());
    Ok(save_adapter_beside(
        output, &adapter, dtype, &prompts, &beside,
    )?)
}

/// Writes the adapter of `checkpoint` as the GGUF file `output`, for llama.cpp beside `base`, and what
/// training asked with beside it.
///
/// # Errors
///
/// As [`export_peft`]; a kind of model or a module that has no name in GGUF.
pub fn export_gguf(
    checkpoint: &Path,
    base: &BaseModel,
    dtype: FloatDtype,
    output: &Path,
) -> Result<(), Error> {
    let adapter = learned_adapter(checkpoint)?;
    let gguf_base = GgufBase::from_config(&base.path, &base.files.config)?;
    let scalings = peft_rules(&adapter)?;
    if let Some(refused) = refused_by_llama_cpp(&base.path, &base.files)? {
        tracing::warn!("llama.cpp does not compute the base of this adapter: {refused}");
    }
    PromptFiles::read(checkpoint)?.write_beside(output)?;
    Ok(write_gguf_adapter(
        output, &adapter, &scalings, &gguf_base, dtype,
    )?)
}

/// Writes `base` with the adapter of `checkpoint` added to its weights as the directory `output`,
/// in files of at most `max_shard_bytes`. `dtype` is that of the tensors where the base is a GGUF
/// file; others keep their own.
///
/// # Errors
///
/// As [`export_peft`]; a sum that the base's format cannot hold.
pub fn export_merged(
    checkpoint: &Path,
    base: &BaseModel,
    dtype: FloatDtype,
    max_shard_bytes: u64,
    card: &str,
    output: &Path,
) -> Result<(), Error> {
    let adapter = learned_adapter(checkpoint)?;
    let scalings = peft_rules(&adapter)?;
    // A vocabulary inside a GGUF file becomes a file of its own.
    let tokenizer_json = match base.files.tokenizer {
        TokenizerSource::Json(_) => None,
        TokenizerSource::Gguf(_) => Some(base.tokenizer.to_json()?),
    };
    let prompts = PromptFiles::read(checkpoint)?;
    let beside = BTreeMap::from([(README.to_owned(), card.into())]);
    let options = MergeOptions {
        beside: Some(&beside),
        max_shard_bytes,
        gguf_dtype: dtype,
        tokenizer_json: tokenizer_json.as_deref(),
        prompts: Some(&prompts),
    };
    Ok(save_merged(
        output, &base.path, &adapter, &scalings, &options,
    )?)
}

/// Where a merged GGUF model goes.
#[derive(Debug, Clone, Copy)]
pub enum GgufPlace<'a> {
    /// One file for llama.cpp, what training asked with beside it.
    File,
    /// A folder for `ollama create`, with a `Modelfile` and a README.md of this text; the system
    /// message of training is one of it.
    Ollama {
        /// The text of its README.md.
        card: &'a str,
        /// What training set in `data.system`.
        system: Option<&'a str>,
    },
}

/// Writes `base` with the adapter of `checkpoint` added to its weights as a GGUF model, its matrices in
/// `dtype`; what Ollama is not told, for the user to be told.
///
/// # Errors
///
/// As [`export_merged`]; a base of safetensors whose family or vocabulary has no form in GGUF here.
pub fn export_merged_gguf(
    checkpoint: &Path,
    base: &BaseModel,
    dtype: GgufDtype,
    place: GgufPlace<'_>,
    output: &Path,
) -> Result<Option<String>, Error> {
    let adapter = learned_adapter(checkpoint)?;
    let scalings = peft_rules(&adapter)?;
    let prompts = PromptFiles::read(checkpoint)?;
    let vocabulary = missing_vocabulary(base)?;
    let options = GgufMergeOptions {
        dtype,
        chat_template: prompts.chat_template.as_deref(),
        vocabulary: vocabulary.as_ref(),
    };
    match place {
        GgufPlace::File => {
            prompts.write_beside(output)?;
            save_merged_gguf(output, &base.path, &adapter, &scalings, &options)?;
            Ok(None)
        }
        GgufPlace::Ollama { card, system } => {
            let modelfile = modelfile(base, OLLAMA_MODEL, system)?;
            let mut files = prompts.files();
            files.insert(README.to_owned(), card.into());
            files.insert(MODELFILE.to_owned(), modelfile.text.into_bytes());
            let folder = OllamaFolder {
                model: options,
                files: &files,
            };
            save_ollama(output, &base.path, &adapter, &scalings, &folder)?;
            Ok(modelfile.lacks_template)
        }
    }
}

/// Writes `base` alone as the GGUF file `output`, its matrices in `dtype`: what llama.cpp loads adapters
/// beside.
///
/// # Errors
///
/// As [`export_merged_gguf`].
pub fn export_base_gguf(base: &BaseModel, dtype: GgufDtype, output: &Path) -> Result<(), Error> {
    let nothing = Adapter {
        config: PeftConfig::new(1, 1.0, TargetModules::Names(Vec::new())),
        tensors: BTreeMap::new(),
    };
    let vocabulary = missing_vocabulary(base)?;
    let options = GgufMergeOptions {
        dtype,
        chat_template: None,
        vocabulary: vocabulary.as_ref(),
    };
    let path = &base.path;
    Ok(save_merged_gguf(
        output,
        path,
        &nothing,
        &Scalings::new(),
        &options,
    )?)
}

/// The vocabulary for a GGUF file, where the base is none and does not hold it already.
fn missing_vocabulary(base: &BaseModel) -> Result<Option<GgufVocabulary>, Error> {
    match &base.files.tokenizer {
        TokenizerSource::Json(_) if !base.files.is_gguf() => vocabulary_of(base).map(Some),
        _ => Ok(None),
    }
}

/// The vocabulary of a folder's `tokenizer.json` as GGUF keeps it.
fn vocabulary_of(base: &BaseModel) -> Result<GgufVocabulary, Error> {
    let json = base.tokenizer.to_json()?;
    let n_tokens = base.config.vocab_size;
    let refused =
        |error: VocabularyError| Error::Usage(format!("{}: {error}", base.path.display()));
    let special = &base.files.special_tokens;
    let id = |token: &Option<String>| base.tokenizer.token_to_id(token.as_deref()?);
    let empty = GgufVocabulary {
        bos_token_id: id(&special.bos_token),
        eos_token_id: id(&special.eos_token),
        pad_token_id: id(&special.pad_token),
        unk_token_id: id(&special.unk_token),
        add_bos: Some(base.tokenizer.begins_texts()),
        ..GgufVocabulary::default()
    };
    if SentencePiece::is_json(&json) {
        let parts = SentencePiece::from_json(&json, n_tokens).map_err(refused)?;
        return Ok(GgufVocabulary {
            tokens: parts.tokens,
            token_types: parts.token_types,
            scores: parts.scores,
            model: "llama".to_owned(),
            pre: "default".to_owned(),
            unk_token_id: parts.unk_token_id.or(empty.unk_token_id),
            adds_space: Some(parts.adds_space),
            ..empty
        });
    }
    let parts = ByteLevelBpe::from_json(&json, n_tokens).map_err(refused)?;
    Ok(GgufVocabulary {
        tokens: parts.tokens,
        token_types: parts.token_types,
        merges: parts.merges,
        model: "gpt2".to_owned(),
        pre: parts.pre,
        ..empty
    })
}

/// What each server makes of the adapter of `checkpoint`, as a table.
///
/// # Errors
///
/// A damaged checkpoint, or a pattern that is no regular expression.
pub fn compatibility_table(checkpoint: &Path, base: &BaseModel) -> Result<String, Error> {
    let adapter = load_adapter(checkpoint)?;
    let tied_head = base.files.config["tie_word_embeddings"] == true;
    let found = compatibility(&adapter, tied_head)?;
    let mut lines = vec![
        format!(
            "| | {} | fix |",
            Consumer::ALL.map(Consumer::name).join(" | ")
        ),
        format!("|---|{}", "---|".repeat(Consumer::ALL.len() + 1)),
    ];
    for row in found.rows.iter().chain([&found.whole]) {
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

fn learned_adapter(checkpoint: &Path) -> Result<Adapter, Error> {
    let adapter = load_adapter(checkpoint)?;
    let is_b = |name: &str| name.ends_with(".lora_B.weight");
    let learned = adapter
        .tensors
        .iter()
        .any(|(name, tensor)| is_b(name) && tensor.values.iter().any(|&value| value != 0.0));
    if learned && !is_as_it_began(&adapter) {
        Ok(adapter)
    } else {
        Err(Error::Usage(format!(
            "{}: the products of its factors are zero, so the adapter changes nothing: it is the \
             beginning of the run, and no later checkpoint was better; export another one, as with --checkpoint last",
            checkpoint.display()
        )))
    }
}

/// Whether the halves of all factors undo each other: a checkpoint of PiSSA that has learned nothing.
/// Whole weights beside factors say nothing of it: they learn together or not at all.
fn is_as_it_began(adapter: &Adapter) -> bool {
    let is_factor = |name: &str| name.contains(".lora_");
    let mut factors = adapter.tensors.iter().filter(|(name, _)| is_factor(name));
    factors.all(|(name, tensor)| {
        let [rows, columns] = tensor.shape[..] else {
            return false;
        };
        let values = &tensor.values;
        if name.ends_with(".lora_B.weight") {
            let undone = |row: &[f32]| {
                let (now, before) = row.split_at(columns / 2);
                now.iter().zip(before).all(|(now, before)| *now == -before)
            };
            columns % 2 == 0 && columns > 0 && values.chunks(columns).all(undone)
        } else {
            let (now, before) = values.split_at(values.len() / 2);
            rows % 2 == 0 && now == before
        }
    })
}
