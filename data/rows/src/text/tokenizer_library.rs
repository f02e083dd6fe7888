//! Runs the tokenizers library on untrusted files with limits, and converts its panics to errors.
//!
//! A `tokenizer.json` describes text transformations, which may double the text thirty times, and
//! the library panics on unexpected files. The file is therefore checked before the library reads
//! it, the output size is bounded from the parts of the tokenizer, and panics of the library are
//! caught. If the worst-case output of the normalizer exceeds the limit, which is rare for text of
//! ordinary length, the text is first normalized in small pieces to measure its length.

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
use tooltune_disk::budgets::TOKENIZER_BYTES;
use tooltune_disk::regular_file;
use tooltune_json as json;
use tooltune_json::{ReadError, catch_panic};
use tooltune_template::budgets::TEMPLATE_TEXT_BYTES;

use super::error::DataError;
use crate::budgets::{
    TOKENIZER_GROWTH, TOKENIZER_LEVELS, TOKENIZER_PIECE_BYTES, TOKENIZER_STEP_BYTES,
    TOKENIZER_STEPS, TOKENIZER_TEXT_BYTES, TOKENIZER_WORD_CHARS,
};

/// A tokenizer of the library with its origin.
#[derive(Clone)]
pub(super) struct LibraryTokenizer {
    pub(super) inner: tokenizers::Tokenizer,
    origin: Option<String>,
    /// Maximum factor by which the normalizer may lengthen text.
    growth: usize,
}

impl LibraryTokenizer {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, is not JSON, or nests too deeply
    /// - the library rejects it or panics
    /// - it exceeds the limits for tokenizers (docs/limits.md)
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let bytes = regular_file::read(path, TOKENIZER_BYTES)
            .map_err(|error| ReadError::unreadable(path, error))?;
        let invalid_file = |reason: String| DataError::TokenizerFile {
            path: path.to_owned(),
            reason,
        };
        let n_levels = json_depth(&bytes);
        if n_levels > TOKENIZER_LEVELS {
            return Err(invalid_file(format!(
                "it nests {n_levels} levels deep, but the limit is {TOKENIZER_LEVELS} \
                 (TOKENIZER_LEVELS in docs/limits.md)"
            )));
        }
        let parts: Parts = serde_json::from_slice(&bytes)
            .map_err(|error| invalid_file(format!("not valid JSON: {error}")))?;
        check_charsmaps(&parts.normalizer).map_err(invalid_file)?;
        let result = catch_panic(|| tokenizers::Tokenizer::from_bytes(bytes));
        let inner = result
            .map_err(|panicked| {
                invalid_file(format!("the tokenizers library fails on it: {panicked}"))
            })?
            .map_err(|error| invalid_file(error.to_string()))?;
        let library = Self {
            growth: normalizer_growth(&inner),
            inner,
            origin: Some(path.display().to_string()),
        };
        library.check_limits().map_err(invalid_file)?;
        Ok(library)
    }

    /// Wraps a tokenizer that was built here.
    pub(super) fn wrap(inner: tokenizers::Tokenizer) -> Self {
        Self {
            growth: normalizer_growth(&inner),
            inner,
            origin: None,
        }
    }

    /// Recomputes the growth factor after the normalizer was replaced.
    pub(super) fn with_normalizer(mut self, normalizer: NormalizerWrapper) -> Self {
        self.inner.with_normalizer(Some(normalizer)).ok();
        self.growth = normalizer_growth(&self.inner);
        self
    }

    /// Rejects files whose parts could make the text too long or take too much time.
    fn check_limits(&self) -> Result<(), String> {
        let too_many = |what: &str, n_requested: usize, limit: usize, constant: &str| {
            Err(format!(
                "{what}: {n_requested}, but the limit is {limit} ({constant} in docs/limits.md)"
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
        let split = product(splits.into_iter().map(pre_tokenizer_growth).collect());
        let decoded = product(decoders.into_iter().map(decoder_growth).collect());
        for (what, growth) in [
            (
                "factor by which its pre-tokenizer may lengthen a text",
                split,
            ),
            ("factor by which its decoder may lengthen a text", decoded),
        ] {
            if growth > TOKENIZER_GROWTH {
                return too_many(what, growth, TOKENIZER_GROWTH, "TOKENIZER_GROWTH");
            }
        }
        if let ModelWrapper::WordPiece(model) = self.inner.get_model() {
            let n_requested = model.max_input_chars_per_word;
            if n_requested > TOKENIZER_WORD_CHARS {
                let what = "its max_input_chars_per_word";
                return too_many(
                    what,
                    n_requested,
                    TOKENIZER_WORD_CHARS,
                    "TOKENIZER_WORD_CHARS",
                );
            }
        }
        match self.inner.get_vocab_size(false) {
            0 => Err("its vocabulary is empty; download the file again".to_owned()),
            _ => Ok(()),
        }
    }

    /// Encodes text without adding special tokens.
    ///
    /// # Errors
    ///
    /// - the text or its normalized form is too long
    /// - the library fails or panics
    pub(super) fn encode(&self, text: &str) -> Result<Encoding, DataError> {
        self.call(text, false)
    }

    /// Like [`LibraryTokenizer::encode`], with the special tokens added around the text.
    pub(super) fn encode_whole(&self, text: &str) -> Result<Encoding, DataError> {
        self.call(text, true)
    }

    fn call(&self, text: &str, adds_special: bool) -> Result<Encoding, DataError> {
        self.check_text_length(text)?;
        self.run(|| self.inner.encode(text, adds_special))
    }

    /// Runs a library call; errors and panics name the file.
    pub(super) fn run<T>(
        &self,
        call: impl FnOnce() -> tokenizers::Result<T>,
    ) -> Result<T, DataError> {
        match catch_panic(call) {
            Ok(result) => result.map_err(|error| self.error_with_origin(error.to_string())),
            Err(panicked) => {
                Err(self
                    .error_with_origin(format!("the tokenizers library fails on it: {panicked}")))
            }
        }
    }

    fn error_with_origin(&self, reason: String) -> DataError {
        let reason = match &self.origin {
            Some(origin) => format!("{origin}: {reason}"),
            None => reason,
        };
        DataError::Tokenize { reason }
    }

    /// Rejects a step that could produce too much output, before it runs.
    fn check_normalizer_step(
        &self,
        step: &NormalizerWrapper,
        n_bytes: usize,
    ) -> Result<(), DataError> {
        let max_bytes = match (step, growth_of_step(step)) {
            (NormalizerWrapper::Prepend(prepend), _) => n_bytes + prepend.prepend.len(),
            // Unknown growth is measured after the step.
            (_, usize::MAX) => return Ok(()),
            (_, growth) => n_bytes.saturating_mul(growth),
        };
        if max_bytes <= TOKENIZER_STEP_BYTES {
            return Ok(());
        }
        Err(self.error_with_origin(format!(
            "a step of its normalizer may expand {n_bytes} bytes to {max_bytes}, but the limit is \
             {TOKENIZER_STEP_BYTES} (TOKENIZER_STEP_BYTES in docs/limits.md)"
        )))
    }

    fn check_text_length(&self, text: &str) -> Result<(), DataError> {
        if text.len() > TEMPLATE_TEXT_BYTES {
            return Err(self.error_with_origin(format!(
                "the text has {} bytes, but the limit is {TEMPLATE_TEXT_BYTES} \
                 (TEMPLATE_TEXT_BYTES in docs/limits.md); shorten it",
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
                self.check_normalizer_step(step, normalized.len())?;
                self.run(|| step.normalize(&mut normalized))?;
                let too_much = if normalized.len() > TOKENIZER_PIECE_BYTES {
                    Some((TOKENIZER_PIECE_BYTES, piece, "TOKENIZER_PIECE_BYTES"))
                } else if n_bytes + normalized.len() > TOKENIZER_TEXT_BYTES {
                    Some((TOKENIZER_TEXT_BYTES, text, "TOKENIZER_TEXT_BYTES"))
                } else {
                    None
                };
                if let Some((limit, text, name)) = too_much {
                    return Err(self.error_with_origin(format!(
                        "its normalizer expands a text of {} bytes to more than {limit}, the \
                         limit ({name} in docs/limits.md)",
                        text.len()
                    )));
                }
            }
            n_bytes += normalized.len();
        }
        Ok(())
    }
}

/// The parts of a `tokenizer.json` that are checked before the library reads it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Parts {
    normalizer: Value,
}

/// Rejects SentencePiece maps that are shorter than the trie size in their header: the library
/// would allocate that size before checking.
fn check_charsmaps(normalizer: &Value) -> Result<(), String> {
    match normalizer {
        Value::Array(steps) => steps.iter().try_for_each(check_charsmaps),
        Value::Object(fields) => {
            let map = fields.get("precompiled_charsmap").and_then(Value::as_str);
            if let Some(blob) = map.and_then(decode_charsmap) {
                let n_bytes = blob.len().saturating_sub(4);
                if let Some(n_trie_bytes) =
                    trie_bytes(&blob).filter(|n_trie_bytes| *n_trie_bytes > n_bytes)
                {
                    return Err(format!(
                        "its precompiled_charsmap announces a trie of {n_trie_bytes} bytes, but {n_bytes} \
                         follow"
                    ));
                }
            }
            fields.values().try_for_each(check_charsmaps)
        }
        _ => Ok(()),
    }
}

/// Bytes of a piece, apart from its last character.
const PIECE: usize = 256;

/// Splits text into pieces of a few hundred bytes.
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

/// Nesting depth of a JSON text, counted from the brackets outside strings.
fn json_depth(bytes: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for (_, byte) in json::bytes_outside_strings(bytes) {
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

/// Worst-case factor by which the normalizer may lengthen text.
fn normalizer_growth(tokenizer: &tokenizers::Tokenizer) -> usize {
    let mut steps = Vec::new();
    if let Some(normalizer) = tokenizer.get_normalizer() {
        flatten_normalizers(normalizer, &mut steps);
    }
    let factors = steps.into_iter().map(growth_of_step);
    factors.fold(1, usize::saturating_mul)
}

fn growth_of_step(step: &NormalizerWrapper) -> usize {
    match step {
        // An empty match between any two bytes is replaced.
        NormalizerWrapper::Replace(replace) => replace.content.len() + 1,
        NormalizerWrapper::Prepend(prepend) => prepend.prepend.len() + 1,
        NormalizerWrapper::ByteLevel(_) => 2,
        // U+FDFA expands to eleven times its length.
        NormalizerWrapper::NFKC(_) | NormalizerWrapper::NFKD(_) => 11,
        NormalizerWrapper::Precompiled(map) => longest_replacement(map),
        NormalizerWrapper::Sequence(_) => usize::MAX,
        _ => 3,
    }
}

/// The longest replacement of a character in a SentencePiece map.
///
/// # Source
///
/// sentencepiece, `src/normalizer.cc`, `DecodePrecompiledCharsMap`: the size of a trie, the trie,
/// and the replacements, each terminated by a zero byte.
fn longest_replacement(map: &impl serde::Serialize) -> usize {
    let longest = || {
        let value = serde_json::to_value(map).ok()?;
        let blob = decode_charsmap(value.get("precompiled_charsmap")?.as_str()?)?;
        let texts = blob.get(trie_bytes(&blob)?.checked_add(4)?..)?;
        texts.split(|byte| *byte == 0).map(<[u8]>::len).max()
    };
    // Unknown growth is measured for each text.
    longest().map_or(usize::MAX, |longest| longest + 1)
}

fn decode_charsmap(map: &str) -> Option<Vec<u8>> {
    /// Decode like the library, which requires no padding.
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_allow_trailing_bits(true)
            .with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    BASE64.decode(map).ok()
}

/// The trie size in the header of a SentencePiece map.
fn trie_bytes(blob: &[u8]) -> Option<usize> {
    let size = u32::from_le_bytes(blob.get(..4)?.try_into().ok()?);
    usize::try_from(size).ok()
}

fn pre_tokenizer_growth(step: &PreTokenizerWrapper) -> usize {
    match step {
        // Each byte is spelled with up to two, and each piece may get a space.
        PreTokenizerWrapper::ByteLevel(_) => 3,
        // A space becomes a character of up to four bytes, and each piece may get one.
        PreTokenizerWrapper::Metaspace(_) => 8,
        _ => 1,
    }
}

fn decoder_growth(step: &DecoderWrapper) -> usize {
    match step {
        DecoderWrapper::Replace(replace) => replace.content.len() + 1,
        // An invalid byte becomes U+FFFD.
        DecoderWrapper::ByteFallback(_) | DecoderWrapper::ByteLevel(_) => 3,
        _ => 1,
    }
}
