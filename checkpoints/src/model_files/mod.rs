//! Opens all files of a base model: weights, config, tokenizer, chat template and stop IDs.
//!
//! The result is the same for a Hugging Face directory and a GGUF file: the config always has the
//! field names of `config.json`. Nothing is guessed. A field that the file omits is absent, and the
//! reader of the config uses a default or refuses the config.

mod bitsandbytes_config;
mod few_values;
mod gguf;
mod gguf_config;
mod gguf_fields;
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
use tooltune_disk::budgets::TOKENIZER_BYTES;

use crate::error::CheckpointError;
use crate::regular_file;
use crate::weights::Weights;

/// A base model on disk.
#[derive(Debug)]
pub struct ModelFiles {
    /// Fields of Hugging Face's `config.json`, always a JSON object.
    ///
    /// RoPE settings have one format: `rope_theta` and `rope_scaling` (`null` or an object with
    /// `rope_type`), never `rope_parameters`. Models without RoPE have neither. A
    /// `quantization_config` of NF4 weights is left out, because [`Self::weights`] dequantises.
    pub config: Value,
    /// The tensors, under Hugging Face names.
    pub weights: Weights,
    /// The tokenizer, not yet loaded.
    pub tokenizer: TokenizerSource,
    /// Jinja source of the default chat template, if the model has one.
    pub chat_template: Option<String>,
    /// Jinja source of the template for conversations with tools, if it is separate.
    pub tool_use_template: Option<String>,
    /// Special tokens by role, as strings.
    pub special_tokens: SpecialTokens,
    /// Special-token IDs in a GGUF file. Empty for a folder, which names special tokens as strings.
    pub special_token_ids: SpecialTokenIds,
    /// Tokens that other files in the folder of `tokenizer.json` add or redefine, in the order in
    /// which they are added. Empty for a vocabulary in a GGUF file.
    pub added_tokens: Vec<AddedToken>,
    /// IDs of the stop tokens, in file order; empty if no file has any.
    pub eos_token_ids: Vec<u32>,
    /// Sampling settings of generation_config.json that change which tokens are selected, as "key =
    /// value".
    pub choices: Vec<String>,
    /// Remarks about parts of these files that other programs may read differently. The caller
    /// reports them.
    pub remarks: Vec<String>,
}

/// A token that is matched before normal tokenization, like `tokenizers.AddedToken`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// The string that is matched.
    pub content: String,
    /// The ID in the file, if any. The tokenizer must assign the same ID.
    pub id: Option<u32>,
    /// The file and key that define it.
    pub defined_in: String,
    /// Matches only as a separate word.
    pub single_word: bool,
    /// Also consumes whitespace before it.
    pub lstrip: bool,
    /// Also consumes whitespace after it.
    pub rstrip: bool,
    /// Matches in the normalised text.
    pub normalized: bool,
    /// Omitted when special tokens are skipped.
    pub special: bool,
}

/// Special tokens by role, as strings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Beginning of text.
    pub bos_token: Option<String>,
    /// End of text or of a turn.
    pub eos_token: Option<String>,
    /// Padding of short rows.
    pub pad_token: Option<String>,
    /// Replacement for strings outside the vocabulary.
    pub unk_token: Option<String>,
}

/// Special tokens by role, as IDs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialTokenIds {
    /// Beginning of text.
    pub bos: Option<u32>,
    /// Padding of short rows.
    pub pad: Option<u32>,
}

/// Source of a tokenizer.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizerSource {
    /// A `tokenizer.json` of the `tokenizers` library.
    Json(PathBuf),
    /// The vocabulary inside a GGUF file.
    Gguf(Box<GgufVocabulary>),
}

/// The vocabulary in a GGUF file, unchanged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufVocabulary {
    /// Token strings by ID; byte-level for model "gpt2".
    pub tokens: Vec<String>,
    /// By ID: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// Pairs in priority order, each "left right"; empty for model "llama".
    pub merges: Vec<String>,
    /// Log probabilities by ID; empty for model "gpt2".
    pub scores: Vec<f32>,
    /// Tokenizer type: "gpt2" is byte-level BPE, "llama" is SentencePiece.
    pub model: String,
    /// Name of the pre-tokenizer, such as "smollm"; "default" if the file names none.
    pub pre: String,
    /// Beginning of text.
    pub bos_token_id: Option<u32>,
    /// End of text or of a turn.
    pub eos_token_id: Option<u32>,
    /// Padding of short rows.
    pub pad_token_id: Option<u32>,
    /// Replacement for strings outside the vocabulary.
    pub unk_token_id: Option<u32>,
    /// Whether a `bos` token is prepended to every text.
    pub add_bos: Option<bool>,
    /// Whether a space is prepended to every text; only for model "llama".
    pub adds_space: Option<bool>,
}

impl ModelFiles {
    /// Whether the weights come from a GGUF file.
    pub fn is_gguf(&self) -> bool {
        self.weights.is_gguf()
    }

    /// Opens a Hugging Face directory, a `.gguf` file, or a directory that contains one.
    ///
    /// Reads headers and the small text files. The only tensor it reads is a head that the config
    /// ties to the embedding, to compare the two.
    ///
    /// # Errors
    ///
    /// - The weights cannot be opened, see [`Weights::open`].
    /// - `config.json` or `tokenizer.json` is absent from a directory.
    /// - A JSON file does not parse, or a required field has the wrong type.
    /// - Two fields specify the same property differently, and programs disagree about which one
    ///   wins.
    /// - `quantization_config` describes a layout of bitsandbytes other than NF4, or contradicts the
    ///   weights.
    /// - GGUF: no family has the architecture, a required metadata field is absent, an unknown
    ///   field may change the computation, or `config.json` cannot express the RoPE scaling.
    pub fn open(path: &Path) -> Result<ModelFiles, CheckpointError> {
        if path.extension().is_some_and(|e| e == "gguf") {
            return gguf::open(path);
        }
        if path.is_dir() && !regular_file::is_there(&path.join("config.json"))? {
            let single_file = crate::weights::only_weight_file(path)?;
            if let Some(file) =
                single_file.filter(|file| file.extension().is_some_and(|e| e == "gguf"))
            {
                return gguf::open(&file);
            }
        }
        hugging_face::open(path)
    }

    /// Reads only [`Self::config`] from a directory (other files are optional), a `config.json`, or
    /// a GGUF file.
    ///
    /// # Errors
    ///
    /// `config.json` is absent or damaged; for GGUF, as for [`Self::open`].
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

    /// Whether the `config.json` of a directory describes NF4 weights of bitsandbytes; false without
    /// such a file.
    ///
    /// # Errors
    ///
    /// Same as [`Self::read_config`].
    pub fn describes_nf4(path: &Path) -> Result<bool, CheckpointError> {
        let file = path.join("config.json");
        if !regular_file::is_there(&file)? {
            return Ok(false);
        }
        hugging_face::config_without_nf4(&file).map(|(_, is_nf4)| is_nf4)
    }
}

/// The content of a `tokenizer.json` with BPE dropout (`model.dropout`, random tokenization)
/// switched off. If there is no dropout, the bytes are unchanged.
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
