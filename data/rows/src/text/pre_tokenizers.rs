//! The pre-tokenizers of byte-level BPE that have a name in GGUF files.
//!
//! Definitions come from the `tokenizer.json` of the models. Other names known to llama.cpp are
//! rejected, because a wrong definition silently changes the ids of ordinary text.
//!
//! # Source
//!
//! `tokenizer.json` of the models named below. ggml-org/llama.cpp, `src/llama-vocab.cpp`, for the
//! names, for ignored merges, and for the token before text; `conversion/base.py` for the models
//! with each name.

use serde_json::Value;
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use super::gguf_vocabulary::VocabularyError;

/// Splits text into words; merges never cross word boundaries.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    /// Names in GGUF; the first is used for writing.
    names: &'static [&'static str],
    /// Whether text is normalized to NFC first.
    pub(super) normalizes: bool,
    /// Whether a word that is a token is used whole, regardless of its merges.
    pub(super) ignores_merges: bool,
    /// Whether llama.cpp adds the begin token if the file does not specify whether to add it.
    pub(super) adds_bos: bool,
    /// Whether llama.cpp splits some text with combining marks differently from the model's own
    /// tokenizer. It does not normalize to NFC, and its code for `O200K` and `TEKKEN` treats marks
    /// differently. Measured by `scripts/verify/pre-tokenizers`.
    pub(super) differs_with_marks: bool,
    steps: &'static [Step],
}

/// One step, which splits the pieces of the previous step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Each match of a regular expression is a piece, and so is the text between two matches.
    Words(&'static str),
    /// Each digit is a piece.
    Digits,
    /// Splits words by GPT-2's expression, then converts to bytes.
    Gpt2Bytes,
    /// Converts text to byte-level characters.
    Bytes,
}

/// Runs of up to three digits.
const THREE_DIGITS: Step = Step::Words(r"\p{N}{1,3}");
/// Words of cl100k: meta-llama/Llama-3.1-8B-Instruct, microsoft/phi-4, allenai/dolma2-tokenizer.
const CL100K: Step = Step::Words(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// As `CL100K`, but with single digits: Qwen/Qwen2.5-0.5B-Instruct.
const QWEN2: Step = Step::Words(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// With single digits, and with marks as letters: Qwen/Qwen3.5-0.8B.
const QWEN35: Step = Step::Words(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Words of o200k, which end before a capital: microsoft/Phi-4-mini-instruct, openai/gpt-oss-20b.
const O200K: Step = Step::Words(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// As o200k, but without contractions and with single digits:
/// mistralai/Ministral-3-3B-Instruct-2512.
const TEKKEN: Step = Step::Words(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Separates line breaks from punctuation: ByteDance-Seed/Seed-OSS-36B-Instruct.
const SEED_CODER: Step = Step::Words(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// The last step of openbmb/MiniCPM5-1B.
const MINICPM5: Step = Step::Words(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// The steps after the digits of deepseek-ai/DeepSeek-V3.
const DEEPSEEK3_IDEOGRAPHS: Step = Step::Words("[一-龥぀-ゟ゠-ヿ]+");
const DEEPSEEK3: Step = Step::Words(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
);
/// The steps of deepseek-ai/deepseek-coder-6.7b-instruct.
const LINE_BREAK: Step = Step::Words(r"[\r\n]");
const CODER_LETTERS: Step = Step::Words(r"\s?\p{L}+");
const CODER_PUNCTUATION: Step = Step::Words(r"\s?\p{P}+");
const CODER_IDEOGRAPHS: Step = Step::Words("[一-龥ࠀ-一가-퟿]+");

const GPT2: PreTokenizer = PreTokenizer {
    names: &["gpt-2"],
    normalizes: false,
    ignores_merges: false,
    adds_bos: false,
    differs_with_marks: false,
    steps: &[Step::Gpt2Bytes],
};

/// All definitions. If two have the same steps, the first match is used for writing.
static ALL: [PreTokenizer; 14] = [
    GPT2,
    // GPT-NeoX's, with NFC: allenai/OLMo-1.7-7B-hf.
    PreTokenizer {
        names: &["olmo"],
        normalizes: true,
        differs_with_marks: true,
        ..GPT2
    },
    // HuggingFaceTB/SmolLM2-135M-Instruct; ibm-granite/granite-3.3-2b-instruct has the second name.
    PreTokenizer {
        names: &["smollm", "refact", "starcoder"],
        steps: &[Step::Digits, Step::Gpt2Bytes],
        ..GPT2
    },
    PreTokenizer {
        names: &["qwen2"],
        normalizes: true,
        differs_with_marks: true,
        steps: &[QWEN2, Step::Bytes],
        ..GPT2
    },
    // deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B.
    PreTokenizer {
        names: &["deepseek-r1-qwen", "megrez"],
        steps: &[QWEN2, Step::Bytes],
        ..GPT2
    },
    PreTokenizer {
        names: &["qwen35"],
        normalizes: true,
        differs_with_marks: true,
        steps: &[QWEN35, Step::Bytes],
        ..GPT2
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3"],
        ignores_merges: true,
        adds_bos: true,
        steps: &[CL100K, Step::Bytes],
        ..GPT2
    },
    // Phi-4, Olmo 3, Granite 4; SmolLM3 has the second name.
    PreTokenizer {
        names: &["dbrx", "smaug-bpe"],
        steps: &[CL100K, Step::Bytes],
        ..GPT2
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2"],
        differs_with_marks: true,
        steps: &[O200K, Step::Bytes],
        ..GPT2
    },
    // Ministral 3 and Mistral Nemo.
    PreTokenizer {
        names: &["tekken"],
        ignores_merges: true,
        adds_bos: true,
        differs_with_marks: true,
        steps: &[TEKKEN, Step::Bytes],
        ..GPT2
    },
    PreTokenizer {
        names: &["seed-coder"],
        steps: &[SEED_CODER, Step::Bytes],
        ..GPT2
    },
    PreTokenizer {
        names: &["minicpm5"],
        ignores_merges: true,
        steps: &[THREE_DIGITS, MINICPM5, Step::Bytes],
        ..GPT2
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense"],
        steps: &[THREE_DIGITS, DEEPSEEK3_IDEOGRAPHS, DEEPSEEK3, Step::Bytes],
        ..GPT2
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        steps: &[
            LINE_BREAK,
            CODER_LETTERS,
            CODER_PUNCTUATION,
            CODER_IDEOGRAPHS,
            Step::Digits,
            Step::Bytes,
        ],
        ..GPT2
    },
];

/// The sections of a `tokenizer.json` that a GGUF pre-tokenizer name implies.
pub(super) struct PreTokenizerSource<'a> {
    /// `pre_tokenizer`.
    pub(super) section: &'a Value,
    /// Whether the normalizer is NFC.
    pub(super) normalizes: bool,
    /// The model's `ignore_merges`.
    pub(super) ignores_merges: bool,
}

impl PreTokenizer {
    /// Finds a definition by one of its GGUF names.
    pub(super) fn find_by_name(name: &str) -> Result<&'static Self, VocabularyError> {
        let mut all = ALL.iter();
        let found = all.find(|definition| definition.names.contains(&name));
        found.ok_or_else(|| VocabularyError::UnknownPreTokenizer {
            name: name.to_owned(),
            known: Self::names().collect::<Vec<_>>().join(", "),
        })
    }

    /// The name used for writing.
    pub(super) fn name(&self) -> &'static str {
        self.names[0]
    }

    /// Returns the names of all supported pre-tokenizers.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().flat_map(|definition| definition.names).copied()
    }

    /// The definition that matches a `tokenizer.json`. If the merges alone produce every token
    /// (`merges_produce_all_tokens`), `ignore_merges` makes no difference.
    ///
    /// NFC is not required to match, because llama.cpp never normalizes.
    pub(super) fn from_json(
        source: &PreTokenizerSource<'_>,
        merges_produce_all_tokens: impl FnOnce() -> bool,
    ) -> Result<&'static Self, VocabularyError> {
        let no_equivalent = |feature: &str| VocabularyError::NoGgufEquivalent {
            what: feature.to_owned(),
        };
        let steps = steps(source.section);
        let is_same = |candidate: &&Self| {
            steps.as_ref().is_some_and(|steps| {
                let pairs = steps.iter().zip(candidate.steps);
                steps.len() == candidate.steps.len()
                    && pairs.into_iter().all(|(found, step)| found.is(*step))
            })
        };
        let same: Vec<&'static Self> = ALL.iter().filter(is_same).collect();
        if same.is_empty() {
            return Err(no_equivalent("a pre-tokenizer without a name in GGUF"));
        }
        let is_exact =
            |candidate: &&'static Self| candidate.ignores_merges == source.ignores_merges;
        let exact: Vec<&'static Self> = same.iter().copied().filter(is_exact).collect();
        let matching = if !exact.is_empty() {
            exact
        } else if merges_produce_all_tokens() {
            same
        } else {
            return Err(no_equivalent(
                "a value of ignore_merges that differs from llama.cpp's for its pre-tokenizer, \
                 and tokens that the merges do not produce",
            ));
        };
        let normalized = matching
            .iter()
            .find(|candidate| candidate.normalizes == source.normalizes);
        let found = normalized.or(matching.first()).copied();
        found.ok_or_else(|| no_equivalent("a pre-tokenizer without a name in GGUF"))
    }

    /// The pre-tokenizer of the tokenizers library.
    pub(super) fn build(&self) -> Result<PreTokenizerWrapper, VocabularyError> {
        let steps = self.steps.iter().map(|step| step.build());
        let mut steps = steps.collect::<Result<Vec<_>, _>>()?;
        match (steps.len(), steps.pop()) {
            (1, Some(only)) => Ok(only),
            (_, last) => {
                steps.extend(last);
                Ok(Sequence::new(steps).into())
            }
        }
    }
}

impl Step {
    fn build(self) -> Result<PreTokenizerWrapper, VocabularyError> {
        Ok(match self {
            Self::Words(pattern) => {
                let pattern = SplitPattern::Regex(pattern.to_owned());
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into()
            }
            Self::Digits => Digits::new(true).into(),
            Self::Gpt2Bytes => ByteLevel::new(false, true, true).into(),
            Self::Bytes => ByteLevel::new(false, true, false).into(),
        })
    }
}

/// A step of a `tokenizer.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum JsonStep {
    Words(String),
    Digits,
    Bytes { by_words: bool },
}

impl JsonStep {
    /// Whether this step splits every text as `step` does.
    fn is(&self, step: Step) -> bool {
        match (self, step) {
            (Self::Words(found), Step::Words(pattern)) => found == pattern,
            (Self::Digits, Step::Digits) => true,
            (Self::Bytes { by_words }, Step::Gpt2Bytes) => *by_words,
            (Self::Bytes { by_words }, Step::Bytes) => !by_words,
            _ => false,
        }
    }
}

/// The steps of a `pre_tokenizer`, with nested sequences flattened; `None` if a step is unknown.
fn steps(section: &Value) -> Option<Vec<JsonStep>> {
    // The library fills in omitted fields.
    let step: PreTokenizerWrapper = serde_json::from_value(section.clone()).ok()?;
    let section = serde_json::to_value(&step).ok()?;
    let mut steps = Vec::new();
    push_steps(&section, &mut steps)?;
    Some(steps)
}

fn push_steps(section: &Value, steps: &mut Vec<JsonStep>) -> Option<()> {
    match section["type"].as_str()? {
        "Sequence" => {
            let inner = section["pretokenizers"].as_array()?;
            inner
                .iter()
                .try_for_each(|section| push_steps(section, steps))
        }
        "Digits" if section["individual_digits"] == true => {
            steps.push(JsonStep::Digits);
            Some(())
        }
        "ByteLevel" if section["add_prefix_space"] == false => {
            let by_words = section["use_regex"] == true;
            steps.push(JsonStep::Bytes { by_words });
            Some(())
        }
        "Split" => {
            let pattern = normalize_pattern(section["pattern"]["Regex"].as_str()?);
            let behavior = (section["behavior"].as_str()?, section["invert"].as_bool()?);
            // "Removed" drops the text between matches. This makes no difference if the expression
            // matches all of the text.
            let covers = pattern.contains(r"[^\s\p{L}") && pattern.ends_with(r"|\s+");
            let is_same =
                behavior == ("Isolated", false) || (covers && behavior == ("Removed", true));
            let step = match pattern.as_str() {
                r"\p{N}" => JsonStep::Digits,
                _ => JsonStep::Words(pattern),
            };
            is_same.then(|| steps.push(step))
        }
        _ => None,
    }
}

/// Normalizes the spelling of a regular expression to the one used here.
fn normalize_pattern(pattern: &str) -> String {
    let escaped = pattern.replace('\r', r"\r").replace('\n', r"\n");
    escaped.replace(r"\p{N}{1}|", r"\p{N}|")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn split(pattern: &str) -> Value {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
    }

    fn detect_name(
        section: &Value,
        normalizes: bool,
        ignores_merges: bool,
        merges_produce_all_tokens: bool,
    ) -> String {
        let source = PreTokenizerSource {
            section,
            normalizes,
            ignores_merges,
        };
        match PreTokenizer::from_json(&source, || merges_produce_all_tokens) {
            Ok(definition) => definition.name().to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn each_name_has_one_definition_that_the_library_accepts() {
        let mut names: Vec<&str> = PreTokenizer::names().collect();
        for name in &names {
            let definition = PreTokenizer::find_by_name(name).unwrap();
            assert!(definition.names.contains(name));
            let section = serde_json::to_value(definition.build().unwrap()).unwrap();
            let detected = detect_name(
                &section,
                definition.normalizes,
                definition.ignores_merges,
                false,
            );
            assert_eq!(detected, definition.name());
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PreTokenizer::names().count());
        let error = PreTokenizer::find_by_name("poro-chat")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"poro-chat\"") && error.contains("gpt-4o"),
            "{error}"
        );
    }

    #[test]
    fn variants_of_one_definition_have_one_name() {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false});
        let Step::Words(cl100k) = CL100K else {
            unreachable!()
        };
        let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "pretokenizers": steps});
        let mut removed = split(cl100k);
        removed["behavior"] = json!("Removed");
        removed["invert"] = json!(true);
        let nested = sequence(vec![sequence(vec![removed]), bytes.clone()]);
        assert_eq!(detect_name(&nested, false, false, false), "dbrx");
        assert_eq!(detect_name(&nested, false, true, false), "llama-bpe");
        // A literal line break in a class, and a count of one.
        let seed = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
        let seed = sequence(vec![split(seed), bytes.clone()]);
        assert_eq!(detect_name(&seed, false, false, false), "seed-coder");
        // NFC selects between names that differ only in it.
        let Step::Words(qwen2) = QWEN2 else {
            unreachable!()
        };
        let qwen2 = sequence(vec![split(qwen2), bytes.clone()]);
        assert_eq!(detect_name(&qwen2, true, false, false), "qwen2");
        assert_eq!(detect_name(&qwen2, false, false, false), "deepseek-r1-qwen");
        let gpt2 = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false});
        assert_eq!(detect_name(&gpt2, false, false, false), "gpt-2");
        assert_eq!(detect_name(&gpt2, true, false, false), "olmo");
        let prefixed = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true});
        assert!(detect_name(&prefixed, false, false, true).contains("without a name in GGUF"));
    }

    #[test]
    fn ignored_merges_matter_only_if_merges_do_not_produce_every_token() {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false});
        let Step::Words(tekken) = TEKKEN else {
            unreachable!()
        };
        let tekken = json!({"type": "Sequence", "pretokenizers": [split(tekken), bytes]});
        assert_eq!(detect_name(&tekken, false, true, false), "tekken");
        assert_eq!(detect_name(&tekken, false, false, true), "tekken");
        assert!(detect_name(&tekken, false, false, false).contains("ignore_merges"));
    }
}
