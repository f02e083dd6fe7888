//! Tokenizes a sentence for a BERT encoder, with special tokens and a length limit.
//!
//! Unlike the language model's tokenizer, this one keeps the file's post-processor, because no
//! template writes `[CLS]` and `[SEP]`. The file's own truncation and padding (128 in
//! all-MiniLM-L6-v2) are replaced, as in sentence-transformers. BPE-dropout is disabled.

use std::fmt;
use std::path::Path;

use tokenizers::normalizers::{BertNormalizer, Lowercase, Sequence};
use tokenizers::{NormalizerWrapper, TruncationDirection};

use super::error::DataError;
use super::tokenizer::without_dropout;
use super::tokenizer_library::LibraryTokenizer;

/// Encoding options from files other than `tokenizer.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordPieceOptions {
    /// Maximum tokens per sentence, including special tokens.
    pub max_seq_length: usize,
    /// Whether to lower-case the text first, unless the tokenizer already has a `Lowercase`
    /// normalizer: `do_lower_case` of `sentence_bert_config.json`.
    pub do_lower_case: bool,
    /// BERT normalizer options in `tokenizer_config.json`, which take precedence.
    pub bert: Option<BertNormalization>,
    /// Whether a long text is truncated at its start: `truncation_side = "left"`.
    pub truncates_left: bool,
}

impl WordPieceOptions {
    /// Default options, with sentences truncated at `max_seq_length` tokens.
    pub fn with_max_length(max_seq_length: usize) -> Self {
        Self {
            max_seq_length,
            do_lower_case: false,
            bert: None,
            truncates_left: false,
        }
    }
}

/// Options of a BERT normalizer, with transformers' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BertNormalization {
    /// Lower-cases the text.
    pub do_lower_case: bool,
    /// Strips accents; defaults to the value of `do_lower_case`.
    pub strip_accents: Option<bool>,
    /// Separates Chinese characters.
    pub tokenize_chinese_chars: bool,
}

/// The token ids of a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentenceIds {
    /// Ids including special tokens, truncated at the limit.
    pub ids: Vec<u32>,
    /// Number of tokens without truncation.
    pub n_uncut: usize,
}

impl SentenceIds {
    /// Whether the sentence was truncated.
    pub fn is_cut(&self) -> bool {
        self.ids.len() < self.n_uncut
    }
}

/// The tokenizer of a sentence encoder.
#[derive(Clone)]
pub struct WordPiece {
    library: LibraryTokenizer,
    dropout: Option<f32>,
    n_special: usize,
    /// Maximum tokens per sentence, not counting special tokens.
    max_text_tokens: usize,
    direction: TruncationDirection,
}

impl WordPiece {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or is not a tokenizer
    /// - the special tokens leave no room within the maximum length
    ///
    /// # Source
    ///
    /// sentence-transformers 6.2, `Transformer.__init__`, for lower case; transformers 5.23,
    /// `BertTokenizer`, whose normalizer follows `tokenizer_config.json`.
    pub fn from_file(path: &Path, options: WordPieceOptions) -> Result<Self, DataError> {
        let mut library = LibraryTokenizer::open(path)?;
        library.inner.with_padding(None);
        let processor = library.inner.get_post_processor();
        let n_special = processor.map_or(0, |processor| {
            tokenizers::PostProcessor::added_tokens(processor, false)
        });
        let max_length = options.max_seq_length;
        if max_length <= n_special {
            return Err(DataError::NoRoomForWords(max_length, n_special));
        }
        // Texts are truncated here instead, where the full length is known.
        let _ = library.inner.with_truncation(None);
        if let Some(normalizer) = normalizer(library.inner.get_normalizer(), options) {
            library = library.with_normalizer(normalizer);
        }
        let direction = if options.truncates_left {
            TruncationDirection::Left
        } else {
            TruncationDirection::Right
        };
        let dropout = without_dropout(&mut library.inner);
        Ok(Self {
            library,
            dropout,
            n_special,
            max_text_tokens: max_length - n_special,
            direction,
        })
    }

    /// The file's BPE-dropout rate, which is disabled here; `None` if the file has none.
    pub fn dropout(&self) -> Option<f32> {
        self.dropout
    }

    /// Number of special tokens per sentence.
    pub fn n_special(&self) -> usize {
        self.n_special
    }

    /// Token ids of a sentence, including special tokens, truncated at the limit.
    ///
    /// # Errors
    ///
    /// - the tokenizer has no token for a part of the text
    pub fn encode(&self, text: &str) -> Result<SentenceIds, DataError> {
        let mut words = self.library.encode(text)?;
        let n_uncut = words.get_ids().len() + self.n_special;
        let inner = &self.library.inner;
        let sentence = self.library.run(|| {
            words.truncate(self.max_text_tokens, 0, self.direction);
            words.take_overflowing();
            inner.post_process(words, None, true)
        })?;
        Ok(SentenceIds {
            ids: sentence.get_ids().to_vec(),
            n_uncut,
        })
    }
}

/// The normalizer that replaces the file's; `None` if the file's is kept.
fn normalizer(
    original: Option<&NormalizerWrapper>,
    options: WordPieceOptions,
) -> Option<NormalizerWrapper> {
    let original = match (original, options.bert) {
        (Some(NormalizerWrapper::BertNormalizer(normalizer)), Some(bert)) => {
            let normalizer = BertNormalizer::new(
                normalizer.clean_text,
                bert.tokenize_chinese_chars,
                bert.strip_accents,
                bert.do_lower_case,
            );
            Some(NormalizerWrapper::BertNormalizer(normalizer))
        }
        (original, _) => original.cloned(),
    };
    if !options.do_lower_case || original.as_ref().is_some_and(has_lowercase_normalizer) {
        return original;
    }
    let mut all = vec![NormalizerWrapper::Lowercase(Lowercase)];
    match original {
        Some(NormalizerWrapper::Sequence(sequence)) => all.extend(sequence.as_ref().to_vec()),
        Some(single) => all.push(single),
        None => {}
    }
    Some(NormalizerWrapper::Sequence(Sequence::new(all)))
}

/// Whether a normalizer of that name is present; lower-casing by a BERT normalizer does not match.
fn has_lowercase_normalizer(normalizer: &NormalizerWrapper) -> bool {
    let is_lower_case = |each: &NormalizerWrapper| matches!(each, NormalizerWrapper::Lowercase(_));
    match normalizer {
        NormalizerWrapper::Sequence(sequence) => sequence.as_ref().iter().any(is_lower_case),
        single => is_lower_case(single),
    }
}

impl fmt::Debug for WordPiece {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WordPiece").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(options: WordPieceOptions) -> Result<WordPiece, DataError> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = root.join("../../tests/fixtures/retriever/model/tokenizer.json");
        WordPiece::from_file(&file, options)
    }

    #[test]
    fn a_truncated_text_reports_its_full_length() {
        let short = tokenizer(WordPieceOptions::with_max_length(6)).expect("a tokenizer");
        let long = tokenizer(WordPieceOptions::with_max_length(60)).expect("a tokenizer");
        let text = "a b c d e f g h i j k l m n";
        let full = long.encode(text).expect("ids");
        assert!(!full.is_cut(), "{full:?}");
        let truncated = short.encode(text).expect("ids");
        assert_eq!(
            (truncated.ids.len(), truncated.n_uncut),
            (6, full.ids.len())
        );
        assert_eq!(truncated.ids[..5], full.ids[..5]);
        let truncated_left = WordPieceOptions {
            truncates_left: true,
            ..WordPieceOptions::with_max_length(6)
        };
        let truncated_left = tokenizer(truncated_left).expect("a tokenizer");
        let truncated_left = truncated_left.encode(text).expect("ids");
        assert_eq!(truncated_left.ids[1..], full.ids[full.ids.len() - 5..]);
        assert_eq!(truncated_left.n_uncut, full.n_uncut);
    }

    #[test]
    fn a_limit_without_room_for_a_word_is_refused() {
        let two = WordPieceOptions::with_max_length(2);
        let error = tokenizer(two).expect_err("no room").to_string();
        assert!(error.contains("leaves no room for text"), "{error}");
        tokenizer(WordPieceOptions::with_max_length(3)).expect("room for one");
    }

    #[test]
    fn any_of_the_tokenizer_files_can_request_lower_case() {
        let keeps = BertNormalization {
            do_lower_case: false,
            strip_accents: Some(false),
            tokenize_chinese_chars: true,
        };
        let ids = |bert, do_lower_case, text: &str| {
            let options = WordPieceOptions {
                bert,
                do_lower_case,
                ..WordPieceOptions::with_max_length(48)
            };
            tokenizer(options)
                .and_then(|tokenizer| tokenizer.encode(text))
                .expect("ids")
                .ids
        };
        let [small, large] = ["get a train", "Get A TRAIN"];
        // Options from tokenizer.json, tokenizer_config.json and sentence_bert_config.json.
        assert_eq!(ids(None, false, large), ids(None, false, small));
        assert_ne!(ids(Some(keeps), false, large), ids(None, false, small));
        assert_eq!(ids(Some(keeps), true, large), ids(None, false, small));
    }
}
