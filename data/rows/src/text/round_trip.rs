//! Checks that a tokenizer reproduces text, because the model trains on the tokens and not on the
//! text.
//!
//! The decoded tokens are compared with the text. Three differences are normal for tokenizers and
//! lose nothing: a different composition of the same characters (NFC), spaces added before a piece
//! (SentencePiece), and white space absorbed by a special token (`lstrip`, `rstrip`). Any other
//! difference is an error: bytes without a token, which byte-level BPE drops silently, an unknown
//! token instead of a character, and a normalizer that folds case, width or ligatures.

use thiserror::Error;
use unicode_normalization::{UnicodeNormalization, is_nfc};

use super::error::DataError;
use super::tokenizer::{Encoded, Specials, Tokenizer};

/// A part of the text that the tokenizer does not reproduce.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "the tokenizer does not reproduce {lost:?} after {before:?}: its tokens decode to {decoded:?}, \
     which would be trained on; its vocabulary lacks the characters, or its normalizer changes \
     them: replace the characters in the text, or use a tokenizer that has them"
)]
pub struct RoundTripMismatch {
    /// The first lost or changed character, with the following ones.
    pub lost: String,
    /// The end of the text before it.
    pub before: String,
    /// The decoded text from that position on.
    pub decoded: String,
}

/// Rejects text that its own tokens do not reproduce.
pub(super) fn check_round_trip(
    text: &str,
    encoded: &Encoded,
    tokenizer: &Tokenizer,
) -> Result<(), DataError> {
    let decoded = tokenizer.decode(&encoded.ids, Specials::Keep)?;
    if decoded == text {
        return Ok(());
    }
    let decoded: Vec<char> = decoded.nfc().collect();
    // Offsets refer to the original text, so encode the composed text again.
    let composed: String = if is_nfc(text) {
        text.to_owned()
    } else {
        text.nfc().collect()
    };
    let encoded_again = tokenizer.encode(&composed)?;
    let Some((at, from)) = first_difference(&composed, &decoded, |at| {
        is_absorbed(at, &composed, &encoded_again, tokenizer)
    }) else {
        return Ok(());
    };
    const N_SHOWN: usize = 12;
    let preceding: Vec<char> = composed[..at].chars().rev().take(30).collect();
    let error = RoundTripMismatch {
        lost: composed[at..].chars().take(N_SHOWN).collect(),
        before: preceding.into_iter().rev().collect(),
        decoded: decoded[from..].iter().take(N_SHOWN).collect(),
    };
    Err(error.into())
}

/// The first byte of `text` at which `decoded` differs, and the character there.
fn first_difference(
    text: &str,
    decoded: &[char],
    is_absorbed_at: impl Fn(usize) -> bool,
) -> Option<(usize, usize)> {
    let mut next = 0;
    for (at, character) in text.char_indices() {
        // The tokenizer added a space before the next character.
        while decoded.get(next) == Some(&' ') && character != ' ' {
            next += 1;
        }
        if decoded.get(next) == Some(&character) {
            next += 1;
            continue;
        }
        // Decoders remove the space that was added before the first piece.
        let is_first_blank = at == 0 && character == ' ';
        let is_kept = is_first_blank || character.is_whitespace() && is_absorbed_at(at);
        if !is_kept {
            return Some((at, next));
        }
    }
    let rest = &decoded[next.min(decoded.len())..];
    rest.iter()
        .any(|&character| character != ' ')
        .then_some((text.len(), next))
}

/// Whether the byte belongs to a token that absorbs the white space around it.
fn is_absorbed(at: usize, text: &str, encoded: &Encoded, tokenizer: &Tokenizer) -> bool {
    let mut tokens = encoded.ids.iter().zip(&encoded.offsets);
    let Some((&id, &(start, end))) = tokens.find(|(_, (start, end))| (*start..*end).contains(&at))
    else {
        return false;
    };
    let piece = text.get(start..end).unwrap_or_default();
    let token = tokenizer.id_to_token(id);
    token.is_some_and(|token| piece.trim() == token.trim() && piece != token)
}
