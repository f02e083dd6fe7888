//! Types, errors and checks shared by GGUF vocabularies.

use serde_json::Value;
use tokenizers::models::bpe::Vocab;
use tokenizers::{AddedToken, Tokenizer};

use crate::budgets::SENTENCE_PIECE_BYTES;

/// `token_types` value of ordinary tokens.
pub(super) const PLAIN: i32 = 1;
/// `token_types` value of the unknown token.
pub(super) const UNKNOWN: i32 = 2;
/// `token_types` value of control tokens, such as the end-of-turn token.
pub(super) const CONTROL: i32 = 3;
/// `token_types` value of user-defined tokens: ordinary text that is matched as a whole.
pub(super) const USER_DEFINED: i32 = 4;
/// `token_types` value of unused ids.
pub(super) const UNUSED: i32 = 5;
/// `token_types` value of byte tokens.
pub(super) const BYTE: i32 = 6;

/// Errors of a vocabulary.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    /// The pre-tokenizer is not defined here.
    #[error(
        "tokenizer.ggml.pre is {name:?}; supported pre-tokenizers in GGUF files: {known}; use the \
         model's Hugging Face folder"
    )]
    UnknownPreTokenizer {
        /// Name in the file.
        name: String,
        /// The supported names.
        known: String,
    },
    /// The vocabulary is empty.
    #[error("the vocabulary has no tokens; convert the model again")]
    NoTokens,
    /// The numbers of token types and tokens differ.
    #[error("{n_types} token types for {n_tokens} tokens; convert the model again")]
    TypeCount {
        /// Number of entries in `token_types`.
        n_types: usize,
        /// Number of entries in `tokens`.
        n_tokens: usize,
    },
    /// Two ids have the same text.
    #[error("tokens {first} and {second} are both {text:?}; convert the model again")]
    DuplicateToken {
        /// The lower of the two ids.
        first: u32,
        /// The higher of the two ids.
        second: u32,
        /// The text that both tokens have.
        text: String,
    },
    /// A merge is not two tokens separated by one space whose concatenation is a token.
    #[error(
        "merge {idx}, {merge:?}, does not join two tokens into a token; convert the model \
         again"
    )]
    BadMerge {
        /// Position in `merges`, from 0.
        idx: usize,
        /// The invalid entry of `merges`.
        merge: String,
    },
    /// The vocabulary lacks a byte token.
    #[error(
        "the vocabulary has no token for byte {byte}: texts could lose characters; convert the model again"
    )]
    NoByte {
        /// The missing token, such as `<0x0A>`.
        byte: String,
    },
    /// The numbers of scores and tokens differ.
    #[error("{n_scores} scores for {n_tokens} tokens; convert the model again")]
    ScoreCount {
        /// Number of entries in `scores`.
        n_scores: usize,
        /// Number of entries in `tokens`.
        n_tokens: usize,
    },
    /// A token is too long to be split.
    #[error(
        "token {id} has {n_bytes} bytes, but the limit is {SENTENCE_PIECE_BYTES} \
         (SENTENCE_PIECE_BYTES in docs/limits.md); the file is damaged"
    )]
    LongToken {
        /// Id of the token.
        id: usize,
        /// Length of the token in bytes.
        n_bytes: usize,
    },
    /// A `tokenizer.json` with a feature that GGUF cannot express.
    #[error(
        "tokenizer.json has {what}, which a GGUF file cannot express; train on a GGUF base, or export \
         --to merged and convert that folder with llama.cpp"
    )]
    NoGgufEquivalent {
        /// The feature that GGUF vocabularies cannot express.
        what: String,
    },
    /// The tokenizers library rejects the parts.
    #[error("no tokenizer can be built from the vocabulary: {0}; convert the model again")]
    Tokenizer(#[from] tokenizers::Error),
}

/// The tokens of a `tokenizer.json` in GGUF's layout.
pub(super) struct JsonTokens {
    /// Token text by id.
    pub(super) tokens: Vec<String>,
    /// Token type by id.
    pub(super) token_types: Vec<i32>,
}

impl JsonTokens {
    /// The file's tokens, filled up to `n_tokens`: unused ids get filler tokens, as in llama.cpp's
    /// converter. `user_defined` returns the GGUF spelling of a token that is matched as a whole.
    pub(super) fn from_json(
        file: &Value,
        n_tokens: usize,
        user_defined: impl Fn(&str) -> String,
    ) -> Result<Self, VocabularyError> {
        let mut stored = Self {
            tokens: (0..n_tokens).map(|id| format!("[PAD{id}]")).collect(),
            token_types: vec![UNUSED; n_tokens],
        };
        let vocabulary = file["model"]["vocab"].as_object();
        for (text, id) in vocabulary.into_iter().flatten() {
            stored.insert_token(id.as_u64(), text.clone(), PLAIN)?;
        }
        for token in file["added_tokens"].as_array().into_iter().flatten() {
            let text = token["content"].as_str().unwrap_or_default();
            let (text, kind) = match token["special"] == true {
                true => (text.to_owned(), CONTROL),
                false => (user_defined(text), USER_DEFINED),
            };
            stored.insert_token(token["id"].as_u64(), text, kind)?;
        }
        Ok(stored)
    }

    /// Stores a token at its id.
    fn insert_token(
        &mut self,
        id: Option<u64>,
        text: String,
        kind: i32,
    ) -> Result<(), VocabularyError> {
        let token_idx = id.and_then(|id| usize::try_from(id).ok());
        let token_idx = token_idx.filter(|id| *id < self.tokens.len());
        let Some(token_idx) = token_idx else {
            return Err(VocabularyError::NoGgufEquivalent {
                what: format!(
                    "a token {text:?} with an id beyond the model's {} tokens",
                    self.tokens.len()
                ),
            });
        };
        self.tokens[token_idx] = text;
        self.token_types[token_idx] = kind;
        Ok(())
    }
}

/// The merges of a `tokenizer.json`, in either of the two formats.
pub(super) fn stored_merges(model: &Value) -> Result<Vec<(&str, &str)>, VocabularyError> {
    let merges = model["merges"].as_array().into_iter().flatten();
    let pairs = merges.map(|merge| match merge {
        Value::String(merge) => merge.split_once(' '),
        Value::Array(pair) => match pair.as_slice() {
            [left, right] => left.as_str().zip(right.as_str()),
            _ => None,
        },
        _ => None,
    });
    let pairs = pairs.map(|pair| {
        pair.ok_or_else(|| VocabularyError::NoGgufEquivalent {
            what: "a merge that does not join two tokens".to_owned(),
        })
    });
    pairs.collect()
}

/// Checks that there are tokens and that each has a type.
pub(super) fn check_tokens(tokens: &[String], token_types: &[i32]) -> Result<(), VocabularyError> {
    if tokens.is_empty() {
        return Err(VocabularyError::NoTokens);
    }
    if token_types.len() != tokens.len() {
        return Err(VocabularyError::TypeCount {
            n_types: token_types.len(),
            n_tokens: tokens.len(),
        });
    }
    Ok(())
}

/// Tokens that are matched before the model runs.
pub(super) fn added_tokens(tokens: &[String], token_types: &[i32]) -> Vec<AddedToken> {
    let kinds = tokens.iter().zip(token_types);
    kinds
        .filter(|(_, kind)| matches!(**kind, CONTROL | USER_DEFINED))
        .map(|(text, kind)| AddedToken::from(text, *kind == CONTROL).normalized(false))
        .collect()
}

/// Adds tokens in one call per kind, because each call rebuilds the search for all tokens.
pub(super) fn add_all(
    tokenizer: &mut Tokenizer,
    added: Vec<AddedToken>,
) -> Result<(), VocabularyError> {
    let (special, plain): (Vec<_>, Vec<_>) = added.into_iter().partition(|token| token.special);
    tokenizer.add_special_tokens(special)?;
    tokenizer.add_tokens(plain)?;
    Ok(())
}

/// Ids by token text.
pub(super) fn vocabulary(tokens: Vec<String>) -> Result<Vocab, VocabularyError> {
    let mut vocabulary = Vocab::default();
    for (id, text) in (0..).zip(tokens) {
        if let Some(first) = vocabulary.insert(text.clone(), id) {
            return Err(VocabularyError::DuplicateToken {
                first,
                second: id,
                text,
            });
        }
    }
    Ok(vocabulary)
}
