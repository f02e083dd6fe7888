//! What the vocabularies of GGUF files have in common: tokens with their types, and what is wrong with them.

use serde_json::Value;
use tokenizers::models::bpe::Vocab;
use tokenizers::{AddedToken, Tokenizer};

use crate::budgets::SENTENCE_PIECE_BYTES;

/// `token_types` entry of tokens that text is made of.
pub(super) const PLAIN: i32 = 1;
/// `token_types` entry of the token for what a vocabulary lacks.
pub(super) const UNKNOWN: i32 = 2;
/// `token_types` entry of tokens that steer the model and never come from text.
pub(super) const CONTROL: i32 = 3;
/// `token_types` entry of whole tokens that are ordinary text.
pub(super) const USER_DEFINED: i32 = 4;
/// `token_types` entry of ids that no text has.
pub(super) const UNUSED: i32 = 5;
/// `token_types` entry of a single byte.
pub(super) const BYTE: i32 = 6;

/// What is wrong with a vocabulary.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    /// The pre-tokenizer is none of those defined here.
    #[error(
        "pre-tokenizer \"{0}\" is not known; known are smollm, gpt-2, qwen2, qwen35 and llama-bpe; take the model's tokenizer.json instead"
    )]
    UnknownPreTokenizer(String),
    /// The vocabulary is empty.
    #[error("the vocabulary has no tokens: every text would lose its characters")]
    NoTokens,
    /// There is not one type for each token.
    #[error("{n_types} token types for {n_tokens} tokens; convert the model again")]
    TypeCount {
        /// Entries of `token_types`.
        n_types: usize,
        /// Entries of `tokens`.
        n_tokens: usize,
    },
    /// Two ids stand for the same text.
    #[error("tokens {first} and {second} are both {text:?}; convert the model again")]
    DuplicateToken {
        /// Lower id.
        first: u32,
        /// Higher id.
        second: u32,
        /// Text of both.
        text: String,
    },
    /// A merge is not two tokens separated by one space whose concatenation is a token.
    #[error("merge {idx}, {merge:?}, does not join two tokens to a token; convert the model again")]
    BadMerge {
        /// Position in `merges`, from 0.
        idx: usize,
        /// The entry.
        merge: String,
    },
    /// The vocabulary has not every byte.
    #[error(
        "the vocabulary has no token for byte {byte}: texts could lose characters; convert the model again"
    )]
    NoByte {
        /// The token that is missing, such as `<0x0A>`.
        byte: String,
    },
    /// There is not one score for each token.
    #[error("{n_scores} scores for {n_tokens} tokens; convert the model again")]
    ScoreCount {
        /// Entries of `scores`.
        n_scores: usize,
        /// Entries of `tokens`.
        n_tokens: usize,
    },
    /// A token is too long to be taken apart.
    #[error(
        "token {id} has {n_bytes} bytes, and the limit is {SENTENCE_PIECE_BYTES} (SENTENCE_PIECE_BYTES in \
         docs/limits.md); the file is damaged"
    )]
    LongToken {
        /// Its place.
        id: usize,
        /// Its length.
        n_bytes: usize,
    },
    /// A `tokenizer.json` of another kind.
    #[error(
        "tokenizer.json has {what}, which has no form in GGUF here; merge into a GGUF model, or convert \
         the merged folder with llama.cpp"
    )]
    NoForm {
        /// What GGUF's vocabularies do not say.
        what: String,
    },
    /// The tokenizers library refuses the parts.
    #[error("the vocabulary makes no tokenizer: {0}")]
    Tokenizer(#[from] tokenizers::Error),
}

/// The tokens of a `tokenizer.json` as GGUF keeps them.
pub(super) struct StoredTokens {
    /// Texts by id.
    pub(super) tokens: Vec<String>,
    /// Types by id.
    pub(super) token_types: Vec<i32>,
}

impl StoredTokens {
    /// Those of the file, `n_tokens` of them: ids that it does not use are filled up, as llama.cpp's
    /// converter does; `user_defined` spells a token that is matched as a whole.
    pub(super) fn of_json(
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
            stored.put(id.as_u64(), text.clone(), PLAIN)?;
        }
        for token in file["added_tokens"].as_array().into_iter().flatten() {
            let text = token["content"].as_str().unwrap_or_default();
            let (text, kind) = match token["special"] == true {
                true => (text.to_owned(), CONTROL),
                false => (user_defined(text), USER_DEFINED),
            };
            stored.put(token["id"].as_u64(), text, kind)?;
        }
        Ok(stored)
    }

    /// Puts a token in its place.
    fn put(&mut self, id: Option<u64>, text: String, kind: i32) -> Result<(), VocabularyError> {
        let place = id.and_then(|id| usize::try_from(id).ok());
        let place = place.filter(|id| *id < self.tokens.len());
        let Some(place) = place else {
            return Err(VocabularyError::NoForm {
                what: format!(
                    "a token {text:?} beyond the {} of the model",
                    self.tokens.len()
                ),
            });
        };
        self.tokens[place] = text;
        self.token_types[place] = kind;
        Ok(())
    }
}

/// The merges of the model of a `tokenizer.json`, in either of their forms.
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
        pair.ok_or_else(|| VocabularyError::NoForm {
            what: "a merge that joins no two tokens".to_owned(),
        })
    });
    pairs.collect()
}

/// Checks that there are tokens, each with a type.
pub(super) fn must_fit(tokens: &[String], token_types: &[i32]) -> Result<(), VocabularyError> {
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

/// The tokens that are matched before anything else.
pub(super) fn added_tokens(tokens: &[String], token_types: &[i32]) -> Vec<AddedToken> {
    let kinds = tokens.iter().zip(token_types);
    kinds
        .filter(|(_, kind)| matches!(**kind, CONTROL | USER_DEFINED))
        .map(|(text, kind)| AddedToken::from(text, *kind == CONTROL).normalized(false))
        .collect()
}

/// Adds tokens, in one call for each kind: each builds the search for all of them anew.
pub(super) fn add_all(
    tokenizer: &mut Tokenizer,
    added: Vec<AddedToken>,
) -> Result<(), VocabularyError> {
    let (special, plain): (Vec<_>, Vec<_>) = added.into_iter().partition(|token| token.special);
    tokenizer.add_special_tokens(special)?;
    tokenizer.add_tokens(plain)?;
    Ok(())
}

/// Ids by texts.
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
