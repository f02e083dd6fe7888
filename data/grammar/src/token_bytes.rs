//! Finds the bytes of each token of a tokenizer.
//!
//! A token's spelling in the vocabulary is not its text. Byte-level BPE spells bytes with GPT-2's
//! printable characters. SentencePiece spells a space as U+2581 and single bytes as `<0xE2>`. The
//! tokenizer's decoder shows which spelling is used. An unsupported decoder is refused, because
//! masks with wrong bytes would look right.

use std::collections::HashMap;

use serde_json::Value;
use tooltune_rows::text::Tokenizer;

use super::error::GrammarError;

/// First byte of the trie entry of a token that never occurs in text.
const SPECIAL: u8 = llguidance::toktrie::TokTrie::SPECIAL_TOKEN_MARKER;
/// Maximum bytes of a token. The trie is traversed recursively, one level per byte.
const MAX_TOKEN_BYTES: usize = 4096;

/// Trie IDs have 24 bits.
pub(super) const MAX_IDS: usize = 1 << 24;

/// The bytes of a vocabulary's tokens.
pub(super) struct TokenBytes {
    /// Bytes by ID, up to the last token. Tokens that never occur in text begin with [`SPECIAL`];
    /// IDs without a token are empty.
    pub(super) bytes: Vec<Vec<u8>>,
    /// IDs of special tokens by spelling.
    pub(super) specials: HashMap<String, u32>,
    /// Whether decoding drops one leading space.
    pub(super) drops_leading_blank: bool,
}

/// How a vocabulary spells its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    ByteLevel,
    Pieces {
        blank: Option<char>,
        has_bytes: bool,
        drops_leading_blank: bool,
    },
}

/// Reads the bytes of all tokens. `stop_ids` are treated as special tokens even if the file does
/// not mark them as special.
pub(super) fn token_bytes(
    tokenizer: &Tokenizer,
    stop_ids: &[u32],
) -> Result<TokenBytes, GrammarError> {
    let file: Value = serde_json::from_str(&tokenizer.to_json()?)
        .map_err(|error| unsupported_tokenizer(format!("its JSON cannot be read: {error}")))?;
    let spelling = detect_spelling(&file["decoder"])?;
    let mut bytes = Vec::new();
    for (text, id) in pieces(&file["model"]["vocab"])? {
        insert_token(&mut bytes, id, spelling.bytes(text))?;
    }
    let mut specials = HashMap::new();
    for token in file["added_tokens"].as_array().into_iter().flatten() {
        let (Some(id), Some(text)) = (token["id"].as_u64(), token["content"].as_str()) else {
            return Err(unsupported_tokenizer(
                "an added token has no id or no content",
            ));
        };
        if token["special"] != Value::Bool(true) {
            insert_token(&mut bytes, id, text.as_bytes().to_vec())?;
        } else if let Ok(special) = u32::try_from(id) {
            specials.insert(text.to_owned(), special);
            insert_token(&mut bytes, id, special_bytes(text.as_bytes()))?;
        }
    }
    for &id in stop_ids {
        match bytes.get_mut(id as usize) {
            Some(token) if token.first() != Some(&SPECIAL) => *token = special_bytes(token),
            _ => {}
        }
    }
    let drops_leading_blank = matches!(
        spelling,
        Spelling::Pieces {
            drops_leading_blank: true,
            ..
        }
    );
    Ok(TokenBytes {
        bytes,
        specials,
        drops_leading_blank,
    })
}

fn special_bytes(text: &[u8]) -> Vec<u8> {
    [&[SPECIAL], text].concat()
}

fn insert_token(bytes: &mut Vec<Vec<u8>>, id: u64, token: Vec<u8>) -> Result<(), GrammarError> {
    if token.len() > MAX_TOKEN_BYTES {
        let n_bytes = token.len();
        return Err(unsupported_tokenizer(format!(
            "token {id} has {n_bytes} bytes"
        )));
    }
    let id = usize::try_from(id).ok().filter(|&id| id < MAX_IDS);
    let id = id.ok_or_else(|| unsupported_tokenizer("the id of a token is too large"))?;
    if bytes.len() <= id {
        bytes.resize(id + 1, Vec::new());
    }
    if let Some(slot) = bytes.get_mut(id) {
        *slot = token;
    }
    Ok(())
}

/// A BPE vocabulary maps spellings to IDs; a Unigram vocabulary lists spellings with scores.
fn pieces(vocabulary: &Value) -> Result<Vec<(&str, u64)>, GrammarError> {
    let pieces: Option<Vec<(&str, u64)>> = match vocabulary {
        Value::Object(ids) => ids
            .iter()
            .map(|(text, id)| Some((text.as_str(), id.as_u64()?)))
            .collect(),
        Value::Array(scored) => (0..)
            .zip(scored)
            .map(|(id, piece)| Some((piece.get(0)?.as_str()?, id)))
            .collect(),
        _ => None,
    };
    pieces.ok_or_else(|| {
        unsupported_tokenizer("its vocabulary is neither a map nor a list of pieces")
    })
}

fn detect_spelling(decoder: &Value) -> Result<Spelling, GrammarError> {
    let parts = match decoder["decoders"].as_array() {
        Some(parts) => parts.iter().collect(),
        None => vec![decoder],
    };
    let (mut blank, mut has_bytes, mut drops_leading_blank) = (None, false, false);
    for part in parts {
        match part["type"].as_str() {
            Some("ByteLevel") => return Ok(Spelling::ByteLevel),
            Some("ByteFallback") => has_bytes = true,
            Some("Fuse") => {}
            Some("Replace") if part["content"] == " " => {
                blank = one_character(&part["pattern"]["String"]);
            }
            Some("Strip") if part["content"] == " " && part["stop"] == 0 => {
                drops_leading_blank = part["start"] == 1;
            }
            Some("Metaspace") => {
                blank = one_character(&part["replacement"]);
                drops_leading_blank = part["prepend_scheme"] != "never";
            }
            other => {
                return Err(unsupported_tokenizer(format!(
                    "its decoder {} is not supported",
                    other.unwrap_or("null")
                )));
            }
        }
    }
    Ok(Spelling::Pieces {
        blank,
        has_bytes,
        drops_leading_blank,
    })
}

fn one_character(text: &Value) -> Option<char> {
    let mut characters = text.as_str()?.chars();
    let first = characters.next()?;
    characters.next().is_none().then_some(first)
}

impl Spelling {
    fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => {
                let bytes: Option<Vec<u8>> = token.chars().map(bpe_byte).collect();
                // If a token is not spelled in bytes, it decodes to its own text.
                bytes.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Self::Pieces {
                blank, has_bytes, ..
            } => {
                if let Some(byte) = has_bytes.then(|| byte_piece(token)).flatten() {
                    return vec![byte];
                }
                match blank {
                    Some(blank) => token.replace(blank, " ").into_bytes(),
                    None => token.as_bytes().to_vec(),
                }
            }
        }
    }
}

/// Parses a byte token such as `<0xE2>`.
fn byte_piece(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2)
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// The byte of a character in byte-level BPE.
///
/// # Source
///
/// openai/gpt-2, `src/encoder.py`, `bytes_to_unicode`: printable characters encode themselves; the
/// other 68 bytes map, in order, to U+0100 and following.
fn bpe_byte(character: char) -> Option<u8> {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => is_itself(byte).then_some(byte),
        Err(_) => {
            let idx = usize::try_from(code.checked_sub(0x100)?).ok()?;
            (0..=u8::MAX).filter(|&byte| !is_itself(byte)).nth(idx)
        }
    }
}

pub(super) fn unsupported_tokenizer(reason: impl Into<String>) -> GrammarError {
    GrammarError::Tokenizer {
        reason: reason.into(),
    }
}
