//! Computes the tokens that can come next in one completion.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use tooltune_json::MAX_LEVELS;

use super::error::GrammarError;
use super::forbidden_substrings::ForbiddenSubstrings;
use super::position::JsonPosition;
use super::vocabulary::Vocabulary;

/// The state of one completion under a grammar.
///
/// Clones advance independently and share the parser's caches, so all rows of a batch with the same
/// grammar fill the caches only once.
#[derive(Clone)]
pub struct Constraint {
    vocabulary: Vocabulary,
    matcher: Matcher,
    forbidden_substrings: Arc<ForbiddenSubstrings>,
    /// Whether an object can have used all of its possible keys, so that a started key may have no
    /// valid completion.
    has_finite_keys: bool,
    position: JsonPosition,
    /// The cached mask of this step.
    mask: Option<Vec<u32>>,
    is_ended: bool,
}

/// A grammar for the parser, with properties that the parser cannot derive from it.
#[derive(Clone)]
pub(super) struct CompiledGrammar {
    pub(super) matcher: Matcher,
    /// Whether an object has some kind of keys of which only finitely many are possible.
    pub(super) has_finite_keys: bool,
    /// Whether lists or strings have limits that the schema does not set.
    pub(super) is_shortened: bool,
}

/// The tokens that are allowed in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mask<'m> {
    words: &'m [u32],
    n_logits: usize,
}

impl Constraint {
    pub(super) fn new(
        vocabulary: Vocabulary,
        CompiledGrammar {
            matcher,
            has_finite_keys,
            is_shortened: _,
        }: CompiledGrammar,
        forbidden_substrings: Arc<ForbiddenSubstrings>,
    ) -> Self {
        Self {
            vocabulary,
            matcher,
            has_finite_keys,
            position: JsonPosition::new(Arc::clone(&forbidden_substrings)),
            forbidden_substrings,
            mask: None,
            is_ended: false,
        }
    }

    /// The tokens that can come next; at least one. After the end of the turn these are the stop
    /// tokens.
    ///
    /// # Errors
    ///
    /// - The step exceeds a limit of the parser, or no token can follow. The constraint cannot be
    ///   used further.
    pub fn mask(&mut self) -> Result<Mask<'_>, GrammarError> {
        let words = match self.mask.take() {
            Some(words) => words,
            None => self.compute_mask()?,
        };
        Ok(Mask {
            words: self.mask.insert(words),
            n_logits: self.vocabulary.n_logits(),
        })
    }

    /// Advances by the chosen token.
    ///
    /// # Errors
    ///
    /// - The token is not in the mask. The constraint is unchanged.
    /// - The turn has already ended.
    /// - The parser exceeds a limit, or the nesting is too deep for JSON readers. The constraint
    ///   cannot be used further.
    pub fn consume(&mut self, token: u32) -> Result<(), GrammarError> {
        if self.is_ended {
            return Err(GrammarError::AfterTheEnd { token });
        }
        if self.vocabulary.stop_ids().contains(&token) {
            if !self.is_complete()? {
                return Err(self.not_allowed_error(token));
            }
            self.is_ended = true;
            self.mask = None;
            return Ok(());
        }
        let mut position = self.position.clone();
        if token as usize >= self.vocabulary.n_logits()
            || !position.advance(self.vocabulary.bytes(token))
            || (self.has_finite_keys
                && position.may_be_duplicate_key()
                && !self.mask()?.is_allowed(token))
            || self
                .matcher
                .try_consume_tokens(&[token])
                .map_err(parser_error)?
                == 0
        {
            return Err(self.not_allowed_error(token));
        }
        self.position = position;
        self.mask = None;
        if self.position.n_levels() > MAX_LEVELS {
            return Err(GrammarError::Stuck {
                reason: format!("the JSON nests deeper than {MAX_LEVELS} levels"),
            });
        }
        Ok(())
    }

    /// Whether the completion is complete, so that the turn may end here.
    ///
    /// # Errors
    ///
    /// The parser has exceeded a limit before.
    pub fn is_complete(&mut self) -> Result<bool, GrammarError> {
        if self.is_ended || (self.matcher.is_stopped() && self.matcher.stop_reason().is_ok()) {
            return Ok(true);
        }
        self.matcher.is_accepting().map_err(parser_error)
    }

    /// Whether a stop token was consumed.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Resets to the start of the completion.
    ///
    /// # Errors
    ///
    /// The parser has exceeded a limit before; create a new constraint from the grammar.
    pub fn reset(&mut self) -> Result<(), GrammarError> {
        self.matcher.reset().map_err(parser_error)?;
        self.position = JsonPosition::new(Arc::clone(&self.forbidden_substrings));
        self.mask = None;
        self.is_ended = false;
        Ok(())
    }

    fn compute_mask(&mut self) -> Result<Vec<u32>, GrammarError> {
        let mut words = self.grammar_mask()?;
        if self.has_finite_keys {
            self.mask_dead_ends(&mut words);
        }
        if words.iter().all(|&word| word == 0) {
            Err(self.dead_end_error())
        } else {
            Ok(words)
        }
    }

    /// The mask without the check for duplicate keys.
    fn grammar_mask(&mut self) -> Result<Vec<u32>, GrammarError> {
        let n_logits = self.vocabulary.n_logits();
        let mut words = vec![0; n_logits.div_ceil(32)];
        if self.is_ended || self.matcher.is_stopped() {
            if !self.is_complete()? {
                return Err(self.dead_end_error());
            }
            for &id in self.vocabulary.stop_ids() {
                if let Some(word) = words.get_mut(id as usize / 32) {
                    *word |= 1 << (id % 32);
                }
            }
            return Ok(words);
        }
        let allowed = self.matcher.compute_mask_or_eos().map_err(parser_error)?;
        for (word, &from) in words.iter_mut().zip(allowed.as_slice()) {
            *word = from;
        }
        if let Some(last) = words.last_mut()
            && !n_logits.is_multiple_of(32)
        {
            *last &= (1 << (n_logits % 32)) - 1;
        }
        self.mask_invalid_tokens(&mut words);
        Ok(words)
    }

    /// Removes tokens that the grammar allows but that would give invalid or ambiguous JSON.
    fn mask_invalid_tokens(&self, words: &mut [u32]) {
        let n_longest = self.vocabulary.trie().max_token_len();
        let number_tokens = if self.position.is_near_limit(n_longest) {
            self.vocabulary.tokens_with_digits()
        } else {
            self.vocabulary.tokens_with_exponents()
        };
        let min_quotes = self.position.min_quotes_to_end_key();
        let quote_tokens = self.vocabulary.tokens_with_quotes(min_quotes);
        for &id in number_tokens
            .iter()
            .chain(self.forbidden_substrings.candidate_tokens())
            .chain(quote_tokens)
        {
            let Some(word) = words.get_mut(id as usize / 32) else {
                continue;
            };
            let bit = 1 << (id % 32);
            if *word & bit != 0 && !self.position.clone().advance(self.vocabulary.bytes(id)) {
                *word &= !bit;
            }
        }
    }

    /// Removes tokens after which a key could only be completed as a duplicate.
    fn mask_dead_ends(&self, words: &mut [u32]) {
        let allowed_words = words.to_vec();
        let mask = Mask {
            words: &allowed_words,
            n_logits: self.vocabulary.n_logits(),
        };
        for id in mask.allowed() {
            if let Some(position) = self.position_in_duplicate_key(id)
                && !self.can_finish_after(id, position)
                && let Some(word) = words.get_mut(id as usize / 32)
            {
                *word &= !(1 << (id % 32));
            }
        }
    }

    /// The position after a token, if the key being written there may be a duplicate.
    fn position_in_duplicate_key(&self, token: u32) -> Option<JsonPosition> {
        if self.vocabulary.stop_ids().contains(&token) {
            return None;
        }
        let mut position = self.position.clone();
        position.advance(self.vocabulary.bytes(token));
        position.may_be_duplicate_key().then_some(position)
    }

    /// Whether the completion can be finished after a token that the grammar allows. Considers only
    /// the key that the token begins or continues.
    fn can_finish_after(&self, token: u32, position: JsonPosition) -> bool {
        let mut next = self.clone();
        let result = next.matcher.try_consume_tokens(&[token]);
        next.position = position;
        next.mask = None;
        let Ok(words) = next.grammar_mask() else {
            return false;
        };
        let mask = Mask {
            words: &words,
            n_logits: self.vocabulary.n_logits(),
        };
        let mut doubtful = Vec::new();
        for id in mask.allowed() {
            match next.position_in_duplicate_key(id) {
                None => return result.is_ok_and(|n| n == 1),
                Some(position) => doubtful.push((id, position)),
            }
        }
        let mut doubtful = doubtful.into_iter();
        doubtful.any(|(id, position)| next.can_finish_after(id, position))
    }

    fn not_allowed_error(&self, token: u32) -> GrammarError {
        let text = String::from_utf8_lossy(self.vocabulary.bytes(token)).into_owned();
        GrammarError::NotAllowed { token, text }
    }

    fn dead_end_error(&self) -> GrammarError {
        GrammarError::Stuck {
            reason: match self.matcher.get_error() {
                Some(error) => first_line(&error),
                None => "no token can follow".to_owned(),
            },
        }
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint")
            .field("position", &self.position)
            .field("is_ended", &self.is_ended)
            .finish_non_exhaustive()
    }
}

impl<'m> Mask<'m> {
    /// One bit per logit, 32 per word, lowest bit first; bits beyond the logits are 0.
    pub fn words(&self) -> &'m [u32] {
        self.words
    }

    /// Whether the token can come next.
    pub fn is_allowed(&self, token: u32) -> bool {
        let word = self.words.get(token as usize / 32);
        word.is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// The number of allowed tokens.
    pub fn n_allowed(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// The allowed tokens, in order.
    pub fn allowed(&self) -> impl Iterator<Item = u32> + use<'m> {
        (0..).zip(self.words).flat_map(|(word_idx, &word)| {
            let bits = (0..32).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| 32 * word_idx + bit)
        })
    }

    /// The allowed token with the largest logit: the first if several are equal, 0 if all are
    /// negative infinity. Equals the argmax after [`Mask::apply`], but does not write the logits.
    ///
    /// # Shapes
    ///
    /// - `logits`: one row of f32, with one entry per logit of the vocabulary
    pub fn argmax(&self, logits: &[f32]) -> u32 {
        let mut best = (f32::NEG_INFINITY, 0);
        for ((word, logits), first) in self
            .words
            .iter()
            .zip(logits.chunks(32))
            .zip((0..).step_by(32))
        {
            let mut bits = *word;
            while bits != 0 {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                match logits.get(bit as usize) {
                    Some(&logit) if logit > best.0 => best = (logit, first + bit),
                    _ => {}
                }
            }
        }
        best.1
    }

    /// Sets the logits of all tokens that are not allowed to negative infinity.
    ///
    /// # Shapes
    ///
    /// - `logits`: one row of f32, with one entry per logit of the vocabulary; additional entries
    ///   also become negative infinity
    pub fn apply(&self, logits: &mut [f32]) {
        let (logits, beyond) = logits.split_at_mut(self.n_logits.min(logits.len()));
        for (logits, word) in logits.chunks_mut(32).zip(self.words) {
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        beyond.fill(f32::NEG_INFINITY);
    }
}

fn parser_error(error: impl fmt::Display) -> GrammarError {
    GrammarError::Stuck {
        reason: first_line(&error.to_string()),
    }
}

/// llguidance appends its parser state on separate lines.
pub(super) fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
