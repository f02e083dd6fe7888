//! Builds a tokenizer from the SentencePiece BPE vocabulary (`llama`) of a GGUF file.
//!
//! Such a file contains a score for each token and no merges: the adjacent pair whose text has the
//! highest score is merged first. The tokenizers library needs a list of merges, which is derived
//! from the scores as transformers does for a `tokenizer.model`. Spaces are written `▁`, and
//! characters without a token are encoded as bytes.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde_json::Value;
use tokenizers::Tokenizer;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Replace, Sequence};
use tooltune_json::catch_panic;

use super::gguf_vocabulary::{
    BYTE, JsonTokens, PLAIN, UNKNOWN, VocabularyError, add_all, added_tokens, check_tokens,
    stored_merges, vocabulary,
};
use crate::budgets::SENTENCE_PIECE_BYTES;

/// The replacement of a space.
const BLANK: &str = "\u{2581}";
/// The score of tokens that no merge produces, as in llama.cpp's converter.
const UNMERGED_SCORE: f32 = -1000.0;

/// The parts of a SentencePiece BPE tokenizer.
#[derive(Clone, Default)]
pub struct SentencePiece {
    /// Tokens by id; bytes are `<0x00>` to `<0xFF>`.
    pub tokens: Vec<String>,
    /// Token types by id: 1 plain, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// Scores by id; the pair whose text has the highest score is merged first.
    pub scores: Vec<f32>,
    /// Id of the unknown token.
    pub unk_token_id: Option<u32>,
    /// Whether a space is added before text and after control tokens.
    pub adds_space: bool,
}

impl fmt::Debug for SentencePiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n_tokens, adds_space) = (self.tokens.len(), self.adds_space);
        write!(
            f,
            "SentencePiece {{ {n_tokens} tokens, adds_space: {adds_space} }}"
        )
    }
}

impl SentencePiece {
    /// Whether a `tokenizer.json` is of this kind.
    pub fn is_json(json: &str) -> bool {
        let file: Value = serde_json::from_str(json).unwrap_or_default();
        file["model"]["byte_fallback"] == true && file["model"]["merges"].is_array()
    }

    /// Reads a `tokenizer.json` with `n_tokens` tokens.
    ///
    /// # Errors
    ///
    /// The file has features that llama.cpp does not support for such a vocabulary, its merges do
    /// not follow from scores, or it has more than `n_tokens` tokens.
    pub fn from_json(json: &str, n_tokens: usize) -> Result<Self, VocabularyError> {
        let no_equivalent = |feature: &str| VocabularyError::NoGgufEquivalent {
            what: feature.to_owned(),
        };
        let file: Value = serde_json::from_str(json).map_err(|_| no_equivalent("invalid JSON"))?;
        let model = &file["model"];
        if model["byte_fallback"] != true || model["ignore_merges"] == true {
            return Err(no_equivalent("a model other than BPE with byte fallback"));
        }
        let adds_space = adds_space(&file)
            .ok_or_else(|| no_equivalent("a normalizer other than SentencePiece's"))?;
        let is_blank = |value: &Value| value == " " || value["String"] == " ";
        let split = &file["pre_tokenizer"];
        // The normalizer has already replaced the spaces at which this pre-tokenizer would split.
        let is_harmless =
            split.is_null() || split["type"] == "Split" && is_blank(&split["pattern"]);
        let is_metaspace = split["type"] == "Metaspace" && split["split"] == false;
        if !is_harmless && !is_metaspace {
            return Err(no_equivalent("a pre-tokenizer"));
        }
        let stored = JsonTokens::from_json(&file, n_tokens, |text| text.replace(BLANK, " "))?;
        let JsonTokens {
            tokens,
            mut token_types,
        } = stored;
        let unknown = model["unk_token"].as_str();
        let unk_token_id = unknown.and_then(|text| model["vocab"][text].as_u64());
        for (id, (text, kind)) in tokens.iter().zip(&mut token_types).enumerate() {
            if *kind == PLAIN && is_byte(text) {
                *kind = BYTE;
            }
            if unk_token_id == u64::try_from(id).ok() {
                *kind = UNKNOWN;
            }
        }
        let merges = plain_token_merges(model, &tokens, &token_types)?;
        let ranks = ranks(&merges);
        let scores = tokens.iter().zip(&token_types);
        let scores = scores.map(|(text, kind)| match (*kind, ranks.get(text)) {
            // The largest rank is far below 2^24, up to which f32 is exact for integers.
            (PLAIN, Some(rank)) => -(*rank as f32),
            (PLAIN, None) => -(ranks.len() as f32),
            (BYTE, _) => 0.0,
            _ => UNMERGED_SCORE,
        });
        let scores = scores.collect();
        let parts = Self {
            unk_token_id: unk_token_id.and_then(|id| u32::try_from(id).ok()),
            scores,
            adds_space,
            tokens,
            token_types,
        };
        if parts.can_reproduce(&merges, &ranks)? {
            Ok(parts)
        } else {
            Err(no_equivalent("merges that token scores cannot reproduce"))
        }
    }

    /// Whether scores can reproduce these merges. All merges that produce one token must be
    /// adjacent, because they share that token's score.
    fn can_reproduce(
        &self,
        merges: &[(&str, &str)],
        ranks: &HashMap<String, usize>,
    ) -> Result<bool, VocabularyError> {
        let theirs: HashSet<(&str, &str)> = merges.iter().copied().collect();
        let derived_merges = self.merges(&vocabulary(self.tokens.clone())?)?;
        let mut pairs = derived_merges
            .iter()
            .map(|(left, right)| (left.as_str(), right.as_str()));
        let is_same =
            derived_merges.len() == theirs.len() && pairs.all(|pair| theirs.contains(&pair));
        let merge_ranks = merges
            .iter()
            .filter_map(|pair| ranks.get(&join_pair(*pair)));
        let merge_ranks: Vec<usize> = merge_ranks.copied().collect();
        Ok(is_same && merge_ranks.is_sorted())
    }

    /// Builds the tokenizer without adding tokens around text.
    ///
    /// Control and user-defined tokens are matched in the text first; decoding with
    /// `skip_special_tokens` drops control tokens.
    ///
    /// # Errors
    ///
    /// Tokens, types and scores are inconsistent, a byte has no token, or a token is too long.
    pub fn into_tokenizer(self) -> Result<Tokenizer, VocabularyError> {
        // The parts come from an untrusted file, and the library panics on some invalid ones.
        catch_panic(|| self.build())
            .unwrap_or_else(|panicked| Err(VocabularyError::Tokenizer(panicked.into())))
    }

    fn build(self) -> Result<Tokenizer, VocabularyError> {
        check_tokens(&self.tokens, &self.token_types)?;
        if self.scores.len() != self.tokens.len() {
            return Err(VocabularyError::ScoreCount {
                n_scores: self.scores.len(),
                n_tokens: self.tokens.len(),
            });
        }
        let ids = vocabulary(self.tokens.clone())?;
        let mut bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
        if let Some(byte) = bytes.find(|byte| !ids.contains_key(byte)) {
            return Err(VocabularyError::NoByte { byte });
        }
        let merges = self.merges(&ids)?;
        let added = added_tokens(&self.tokens, &self.token_types);
        let unknown = self
            .unk_token_id
            .and_then(|id| self.tokens.get(id as usize));
        let mut bpe = BPE::builder()
            .vocab_and_merges(ids, merges)
            .byte_fallback(true)
            .fuse_unk(true);
        if let Some(unknown) = unknown {
            bpe = bpe.unk_token(unknown.clone());
        }
        let mut tokenizer = Tokenizer::new(bpe.build()?);
        let mut steps: Vec<NormalizerWrapper> = Vec::new();
        if self.adds_space {
            steps.push(Prepend::new(BLANK.to_owned()).into());
        }
        steps.push(Replace::new(" ", BLANK)?.into());
        tokenizer.with_normalizer(Some(Sequence::new(steps)))?;
        let mut decoders: Vec<DecoderWrapper> = vec![
            Replace::new(BLANK, " ")?.into(),
            ByteFallback::new().into(),
            Fuse::new().into(),
        ];
        if self.adds_space {
            decoders.push(Strip::new(' ', 1, 0).into());
        }
        tokenizer.with_decoder(Some(Decoders::new(decoders)));
        add_all(&mut tokenizer, added)?;
        Ok(tokenizer)
    }

    /// Every pair of tokens whose concatenation is a token, highest score first.
    ///
    /// # Source
    ///
    /// huggingface/transformers, `tokenization_utils_sentencepiece.py`, `generate_merges`.
    fn merges(&self, ids: &Vocab) -> Result<Vec<(String, String)>, VocabularyError> {
        let is_plain = |text: &str| {
            let kind = ids
                .get(text)
                .and_then(|id| self.token_types.get(*id as usize));
            kind.is_some_and(|kind| *kind == PLAIN)
        };
        let mut pairs: Vec<(f32, &str, &str)> = Vec::new();
        for (id, (text, kind)) in self.tokens.iter().zip(&self.token_types).enumerate() {
            if *kind != PLAIN {
                continue;
            }
            if text.len() > SENTENCE_PIECE_BYTES {
                return Err(VocabularyError::LongToken {
                    id,
                    n_bytes: text.len(),
                });
            }
            let score = self.scores.get(id).copied().unwrap_or(UNMERGED_SCORE);
            for (at, _) in text.char_indices().skip(1) {
                let (left, right) = text.split_at(at);
                if is_plain(left) && is_plain(right) {
                    pairs.push((score, left, right));
                }
            }
        }
        // Pairs with equal scores are sorted by the lengths of both parts in characters, then by
        // id.
        let n_chars = |text: &str| text.chars().count();
        pairs.sort_by(|one, other| {
            let by_score = other.0.total_cmp(&one.0);
            by_score
                .then_with(|| n_chars(other.1).cmp(&n_chars(one.1)))
                .then_with(|| n_chars(other.2).cmp(&n_chars(one.2)))
        });
        let owned = |(_, left, right): (f32, &str, &str)| (left.to_owned(), right.to_owned());
        Ok(pairs.into_iter().map(owned).collect())
    }
}

/// The merges of a `tokenizer.json` that produce plain tokens; other tokens are matched as a whole
/// and never produced by merges.
fn plain_token_merges<'m>(
    model: &'m Value,
    tokens: &[String],
    token_types: &[i32],
) -> Result<Vec<(&'m str, &'m str)>, VocabularyError> {
    let plain_tokens = tokens
        .iter()
        .zip(token_types)
        .filter(|(_, kind)| **kind == PLAIN);
    let plain_tokens: HashSet<&str> = plain_tokens.map(|(text, _)| text.as_str()).collect();
    let merges = stored_merges(model)?.into_iter();
    Ok(merges
        .filter(|pair| plain_tokens.contains(join_pair(*pair).as_str()))
        .collect())
}

/// The rank of each token among the merge results.
fn ranks(merges: &[(&str, &str)]) -> HashMap<String, usize> {
    let mut ranks = HashMap::new();
    for pair in merges {
        let rank = ranks.len();
        ranks.entry(join_pair(*pair)).or_insert(rank);
    }
    ranks
}

fn join_pair((left, right): (&str, &str)) -> String {
    format!("{left}{right}")
}

/// Whether a token is spelled like a byte token.
fn is_byte(text: &str) -> bool {
    let digits = text
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Whether the normalizer of a `tokenizer.json` adds a space before text; `None` if it is not
/// SentencePiece's, which replaces spaces by `▁`.
fn adds_space(file: &Value) -> Option<bool> {
    let normalizer = &file["normalizer"];
    let steps: Vec<&Value> = match normalizer["type"].as_str() {
        Some("Sequence") => normalizer["normalizers"].as_array()?.iter().collect(),
        Some(_) => vec![normalizer],
        None => Vec::new(),
    };
    let replaces = |step: &Value| {
        step["type"] == "Replace" && step["pattern"]["String"] == " " && step["content"] == BLANK
    };
    let prepends = |step: &Value| step["type"] == "Prepend" && step["prepend"] == BLANK;
    let split = &file["pre_tokenizer"];
    match steps.as_slice() {
        [step] if replaces(step) => Some(false),
        [first, second] if prepends(first) && replaces(second) => Some(true),
        // Llama 2's newer format, which adds a space only at the start of the text, is not
        // supported.
        [] if split["type"] == "Metaspace" => (split["prepend_scheme"] == "never").then_some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::gguf_vocabulary::{CONTROL, USER_DEFINED};
    use super::*;

    /// Bytes, letters and spaces, merges of "hello", a control token, and runs of spaces.
    fn parts(adds_space: bool) -> SentencePiece {
        let mut tokens = vec![
            ("<unk>".to_owned(), UNKNOWN, 0.0),
            ("<end>".to_owned(), CONTROL, 0.0),
        ];
        tokens.extend((0..=u8::MAX).map(|byte| (format!("<0x{byte:02X}>"), BYTE, 0.0)));
        for whole in ["  ", "\n"] {
            tokens.push((whole.to_owned(), USER_DEFINED, UNMERGED_SCORE));
        }
        let plain = ["he", "ll", "hell", "▁hell", "▁h", "lo"];
        let letters = ["h", "e", "l", "o", "▁", "w"];
        for (rank, text) in plain.into_iter().chain(letters).enumerate() {
            tokens.push((text.to_owned(), PLAIN, -(rank as f32)));
        }
        let mut parts = SentencePiece {
            unk_token_id: Some(0),
            adds_space,
            ..SentencePiece::default()
        };
        for (text, kind, score) in tokens {
            parts.tokens.push(text);
            parts.token_types.push(kind);
            parts.scores.push(score);
        }
        parts
    }

    fn tokens(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
        tokenizer.encode(text, false).unwrap().get_tokens().to_vec()
    }

    #[test]
    fn pairs_are_merged_by_the_scores_of_their_results() {
        let tokenizer = parts(false).into_tokenizer().unwrap();
        assert_eq!(
            tokens(&tokenizer, "hello hello"),
            ["hell", "o", "▁hell", "o"]
        );
        assert_eq!(
            tokens(&tokenizer, "lo  w\n<end>é"),
            ["lo", "  ", "w", "\n", "<end>", "<0xC3>", "<0xA9>"]
        );
        let tokenizer = parts(true).into_tokenizer().unwrap();
        assert_eq!(tokens(&tokenizer, "hello"), ["▁hell", "o"]);
        assert_eq!(tokens(&tokenizer, "<end>hello"), ["<end>", "▁hell", "o"]);
    }

    #[test]
    fn any_text_survives_encoding_and_decoding() {
        let text = " hello  wörld\t日本語 🙂 12345\r\n   {\"a\": -1.5e3}<end>\n ";
        let tokenizer = parts(false).into_tokenizer().unwrap();
        let encoding = tokenizer.encode(text, false).unwrap();
        let ids = encoding.get_ids();
        assert_eq!(tokenizer.decode(ids, false).unwrap(), text);
        assert_eq!(
            tokenizer.decode(ids, true).unwrap(),
            text.replace("<end>", "")
        );
    }

    #[test]
    fn the_parts_of_a_tokenizer_json_produce_the_same_tokens() {
        for adds_space in [false, true] {
            let tokenizer = parts(adds_space).into_tokenizer().unwrap();
            let json = tokenizer.to_string(false).unwrap();
            assert!(SentencePiece::is_json(&json));
            let vocabulary =
                SentencePiece::from_json(&json, parts(adds_space).tokens.len()).unwrap();
            assert_eq!(vocabulary.adds_space, adds_space);
            assert_eq!(vocabulary.tokens, parts(adds_space).tokens);
            assert_eq!(vocabulary.token_types, parts(adds_space).token_types);
            let rebuilt = vocabulary.into_tokenizer().unwrap();
            for text in ["hello hello  lo", "  \n<end>wello", "é▁"] {
                assert_eq!(tokens(&rebuilt, text), tokens(&tokenizer, text));
            }
            let error = SentencePiece::from_json(&json, 3).unwrap_err();
            assert!(error.to_string().contains("beyond the"), "{error}");
            // A pair that scores would merge but the file does not, and a different normalizer.
            for (from, to) in [("[\"h\",\"e\"],", ""), ("\"Replace\"", "\"Lowercase\"")] {
                let modified = json.replace(from, to);
                assert_ne!(modified, json);
                let error = SentencePiece::from_json(&modified, 300).unwrap_err();
                assert!(
                    error.to_string().contains("a GGUF file cannot express"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_errors() {
        let error = |change: fn(&mut SentencePiece)| {
            let mut bad = parts(false);
            change(&mut bad);
            bad.into_tokenizer().unwrap_err().to_string()
        };
        let no_byte = error(|bad| bad.tokens[12] = "x".to_owned());
        assert!(no_byte.contains("<0x0A>"), "{no_byte}");
        let scores = error(|bad| bad.scores.truncate(5));
        assert!(scores.contains("5 scores"), "{scores}");
        let long = error(|bad| *bad.tokens.last_mut().unwrap() = "x".repeat(2000));
        assert!(long.contains("SENTENCE_PIECE_BYTES"), "{long}");
        let twice = error(|bad| *bad.tokens.last_mut().unwrap() = "he".to_owned());
        assert!(twice.contains("are both"), "{twice}");
        let types = error(|bad| bad.token_types.truncate(5));
        assert!(types.contains("5 token types"), "{types}");
        assert!(error(|bad| *bad = SentencePiece::default()).contains("no tokens"));
    }
}
