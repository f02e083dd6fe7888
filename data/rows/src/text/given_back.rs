//! Whether a tokenizer gives a text back: what it would lose or change is learned otherwise than it
//! is written.
//!
//! The tokens are decoded and compared with the text. Three differences are how tokenizers are made
//! and lose nothing: another composition of the same characters (NFC), blanks that are put before a
//! piece (SentencePiece's), and white space that a special token takes in (`lstrip`, `rstrip`). All
//! else is an error: bytes without a token, which byte-level BPE drops without a word, an unknown
//! token in the place of a character, and a normalizer that folds case, width or ligatures.

use thiserror::Error;
use unicode_normalization::{UnicodeNormalization, is_nfc};

use super::error::DataError;
use super::tokenizer::{Encoded, Specials, Tokenizer};

/// A piece of a text that the tokenizer does not give back.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "the tokenizer does not give {lost:?} back, which stands after {before:?}: of its tokens comes \
     {found:?}, and that would be learned; its vocabulary lacks the characters, or its normalizer \
     changes them: write them otherwise, or take a tokenizer that has them"
)]
pub struct NotGivenBack {
    /// The first character that is lost or changed, with those after it.
    pub lost: String,
    /// The end of the text before it.
    pub before: String,
    /// What the tokens give from there.
    pub found: String,
}

/// Refuses a text that its own tokens do not give back.
pub(super) fn must_give_back(
    text: &str,
    encoded: &Encoded,
    tokenizer: &Tokenizer,
) -> Result<(), DataError> {
    let decoded = tokenizer.decode(&encoded.ids, Specials::Keep)?;
    if decoded == text {
        return Ok(());
    }
    let decoded: Vec<char> = decoded.nfc().collect();
    // Offsets count bytes of the text that was read, so a composed text is read anew.
    let composed: String = if is_nfc(text) {
        text.to_owned()
    } else {
        text.nfc().collect()
    };
    let read_anew = tokenizer.encode(&composed)?;
    let Some((at, from)) = first_difference(&composed, &decoded, |at| {
        is_taken_in(at, &composed, &read_anew, tokenizer)
    }) else {
        return Ok(());
    };
    const N_SHOWN: usize = 12;
    let before: Vec<char> = composed[..at].chars().rev().take(30).collect();
    let error = NotGivenBack {
        lost: composed[at..].chars().take(N_SHOWN).collect(),
        before: before.into_iter().rev().collect(),
        found: decoded[from..].iter().take(N_SHOWN).collect(),
    };
    Err(error.into())
}

/// The first byte of `text` at which `decoded` says something else, and the character there.
fn first_difference(
    text: &str,
    decoded: &[char],
    is_taken_in: impl Fn(usize) -> bool,
) -> Option<(usize, usize)> {
    let mut next = 0;
    for (at, character) in text.char_indices() {
        // A blank of the tokenizer's own stands before what comes anyway.
        while decoded.get(next) == Some(&' ') && character != ' ' {
            next += 1;
        }
        if decoded.get(next) == Some(&character) {
            next += 1;
            continue;
        }
        // Decoders take off the blank that was put before the first piece.
        let is_first_blank = at == 0 && character == ' ';
        let is_kept = is_first_blank || character.is_whitespace() && is_taken_in(at);
        if !is_kept {
            return Some((at, next));
        }
    }
    let rest = &decoded[next.min(decoded.len())..];
    rest.iter()
        .any(|&character| character != ' ')
        .then_some((text.len(), next))
}

/// Whether the byte belongs to a token that is written without the white space around it.
fn is_taken_in(at: usize, text: &str, encoded: &Encoded, tokenizer: &Tokenizer) -> bool {
    let mut tokens = encoded.ids.iter().zip(&encoded.offsets);
    let Some((&id, &(start, end))) = tokens.find(|(_, (start, end))| (*start..*end).contains(&at))
    else {
        return false;
    };
    let piece = text.get(start..end).unwrap_or_default();
    let token = tokenizer.id_to_token(id);
    token.is_some_and(|token| piece.trim() == token.trim() && piece != token)
}
