//! A folder or GGUF file to everything that belongs to a base model: shape, weights, tokenizer,
//! chat template, stop tokens.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::Value;
use tooltune_checkpoints::model_files::{ModelFiles, TokenizerSource};
use tooltune_kernels::ComputeDtype;
use tooltune_rows::text::{
    AddedToken, ByteLevelBpe, ChatTemplate, SentencePiece, SpecialTokens, Tokenizer,
    VocabularyError,
};

use crate::config::Config;
use crate::error::Error;
use crate::lora::{Adapters, take_out};
use crate::models::{Decoder, DecoderConfig, load};
use crate::settings;

/// A base model on disk with what is needed to feed it text.
#[derive(Debug)]
pub struct BaseModel {
    /// Where it lies.
    pub path: PathBuf,
    /// Its files.
    pub files: ModelFiles,
    /// Its shape.
    pub config: DecoderConfig,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template, with that for conversations with tools, or the config's in their place.
    pub template: ChatTemplate,
    /// Tokens that end a turn.
    pub stop_ids: Vec<u32>,
}

impl BaseModel {
    /// Opens the language model of a config, with the template, its variables and the day that it
    /// says.
    ///
    /// # Errors
    ///
    /// As [`BaseModel::open`]; a config of no language model; a variable that the template never
    /// reads.
    pub fn of(config: &Config) -> Result<Self, Error> {
        let path = &config.language_model()?.model_name_or_path;
        let base = Self::open(path, config.data.chat_template.as_deref())?;
        let variables = config.data.chat_template_kwargs.0.clone();
        let template = base.template.with_kwargs(variables);
        let template = template.map_err(|error| Error::Usage(error.to_string()))?;
        let template = template.with_served_system(config.data.system.clone());
        Ok(Self {
            template: match config.data.template_date {
                Some(date) => template.with_date(date),
                None => template,
            },
            ..base
        })
    }

    /// Opens a model; reads headers and text files, no weights.
    ///
    /// `chat_template`, a file or the name of a built-in one, replaces the model's own.
    ///
    /// # Errors
    ///
    /// A file that is missing, damaged or unsupported; tensors other than those of the model's
    /// shape; no chat template; a tokenizer with more tokens than the model has embeddings.
    pub fn open(path: &Path, chat_template: Option<&Path>) -> Result<Self, Error> {
        let files = ModelFiles::open(path)?;
        for remark in &files.remarks {
            tracing::warn!("{}: {remark}", path.display());
        }
        let config = shape(path, &files.config)?;
        let tokenizer = tokenizer(path, &files, Some(config.vocab_size))?;
        if tokenizer.vocab_size() > config.vocab_size {
            return Err(Error::Usage(format!(
                "{}: the tokenizer has {} tokens and the model {} embeddings; \
                 they belong to different models",
                path.display(),
                tokenizer.vocab_size(),
                config.vocab_size
            )));
        }
        files.weights.check(&load::expected_tensors(&config))?;
        let template = chat_template_of(path, &files, chat_template)?;
        let stop_ids = stop_ids(&files, &tokenizer, config.vocab_size);
        Ok(Self {
            path: path.to_owned(),
            files,
            config,
            tokenizer,
            template,
            stop_ids,
        })
    }

    /// Reads the shape of a model alone: of a folder only its `config.json`.
    ///
    /// # Errors
    ///
    /// A `config.json` that is missing, damaged, or of another architecture.
    pub fn open_shape(path: &Path) -> Result<DecoderConfig, Error> {
        shape(path, &ModelFiles::read_config(path)?)
    }

    /// Opens the tokenizer of a model alone, which needs no chat template.
    ///
    /// # Errors
    ///
    /// A file that is missing, damaged or unsupported.
    pub fn open_tokenizer(path: &Path) -> Result<Tokenizer, Error> {
        tokenizer(path, &ModelFiles::open(path)?, None)
    }

    /// Says what generation_config.json asks for and is not done where texts are written.
    pub fn warn_of_choices(&self) {
        if !self.files.choices.is_empty() {
            tracing::warn!(
                "{}: generation_config.json says {}, which is not applied: texts are written greedily, \
                 or as eval.temperature, eval.top_k and eval.top_p say; vLLM and transformers apply it \
                 by default",
                self.path.display(),
                self.files.choices.join(", ")
            );
        }
    }

    /// Reads the weights onto `device`, for products in `compute_dtype`.
    ///
    /// # Errors
    ///
    /// A file that cannot be read.
    pub fn decoder(&self, compute_dtype: ComputeDtype, device: &Device) -> Result<Decoder, Error> {
        Ok(load::load_decoder(
            &self.config,
            &self.files.weights,
            compute_dtype,
            device,
        )?)
    }

    /// The same without what `adapters` have taken out of them, where they began with PiSSA.
    ///
    /// # Errors
    ///
    /// As [`Self::decoder`].
    pub fn decoder_beside(
        &self,
        adapters: &Adapters,
        compute_dtype: ComputeDtype,
        device: &Device,
    ) -> Result<Decoder, Error> {
        let Some(initial) = &adapters.initial else {
            return self.decoder(compute_dtype, device);
        };
        let slots = &adapters.slots;
        Ok(load::load_changed(
            &self.config,
            &self.files.weights,
            compute_dtype,
            device,
            &|name, weight| take_out(slots, initial, name, weight),
        )?)
    }
}

fn shape(path: &Path, config: &Value) -> Result<DecoderConfig, Error> {
    DecoderConfig::from_json(config).map_err(|source| Error::DecoderConfig {
        path: path.to_owned(),
        source,
    })
}

/// The tokenizer of a model that has `n_embeddings`, if that is known.
fn tokenizer(
    path: &Path,
    files: &ModelFiles,
    n_embeddings: Option<usize>,
) -> Result<Tokenizer, Error> {
    let vocabulary = match &files.tokenizer {
        TokenizerSource::Json(json) => return tokenizer_of_files(json, files, n_embeddings),
        TokenizerSource::Gguf(vocabulary) => vocabulary,
    };
    let refused = |error: VocabularyError| Error::Usage(format!("{}: {error}", path.display()));
    let (tokenizer, begins_texts) = match vocabulary.model.as_str() {
        "gpt2" => {
            let parts = ByteLevelBpe {
                tokens: vocabulary.tokens.clone(),
                token_types: vocabulary.token_types.clone(),
                merges: vocabulary.merges.clone(),
                pre: vocabulary.pre.clone(),
            };
            let begins_texts = parts.begins_texts();
            (parts.into_tokenizer(), begins_texts)
        }
        // llama.cpp puts token and blank before texts where the file says nothing of them.
        "llama" => {
            let parts = SentencePiece {
                tokens: vocabulary.tokens.clone(),
                token_types: vocabulary.token_types.clone(),
                scores: vocabulary.scores.clone(),
                unk_token_id: vocabulary.unk_token_id,
                adds_space: vocabulary.adds_space.unwrap_or(true),
            };
            (parts.into_tokenizer(), true)
        }
        other => {
            return Err(Error::Usage(format!(
                "{}: its tokenizer is of kind {other:?}, and only byte-level BPE (gpt2) and \
                 SentencePiece (llama) can be read from GGUF; use the model's Hugging Face folder \
                 with its tokenizer.json",
                path.display(),
            )));
        }
    };
    let tokenizer = tokenizer.map_err(refused)?;
    let begins_texts = vocabulary.add_bos.unwrap_or(begins_texts);
    let bos = vocabulary.bos_token_id.filter(|_| begins_texts);
    Ok(Tokenizer::from_tokenizers(tokenizer).with_bos(bos))
}

/// Says that BPE-dropout of a `tokenizer.json` is not done.
pub(crate) fn warn_of_dropout(tokenizer: &Path, share: f32) {
    tracing::warn!(
        "{}: model.dropout = {share} is off: one text is read as the same tokens each time",
        tokenizer.display()
    );
}

/// A `tokenizer.json` with what the files beside it add.
fn tokenizer_of_files(
    json: &Path,
    files: &ModelFiles,
    n_embeddings: Option<usize>,
) -> Result<Tokenizer, Error> {
    let mut tokenizer = Tokenizer::from_file(json)?;
    if let Some(share) = tokenizer.dropout() {
        warn_of_dropout(json, share);
    }
    let special = &files.special_tokens;
    let unused = [&special.pad_token, &special.unk_token];
    let (mut added, mut n_tokens) = (Vec::new(), tokenizer.vocab_size());
    for token in &files.added_tokens {
        let is_new = tokenizer.token_to_id(&token.content).is_none();
        // No row of text has these roles, and some folders name them without an embedding.
        let is_unused = token.id.is_none() && unused.contains(&&Some(token.content.clone()));
        if is_new && is_unused && n_embeddings.is_some_and(|n| n_tokens >= n) {
            tracing::warn!(
                "{}: {:?} has no embedding, so that it is no token here",
                token.said_in,
                token.content
            );
            continue;
        }
        n_tokens += usize::from(is_new);
        added.push(token);
    }
    tokenizer.add_tokens(added.iter().map(|token| AddedToken {
        content: token.content.clone(),
        single_word: token.single_word,
        lstrip: token.lstrip,
        rstrip: token.rstrip,
        normalized: token.normalized,
        special: token.special,
    }))?;
    for token in added {
        let id = tokenizer.token_to_id(&token.content);
        if let (Some(said), Some(id)) = (token.id, id)
            && said != id
        {
            return Err(Error::Usage(format!(
                "{}: {} gives {:?} the id {said}, and with the tokens of tokenizer.json it is {id}, \
                 which is what AutoTokenizer reads; correct the id, or save the folder again with \
                 AutoTokenizer.from_pretrained(...).save_pretrained(directory)",
                json.parent().unwrap_or(json).display(),
                token.said_in,
                token.content
            )));
        }
        if let (Some(id), Some(n)) = (id, n_embeddings)
            && id as usize >= n
        {
            return Err(Error::Usage(format!(
                "{}: {} adds {:?} as token {id}, and the model has {n} embeddings; take the model \
                 that the token belongs to, or remove the token",
                json.parent().unwrap_or(json).display(),
                token.said_in,
                token.content
            )));
        }
    }
    Ok(tokenizer)
}

fn chat_template_of(
    path: &Path,
    files: &ModelFiles,
    replacement: Option<&Path>,
) -> Result<ChatTemplate, Error> {
    let source = match replacement {
        Some(named) => settings::chat_template(named)?,
        None => files.chat_template.clone().ok_or_else(|| {
            Error::Usage(format!(
                "{}: the model has no chat template (chat_template.jinja, or chat_template in \
                 tokenizer_config.json); set data.chat_template to a Jinja file, or to \"chatml-tools\" \
                 for a model with <|im_start|> and <|im_end|>",
                path.display()
            ))
        })?,
    };
    let special = SpecialTokens {
        bos_token: files.special_tokens.bos_token.clone(),
        eos_token: files.special_tokens.eos_token.clone(),
        pad_token: files.special_tokens.pad_token.clone(),
        unk_token: files.special_tokens.unk_token.clone(),
    };
    let origin = template_origin(path, replacement);
    let template = match (&files.tool_use_template, replacement) {
        (Some(tool_use), None) => ChatTemplate::with_tool_use(&source, tool_use, special),
        _ => ChatTemplate::new(&source, special),
    };
    let template = template.map_err(|error| error.at(&origin))?;
    Ok(template.with_origin(&origin))
}

/// The file that a chat template stands in, as errors name it.
fn template_origin(model: &Path, replacement: Option<&Path>) -> String {
    if let Some(file) = replacement {
        return file.display().to_string();
    }
    if !model.is_dir() {
        return format!("{} (tokenizer.chat_template)", model.display());
    }
    let own_file = model.join("chat_template.jinja");
    let file = if own_file.exists() {
        own_file
    } else {
        model.join("tokenizer_config.json")
    };
    file.display().to_string()
}

/// The generation config's, or else the end-of-sequence token.
fn stop_ids(files: &ModelFiles, tokenizer: &Tokenizer, n_embeddings: usize) -> Vec<u32> {
    if !files.eos_token_ids.is_empty() {
        let (known, unknown): (Vec<u32>, Vec<u32>) = files
            .eos_token_ids
            .iter()
            .partition(|&&id| (id as usize) < n_embeddings);
        for id in unknown {
            tracing::warn!(
                "{}: eos_token_id {id} ends no text: the model has {n_embeddings} embeddings",
                files.weights.origin().display()
            );
        }
        return known;
    }
    let eos = files.special_tokens.eos_token.as_deref();
    eos.and_then(|token| tokenizer.token_to_id(token))
        .into_iter()
        .collect()
}

/// Whether two paths may be of one model: copies lie in many places, and their last folder or file
/// mostly has one name, but for case and `.gguf`.
pub fn same_name(one: &Path, other: &Path) -> bool {
    let name = |path: &Path| {
        let name = path.file_name()?.to_str()?.to_lowercase();
        Some(name.strip_suffix(".gguf").unwrap_or(&name).to_owned())
    };
    name(one) == name(other)
}
