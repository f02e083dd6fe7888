//! Exports GGUF files: adapters for llama.cpp, and merged models for llama.cpp and Ollama.

use std::path::Path;

use tooltune_checkpoints::PromptFiles;
use tooltune_checkpoints::adapter::{GgufBase, peft_rules, write_gguf_adapter};
use tooltune_checkpoints::merged::{
    GgufMergeOptions, Nf4Weights, OLLAMA_MODEL, OllamaFolder, refused_by_llama_cpp,
    save_merged_gguf, save_ollama,
};
use tooltune_checkpoints::model_files::{GgufVocabulary, TokenizerSource};
use tooltune_checkpoints::weights::{FloatDtype, GgufDtype};
use tooltune_rows::text::{ByteLevelBpe, SentencePiece, VocabularyError};

use super::served::{Served, adapter_lines, merged_lines, pinned_variables};
use super::{Addition, README, trained_adapter};
use crate::base_model::BaseModel;
use crate::error::Error;
use crate::modelfile::{MODELFILE, ModelfileParts, modelfile};

/// Writes the adapter of `checkpoint` as the GGUF file `output`, for llama.cpp with `base`, and the
/// prompt files of training next to it. Returns remarks on how llama.cpp differs from training for
/// texts of at most `max_length` tokens.
///
/// # Errors
///
/// As for [`super::export_peft`], or GGUF has no name for the model type or a module.
pub fn export_gguf(
    checkpoint: &Path,
    base: &BaseModel,
    dtype: FloatDtype,
    max_length: usize,
    output: &Path,
) -> Result<Vec<String>, Error> {
    let adapter = trained_adapter(checkpoint)?;
    let gguf_base = GgufBase::from_config(&base.path, &base.files.config)?;
    let scalings = peft_rules(&adapter)?;
    if let Some(refused) = refused_by_llama_cpp(&base.path, &base.files)? {
        tracing::warn!("llama.cpp does not compute the base of this adapter: {refused}");
    }
    served_prompts(&PromptFiles::read(checkpoint)?, base).write_next_to(output)?;
    write_gguf_adapter(output, &adapter, &scalings, &gguf_base, dtype)?;
    adapter_lines(base, max_length)
}

/// Destination of a merged GGUF model.
#[derive(Debug, Clone, Copy)]
pub enum GgufTarget<'a> {
    /// One file for llama.cpp, and the prompt files of training next to it.
    File,
    /// A folder for `ollama create`, with a `Modelfile`.
    Ollama {
        /// Content of README.md, if it is written.
        card: Option<&'a str>,
        /// The system message of training, `data.system`.
        system: Option<&'a str>,
    },
}

/// The matrices of a whole GGUF model.
#[derive(Debug, Clone, Copy)]
pub struct GgufMatrices<'a> {
    /// Their dtype.
    pub dtype: GgufDtype,
    /// Weights of a plain base that are merged as their NF4 values.
    pub dequantised: Option<Nf4Weights<'a>>,
}

impl From<GgufDtype> for GgufMatrices<'_> {
    fn from(dtype: GgufDtype) -> Self {
        Self {
            dtype,
            dequantised: None,
        }
    }
}

/// Writes `base` merged with `addition` as a GGUF model with these matrices. Returns remarks on how the server differs from training for texts of at most `max_length` tokens.
///
/// # Errors
///
/// As for [`super::export_merged`]. In addition, GGUF does not support the family or vocabulary of
/// a safetensors base, or a `Modelfile` cannot represent the system message.
pub fn export_whole_gguf(
    addition: &Addition,
    base: &BaseModel,
    matrices: GgufMatrices<'_>,
    max_length: usize,
    target: GgufTarget<'_>,
    output: &Path,
) -> Result<Vec<String>, Error> {
    let vocabulary = missing_vocabulary(base)?;
    let prompts = served_prompts(&addition.prompts, base);
    let served = match target {
        GgufTarget::File if addition.is_none() => Served::for_llama_cpp_base(base),
        GgufTarget::File => Served::for_llama_cpp(base),
        GgufTarget::Ollama { .. } => Served::for_ollama(base),
    };
    let own_template = own_template(&prompts, base, target);
    let options = GgufMergeOptions {
        dtype: matrices.dtype,
        dequantised: matrices.dequantised,
        chat_template: prompts.chat_template.as_deref().or(own_template.as_deref()),
        add_bos: Some(served.adds_bos),
        vocabulary: vocabulary.as_ref(),
    };
    let (adapter, scalings) = (&addition.adapter, &addition.scalings);
    let mut lines = merged_lines(base, vocabulary.as_ref(), max_length)?;
    let GgufTarget::Ollama { card, system } = target else {
        prompts.write_next_to(output)?;
        save_merged_gguf(output, &base.path, adapter, scalings, &options)?;
        return Ok(lines);
    };
    let file = modelfile(&ModelfileParts {
        model: OLLAMA_MODEL,
        template: &base.template,
        added_bos: served.bos(base),
        system,
        stops: &served.stops,
        context: served.context(base, max_length)?,
    })?;
    let mut files = prompts.files();
    files.extend(card.map(|card| (README.to_owned(), card.into())));
    files.insert(MODELFILE.to_owned(), file.text.clone().into_bytes());
    let folder = OllamaFolder {
        model: options,
        files: &files,
    };
    save_ollama(output, &base.path, adapter, scalings, &folder)?;
    lines.extend(file.lines());
    Ok(lines)
}

/// The prompt files of training. Variables of the chat template that llama.cpp would set
/// differently are fixed to their values in training.
fn served_prompts(prompts: &PromptFiles, base: &BaseModel) -> PromptFiles {
    let template = prompts.chat_template.as_deref();
    PromptFiles {
        chat_template: template.map(|source| pinned_variables(source, base)),
        slot_prompt: prompts.slot_prompt.clone(),
    }
}

/// The chat template of a model without a checkpoint: for an Ollama folder the template of its
/// `Modelfile`, for a GGUF file the template of the base model.
fn own_template(prompts: &PromptFiles, base: &BaseModel, target: GgufTarget<'_>) -> Option<String> {
    let source = match (&prompts.chat_template, target) {
        (Some(_), _) => return None,
        (None, GgufTarget::Ollama { .. }) => base.template.served_source(),
        (None, GgufTarget::File) => base.files.chat_template.clone()?,
    };
    Some(pinned_variables(&source, base))
}

/// The vocabulary to write into a GGUF file; `None` if the base is a GGUF file, which already has
/// one.
pub(super) fn missing_vocabulary(base: &BaseModel) -> Result<Option<GgufVocabulary>, Error> {
    match &base.files.tokenizer {
        TokenizerSource::Json(_) if !base.files.is_gguf() => to_gguf_vocabulary(base).map(Some),
        _ => Ok(None),
    }
}

/// Converts a folder's `tokenizer.json` to a GGUF vocabulary.
fn to_gguf_vocabulary(base: &BaseModel) -> Result<GgufVocabulary, Error> {
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
