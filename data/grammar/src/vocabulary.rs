//! Builds a trie of a tokenizer's token bytes, once for each model.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use tooltune_rows::text::Tokenizer;

use super::error::GrammarError;
use super::place::has_exponent;
use super::token_bytes::{MAX_IDS, TokenBytes, refused, token_bytes};

/// Ways in which a text may go on at one place; an object with optional keys has four for each.
const MAX_ITEMS_IN_ROW: usize = 20_000;
/// Work on patterns for one mask: at most about 0.7 s, fifty times llguidance's default. What a
/// mask has worked out is kept, so that few steps of a pattern with long repetitions take as long.
const STEP_LEXER_FUEL: u64 = 10_000_000;

/// What is read as tokens and written back to see whether the tokens' bytes are right.
const PROBE: &str = "{\"k\": [1, -2.5e3, true, null, \"é 東京 😀 \\n\"]}\n\tx  y";

/// The tokens of a model with the bytes that they write; cheap to clone.
#[derive(Clone)]
pub struct Vocabulary {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: Tokenizer,
    factory: ParserFactory,
    n_logits: usize,
    stop_ids: Vec<u32>,
    specials: HashMap<String, u32>,
    drops_leading_blank: bool,
    with_digits: Vec<u32>,
    with_exponents: Vec<u32>,
    /// Tokens with one quote or more, with two or more, and with three or more.
    with_quotes: [Vec<u32>; 3],
}

impl Vocabulary {
    /// Builds the trie of a model whose logits have `n_logits` entries, which may be more or fewer
    /// than the tokenizer has tokens. Ids without a token are never allowed, special tokens never
    /// within a text, and any of `stop_ids` exactly where a text is complete.
    ///
    /// # Errors
    ///
    /// - there is no stop id, or one has no logit
    /// - the tokenizer spells its tokens in a way that is not understood, or changes what it reads
    pub fn new(
        tokenizer: &Tokenizer,
        n_logits: usize,
        stop_ids: &[u32],
    ) -> Result<Self, GrammarError> {
        if n_logits >= MAX_IDS {
            return Err(refused(format!("{n_logits} logits are too many")));
        }
        let Some(&first_stop) = stop_ids.first() else {
            return Err(refused("no stop token is given"));
        };
        if let Some(stop) = stop_ids.iter().find(|&&id| id as usize >= n_logits) {
            return Err(refused(format!(
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
            let found = (0..).zip(&tokens.bytes).filter(|(_, bytes)| is_in(bytes));
            found.map(|(id, _)| id).collect()
        };
        let with_digits = ids_with(|bytes| bytes.iter().any(u8::is_ascii_digit));
        let with_exponents = ids_with(has_exponent);
        let n_quotes = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'"').count();
        let with_quotes = [1, 2, 3].map(|least| {
            let found = (0..).zip(&tokens.bytes);
            let found = found.filter(|(_, bytes)| n_quotes(bytes) >= least);
            found.map(|(id, _)| id).collect()
        });
        let environment: TokEnv = Arc::new(Environment { trie });
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| refused(error.to_string()))?;
        let limits = factory.quiet().limits_mut();
        limits.verbose_errors = false;
        limits.max_items_in_row = MAX_ITEMS_IN_ROW;
        limits.step_lexer_fuel = STEP_LEXER_FUEL;
        Ok(Self {
            inner: Arc::new(Inner {
                tokenizer: tokenizer.clone(),
                factory,
                n_logits,
                stop_ids: stop_ids.to_vec(),
                specials: tokens.specials,
                drops_leading_blank: tokens.drops_leading_blank,
                with_digits,
                with_exponents,
                with_quotes,
            }),
        })
    }

    /// Entries of the model's logits.
    pub fn n_logits(&self) -> usize {
        self.inner.n_logits
    }

    /// The tokens that end a turn.
    pub fn stop_ids(&self) -> &[u32] {
        &self.inner.stop_ids
    }

    /// The bytes that a token writes into a text: none for special tokens, for ids without a token,
    /// and for the byte 0xFF, which marks special tokens here and has no place in UTF-8.
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

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    /// The id of a special token that is written so.
    pub(super) fn special(&self, text: &str) -> Option<u32> {
        self.inner.specials.get(text).copied()
    }

    /// Whether decoding a completion drops a blank at its start, so that one may be written there.
    pub(super) fn drops_leading_blank(&self) -> bool {
        self.inner.drops_leading_blank
    }

    /// Tokens with a digit.
    pub(super) fn with_digits(&self) -> &[u32] {
        &self.inner.with_digits
    }

    /// Tokens with so many quotes or more, of 1 to 3.
    pub(super) fn with_quotes(&self, least: usize) -> &[u32] {
        let found = self.inner.with_quotes.get(least.saturating_sub(1));
        found.map_or(&[], Vec::as_slice)
    }

    /// Tokens in which an exponent's digit follows an `e`.
    pub(super) fn with_exponents(&self) -> &[u32] {
        &self.inner.with_exponents
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

/// The bytes of the tokens of [`PROBE`] must be those of [`PROBE`].
fn check_bytes(tokenizer: &Tokenizer, tokens: &TokenBytes) -> Result<(), GrammarError> {
    let ids = tokenizer.encode(PROBE)?.ids;
    let bytes = ids.iter().filter_map(|&id| tokens.bytes.get(id as usize));
    let written: Vec<u8> = bytes.flatten().copied().collect();
    let text = match written.strip_prefix(b" ") {
        Some(text) if tokens.drops_leading_blank => text,
        _ => &written,
    };
    if text == PROBE.as_bytes() {
        return Ok(());
    }
    let written = String::from_utf8_lossy(&written).into_owned();
    Err(refused(format!("it writes {PROBE:?} as {written:?}")))
}

/// What llguidance asks of a tokenizer. It must not force its own reading of a fixed text: a model
/// was trained on the reading of the whole text, which may cross the border of a fixed part.
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
