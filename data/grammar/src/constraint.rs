//! Says which tokens may come next after one completion so far.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use tooltune_rows::json::MAX_LEVELS;

use super::error::GrammarError;
use super::place::JsonPlace;
use super::unwritten::Unwritten;
use super::vocabulary::Vocabulary;

/// The state of one completion under a grammar.
///
/// Clones go on independently of each other; they share the parser's caches, so that the rows of a
/// batch under one grammar pay for it once.
#[derive(Clone)]
pub struct Constraint {
    vocabulary: Vocabulary,
    matcher: Matcher,
    unwritten: Arc<Unwritten>,
    /// Whether keys may run out, so that a key that has begun may have no end left.
    keys_run_out: bool,
    place: JsonPlace,
    /// The mask of this step, once it was asked for.
    mask: Option<Vec<u32>>,
    is_ended: bool,
}

/// A grammar for the parser, and what the parser cannot tell of it.
#[derive(Clone)]
pub(super) struct Built {
    pub(super) matcher: Matcher,
    /// Whether an object has keys of a kind of which there are not as many as anybody likes.
    pub(super) keys_run_out: bool,
    /// Whether lists or texts have limits that their schema does not set.
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
        Built {
            matcher,
            keys_run_out,
            is_shortened: _,
        }: Built,
        unwritten: Arc<Unwritten>,
    ) -> Self {
        Self {
            vocabulary,
            matcher,
            keys_run_out,
            place: JsonPlace::new(Arc::clone(&unwritten)),
            unwritten,
            mask: None,
            is_ended: false,
        }
    }

    /// The tokens that may come next; at least one. After the end of the turn these are the stop
    /// tokens.
    ///
    /// # Errors
    ///
    /// - the step meets a limit of the parser, or no token can go on; the constraint is at its end
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

    /// Takes the token that was chosen.
    ///
    /// # Errors
    ///
    /// - the token is not in the mask; the constraint stays where it was
    /// - the turn has ended already
    /// - the parser meets a limit, or the text nests deeper than a reader can follow; the
    ///   constraint is at its end
    pub fn consume(&mut self, token: u32) -> Result<(), GrammarError> {
        if self.is_ended {
            return Err(GrammarError::AfterTheEnd { token });
        }
        if self.vocabulary.stop_ids().contains(&token) {
            if !self.is_complete()? {
                return Err(self.not_allowed(token));
            }
            self.is_ended = true;
            self.mask = None;
            return Ok(());
        }
        let mut place = self.place.clone();
        if token as usize >= self.vocabulary.n_logits()
            || !place.advance(self.vocabulary.bytes(token))
            || (self.keys_run_out && place.is_on_a_used_key() && !self.mask()?.is_allowed(token))
            || self.matcher.try_consume_tokens(&[token]).map_err(stuck)? == 0
        {
            return Err(self.not_allowed(token));
        }
        self.place = place;
        self.mask = None;
        if self.place.n_levels() > MAX_LEVELS {
            return Err(GrammarError::Stuck {
                reason: format!("the text nests deeper than {MAX_LEVELS} levels"),
            });
        }
        Ok(())
    }

    /// Whether the text so far is complete, so that the turn may end here.
    ///
    /// # Errors
    ///
    /// - the parser has met a limit before
    pub fn is_complete(&mut self) -> Result<bool, GrammarError> {
        if self.is_ended || (self.matcher.is_stopped() && self.matcher.stop_reason().is_ok()) {
            return Ok(true);
        }
        self.matcher.is_accepting().map_err(stuck)
    }

    /// Whether a stop token was consumed.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// The tokens that must come next whatever the model says, as the tokenizer reads their text;
    /// they may be consumed without asking the model. The last one is left to the model if a
    /// longer token begins with it. Empty where there is a choice.
    ///
    /// # Errors
    ///
    /// - the tokenizer fails on the text
    pub fn forced(&mut self) -> Result<Vec<u32>, GrammarError> {
        // A tokenizer that puts a blank before each text would put one before this part.
        if self.is_ended || self.vocabulary.drops_leading_blank() {
            return Ok(Vec::new());
        }
        let bytes = self.matcher.compute_ff_bytes();
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(error) => {
                let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
                std::str::from_utf8(valid).unwrap_or_default()
            }
        };
        let mut ids = self.vocabulary.tokenizer().encode(text)?.ids;
        let written = ids.iter().flat_map(|&id| self.vocabulary.bytes(id));
        if !written.eq(text.as_bytes()) {
            return Ok(Vec::new());
        }
        let last = ids.last().map(|&id| self.vocabulary.bytes(id));
        if last.is_some_and(|bytes| self.vocabulary.trie().has_extensions(bytes)) {
            ids.pop();
        }
        // The grammar forces the end of a key that the object has already, too.
        let mut place = self.place.clone();
        let n_kept = ids
            .iter()
            .take_while(|&&id| place.advance(self.vocabulary.bytes(id)))
            .count();
        ids.truncate(n_kept);
        Ok(ids)
    }

    /// Goes back to the start of the text.
    ///
    /// # Errors
    ///
    /// - the parser has met a limit before; make a new constraint of the grammar
    pub fn reset(&mut self) -> Result<(), GrammarError> {
        self.matcher.reset().map_err(stuck)?;
        self.place = JsonPlace::new(Arc::clone(&self.unwritten));
        self.mask = None;
        self.is_ended = false;
        Ok(())
    }

    fn compute_mask(&mut self) -> Result<Vec<u32>, GrammarError> {
        let mut words = self.grammar_mask()?;
        if self.keys_run_out {
            self.hold_back_dead_ends(&mut words);
        }
        if words.iter().all(|&word| word == 0) {
            Err(self.dead_end())
        } else {
            Ok(words)
        }
    }

    /// The mask without a look at what keys may become.
    fn grammar_mask(&mut self) -> Result<Vec<u32>, GrammarError> {
        let n_logits = self.vocabulary.n_logits();
        let mut words = vec![0; n_logits.div_ceil(32)];
        if self.is_ended || self.matcher.is_stopped() {
            if !self.is_complete()? {
                return Err(self.dead_end());
            }
            for &id in self.vocabulary.stop_ids() {
                if let Some(word) = words.get_mut(id as usize / 32) {
                    *word |= 1 << (id % 32);
                }
            }
            return Ok(words);
        }
        let allowed = self.matcher.compute_mask_or_eos().map_err(stuck)?;
        for (word, &from) in words.iter_mut().zip(allowed.as_slice()) {
            *word = from;
        }
        if let Some(last) = words.last_mut()
            && !n_logits.is_multiple_of(32)
        {
            *last &= (1 << (n_logits % 32)) - 1;
        }
        self.hold_back(&mut words);
        Ok(words)
    }

    /// Takes out the tokens that the grammar allows and no reader takes as they are meant.
    fn hold_back(&self, words: &mut [u32]) {
        let n_longest = self.vocabulary.trie().max_token_len();
        let suspects = if self.place.is_near_the_limit(n_longest) {
            self.vocabulary.with_digits()
        } else {
            self.vocabulary.with_exponents()
        };
        let of_keys = self.place.n_quotes_to_the_end_of_a_key();
        let of_keys = self.vocabulary.with_quotes(of_keys);
        for &id in suspects
            .iter()
            .chain(self.unwritten.suspects())
            .chain(of_keys)
        {
            let Some(word) = words.get_mut(id as usize / 32) else {
                continue;
            };
            let bit = 1 << (id % 32);
            if *word & bit != 0 && !self.place.clone().advance(self.vocabulary.bytes(id)) {
                *word &= !bit;
            }
        }
    }

    /// Takes out the tokens after which a key can only become one that the object has.
    fn hold_back_dead_ends(&self, words: &mut [u32]) {
        let before = words.to_vec();
        let mask = Mask {
            words: &before,
            n_logits: self.vocabulary.n_logits(),
        };
        for id in mask.allowed() {
            if let Some(place) = self.place_on_a_used_key(id)
                && !self.goes_on_after(id, place)
                && let Some(word) = words.get_mut(id as usize / 32)
            {
                *word &= !(1 << (id % 32));
            }
        }
    }

    /// Where a token leads, if what is written then is a key that may be one that the object has.
    fn place_on_a_used_key(&self, token: u32) -> Option<JsonPlace> {
        if self.vocabulary.stop_ids().contains(&token) {
            return None;
        }
        let mut place = self.place.clone();
        place.advance(self.vocabulary.bytes(token));
        place.is_on_a_used_key().then_some(place)
    }

    /// Whether a text may be completed after a token that the grammar allows, as far as the key
    /// goes that the token begins or continues.
    fn goes_on_after(&self, token: u32, place: JsonPlace) -> bool {
        let mut next = self.clone();
        let taken = next.matcher.try_consume_tokens(&[token]);
        next.place = place;
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
            match next.place_on_a_used_key(id) {
                None => return taken.is_ok_and(|n| n == 1),
                Some(place) => doubtful.push((id, place)),
            }
        }
        let mut doubtful = doubtful.into_iter();
        doubtful.any(|(id, place)| next.goes_on_after(id, place))
    }

    fn not_allowed(&self, token: u32) -> GrammarError {
        let text = String::from_utf8_lossy(self.vocabulary.bytes(token)).into_owned();
        GrammarError::NotAllowed { token, text }
    }

    fn dead_end(&self) -> GrammarError {
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
            .field("place", &self.place)
            .field("is_ended", &self.is_ended)
            .finish_non_exhaustive()
    }
}

impl<'m> Mask<'m> {
    /// A bit for each logit, 32 in a word, the lowest bit first; bits beyond the logits are 0.
    pub fn words(&self) -> &'m [u32] {
        self.words
    }

    /// Whether a token may come next.
    pub fn is_allowed(&self, token: u32) -> bool {
        let word = self.words.get(token as usize / 32);
        word.is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// How many tokens may come next.
    pub fn n_allowed(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// The tokens that may come next, in order.
    pub fn allowed(&self) -> impl Iterator<Item = u32> + use<'m> {
        (0..).zip(self.words).flat_map(|(word_idx, &word)| {
            let bits = (0..32).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| 32 * word_idx + bit)
        })
    }

    /// The most likely of the tokens that may come next, the first of equally likely ones; 0 where
    /// all of them are at negative infinity. What [`Mask::apply`] would leave, without its writes.
    ///
    /// # Shapes
    ///
    /// - `logits`: one row, f32, an entry for each of the vocabulary's logits
    pub fn most_likely(&self, logits: &[f32]) -> u32 {
        let mut best = (f32::NEG_INFINITY, 0);
        for ((word, logits), first) in self
            .words
            .iter()
            .zip(logits.chunks(32))
            .zip((0..).step_by(32))
        {
            let mut left = *word;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                match logits.get(bit as usize) {
                    Some(&logit) if logit > best.0 => best = (logit, first + bit),
                    _ => {}
                }
            }
        }
        best.1
    }

    /// Sets the logits of all other tokens to negative infinity.
    ///
    /// # Shapes
    ///
    /// - `logits`: one row, f32, an entry for each of the vocabulary's logits; entries beyond those
    ///   become negative infinity too
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

fn stuck(error: impl fmt::Display) -> GrammarError {
    GrammarError::Stuck {
        reason: first_line(&error.to_string()),
    }
}

/// llguidance appends the state of its parser on lines of their own.
pub(super) fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
