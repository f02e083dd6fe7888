//! Makes a tokenizer of a byte-level BPE vocabulary, as GGUF files carry it.
//!
//! GGUF keeps tokens, merges and the name of a pre-tokenizer, but not its definition; the five
//! definitions here are those of the models' own `tokenizer.json`. A wrong one changes ids on
//! ordinary text without any error, so an unknown name is refused rather than guessed.

use std::fmt;

use serde_json::Value;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use super::gguf_vocabulary::{
    StoredTokens, VocabularyError, add_all, added_tokens, must_fit, stored_merges, vocabulary,
};
use crate::contained::contained;

/// Runs of up to three digits. Source: meta-llama/Llama-3.1-8B-Instruct, `tokenizer.json`.
const LLAMA3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Single digits. Source: Qwen/Qwen2.5-0.5B-Instruct, `tokenizer.json`.
const QWEN2_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Single digits, and marks are letters. Source: Qwen/Qwen3.5-0.8B, `tokenizer.json`, and
/// ggml-org/llama.cpp, `src/llama-vocab.cpp`, `LLAMA_VOCAB_PRE_TYPE_QWEN35`.
const QWEN35_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The parts of a byte-level BPE tokenizer.
#[derive(Clone, Default)]
pub struct ByteLevelBpe {
    /// Token texts by id, bytes spelled with GPT-2's printable characters.
    pub tokens: Vec<String>,
    /// By id: 3 control, 4 user-defined, others plain.
    pub token_types: Vec<i32>,
    /// "left right", highest priority first.
    pub merges: Vec<String>,
    /// Name of the pre-tokenizer, such as "smollm".
    pub pre: String,
}

impl fmt::Debug for ByteLevelBpe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n_tokens, n_merges) = (self.tokens.len(), self.merges.len());
        write!(
            f,
            "ByteLevelBpe {{ pre: {:?}, {n_tokens} tokens, {n_merges} merges }}",
            self.pre
        )
    }
}

impl ByteLevelBpe {
    /// Whether llama.cpp puts the begin token before texts where the file says nothing of it.
    ///
    /// # Source
    ///
    /// ggml-org/llama.cpp, `src/llama-vocab.cpp`, `LLAMA_VOCAB_PRE_TYPE_LLAMA3`.
    pub fn begins_texts(&self) -> bool {
        matches!(PreTokenizer::named(&self.pre), Ok(PreTokenizer::Llama3))
    }

    /// The parts of a `tokenizer.json`, with `n_tokens` tokens: ids that it does not use are filled
    /// up, as llama.cpp's converter does.
    ///
    /// # Errors
    ///
    /// It is no byte-level BPE, its pre-tokenizer or normaliser is none of those that a name in GGUF
    /// stands for, or it has more tokens.
    pub fn from_json(json: &str, n_tokens: usize) -> Result<Self, VocabularyError> {
        let no_form = |what: &str| VocabularyError::NoForm {
            what: what.to_owned(),
        };
        let file: Value = serde_json::from_str(json).map_err(|_| no_form("no JSON"))?;
        let model = &file["model"];
        let is_bpe = model["type"].as_str().unwrap_or("BPE") == "BPE";
        if !is_bpe || model["byte_fallback"] == true {
            return Err(no_form("another model than byte-level BPE"));
        }
        let kind = PreTokenizer::of_json(&file["pre_tokenizer"], model["ignore_merges"] == true)?;
        let is_harmless = file["normalizer"].is_null() || file["normalizer"]["type"] == "NFC";
        if !is_harmless {
            return Err(no_form("a normalizer"));
        }
        let StoredTokens {
            tokens,
            token_types,
        } = StoredTokens::of_json(&file, n_tokens, str::to_owned)?;
        let merges = stored_merges(model)?;
        let merges = merges.into_iter().map(|(l, r)| format!("{l} {r}"));
        Ok(Self {
            tokens,
            token_types,
            merges: merges.collect(),
            pre: kind.name().to_owned(),
        })
    }

    /// Builds the tokenizer: no prefix space, no tokens added around a text.
    ///
    /// Control and user-defined tokens are matched in text before anything else; decoding with
    /// `skip_special_tokens` drops control tokens.
    ///
    /// # Errors
    ///
    /// The pre-tokenizer is unknown, or tokens, types and merges do not fit each other.
    pub fn into_tokenizer(self) -> Result<Tokenizer, VocabularyError> {
        // The parts are a file's, and the library panics on some that it does not expect.
        contained(|| self.build())
            .unwrap_or_else(|panicked| Err(VocabularyError::Tokenizer(panicked.into())))
    }

    fn build(self) -> Result<Tokenizer, VocabularyError> {
        must_fit(&self.tokens, &self.token_types)?;
        let kind = PreTokenizer::named(&self.pre)?;
        let added = added_tokens(&self.tokens, &self.token_types);
        let vocabulary = vocabulary(self.tokens)?;
        let merges = merges(self.merges, &vocabulary)?;
        let bpe = BPE::builder()
            .vocab_and_merges(vocabulary, merges)
            .ignore_merges(kind == PreTokenizer::Llama3)
            .build()?;
        let mut tokenizer = Tokenizer::new(bpe);
        if matches!(kind, PreTokenizer::Qwen2 | PreTokenizer::Qwen35) {
            tokenizer.with_normalizer(Some(NFC))?;
        }
        tokenizer.with_pre_tokenizer(Some(kind.build()?));
        tokenizer.with_decoder(Some(ByteLevel::new(false, false, false)));
        add_all(&mut tokenizer, added)?;
        Ok(tokenizer)
    }
}

/// Splits the merges and checks each: the library indexes out of bounds if the joined text is
/// longer than any token.
fn merges(
    merges: Vec<String>,
    vocabulary: &Vocab,
) -> Result<Vec<(String, String)>, VocabularyError> {
    let pair = |merge: &str| {
        let (left, right) = merge.split_once(' ')?;
        let known = [left, right, &format!("{left}{right}")]
            .into_iter()
            .all(|text| vocabulary.contains_key(text));
        known.then(|| (left.to_owned(), right.to_owned()))
    };
    let pairs = merges
        .into_iter()
        .enumerate()
        .map(|(idx, merge)| match pair(&merge) {
            Some(pair) => Ok(pair),
            None => Err(VocabularyError::BadMerge { idx, merge }),
        });
    pairs.collect()
}

/// A pre-tokenizer as JSON, less what changes offsets alone.
fn described(pre_tokenizer: &PreTokenizerWrapper) -> Result<Value, VocabularyError> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("trim_offsets");
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let described = serde_json::to_value(pre_tokenizer);
    let mut described = described.map_err(|error| VocabularyError::NoForm {
        what: format!("a pre-tokenizer that cannot be described ({error})"),
    })?;
    strip(&mut described);
    Ok(described)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PreTokenizer {
    Smollm,
    Gpt2,
    Qwen2,
    Qwen35,
    Llama3,
}

impl PreTokenizer {
    const ALL: [Self; 5] = [
        Self::Smollm,
        Self::Gpt2,
        Self::Qwen2,
        Self::Qwen35,
        Self::Llama3,
    ];

    /// Its name in GGUF.
    fn name(self) -> &'static str {
        match self {
            Self::Smollm => "smollm",
            Self::Gpt2 => "gpt-2",
            Self::Qwen2 => "qwen2",
            Self::Qwen35 => "qwen35",
            Self::Llama3 => "llama-bpe",
        }
    }

    /// The one that the section of a `tokenizer.json` describes.
    fn of_json(section: &Value, ignores_merges: bool) -> Result<Self, VocabularyError> {
        let unknown = || VocabularyError::NoForm {
            what: "a pre-tokenizer that no name in GGUF stands for".to_owned(),
        };
        let theirs: PreTokenizerWrapper =
            serde_json::from_value(section.clone()).map_err(|_| unknown())?;
        let theirs = described(&theirs)?;
        for kind in Self::ALL {
            let is_same = described(&kind.build()?)? == theirs;
            if is_same && ignores_merges == (kind == Self::Llama3) {
                return Ok(kind);
            }
        }
        Err(unknown())
    }

    /// By the names of llama.cpp, `src/llama-vocab.cpp`.
    fn named(pre: &str) -> Result<PreTokenizer, VocabularyError> {
        match pre {
            "smollm" => Ok(PreTokenizer::Smollm),
            "gpt-2" => Ok(PreTokenizer::Gpt2),
            "qwen2" => Ok(PreTokenizer::Qwen2),
            "qwen35" => Ok(PreTokenizer::Qwen35),
            "llama-bpe" | "llama3" | "llama-v3" => Ok(PreTokenizer::Llama3),
            _ => Err(VocabularyError::UnknownPreTokenizer(pre.to_owned())),
        }
    }

    fn build(self) -> Result<PreTokenizerWrapper, VocabularyError> {
        let gpt2_words = ByteLevel::new(false, true, true);
        let whole = ByteLevel::new(false, true, false);
        let words = |pattern: &str| {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        };
        Ok(match self {
            PreTokenizer::Gpt2 => gpt2_words.into(),
            PreTokenizer::Smollm => {
                Sequence::new(vec![Digits::new(true).into(), gpt2_words.into()]).into()
            }
            PreTokenizer::Qwen2 => {
                Sequence::new(vec![words(QWEN2_WORDS)?.into(), whole.into()]).into()
            }
            PreTokenizer::Qwen35 => {
                Sequence::new(vec![words(QWEN35_WORDS)?.into(), whole.into()]).into()
            }
            PreTokenizer::Llama3 => {
                Sequence::new(vec![words(LLAMA3_WORDS)?.into(), whole.into()]).into()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::gguf_vocabulary::{CONTROL, PLAIN, UNUSED, USER_DEFINED};
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    /// All 256 bytes, "he", "ll", "hell", and a control and a user-defined token.
    fn vocabulary(pre: &str) -> ByteLevelBpe {
        let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        bytes.sort_unstable();
        let mut tokens: Vec<String> = vec!["<|im_end|>".to_owned(), "<tool>".to_owned()];
        tokens.extend(bytes.iter().map(|c| c.to_string()));
        tokens.extend(["he", "ll", "hell"].map(str::to_owned));
        let mut token_types = vec![1; tokens.len()];
        (token_types[0], token_types[1]) = (CONTROL, USER_DEFINED);
        let merges = ["h e", "l l", "he ll"].map(str::to_owned).to_vec();
        ByteLevelBpe {
            tokens,
            token_types,
            merges,
            pre: pre.to_owned(),
        }
    }

    fn words(pre: &str, text: &str) -> Vec<String> {
        let mut split = PreTokenizedString::from(text);
        PreTokenizer::named(pre)
            .unwrap()
            .build()
            .unwrap()
            .pre_tokenize(&mut split)
            .unwrap();
        let splits = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits
            .into_iter()
            .map(|(_, (begin, end), _)| text[begin..end].to_owned())
            .collect()
    }

    #[test]
    fn each_pre_tokenizer_splits_digits_contractions_and_spaces_its_own_way() {
        let text = "We'LL pay  $1234,\n\n it's";
        let expected: [(&str, &[&str]); 5] = [
            (
                "gpt-2",
                &[
                    "We", "'", "LL", " pay", " ", " $", "1234", ",", "\n\n", " it", "'s",
                ],
            ),
            (
                "smollm",
                &[
                    "We", "'", "LL", " pay", " ", " $", "1", "2", "3", "4", ",", "\n\n", " it",
                    "'s",
                ],
            ),
            (
                "qwen2",
                &[
                    "We", "'LL", " pay", " ", " $", "1", "2", "3", "4", ",\n\n", " it", "'s",
                ],
            ),
            (
                "qwen35",
                &[
                    "We", "'LL", " pay", " ", " $", "1", "2", "3", "4", ",\n\n", " it", "'s",
                ],
            ),
            (
                "llama-bpe",
                &[
                    "We", "'LL", " pay", " ", " $", "123", "4", ",\n\n", " it", "'s",
                ],
            ),
        ];
        for (pre, expected) in expected {
            assert_eq!(words(pre, text), expected, "{pre}");
        }
        // A vowel sign belongs to its letter for one of them alone.
        let text = "\u{915}\u{93f}\u{924}";
        assert_eq!(words("qwen35", text), [text]);
        assert_eq!(words("qwen2", text).len(), 2);
    }

    #[test]
    fn any_text_survives_encoding_and_decoding() {
        let text = " hello  wörld\t日本語 🙂 12345\r\n<tool>{\"a\": -1.5e3}<|im_end|>\n ";
        for pre in ["smollm", "gpt-2", "qwen2", "qwen35", "llama-bpe"] {
            let tokenizer = vocabulary(pre).into_tokenizer().unwrap();
            let encoding = tokenizer.encode(text, false).unwrap();
            assert_eq!(
                tokenizer.decode(encoding.get_ids(), false).unwrap(),
                text,
                "{pre}"
            );
            let ids = encoding.get_ids();
            assert!(
                ids.contains(&0) && ids.contains(&1),
                "{pre}: added tokens were split"
            );
            let visible = tokenizer.decode(ids, true).unwrap();
            assert_eq!(visible, text.replace("<|im_end|>", ""), "{pre}");
        }
    }

    #[test]
    fn the_parts_of_a_tokenizer_json_are_those_that_it_was_built_of() {
        for pre in ["smollm", "gpt-2", "qwen2", "qwen35", "llama-bpe"] {
            let parts = vocabulary(pre);
            let n_tokens = parts.tokens.len();
            let json = parts
                .clone()
                .into_tokenizer()
                .unwrap()
                .to_string(false)
                .unwrap();
            let found = ByteLevelBpe::from_json(&json, n_tokens + 2).unwrap();
            assert_eq!(found.pre, pre);
            assert_eq!(found.merges, parts.merges);
            assert_eq!(found.tokens[..n_tokens], parts.tokens);
            assert_eq!(found.tokens[n_tokens + 1], format!("[PAD{}]", n_tokens + 1));
            let as_stored = |kind: &i32| match *kind {
                CONTROL | USER_DEFINED => *kind,
                _ => PLAIN,
            };
            let kinds: Vec<i32> = parts.token_types.iter().map(as_stored).collect();
            assert_eq!(found.token_types[..n_tokens], kinds);
            assert_eq!(found.token_types[n_tokens..], [UNUSED; 2]);
            let error = ByteLevelBpe::from_json(&json, n_tokens - 1).unwrap_err();
            assert!(error.to_string().contains("beyond the"), "{error}");
        }
        for (json, what) in [
            ("[", "no JSON"),
            (r#"{"model": {"type": "Unigram"}}"#, "another model"),
            (
                r#"{"model": {"type": "BPE", "byte_fallback": true}}"#,
                "another model",
            ),
            (
                r#"{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "Whitespace"}}"#,
                "a pre-tokenizer that no name",
            ),
        ] {
            let error = ByteLevelBpe::from_json(json, 8).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn merges_apply_by_priority_and_offsets_keep_leading_spaces() {
        let tokenizer = vocabulary("smollm").into_tokenizer().unwrap();
        let encoding = tokenizer.encode("hello hell", false).unwrap();
        assert_eq!(encoding.get_tokens(), ["hell", "o", "Ġ", "hell"]);
        assert_eq!(encoding.get_offsets(), [(0, 4), (4, 5), (5, 6), (6, 10)]);
    }

    #[test]
    fn an_unknown_pre_tokenizer_is_named() {
        let error = vocabulary("tekken")
            .into_tokenizer()
            .unwrap_err()
            .to_string();
        assert!(error.contains("\"tekken\""), "{error}");
    }

    #[test]
    fn parts_that_do_not_fit_are_errors() {
        let nothing = ByteLevelBpe {
            pre: "gpt-2".to_owned(),
            ..ByteLevelBpe::default()
        };
        let error = nothing.into_tokenizer().unwrap_err().to_string();
        assert!(error.contains("no tokens"), "{error}");
        let mut one_type_short = vocabulary("gpt-2");
        one_type_short.token_types.pop();
        let mut twice = vocabulary("gpt-2");
        twice.tokens[5] = twice.tokens[4].clone();
        for (bad, part) in [(one_type_short, "token types"), (twice, "tokens 4 and 5")] {
            let error = bad.into_tokenizer().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        for merge in ["hell hell", "hello", "zz z", ""] {
            let mut bad = vocabulary("gpt-2");
            bad.merges.push(merge.to_owned());
            let error = bad.into_tokenizer().unwrap_err().to_string();
            assert!(error.contains("merge 3"), "{error}");
        }
    }
}
