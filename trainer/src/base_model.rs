//! Opens a base model from a folder or GGUF file: config, weights, tokenizer, chat template and
//! stop tokens.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::Value;
use tooltune_checkpoints::model_files::{ModelFiles, TokenizerSource};
use tooltune_kernels::node_memory::NodeGroup;
use tooltune_kernels::{ComputeDtype, is_cpu};
use tooltune_rows::text::{AddedToken, ByteLevelBpe, SentencePiece, Tokenizer, VocabularyError};
use tooltune_template::{ChatTemplate, Replacement, SpecialTokens};

use crate::config::Config;
use crate::error::Error;
use crate::lora::{Adapters, subtract_initial};
use crate::models::load::{
    FrozenWeights, LoadOptions, Placement, Projections, Quantization, load_decoder,
};
use crate::models::{Decoder, DecoderConfig, load};
use crate::settings;

/// A base model on disk, with everything needed to tokenize and generate.
#[derive(Debug)]
pub struct BaseModel {
    /// Path of the folder or GGUF file.
    pub path: PathBuf,
    /// Files of the model.
    pub files: ModelFiles,
    /// Model config.
    pub config: DecoderConfig,
    /// Tokenizer.
    pub tokenizer: Tokenizer,
    /// The model's chat templates, with and without tools, or their replacement from the config.
    pub template: ChatTemplate,
    /// Tokens that end a turn.
    pub stop_ids: Vec<u32>,
    /// How [`Self::decoder`] stores frozen projections.
    pub quantization: Quantization,
    /// Where [`Self::decoder`] stores frozen projections.
    pub frozen_weights: FrozenWeights,
}

impl BaseModel {
    /// Opens the language model of a config, with the chat template, template variables and date
    /// that the config sets.
    ///
    /// # Errors
    ///
    /// As for [`BaseModel::open`]. In addition, the config has no language model, or sets a
    /// variable that the template never reads.
    pub fn from_config(config: &Config) -> Result<Self, Error> {
        let path = &config.language_model()?.model_name_or_path;
        settings::must_be_here("model.model_name_or_path", path)?;
        let base = Self::open(path, config.data.chat_template.as_deref())?;
        let variables = config.data.chat_template_kwargs.0.clone();
        let template = base.template.with_kwargs(variables);
        let template = template.map_err(|error| Error::Usage(error.to_string()))?;
        let template = template.with_served_system(config.data.system.clone());
        Ok(Self {
            quantization: settings::quantization(config, base.files.weights.n_nf4() > 0),
            frozen_weights: settings::frozen_weights(config),
            template: match config.data.template_date {
                Some(date) => template.with_date(date),
                None => template,
            },
            ..base
        })
    }

    /// Opens a model without quantisation in memory. Reads headers and text files but no weights.
    ///
    /// `chat_template`, a file or the name of a built-in template, replaces the model's own.
    ///
    /// # Errors
    ///
    /// A file is missing, damaged or unsupported; the tensors do not match the config; there is no
    /// chat template; or the tokenizer has more tokens than the model has embeddings.
    pub fn open(path: &Path, chat_template: Option<&Path>) -> Result<Self, Error> {
        let files = ModelFiles::open(path)?;
        for remark in &files.remarks {
            tracing::warn!("{}: {remark}", path.display());
        }
        let config = shape(path, &files.config)?;
        let tokenizer = tokenizer(path, &files, Some(config.vocab_size))?;
        if tokenizer.vocab_size() > config.vocab_size {
            return Err(Error::Usage(format!(
                "{}: the tokenizer has {} tokens, but the model has only {} embeddings, so they \
                 belong to different models; use the tokenizer files that the model was saved with",
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
            quantization: Quantization::None,
            frozen_weights: FrozenWeights::Resident,
        })
    }

    /// The same model with projections in the compute dtype.
    #[must_use]
    pub fn without_quantization(self) -> Self {
        Self {
            quantization: Quantization::None,
            ..self
        }
    }

    /// Reads only the config of a model. For a folder, only `config.json` is opened.
    ///
    /// # Errors
    ///
    /// `config.json` is missing, damaged, or describes an unsupported architecture.
    pub fn open_shape(path: &Path) -> Result<DecoderConfig, Error> {
        shape(path, &ModelFiles::read_config(path)?)
    }

    /// Opens only the tokenizer of a model; a chat template is not needed.
    ///
    /// # Errors
    ///
    /// A file is missing, damaged or unsupported.
    pub fn open_tokenizer(path: &Path) -> Result<Tokenizer, Error> {
        tokenizer(path, &ModelFiles::open(path)?, None)
    }

    /// Warns about sampling settings in generation_config.json that generation does not apply.
    pub fn warn_of_ignored_sampling(&self) {
        if !self.files.choices.is_empty() {
            tracing::warn!(
                "{}: generation_config.json sets {}, which is ignored: decoding is greedy unless \
                 eval.temperature, eval.top_k or eval.top_p is set; vLLM and transformers apply \
                 these settings by default",
                self.path.display(),
                self.files.choices.join(", ")
            );
        }
    }

    /// Loads the weights onto `device`; matmuls run in `compute_dtype`.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or the ranks of a node shall divide the weights.
    pub fn decoder(&self, compute_dtype: ComputeDtype, device: &Device) -> Result<Decoder, Error> {
        self.decoder_on(compute_dtype, device, None)
    }

    /// Like [`Self::decoder`], with the GPUs of `node` if they divide the weights.
    fn decoder_on(
        &self,
        compute_dtype: ComputeDtype,
        device: &Device,
        node: Option<&NodeGroup>,
    ) -> Result<Decoder, Error> {
        let projections = match self.quantization {
            Quantization::None => Projections::AsIs,
            Quantization::Nf4 => Projections::Nf4,
        };
        self.load(compute_dtype, projections, device, node)
    }

    fn load(
        &self,
        compute_dtype: ComputeDtype,
        projections: Projections<'_>,
        device: &Device,
        node: Option<&NodeGroup>,
    ) -> Result<Decoder, Error> {
        let options = LoadOptions {
            compute_dtype,
            projections,
            placement: self.placement(device, node)?,
        };
        let decoder = load_decoder(&self.config, &self.files.weights, options, device)?;
        Ok(decoder)
    }

    /// Where frozen projections are stored for a device. The memory of a CPU is host memory, so the
    /// setting has no effect there, which is logged.
    ///
    /// # Errors
    ///
    /// The ranks of a node shall divide the weights, but there is no node.
    fn placement<'n>(
        &self,
        device: &Device,
        node: Option<&'n NodeGroup>,
    ) -> Result<Placement<'n>, Error> {
        match (self.frozen_weights, node) {
            (FrozenWeights::Resident, _) => Ok(Placement::Resident),
            (setting, _) if is_cpu(device) => {
                let setting = setting.as_str();
                tracing::warn!("model.frozen_weights = \"{setting}\" has no effect on a CPU");
                Ok(Placement::Resident)
            }
            (FrozenWeights::Host, _) => Ok(Placement::Host),
            (FrozenWeights::Node, Some(node)) => Ok(Placement::Node(node)),
            (FrozenWeights::Node, None) => Err(Error::Usage(
                "model.frozen_weights = \"node\" divides the weights among the ranks of a node, \
                 and this process runs alone; train with --ranks, or set \
                 --set model.frozen_weights=host"
                    .to_owned(),
            )),
        }
    }

    /// Like [`Self::decoder`], but for PiSSA adapters the base weights are the residual, without
    /// the principal components that initialised the factors. `node` divides the weights if the
    /// setting says so.
    ///
    /// # Errors
    ///
    /// Same as [`Self::decoder`].
    pub fn residual_decoder(
        &self,
        adapters: &Adapters,
        compute_dtype: ComputeDtype,
        device: &Device,
        node: Option<&NodeGroup>,
    ) -> Result<Decoder, Error> {
        let Some(initial) = &adapters.initial else {
            return self.decoder_on(compute_dtype, device, node);
        };
        let slots = &adapters.slots;
        let change = |name: &str, weight: &mut _| subtract_initial(slots, initial, name, weight);
        let projections = Projections::Changed(&change);
        self.load(compute_dtype, projections, device, node)
    }

    /// Like [`Self::decoder`] without quantisation, but `change` is applied to the weight of each
    /// projection.
    ///
    /// # Errors
    ///
    /// Same as [`Self::decoder`].
    pub fn changed_decoder(
        &self,
        compute_dtype: ComputeDtype,
        device: &Device,
        change: &load::Change<'_>,
    ) -> Result<Decoder, Error> {
        self.load(compute_dtype, Projections::Changed(change), device, None)
    }
}

fn shape(path: &Path, config: &Value) -> Result<DecoderConfig, Error> {
    DecoderConfig::from_json(config).map_err(|source| Error::DecoderConfig {
        path: path.to_owned(),
        source,
    })
}

/// Loads the tokenizer. `n_embeddings` is the model's number of embeddings, if known.
fn tokenizer(
    path: &Path,
    files: &ModelFiles,
    n_embeddings: Option<usize>,
) -> Result<Tokenizer, Error> {
    let vocabulary = match &files.tokenizer {
        TokenizerSource::Json(json) => return tokenizer_from_json(json, files, n_embeddings),
        TokenizerSource::Gguf(vocabulary) => vocabulary,
    };
    let unsupported = |error: VocabularyError| Error::Usage(format!("{}: {error}", path.display()));
    let (tokenizer, adds_bos) = match vocabulary.model.as_str() {
        "gpt2" => {
            let parts = ByteLevelBpe {
                tokens: vocabulary.tokens.clone(),
                token_types: vocabulary.token_types.clone(),
                merges: vocabulary.merges.clone(),
                pre: vocabulary.pre.clone(),
            };
            let adds_bos = parts.adds_bos();
            (parts.into_tokenizer(), adds_bos)
        }
        // llama.cpp adds BOS and a leading space unless the file sets otherwise.
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
                "{}: tokenizer type {other:?} is not supported; only byte-level BPE (gpt2) and \
                 SentencePiece (llama) can be read from GGUF; use the model's Hugging Face folder \
                 with its tokenizer.json",
                path.display(),
            )));
        }
    };
    let tokenizer = tokenizer.map_err(unsupported)?;
    let adds_bos = vocabulary.add_bos.unwrap_or(adds_bos);
    let bos = vocabulary.bos_token_id.filter(|_| adds_bos);
    Ok(Tokenizer::from_tokenizers(tokenizer).with_bos(bos))
}

/// Warns that the BPE dropout set in `tokenizer.json` is ignored.
pub(crate) fn warn_of_ignored_dropout(tokenizer: &Path, share: f32) {
    tracing::warn!(
        "{}: model.dropout = {share} is ignored: tokenization is deterministic",
        tokenizer.display()
    );
}

/// Loads `tokenizer.json` and adds the tokens of the other tokenizer files.
fn tokenizer_from_json(
    json: &Path,
    files: &ModelFiles,
    n_embeddings: Option<usize>,
) -> Result<Tokenizer, Error> {
    let mut tokenizer = Tokenizer::from_file(json)?;
    if let Some(share) = tokenizer.dropout() {
        warn_of_ignored_dropout(json, share);
    }
    let special = &files.special_tokens;
    let unused = [&special.pad_token, &special.unk_token];
    let (mut added, mut n_tokens) = (Vec::new(), tokenizer.vocab_size());
    for token in &files.added_tokens {
        let is_new = tokenizer.token_to_id(&token.content).is_none();
        // Some folders define pad and unk tokens without embeddings. Training and prompts never use
        // them.
        let is_unused = token.id.is_none() && unused.contains(&&Some(token.content.clone()));
        if is_new && is_unused && n_embeddings.is_some_and(|n| n_tokens >= n) {
            tracing::warn!(
                "{}: {:?} has no embedding and is ignored",
                token.defined_in,
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
        if let (Some(expected_id), Some(id)) = (token.id, id)
            && expected_id != id
        {
            return Err(Error::Usage(format!(
                "{}: {} sets id {expected_id} for token {:?}, but after the tokens of tokenizer.json its \
                 id is {id}, the one that AutoTokenizer uses; correct the id, or save the folder \
                 again with AutoTokenizer.from_pretrained(...).save_pretrained(directory)",
                json.parent().unwrap_or(json).display(),
                token.defined_in,
                token.content
            )));
        }
        if let (Some(id), Some(n)) = (id, n_embeddings)
            && id as usize >= n
        {
            return Err(Error::Usage(format!(
                "{}: {} adds {:?} as token {id}, but the model has only {n} embeddings; use the \
                 model that the token belongs to, or remove the token",
                json.parent().unwrap_or(json).display(),
                token.defined_in,
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
        Some(path_or_name) => settings::chat_template(path_or_name)?,
        None => files.chat_template.clone().ok_or_else(|| {
            Error::Usage(format!(
                "{}: the model has no chat template (chat_template.jinja, or chat_template in \
                 tokenizer_config.json); set data.chat_template to a Jinja file, or to a built-in \
                 template: {}",
                path.display(),
                Replacement::ANY
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

/// The file or field with the chat template, for error messages.
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

/// The stop tokens of the generation config, or the end-of-sequence token if it lists none.
fn stop_ids(files: &ModelFiles, tokenizer: &Tokenizer, n_embeddings: usize) -> Vec<u32> {
    if !files.eos_token_ids.is_empty() {
        let (known, unknown): (Vec<u32>, Vec<u32>) = files
            .eos_token_ids
            .iter()
            .partition(|&&id| (id as usize) < n_embeddings);
        for id in unknown {
            tracing::warn!(
                "{}: eos_token_id {id} is ignored: the model has only {n_embeddings} embeddings",
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

/// Whether two paths may name the same model: their last components are equal, ignoring case and
/// `.gguf`. Copies of a model usually have the same name in different folders.
pub fn same_name(one: &Path, other: &Path) -> bool {
    let name = |path: &Path| {
        let name = path.file_name()?.to_str()?.to_lowercase();
        Some(name.strip_suffix(".gguf").unwrap_or(&name).to_owned())
    };
    name(one) == name(other)
}
