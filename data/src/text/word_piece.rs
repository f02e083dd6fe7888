//! A sentence to the token ids of a BERT encoder, with its special tokens and its length limit.
//!
//! Unlike the language model's tokenizer, this one keeps the file's post-processor, because no
//! template writes `[CLS]` and `[SEP]`; the file's own truncation and padding (128 in
//! all-MiniLM-L6-v2) are replaced, because sentence-transformers does so too. BPE-dropout is off.

use std::fmt;
use std::path::Path;

use tokenizers::{TruncationParams, TruncationStrategy};

use super::error::DataError;
use super::tokenizer::without_dropout;

/// A tokenizer of a sentence encoder.
#[derive(Clone)]
pub struct WordPiece {
    inner: tokenizers::Tokenizer,
    dropout: Option<f32>,
}

impl WordPiece {
    /// Loads a `tokenizer.json` that cuts sentences at `max_seq_length` tokens, special ones
    /// included.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or is not a tokenizer
    /// - `max_seq_length` leaves no room beside the special tokens
    pub fn from_file(path: &Path, max_seq_length: usize) -> Result<Self, DataError> {
        let bytes = std::fs::read(path).map_err(|error| DataError::Unreadable {
            path: path.to_owned(),
            error,
        })?;
        let refused = |error: tokenizers::Error| DataError::TokenizerFile {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(refused)?;
        inner.with_padding(None);
        let truncation = TruncationParams {
            max_length: max_seq_length,
            strategy: TruncationStrategy::LongestFirst,
            ..TruncationParams::default()
        };
        inner.with_truncation(Some(truncation)).map_err(refused)?;
        let dropout = without_dropout(&mut inner);
        Ok(Self { inner, dropout })
    }

    /// The share of merges that the file leaves out at random (BPE-dropout), and that are all done
    /// here; `None` where the file leaves out none.
    pub fn dropout(&self) -> Option<f32> {
        self.dropout
    }

    /// Token ids of a sentence, special tokens included, cut at the limit.
    ///
    /// # Errors
    ///
    /// - the tokenizer has no token for a piece of the text
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let encoding = self
            .inner
            .encode(text, true)
            .map_err(|error| DataError::Tokenize {
                reason: error.to_string(),
            })?;
        Ok(encoding.get_ids().to_vec())
    }
}

impl fmt::Debug for WordPiece {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WordPiece").finish_non_exhaustive()
    }
}
