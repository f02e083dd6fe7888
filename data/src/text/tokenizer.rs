//! A `tokenizer.json` as a plain map between text and token ids.
//!
//! Special tokens written in the text are read as such, and nothing is ever added: the chat
//! template wrote all of them. The file's post-processor, truncation and padding are switched off,
//! because they add tokens, cut text, and trim the byte offsets that spans are matched with.

use std::fmt;
use std::path::Path;

use super::error::DataError;

/// Whether decoding keeps special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// Special tokens appear as text.
    Keep,
    /// Special tokens are left out.
    Skip,
}

/// A text as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids in order.
    pub ids: Vec<u32>,
    /// First byte and one past the last byte of each token in the text. Tokens that share a
    /// character have the same offsets.
    pub offsets: Vec<(usize, usize)>,
}

/// A tokenizer of a language model.
#[derive(Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or is not a tokenizer
    pub fn from_file(path: &Path) -> Result<Self, DataError> {
        let bytes = std::fs::read(path).map_err(|error| DataError::Unreadable {
            path: path.to_owned(),
            error,
        })?;
        tokenizers::Tokenizer::from_bytes(bytes)
            .map(Self::from_tokenizers)
            .map_err(|error| DataError::TokenizerFile {
                path: path.to_owned(),
                reason: error.to_string(),
            })
    }

    /// Takes a tokenizer that was built elsewhere, such as from a GGUF file.
    pub fn from_tokenizers(mut inner: tokenizers::Tokenizer) -> Self {
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        inner.with_padding(None);
        // Switching truncation off has no condition that could fail.
        let _ = inner.with_truncation(None);
        Self { inner }
    }

    /// Reads a text as tokens.
    ///
    /// # Errors
    ///
    /// - the tokenizer has no token for a piece of the text
    pub fn encode(&self, text: &str) -> Result<Encoded, DataError> {
        let encoding = self.inner.encode(text, false).map_err(failed)?;
        Ok(Encoded {
            ids: encoding.get_ids().to_vec(),
            offsets: encoding.get_offsets().to_vec(),
        })
    }

    /// Writes tokens as text; bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    ///
    /// - the tokenizer's decoder refuses the tokens
    pub fn decode(&self, ids: &[u32], specials: Specials) -> Result<String, DataError> {
        self.inner
            .decode(ids, specials == Specials::Skip)
            .map_err(failed)
    }

    /// The whole tokenizer as JSON: equal texts mean equal tokenizers.
    ///
    /// # Errors
    ///
    /// - the tokenizer cannot be serialised
    pub fn to_json(&self) -> Result<String, DataError> {
        self.inner.to_string(false).map_err(failed)
    }

    /// The id of a token written exactly so.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// A token as the vocabulary spells it.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Tokens in the vocabulary, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

fn failed(error: tokenizers::Error) -> DataError {
    DataError::Tokenize {
        reason: error.to_string(),
    }
}
