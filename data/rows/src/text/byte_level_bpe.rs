//! Builds a tokenizer from the byte-level BPE vocabulary of a GGUF file.
//!
//! GGUF contains tokens, merges and the name of a pre-tokenizer, but not its definition, which is
//! in `pre_tokenizers`.

use std::collections::HashSet;
use std::fmt;

use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{Model as _, Tokenizer};
use tooltune_json::catch_panic;

use super::gguf_vocabulary::{
    JsonTokens, VocabularyError, add_all, added_tokens, check_tokens, stored_merges, vocabulary,
};
use super::pre_tokenizers::{PreTokenizer, PreTokenizerSource};

/// The parts of a byte-level BPE tokenizer.
#[derive(Clone, Default)]
pub struct ByteLevelBpe {
    /// Tokens by id; bytes are spelled with GPT-2's printable characters.
    pub tokens: Vec<String>,
    /// Token types by id: 3 control, 4 user-defined, others plain.
    pub token_types: Vec<i32>,
    /// Merges as "left right", highest priority first.
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
    /// Whether llama.cpp adds the begin token if the file does not specify whether to add it.
    ///
    /// # Source
    ///
    /// ggml-org/llama.cpp, `src/llama-vocab.cpp`, `add_bos` of each `tokenizer_pre`.
    pub fn adds_bos(&self) -> bool {
        PreTokenizer::find_by_name(&self.pre).is_ok_and(|definition| definition.adds_bos)
    }

    /// Whether llama.cpp splits some text with combining marks differently from the model's own
    /// tokenizer, for the pre-tokenizer of this name.
    pub fn differs_with_marks(pre: &str) -> bool {
        PreTokenizer::find_by_name(pre).is_ok_and(|definition| definition.differs_with_marks)
    }

    /// Reads a `tokenizer.json` with `n_tokens` tokens; unused ids get filler tokens, as in
    /// llama.cpp's converter.
    ///
    /// # Errors
    ///
    /// The model is not a byte-level BPE, its pre-tokenizer or normalizer has no GGUF name, or it
    /// has more than `n_tokens` tokens.
    pub fn from_json(json: &str, n_tokens: usize) -> Result<Self, VocabularyError> {
        let no_equivalent = |feature: &str| VocabularyError::NoGgufEquivalent {
            what: feature.to_owned(),
        };
        let file: Value = serde_json::from_str(json).map_err(|_| no_equivalent("invalid JSON"))?;
        let model = &file["model"];
        let is_bpe = model["type"].as_str().unwrap_or("BPE") == "BPE";
        let has_subword_affix = ["continuing_subword_prefix", "end_of_word_suffix"]
            .iter()
            .any(|key| model[*key].as_str().is_some_and(|mark| !mark.is_empty()));
        if !is_bpe || has_subword_affix || model["byte_fallback"] == true {
            return Err(no_equivalent("a model other than byte-level BPE"));
        }
        let normalizes = nfc(&file["normalizer"]).ok_or_else(|| no_equivalent("a normalizer"))?;
        let source = PreTokenizerSource {
            section: &file["pre_tokenizer"],
            normalizes,
            ignores_merges: model["ignore_merges"] == true,
        };
        let pre_tokenizer = PreTokenizer::from_json(&source, || {
            catch_panic(|| merges_produce_all_tokens(&file)).unwrap_or(Some(false)) == Some(true)
        })?;
        let JsonTokens {
            tokens,
            token_types,
        } = JsonTokens::from_json(&file, n_tokens, str::to_owned)?;
        let merges = stored_merges(model)?;
        let merges = merges.into_iter().map(|(l, r)| format!("{l} {r}"));
        Ok(Self {
            tokens,
            token_types,
            merges: merges.collect(),
            pre: pre_tokenizer.name().to_owned(),
        })
    }

    /// Builds the tokenizer without a prefix space and without adding tokens around text.
    ///
    /// Control and user-defined tokens are matched in the text first; decoding with
    /// `skip_special_tokens` drops control tokens.
    ///
    /// # Errors
    ///
    /// The pre-tokenizer is unknown, or tokens, types and merges are inconsistent.
    pub fn into_tokenizer(self) -> Result<Tokenizer, VocabularyError> {
        // The parts come from an untrusted file, and the library panics on some invalid parts.
        catch_panic(|| self.build())
            .unwrap_or_else(|panicked| Err(VocabularyError::Tokenizer(panicked.into())))
    }

    fn build(self) -> Result<Tokenizer, VocabularyError> {
        check_tokens(&self.tokens, &self.token_types)?;
        let pre_tokenizer = PreTokenizer::find_by_name(&self.pre)?;
        let added = added_tokens(&self.tokens, &self.token_types);
        let vocabulary = vocabulary(self.tokens)?;
        let merges = merges(self.merges, &vocabulary)?;
        let bpe = BPE::builder()
            .vocab_and_merges(vocabulary, merges)
            .ignore_merges(pre_tokenizer.ignores_merges)
            .build()?;
        let mut tokenizer = Tokenizer::new(bpe);
        if pre_tokenizer.normalizes {
            tokenizer.with_normalizer(Some(NFC))?;
        }
        tokenizer.with_pre_tokenizer(Some(pre_tokenizer.build()?));
        tokenizer.with_decoder(Some(ByteLevel::new(false, false, false)));
        add_all(&mut tokenizer, added)?;
        Ok(tokenizer)
    }
}

/// Splits and checks the merges: the library indexes out of bounds if the joined text is longer
/// than any token.
fn merges(
    merges: Vec<String>,
    vocabulary: &Vocab,
) -> Result<Vec<(String, String)>, VocabularyError> {
    let pair = |merge: &str| {
        let (left, right) = merge.split_once(' ')?;
        let are_known = [left, right, &format!("{left}{right}")]
            .into_iter()
            .all(|text| vocabulary.contains_key(text));
        are_known.then(|| (left.to_owned(), right.to_owned()))
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

/// Whether a `normalizer` is NFC; `None` for any other normalizer.
fn nfc(section: &Value) -> Option<bool> {
    match section["type"].as_str() {
        None => section.is_null().then_some(false),
        Some("NFC") => Some(true),
        Some("Sequence") => {
            let steps = section["normalizers"].as_array()?;
            let steps: Option<Vec<bool>> = steps.iter().map(nfc).collect();
            Some(steps?.contains(&true))
        }
        Some(_) => None,
    }
}

/// Whether the merges of a `tokenizer.json` produce each token from its own text, except for added
/// tokens, which are matched before merging. `None` if the library rejects the parts.
fn merges_produce_all_tokens(file: &Value) -> Option<bool> {
    let added: HashSet<&str> = match file["added_tokens"].as_array() {
        Some(tokens) => tokens
            .iter()
            .filter_map(|t| t["content"].as_str())
            .collect(),
        None => HashSet::new(),
    };
    let model = &file["model"];
    let entries = model["vocab"].as_object()?.iter();
    let entries = entries.map(|(text, id)| Some((text.clone(), u32::try_from(id.as_u64()?).ok()?)));
    let vocabulary: Vocab = entries.collect::<Option<_>>()?;
    let pairs = stored_merges(model).ok()?;
    let merge_texts: Vec<String> = pairs.iter().map(|(l, r)| format!("{l} {r}")).collect();
    let bpe = BPE::builder()
        .vocab_and_merges(vocabulary.clone(), merges(merge_texts, &vocabulary).ok()?)
        .ignore_merges(false)
        .build()
        .ok()?;
    let mut plain_tokens = vocabulary
        .keys()
        .filter(|text| !added.contains(text.as_str()));
    Some(plain_tokens.all(|text| bpe.tokenize(text).is_ok_and(|tokens| tokens.len() == 1)))
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
        PreTokenizer::find_by_name(pre)
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
        // Only qwen35 keeps a vowel sign with its letter.
        let text = "\u{915}\u{93f}\u{924}";
        assert_eq!(words("qwen35", text), [text]);
        assert_eq!(words("qwen2", text).len(), 2);
    }

    #[test]
    fn any_text_survives_encoding_and_decoding() {
        let text = " hello  wörld\t日本語 🙂 12345\r\n<tool>{\"a\": -1.5e3}<|im_end|>\n ";
        for pre in PreTokenizer::names() {
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
    fn vocabulary_parts_survive_a_round_trip_through_tokenizer_json() {
        for pre in PreTokenizer::names() {
            let parts = vocabulary(pre);
            let n_tokens = parts.tokens.len();
            let json = parts
                .clone()
                .into_tokenizer()
                .unwrap()
                .to_string(false)
                .unwrap();
            let vocabulary = ByteLevelBpe::from_json(&json, n_tokens + 2).unwrap();
            assert_eq!(
                vocabulary.pre,
                PreTokenizer::find_by_name(pre).unwrap().name()
            );
            assert_eq!(vocabulary.merges, parts.merges);
            assert_eq!(vocabulary.tokens[..n_tokens], parts.tokens);
            assert_eq!(
                vocabulary.tokens[n_tokens + 1],
                format!("[PAD{}]", n_tokens + 1)
            );
            let as_stored = |token_type: &i32| match *token_type {
                CONTROL | USER_DEFINED => *token_type,
                _ => PLAIN,
            };
            let kinds: Vec<i32> = parts.token_types.iter().map(as_stored).collect();
            assert_eq!(vocabulary.token_types[..n_tokens], kinds);
            assert_eq!(vocabulary.token_types[n_tokens..], [UNUSED; 2]);
            let error = ByteLevelBpe::from_json(&json, n_tokens - 1).unwrap_err();
            assert!(error.to_string().contains("beyond the"), "{error}");
        }
        for (json, what) in [
            ("[", "invalid JSON"),
            (r#"{"model": {"type": "Unigram"}}"#, "a model other"),
            (
                r#"{"model": {"type": "BPE", "byte_fallback": true}}"#,
                "a model other",
            ),
            (
                r#"{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "Whitespace"}}"#,
                "a pre-tokenizer without a name",
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
    fn an_unknown_pre_tokenizer_error_has_its_name() {
        let error = vocabulary("viking")
            .into_tokenizer()
            .unwrap_err()
            .to_string();
        assert!(error.contains("\"viking\""), "{error}");
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
