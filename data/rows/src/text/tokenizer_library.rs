//! The tokenizers library on files of others: bounded, and its panics are errors of the file.
//!
//! A `tokenizer.json` says what is done with a text: it may double it thirty times, and the library
//! panics on files that it does not expect. So a file is looked at before the library reads it, what
//! it may make of a text is computed from its parts, and every call that could panic is contained.
//! The decision to question: where the worst that a normalizer could do is too much, which is seldom
//! the case for texts of ordinary length, the text is normalised once more, in small pieces, only to
//! see how long it becomes.

use std::path::Path;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use serde_json::Value;
use tokenizers::{
    DecoderWrapper, Encoding, ModelWrapper, NormalizedString, Normalizer as _, NormalizerWrapper,
    PreTokenizerWrapper,
};

use super::error::DataError;
use crate::budgets::{
    TEMPLATE_TEXT_BYTES, TOKENIZER_BYTES, TOKENIZER_GROWTH, TOKENIZER_LEVELS,
    TOKENIZER_PIECE_BYTES, TOKENIZER_STEP_BYTES, TOKENIZER_STEPS, TOKENIZER_TEXT_BYTES,
    TOKENIZER_WORD_CHARS,
};
use crate::contained::contained;
use crate::json;
use crate::read_error::ReadError;
use crate::regular_file;

/// A tokenizer of the library, with where it comes from.
#[derive(Clone)]
pub(super) struct Library {
    pub(super) inner: tokenizers::Tokenizer,
    origin: Option<String>,
    /// How many times as long the normalizer may make a text.
    growth: usize,
}

impl Library {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, is not JSON, or nests too deeply
    /// - the library refuses it, or panics
    /// - it does more with a text than tokenizers may (docs/limits.md)
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let bytes = regular_file::read(path, TOKENIZER_BYTES)
            .map_err(|error| ReadError::unreadable(path, error))?;
        let refused = |reason: String| DataError::TokenizerFile {
            path: path.to_owned(),
            reason,
        };
        let n_levels = levels(&bytes);
        if n_levels > TOKENIZER_LEVELS {
            return Err(refused(format!(
                "it nests {n_levels} levels deep, and the limit is {TOKENIZER_LEVELS} \
                 (TOKENIZER_LEVELS in docs/limits.md)"
            )));
        }
        let parts: Parts =
            serde_json::from_slice(&bytes).map_err(|error| refused(format!("no JSON: {error}")))?;
        must_hold_whole_maps(&parts.normalizer).map_err(refused)?;
        let read = contained(|| tokenizers::Tokenizer::from_bytes(bytes));
        let inner = read
            .map_err(|panicked| refused(format!("the tokenizers library fails on it: {panicked}")))?
            .map_err(|error| refused(error.to_string()))?;
        let library = Self {
            growth: growth_of_normalizer(&inner),
            inner,
            origin: Some(path.display().to_string()),
        };
        library.must_do_little().map_err(refused)?;
        Ok(library)
    }

    /// Takes a tokenizer that was built here.
    pub(super) fn of(inner: tokenizers::Tokenizer) -> Self {
        Self {
            growth: growth_of_normalizer(&inner),
            inner,
            origin: None,
        }
    }

    /// Sees anew what the normalizer may do, after another was put in its place.
    pub(super) fn with_normalizer(mut self, normalizer: NormalizerWrapper) -> Self {
        self.inner.with_normalizer(Some(normalizer)).ok();
        self.growth = growth_of_normalizer(&self.inner);
        self
    }

    /// Refuses files whose parts could make a text too long or take too long.
    fn must_do_little(&self) -> Result<(), String> {
        let too_many = |what: &str, asked: usize, limit: usize, constant: &str| {
            Err(format!(
                "{what}: {asked}, and the limit is {limit} ({constant} in docs/limits.md)"
            ))
        };
        let mut normalizers = Vec::new();
        if let Some(normalizer) = self.inner.get_normalizer() {
            flatten_normalizers(normalizer, &mut normalizers);
        }
        let mut splits = Vec::new();
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            flatten_pre_tokenizers(pre_tokenizer, &mut splits);
        }
        let mut decoders = Vec::new();
        if let Some(decoder) = self.inner.get_decoder() {
            flatten_decoders(decoder, &mut decoders);
        }
        for (what, n_steps) in [
            ("steps of its normalizer", normalizers.len()),
            ("steps of its pre-tokenizer", splits.len()),
            ("steps of its decoder", decoders.len()),
        ] {
            if n_steps > TOKENIZER_STEPS {
                return too_many(what, n_steps, TOKENIZER_STEPS, "TOKENIZER_STEPS");
            }
        }
        let product = |factors: Vec<usize>| factors.into_iter().fold(1, usize::saturating_mul);
        let split = product(splits.into_iter().map(growth_of_pre_tokenizer).collect());
        let decoded = product(decoders.into_iter().map(growth_of_decoder).collect());
        for (what, growth) in [
            ("times that its pre-tokenizer may lengthen a text", split),
            ("times that its decoder may lengthen a text", decoded),
        ] {
            if growth > TOKENIZER_GROWTH {
                return too_many(what, growth, TOKENIZER_GROWTH, "TOKENIZER_GROWTH");
            }
        }
        if let ModelWrapper::WordPiece(model) = self.inner.get_model() {
            let asked = model.max_input_chars_per_word;
            if asked > TOKENIZER_WORD_CHARS {
                let what = "its max_input_chars_per_word";
                return too_many(what, asked, TOKENIZER_WORD_CHARS, "TOKENIZER_WORD_CHARS");
            }
        }
        match self.inner.get_vocab_size(false) {
            0 => Err("its vocabulary is empty: every text would lose its characters".to_owned()),
            _ => Ok(()),
        }
    }

    /// Reads a text as tokens, without those that are put around it.
    ///
    /// # Errors
    ///
    /// - the text, or what the normalizer makes of it, is too long
    /// - the library fails on it, or panics
    pub(super) fn encode(&self, text: &str) -> Result<Encoding, DataError> {
        self.call(text, false)
    }

    /// As [`Library::encode`], with the tokens that are put around it.
    pub(super) fn encode_whole(&self, text: &str) -> Result<Encoding, DataError> {
        self.call(text, true)
    }

    fn call(&self, text: &str, adds_special: bool) -> Result<Encoding, DataError> {
        self.must_stay_short(text)?;
        self.run(|| self.inner.encode(text, adds_special))
    }

    /// Runs a call of the library, whose errors and panics name the file.
    pub(super) fn run<T>(
        &self,
        call: impl FnOnce() -> tokenizers::Result<T>,
    ) -> Result<T, DataError> {
        match contained(call) {
            Ok(result) => result.map_err(|error| self.failed(error.to_string())),
            Err(panicked) => {
                Err(self.failed(format!("the tokenizers library fails on it: {panicked}")))
            }
        }
    }

    fn failed(&self, reason: String) -> DataError {
        let reason = match &self.origin {
            Some(origin) => format!("{origin}: {reason}"),
            None => reason,
        };
        DataError::Tokenize { reason }
    }

    /// Refuses a step that would make very much of a piece before it does.
    fn must_do_a_short_step(
        &self,
        step: &NormalizerWrapper,
        n_bytes: usize,
    ) -> Result<(), DataError> {
        let most = match (step, growth_of_step(step)) {
            (NormalizerWrapper::Prepend(prepend), _) => n_bytes + prepend.prepend.len(),
            // What cannot be told is measured when it is done.
            (_, usize::MAX) => return Ok(()),
            (_, growth) => n_bytes.saturating_mul(growth),
        };
        if most <= TOKENIZER_STEP_BYTES {
            return Ok(());
        }
        Err(self.failed(format!(
            "a step of its normalizer may make {most} bytes of {n_bytes}, and the limit is \
             {TOKENIZER_STEP_BYTES} (TOKENIZER_STEP_BYTES in docs/limits.md)"
        )))
    }

    fn must_stay_short(&self, text: &str) -> Result<(), DataError> {
        if text.len() > TEMPLATE_TEXT_BYTES {
            return Err(self.failed(format!(
                "a text of {} bytes is to be read as tokens, and the limit is \
                 {TEMPLATE_TEXT_BYTES} (TEMPLATE_TEXT_BYTES in docs/limits.md); shorten it",
                text.len()
            )));
        }
        let Some(normalizer) = self.inner.get_normalizer() else {
            return Ok(());
        };
        let at_worst = |n_bytes: usize| n_bytes.saturating_mul(self.growth);
        if at_worst(text.len()) <= TOKENIZER_TEXT_BYTES
            && at_worst(text.len().min(PIECE)) <= TOKENIZER_PIECE_BYTES
        {
            return Ok(());
        }
        let mut steps = Vec::new();
        flatten_normalizers(normalizer, &mut steps);
        let mut n_bytes = 0;
        for piece in pieces(text) {
            let mut normalized = NormalizedString::from(piece);
            for step in &steps {
                self.must_do_a_short_step(step, normalized.len())?;
                self.run(|| step.normalize(&mut normalized))?;
                let too_much = if normalized.len() > TOKENIZER_PIECE_BYTES {
                    Some((TOKENIZER_PIECE_BYTES, piece, "TOKENIZER_PIECE_BYTES"))
                } else if n_bytes + normalized.len() > TOKENIZER_TEXT_BYTES {
                    Some((TOKENIZER_TEXT_BYTES, text, "TOKENIZER_TEXT_BYTES"))
                } else {
                    None
                };
                if let Some((limit, text, name)) = too_much {
                    return Err(self.failed(format!(
                        "its normalizer makes more than {limit} bytes of a text of {}, which is \
                         the limit ({name} in docs/limits.md)",
                        text.len()
                    )));
                }
            }
            n_bytes += normalized.len();
        }
        Ok(())
    }
}

/// What is looked at of a `tokenizer.json` before the library reads it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Parts {
    normalizer: Value,
}

/// Refuses maps of SentencePiece that end before the trie which they announce: the library asks for
/// the memory of all of it before it looks.
fn must_hold_whole_maps(normalizer: &Value) -> Result<(), String> {
    match normalizer {
        Value::Array(steps) => steps.iter().try_for_each(must_hold_whole_maps),
        Value::Object(fields) => {
            let map = fields.get("precompiled_charsmap").and_then(Value::as_str);
            if let Some(blob) = map.and_then(decoded) {
                let n_bytes = blob.len().saturating_sub(4);
                if let Some(asked) = trie_bytes(&blob).filter(|asked| *asked > n_bytes) {
                    return Err(format!(
                        "its precompiled_charsmap announces a trie of {asked} bytes, and {n_bytes} \
                         follow"
                    ));
                }
            }
            fields.values().try_for_each(must_hold_whole_maps)
        }
        _ => Ok(()),
    }
}

/// Bytes of a piece of a text, but for its last character.
const PIECE: usize = 256;

/// A text in pieces of some hundred bytes.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = if rest.len() > PIECE {
            (PIECE..rest.len()).find(|&at| rest.is_char_boundary(at))
        } else {
            None
        };
        let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// How deep a JSON text nests, as far as brackets outside of its strings tell.
fn levels(bytes: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for (_, byte) in json::outside_strings(bytes) {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn flatten_normalizers<'n>(
    normalizer: &'n NormalizerWrapper,
    all: &mut Vec<&'n NormalizerWrapper>,
) {
    match normalizer {
        NormalizerWrapper::Sequence(sequence) => {
            for step in sequence.as_ref() {
                flatten_normalizers(step, all);
            }
        }
        step => all.push(step),
    }
}

fn flatten_pre_tokenizers<'p>(
    pre_tokenizer: &'p PreTokenizerWrapper,
    all: &mut Vec<&'p PreTokenizerWrapper>,
) {
    match pre_tokenizer {
        PreTokenizerWrapper::Sequence(sequence) => {
            for step in sequence.as_ref() {
                flatten_pre_tokenizers(step, all);
            }
        }
        step => all.push(step),
    }
}

fn flatten_decoders<'d>(decoder: &'d DecoderWrapper, all: &mut Vec<&'d DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            for step in sequence.get_decoders() {
                flatten_decoders(step, all);
            }
        }
        step => all.push(step),
    }
}

/// How many times as long the normalizer may make a text, at worst.
fn growth_of_normalizer(tokenizer: &tokenizers::Tokenizer) -> usize {
    let mut steps = Vec::new();
    if let Some(normalizer) = tokenizer.get_normalizer() {
        flatten_normalizers(normalizer, &mut steps);
    }
    let factors = steps.into_iter().map(growth_of_step);
    factors.fold(1, usize::saturating_mul)
}

fn growth_of_step(step: &NormalizerWrapper) -> usize {
    match step {
        // Between any two bytes a pattern may find nothing, which is replaced.
        NormalizerWrapper::Replace(replace) => replace.content.len() + 1,
        NormalizerWrapper::Prepend(prepend) => prepend.prepend.len() + 1,
        NormalizerWrapper::ByteLevel(_) => 2,
        // U+FDFA becomes eleven times as long.
        NormalizerWrapper::NFKC(_) | NormalizerWrapper::NFKD(_) => 11,
        NormalizerWrapper::Precompiled(map) => longest_replacement(map),
        NormalizerWrapper::Sequence(_) => usize::MAX,
        _ => 3,
    }
}

/// The longest text that a map of SentencePiece puts in the place of a character.
///
/// # Source
///
/// sentencepiece, `src/normalizer.cc`, `DecodePrecompiledCharsMap`: the size of a trie, the trie,
/// and the texts, each of which ends with a zero.
fn longest_replacement(map: &impl serde::Serialize) -> usize {
    let longest = || {
        let value = serde_json::to_value(map).ok()?;
        let blob = decoded(value.get("precompiled_charsmap")?.as_str()?)?;
        let texts = blob.get(trie_bytes(&blob)?.checked_add(4)?..)?;
        texts.split(|byte| *byte == 0).map(<[u8]>::len).max()
    };
    // What cannot be told is measured on each text.
    longest().map_or(usize::MAX, |longest| longest + 1)
}

fn decoded(map: &str) -> Option<Vec<u8>> {
    /// As the library reads it, which asks for no padding.
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_allow_trailing_bits(true)
            .with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    BASE64.decode(map).ok()
}

/// The size of the trie that a map of SentencePiece announces.
fn trie_bytes(blob: &[u8]) -> Option<usize> {
    let size = u32::from_le_bytes(blob.get(..4)?.try_into().ok()?);
    usize::try_from(size).ok()
}

fn growth_of_pre_tokenizer(step: &PreTokenizerWrapper) -> usize {
    match step {
        // Each byte is spelled with up to two, and each piece may get a blank.
        PreTokenizerWrapper::ByteLevel(_) => 3,
        // A blank becomes a character of up to four bytes, and each piece may get one.
        PreTokenizerWrapper::Metaspace(_) => 8,
        _ => 1,
    }
}

fn growth_of_decoder(step: &DecoderWrapper) -> usize {
    match step {
        DecoderWrapper::Replace(replace) => replace.content.len() + 1,
        // A byte that is no text becomes U+FFFD.
        DecoderWrapper::ByteFallback(_) | DecoderWrapper::ByteLevel(_) => 3,
        _ => 1,
    }
}
