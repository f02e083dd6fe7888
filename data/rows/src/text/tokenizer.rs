//! A `tokenizer.json` as a plain mapping between text and token ids.
//!
//! Special tokens written in the text are parsed, and nothing is added to the output of a chat
//! template, as in transformers 5.23: `apply_chat_template(tokenize=True)` calls the tokenizer with
//! `add_special_tokens=False`. The file's post-processor, truncation and padding are disabled,
//! because they add tokens, truncate text, and trim the byte offsets that spans are matched with.
//! The tokens that the post-processor adds to plain text are available as [`Tokenizer::added_tokens`].
//! BPE-dropout (`model.dropout`) is also disabled, because it makes encoding random.

use std::fmt;
use std::path::Path;

use super::error::DataError;
use super::tokenizer_library::LibraryTokenizer;

/// Whether decoding keeps special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// Special tokens are decoded as text.
    Keep,
    /// Special tokens are omitted.
    Skip,
}

/// An encoded text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids in order.
    pub ids: Vec<u32>,
    /// First byte and one past the last byte of each token in the text. Tokens that share a
    /// character have the same offsets.
    pub offsets: Vec<(usize, usize)>,
}

/// The special tokens that a tokenizer adds around plain text, such as `<s>` before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddedTokens {
    /// Ids before the text.
    pub before: Vec<u32>,
    /// Ids after the text.
    pub after: Vec<u32>,
}

/// A token that is matched in the text before the tokenizer's model runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// Text of the token.
    pub content: String,
    /// Matches only whole words.
    pub single_word: bool,
    /// Absorbs the white space before it.
    pub lstrip: bool,
    /// Absorbs the white space after it.
    pub rstrip: bool,
    /// Matched in the normalized text.
    pub normalized: bool,
    /// Omitted if special tokens are skipped.
    pub special: bool,
}

/// The tokenizer of a language model.
#[derive(Clone)]
pub struct Tokenizer {
    library: LibraryTokenizer,
    added: AddedTokens,
    dropout: Option<f32>,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or is not a tokenizer
    /// - it exceeds the limits for tokenizers (docs/limits.md)
    pub fn from_file(path: &Path) -> Result<Self, DataError> {
        LibraryTokenizer::open(path).map(Self::from_library)
    }

    /// Wraps a tokenizer that was built elsewhere, for example from a GGUF file.
    ///
    /// The post-processor determines the tokens added to plain text. `add_bos_token` in
    /// `tokenizer_config.json` has no effect: transformers 5.23 ignores it if there is a
    /// `tokenizer.json` (`tokenization_utils_base.py`, `_from_pretrained`).
    pub fn from_tokenizers(inner: tokenizers::Tokenizer) -> Self {
        Self::from_library(LibraryTokenizer::wrap(inner))
    }

    fn from_library(mut library: LibraryTokenizer) -> Self {
        library.inner.with_padding(None);
        // Disabling truncation cannot fail.
        let _ = library.inner.with_truncation(None);
        let dropout = without_dropout(&mut library.inner);
        let added = added_tokens(&library).unwrap_or_default();
        let nothing = None::<tokenizers::PostProcessorWrapper>;
        library.inner.with_post_processor(nothing);
        Self {
            library,
            added,
            dropout,
        }
    }

    /// Whether a token is added before plain text.
    pub fn adds_bos(&self) -> bool {
        !self.added.before.is_empty()
    }

    /// Sets the token that is added before plain text, for tokenizers without this information,
    /// such as those of GGUF files.
    #[must_use]
    pub fn with_bos(self, bos: Option<u32>) -> Self {
        let prefix = bos.into_iter().collect();
        Self {
            added: AddedTokens {
                before: prefix,
                ..self.added
            },
            ..self
        }
    }

    /// The tokens that the tokenizer adds around plain text, but not around the output of a chat
    /// template.
    pub fn added_tokens(&self) -> &AddedTokens {
        &self.added
    }

    /// Encodes text for continuation, after the tokens that the tokenizer adds before plain text,
    /// unless the text already starts with them. Tokens added after the text are omitted, because
    /// they end it.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode`].
    pub fn plain_text(&self, text: &str) -> Result<String, DataError> {
        let prefix = &self.added.before;
        if self.encode(text)?.ids.starts_with(prefix) {
            Ok(text.to_owned())
        } else {
            Ok(format!("{}{text}", self.spell_tokens(prefix)))
        }
    }

    /// Tokens as spelled in the vocabulary.
    pub(super) fn spell_tokens(&self, ids: &[u32]) -> String {
        ids.iter().filter_map(|id| self.id_to_token(*id)).collect()
    }

    /// The file's BPE-dropout rate, which is disabled here; `None` if the file has none.
    pub fn dropout(&self) -> Option<f32> {
        self.dropout
    }

    /// Adds tokens in order: each gets its id in the vocabulary, or the next free one. The
    /// properties of an existing added token are replaced.
    ///
    /// # Errors
    ///
    /// - the tokenizers library rejects one
    pub fn add_tokens(
        &mut self,
        tokens: impl IntoIterator<Item = AddedToken>,
    ) -> Result<(), DataError> {
        let tokens = tokens.into_iter().map(|token| {
            tokenizers::AddedToken::from(token.content, token.special)
                .single_word(token.single_word)
                .lstrip(token.lstrip)
                .rstrip(token.rstrip)
                .normalized(token.normalized)
        });
        let mut library = self.library.clone();
        let tokens: Vec<_> = tokens.collect();
        self.library.run(|| library.inner.add_tokens(tokens))?;
        self.library = library;
        Ok(())
    }

    /// Encodes text.
    ///
    /// # Errors
    ///
    /// - the tokenizer has no token for a part of the text
    /// - the text is too long, or the file makes it too long (docs/limits.md)
    pub fn encode(&self, text: &str) -> Result<Encoded, DataError> {
        let encoding = self.library.encode(text)?;
        Ok(Encoded {
            ids: encoding.get_ids().to_vec(),
            offsets: encoding.get_offsets().to_vec(),
        })
    }

    /// Decodes tokens; bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    ///
    /// - the tokenizer's decoder rejects the tokens
    pub fn decode(&self, ids: &[u32], specials: Specials) -> Result<String, DataError> {
        let skips = specials == Specials::Skip;
        self.library.run(|| self.library.inner.decode(ids, skips))
    }

    /// The whole tokenizer as JSON. Equal JSON means equal tokenizers.
    ///
    /// # Errors
    ///
    /// - the tokenizer cannot be serialised
    pub fn to_json(&self) -> Result<String, DataError> {
        self.library.run(|| self.library.inner.to_string(false))
    }

    /// The id of the token with exactly this text.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.library.inner.token_to_id(token)
    }

    /// A token as spelled in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.library.inner.id_to_token(id)
    }

    /// Number of tokens in the vocabulary, including added ones.
    pub fn vocab_size(&self) -> usize {
        self.library.inner.get_vocab_size(true)
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

/// Returns the tokens that the post-processor adds around text, found by encoding a sample text.
fn added_tokens(library: &LibraryTokenizer) -> Option<AddedTokens> {
    const PROBE: &str = "a";
    let without_added = library.encode(PROBE).ok()?;
    let with_added = library.encode_whole(PROBE).ok()?;
    let (without_added, with_added) = (without_added.get_ids(), with_added.get_ids());
    if without_added.is_empty() || without_added.len() >= with_added.len() {
        return None;
    }
    let at = with_added
        .windows(without_added.len())
        .position(|ids| ids == without_added)?;
    Some(AddedTokens {
        before: with_added[..at].to_vec(),
        after: with_added[at + without_added.len()..].to_vec(),
    })
}

/// Disables BPE-dropout and returns its rate.
pub(super) fn without_dropout(tokenizer: &mut tokenizers::Tokenizer) -> Option<f32> {
    let tokenizers::ModelWrapper::BPE(bpe) = tokenizer.get_model() else {
        return None;
    };
    let dropout = bpe.dropout.filter(|&share| share > 0.0)?;
    let mut bpe = bpe.clone();
    bpe.dropout = None;
    tokenizer.with_model(bpe);
    Some(dropout)
}
