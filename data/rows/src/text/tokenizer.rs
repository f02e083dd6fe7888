//! A `tokenizer.json` as a plain map between text and token ids.
//!
//! Special tokens written in the text are read as such, and nothing is ever added to what a chat
//! template wrote, as in `apply_chat_template(tokenize=True)` of transformers 5.23, which calls the
//! tokenizer with `add_special_tokens=False`. The file's post-processor, truncation and padding are
//! switched off, because they add tokens, cut text, and trim the byte offsets that spans are matched
//! with; what the post-processor adds to a plain text is remembered ([`Tokenizer::added`]). BPE-dropout
//! (`model.dropout`), which draws other tokens for one text at each reading, is off, too.

use std::fmt;
use std::path::Path;

use super::error::DataError;
use super::tokenizer_library::Library;

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

/// The special tokens that a tokenizer puts around a plain text, such as `<s>` before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddedTokens {
    /// Ids before the text.
    pub before: Vec<u32>,
    /// Ids after the text.
    pub after: Vec<u32>,
}

/// A token that is matched in texts before the model of the tokenizer reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// How it is written.
    pub content: String,
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

/// A tokenizer of a language model.
#[derive(Clone)]
pub struct Tokenizer {
    library: Library,
    added: AddedTokens,
    dropout: Option<f32>,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or is not a tokenizer
    /// - it does more with a text than tokenizers may (docs/limits.md)
    pub fn from_file(path: &Path) -> Result<Self, DataError> {
        Library::open(path).map(Self::from_library)
    }

    /// Takes a tokenizer that was built elsewhere, such as from a GGUF file.
    ///
    /// Its post-processor decides what plain texts get; `add_bos_token` in `tokenizer_config.json`
    /// does not: transformers 5.23 passes over it where there is a `tokenizer.json`
    /// (`tokenization_utils_base.py`, `_from_pretrained`).
    pub fn from_tokenizers(inner: tokenizers::Tokenizer) -> Self {
        Self::from_library(Library::of(inner))
    }

    fn from_library(mut library: Library) -> Self {
        library.inner.with_padding(None);
        // Switching truncation off has no condition that could fail.
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

    /// Whether a token is put before plain texts.
    pub fn begins_texts(&self) -> bool {
        !self.added.before.is_empty()
    }

    /// Says that a token is put before plain texts, where the tokenizer itself does not know it, as
    /// those of GGUF files.
    #[must_use]
    pub fn with_bos(self, bos: Option<u32>) -> Self {
        let before = bos.into_iter().collect();
        Self {
            added: AddedTokens {
                before,
                ..self.added
            },
            ..self
        }
    }

    /// What the tokenizer puts around plain texts, and not around what a chat template writes.
    pub fn added(&self) -> &AddedTokens {
        &self.added
    }

    /// The text as a model reads it that is to continue it: after the tokens that the tokenizer puts
    /// before plain texts, unless they stand there already. What it puts behind them is left out,
    /// because it ends texts.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode`].
    pub fn plain_text(&self, text: &str) -> Result<String, DataError> {
        let before = &self.added.before;
        if self.encode(text)?.ids.starts_with(before) {
            Ok(text.to_owned())
        } else {
            Ok(format!("{}{text}", self.spelled(before)))
        }
    }

    /// Tokens as the vocabulary spells them.
    pub(super) fn spelled(&self, ids: &[u32]) -> String {
        ids.iter().filter_map(|id| self.id_to_token(*id)).collect()
    }

    /// The share of merges that the file leaves out at random (BPE-dropout), and that are all done
    /// here; `None` where the file leaves out none.
    pub fn dropout(&self) -> Option<f32> {
        self.dropout
    }

    /// Adds tokens in this order: each gets the id that it has in the vocabulary, or the next free
    /// one. One that was added before is described anew.
    ///
    /// # Errors
    ///
    /// - the tokenizer library refuses one
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
        let mut changed = self.library.clone();
        let tokens: Vec<_> = tokens.collect();
        self.library.run(|| changed.inner.add_tokens(tokens))?;
        self.library = changed;
        Ok(())
    }

    /// Reads a text as tokens.
    ///
    /// # Errors
    ///
    /// - the tokenizer has no token for a piece of the text
    /// - the text is too long, or the file makes it too long (docs/limits.md)
    pub fn encode(&self, text: &str) -> Result<Encoded, DataError> {
        let encoding = self.library.encode(text)?;
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
        let skips = specials == Specials::Skip;
        self.library.run(|| self.library.inner.decode(ids, skips))
    }

    /// The whole tokenizer as JSON: equal texts mean equal tokenizers.
    ///
    /// # Errors
    ///
    /// - the tokenizer cannot be serialised
    pub fn to_json(&self) -> Result<String, DataError> {
        self.library.run(|| self.library.inner.to_string(false))
    }

    /// The id of a token written exactly so.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.library.inner.token_to_id(token)
    }

    /// A token as the vocabulary spells it.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.library.inner.id_to_token(id)
    }

    /// Tokens in the vocabulary, added ones included.
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

/// What the post-processor puts around a text, told by one that it cannot change.
fn added_tokens(library: &Library) -> Option<AddedTokens> {
    const PROBE: &str = "a";
    let plain = library.encode(PROBE).ok()?;
    let whole = library.encode_whole(PROBE).ok()?;
    let (plain, whole) = (plain.get_ids(), whole.get_ids());
    if plain.is_empty() || plain.len() >= whole.len() {
        return None;
    }
    let at = whole.windows(plain.len()).position(|ids| ids == plain)?;
    Some(AddedTokens {
        before: whole[..at].to_vec(),
        after: whole[at + plain.len()..].to_vec(),
    })
}

/// Switches BPE-dropout off; returns the share that it left out.
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
