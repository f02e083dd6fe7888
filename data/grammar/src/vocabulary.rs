//! Builds a trie of a tokenizer's token bytes, once per model.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use tooltune_rows::text::Tokenizer;

use super::error::GrammarError;
use super::position::has_exponent;
use super::token_bytes::{MAX_IDS, TokenBytes, token_bytes, unsupported_tokenizer};

/// Maximum parser items per position. An object with optional keys needs four items per key.
const MAX_ITEMS_IN_ROW: usize = 20_000;
/// Work limit for patterns per mask. It takes at most about 0.7 s and is fifty times llguidance's
/// default. Results are cached, so only a few steps of a pattern with long repetitions need this
/// much.
const STEP_LEXER_FUEL: u64 = 10_000_000;

/// A string that is encoded and decoded to check the tokens' bytes.
const PROBE: &str = "{\"k\": [1, -2.5e3, true, null, \"é 東京 😀 \\n\"]}\n\tx  y";

/// A model's tokens with their bytes; cheap to clone.
#[derive(Clone)]
pub struct Vocabulary {
    inner: Arc<VocabularyData>,
}

struct VocabularyData {
    factory: ParserFactory,
    n_logits: usize,
    stop_ids: Vec<u32>,
    specials: HashMap<String, u32>,
    drops_leading_blank: bool,
    tokens_with_digits: Vec<u32>,
    tokens_with_exponents: Vec<u32>,
    /// Tokens with at least one, two and three quotes.
    tokens_with_quotes: [Vec<u32>; 3],
}

impl Vocabulary {
    /// Builds the trie of a model with `n_logits` logits, which can be more or fewer than the
    /// tokenizer's tokens. IDs without a token are never allowed. Special tokens are never allowed
    /// inside a completion. All `stop_ids` are allowed exactly when the completion is complete.
    ///
    /// # Errors
    ///
    /// - There is no stop ID, or a stop ID has no logit.
    /// - The tokenizer spells its tokens in an unsupported way, or changes the text it encodes.
    pub fn new(
        tokenizer: &Tokenizer,
        n_logits: usize,
        stop_ids: &[u32],
    ) -> Result<Self, GrammarError> {
        if n_logits >= MAX_IDS {
            return Err(unsupported_tokenizer(format!(
                "{n_logits} logits are too many"
            )));
        }
        let Some(&first_stop) = stop_ids.first() else {
            return Err(unsupported_tokenizer("no stop token is given"));
        };
        if let Some(stop) = stop_ids.iter().find(|&&id| id as usize >= n_logits) {
            return Err(unsupported_tokenizer(format!(
                "stop token {stop} has no logit among {n_logits}"
            )));
        }
        let mut tokens = token_bytes(tokenizer, stop_ids)?;
        check_bytes(tokenizer, &tokens)?;
        tokens.bytes.resize(n_logits, Vec::new());
        let n_ids = u32::try_from(n_logits).unwrap_or(u32::MAX);
        let trie = TokTrie::from(&TokRxInfo::new(n_ids, first_stop), &tokens.bytes)
            .with_eos_tokens(stop_ids);
        let ids_with = |is_in: fn(&[u8]) -> bool| {
            let matching = (0..).zip(&tokens.bytes).filter(|(_, bytes)| is_in(bytes));
            matching.map(|(id, _)| id).collect()
        };
        let tokens_with_digits = ids_with(|bytes| bytes.iter().any(u8::is_ascii_digit));
        let tokens_with_exponents = ids_with(has_exponent);
        let n_quotes = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'"').count();
        let tokens_with_quotes = [1, 2, 3].map(|min_quotes| {
            let matching = (0..).zip(&tokens.bytes);
            let matching = matching.filter(|(_, bytes)| n_quotes(bytes) >= min_quotes);
            matching.map(|(id, _)| id).collect()
        });
        let environment: TokEnv = Arc::new(Environment { trie });
        let mut factory = ParserFactory::new_simple(&environment)
            .map_err(|error| unsupported_tokenizer(error.to_string()))?;
        let limits = factory.quiet().limits_mut();
        limits.verbose_errors = false;
        limits.max_items_in_row = MAX_ITEMS_IN_ROW;
        limits.step_lexer_fuel = STEP_LEXER_FUEL;
        Ok(Self {
            inner: Arc::new(VocabularyData {
                factory,
                n_logits,
                stop_ids: stop_ids.to_vec(),
                specials: tokens.specials,
                drops_leading_blank: tokens.drops_leading_blank,
                tokens_with_digits,
                tokens_with_exponents,
                tokens_with_quotes,
            }),
        })
    }

    /// Number of logits of the model.
    pub fn n_logits(&self) -> usize {
        self.inner.n_logits
    }

    /// The tokens that end a turn.
    pub fn stop_ids(&self) -> &[u32] {
        &self.inner.stop_ids
    }

    /// The bytes of a token in a string. Empty for special tokens, for IDs without a token, and for
    /// the byte 0xFF, which marks special tokens here and never occurs in valid UTF-8.
    pub fn bytes(&self, id: u32) -> &[u8] {
        if id as usize >= self.inner.n_logits {
            return &[];
        }
        let bytes = self.trie().token(id);
        match bytes.first() {
            Some(&TokTrie::SPECIAL_TOKEN_MARKER) => &[],
            _ => bytes,
        }
    }

    pub(super) fn trie(&self) -> &TokTrie {
        self.inner.factory.tok_env().tok_trie()
    }

    pub(super) fn factory(&self) -> &ParserFactory {
        &self.inner.factory
    }

    /// The ID of the special token with this spelling.
    pub(super) fn special_token_id(&self, text: &str) -> Option<u32> {
        self.inner.specials.get(text).copied()
    }

    /// Whether decoding drops a leading space. If so, a completion may begin with a space.
    pub(super) fn drops_leading_blank(&self) -> bool {
        self.inner.drops_leading_blank
    }

    /// Tokens with a digit.
    pub(super) fn tokens_with_digits(&self) -> &[u32] {
        &self.inner.tokens_with_digits
    }

    /// Tokens with at least `min_quotes` quotes, from 1 to 3.
    pub(super) fn tokens_with_quotes(&self, min_quotes: usize) -> &[u32] {
        let ids = self
            .inner
            .tokens_with_quotes
            .get(min_quotes.saturating_sub(1));
        ids.map_or(&[], Vec::as_slice)
    }

    /// Tokens in which an exponent digit follows an `e`.
    pub(super) fn tokens_with_exponents(&self) -> &[u32] {
        &self.inner.tokens_with_exponents
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary")
            .field("n_logits", &self.n_logits())
            .field("stop_ids", &self.stop_ids())
            .finish_non_exhaustive()
    }
}

/// Checks that the bytes of [`PROBE`]'s tokens equal [`PROBE`].
fn check_bytes(tokenizer: &Tokenizer, tokens: &TokenBytes) -> Result<(), GrammarError> {
    let ids = tokenizer.encode(PROBE)?.ids;
    let bytes = ids.iter().filter_map(|&id| tokens.bytes.get(id as usize));
    let decoded: Vec<u8> = bytes.flatten().copied().collect();
    let text = match decoded.strip_prefix(b" ") {
        Some(text) if tokens.drops_leading_blank => text,
        _ => &decoded,
    };
    if text == PROBE.as_bytes() {
        return Ok(());
    }
    let decoded = String::from_utf8_lossy(&decoded).into_owned();
    Err(unsupported_tokenizer(format!(
        "it decodes {PROBE:?} as {decoded:?}"
    )))
}

/// The tokenizer interface that llguidance requires. It must not force its own tokenization of a
/// fixed text. The model was trained on the tokenization of the whole text, in which a token may
/// cross the border of a fixed part.
struct Environment {
    trie: TokTrie,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<u32> {
        self.trie.greedy_tokenize(text)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
