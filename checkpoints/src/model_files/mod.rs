//! Opens all that belongs to a base model: weights, config, tokenizer, chat template, stop ids.
//!
//! A Hugging Face directory and a GGUF file come out alike: the config has the field names of
//! `config.json` whatever spelling or format it came from, so that the model is built from one
//! description. Nothing is guessed: what a file leaves open stays absent for the reader of the
//! config to decide or refuse.

mod few_values;
mod gguf;
mod gguf_config;
mod gguf_keys;
pub(crate) mod gguf_linear;
mod gguf_rope;
mod hugging_face;
mod rope;
pub(crate) mod text_part;
mod tokenizer_class;
mod tokenizer_files;

pub(crate) use gguf_rope::llama3_divisors;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::budgets::TOKENIZER_BYTES;
use crate::error::CheckpointError;
use crate::regular_file;
use crate::weights::Weights;

/// A base model on disk.
#[derive(Debug)]
pub struct ModelFiles {
    /// Fields of Hugging Face's `config.json`, always a JSON object.
    ///
    /// Rotary settings stand in one spelling: `rope_theta` and `rope_scaling` (`null` or an
    /// object with `rope_type`), never `rope_parameters`. Models without them have neither.
    pub config: Value,
    /// The tensors, under Hugging Face names.
    pub weights: Weights,
    /// Where the tokenizer comes from.
    pub tokenizer: TokenizerSource,
    /// Jinja source of the default chat template, if the model has one.
    pub chat_template: Option<String>,
    /// Jinja source of the template for conversations with tools, if the model has one of its own.
    pub tool_use_template: Option<String>,
    /// Special tokens by role, as text.
    pub special_tokens: SpecialTokens,
    /// Tokens that the files beside a `tokenizer.json` add to it, or describe otherwise, in the
    /// order in which they are added; none for a vocabulary inside a GGUF file.
    pub added_tokens: Vec<AddedToken>,
    /// Ids that end a generation, in the order of the file; empty if no file tells.
    pub eos_token_ids: Vec<u32>,
    /// What generation_config.json says of how tokens are chosen, as "key = value"; only what changes
    /// the choice.
    pub choices: Vec<String>,
    /// What another program may read otherwise in these files, for the caller to tell.
    pub remarks: Vec<String>,
}

/// A token that is matched in texts before anything else reads them, as `tokenizers.AddedToken`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// How it is written.
    pub content: String,
    /// The id that the file gives it, where it gives one; that which it gets must be the same.
    pub id: Option<u32>,
    /// File and key that say so.
    pub said_in: String,
    /// Only as a word of its own.
    pub single_word: bool,
    /// Takes the white space before it.
    pub lstrip: bool,
    /// Takes the white space behind it.
    pub rstrip: bool,
    /// Matched in the normalised text.
    pub normalized: bool,
    /// Left out where special tokens are skipped.
    pub special: bool,
}

/// Special tokens by role, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos_token: Option<String>,
    /// Ends a text or a turn.
    pub eos_token: Option<String>,
    /// Fills up short rows.
    pub pad_token: Option<String>,
    /// Stands for what the vocabulary lacks.
    pub unk_token: Option<String>,
}

/// Where a tokenizer comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizerSource {
    /// A `tokenizer.json` of the `tokenizers` library.
    Json(PathBuf),
    /// The vocabulary inside a GGUF file.
    Gguf(Box<GgufVocabulary>),
}

/// The vocabulary inside a GGUF file, as it stands there.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocabulary {
    /// Token texts by id; byte-level for model "gpt2".
    pub tokens: Vec<String>,
    /// By id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// Pairs in order of priority, each "left right"; empty for model "llama".
    pub merges: Vec<String>,
    /// Log probabilities by id; empty for model "gpt2".
    pub scores: Vec<f32>,
    /// Kind of tokenizer: "gpt2" is byte-level BPE, "llama" is SentencePiece.
    pub model: String,
    /// Name of the pre-tokenizer, such as "smollm"; "default" if the file names none.
    pub pre: String,
    /// Begins a text.
    pub bos_token_id: Option<u32>,
    /// Ends a text or a turn.
    pub eos_token_id: Option<u32>,
    /// Fills up short rows.
    pub pad_token_id: Option<u32>,
    /// Stands for what the vocabulary lacks.
    pub unk_token_id: Option<u32>,
    /// Whether the file asks for a `bos` token in front of every text.
    pub add_bos: Option<bool>,
    /// Whether the file asks for a blank in front of every text; of model "llama" alone.
    pub adds_space: Option<bool>,
}

impl ModelFiles {
    /// Whether the weights are those of a GGUF file.
    pub fn is_gguf(&self) -> bool {
        self.weights.is_gguf()
    }

    /// Opens a Hugging Face directory, a `.gguf` file, or a directory that holds one.
    ///
    /// Reads headers and the small text files; of the tensors only a head that a config ties to the
    /// embedding, to compare it with that.
    ///
    /// # Errors
    ///
    /// - the weights cannot be opened, see [`Weights::open`]
    /// - `config.json` or `tokenizer.json` is absent from a directory
    /// - a JSON file does not parse, or a field read here has a wrong type
    /// - two places of the files say the same thing differently, and programs that read them differ
    ///   in which they take
    /// - GGUF: an architecture of no family, a metadata field that is needed and
    ///   absent, one that may change the computation and is not known, or a rotary scaling that
    ///   `config.json` could not express
    pub fn open(path: &Path) -> Result<ModelFiles, CheckpointError> {
        if path.extension().is_some_and(|e| e == "gguf") {
            return gguf::open(path);
        }
        if path.is_dir() && !regular_file::is_there(&path.join("config.json"))? {
            let only = crate::weights::only_weight_file(path)?;
            if let Some(file) = only.filter(|file| file.extension().is_some_and(|e| e == "gguf")) {
                return gguf::open(&file);
            }
        }
        hugging_face::open(path)
    }

    /// [`Self::config`] alone: of a directory, which need hold no other file, of a `config.json`
    /// itself, or of a GGUF file.
    ///
    /// # Errors
    ///
    /// `config.json` is absent or damaged, or, for GGUF, as [`Self::open`].
    pub fn read_config(path: &Path) -> Result<Value, CheckpointError> {
        let file = if path.extension().is_some_and(|e| e == "json") {
            path.to_owned()
        } else {
            path.join("config.json")
        };
        if regular_file::is_there(&file)? {
            return Ok(Value::Object(hugging_face::config(&file)?));
        }
        Ok(Self::open(path)?.config)
    }
}

/// The content of a `tokenizer.json`, byte for byte unless it draws other tokens for one text at each
/// reading (BPE-dropout, `model.dropout`); that is then off.
pub(crate) fn tokenizer_without_dropout(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let bytes = regular_file::read(path, TOKENIZER_BYTES)?;
    let mut file: Value = serde_json::from_slice(&bytes).map_err(CheckpointError::json(path))?;
    let model = file.get_mut("model");
    match model.and_then(|model| model.get_mut("dropout")) {
        Some(dropout) if dropout.as_f64().is_some_and(|share| share > 0.0) => {
            *dropout = Value::Null;
            serde_json::to_vec(&file).map_err(CheckpointError::json(path))
        }
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests;
