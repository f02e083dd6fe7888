//! Tokenizes a sentence for a BERT encoder, with its special tokens and its length limit.
//!
//! Unlike the language model's tokenizer, this one keeps the file's post-processor, because no
//! template writes `[CLS]` and `[SEP]`; the file's own truncation and padding (128 in
//! all-MiniLM-L6-v2) are replaced, because sentence-transformers does so too. BPE-dropout is off.

use std::fmt;
use std::path::Path;

use tokenizers::normalizers::{BertNormalizer, Lowercase, Sequence};
use tokenizers::{NormalizerWrapper, TruncationDirection};

use super::error::DataError;
use super::tokenizer::without_dropout;
use super::tokenizer_library::Library;

/// How texts are read, beside what `tokenizer.json` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordPieceOptions {
    /// Most tokens of a sentence, special ones included.
    pub max_seq_length: usize,
    /// Whether texts are lower-cased before a tokenizer that does not do so by a normalizer of that
    /// name: `do_lower_case` of `sentence_bert_config.json`.
    pub do_lower_case: bool,
    /// What `tokenizer_config.json` says of a BERT tokenizer's normalizer, which then counts.
    pub bert: Option<BertNormalization>,
    /// Whether a long text loses its beginning: `truncation_side = "left"`.
    pub truncates_left: bool,
}

impl WordPieceOptions {
    /// Sentences as `tokenizer.json` reads them, cut at `max_seq_length` tokens.
    pub fn of_length(max_seq_length: usize) -> Self {
        Self {
            max_seq_length,
            do_lower_case: false,
            bert: None,
            truncates_left: false,
        }
    }
}

/// The choices of a BERT tokenizer's normalizer, with transformers' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BertNormalization {
    /// Lower-cases.
    pub do_lower_case: bool,
    /// Strips accents; as it lower-cases where nothing is said.
    pub strip_accents: Option<bool>,
    /// Sets Chinese characters apart.
    pub tokenize_chinese_chars: bool,
}

/// The token ids of a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentenceIds {
    /// Special tokens included, cut at the limit.
    pub ids: Vec<u32>,
    /// Tokens that it would have without a limit.
    pub n_uncut: usize,
}

impl SentenceIds {
    /// Whether the limit has taken tokens away.
    pub fn is_cut(&self) -> bool {
        self.ids.len() < self.n_uncut
    }
}

/// A tokenizer of a sentence encoder.
#[derive(Clone)]
pub struct WordPiece {
    library: Library,
    dropout: Option<f32>,
    n_special: usize,
    /// Most tokens of a sentence beside the special ones.
    n_words: usize,
    direction: TruncationDirection,
}

impl WordPiece {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// - the file cannot be read, or is not a tokenizer
    /// - the length leaves no room beside the special tokens
    ///
    /// # Source
    ///
    /// sentence-transformers 6.2, `Transformer.__init__`, for lower case; transformers 5.23,
    /// `BertTokenizer`, whose normalizer follows `tokenizer_config.json`.
    pub fn from_file(path: &Path, options: WordPieceOptions) -> Result<Self, DataError> {
        let mut library = Library::open(path)?;
        library.inner.with_padding(None);
        let processor = library.inner.get_post_processor();
        let n_special = processor.map_or(0, |processor| {
            tokenizers::PostProcessor::added_tokens(processor, false)
        });
        let max_length = options.max_seq_length;
        if max_length <= n_special {
            return Err(DataError::NoRoomForWords(max_length, n_special));
        }
        // Texts are cut here, where the length that they had is known.
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
            n_words: max_length - n_special,
            direction,
        })
    }

    /// The share of merges that the file leaves out at random (BPE-dropout), and that are all done
    /// here; `None` where the file leaves out none.
    pub fn dropout(&self) -> Option<f32> {
        self.dropout
    }

    /// Tokens that every sentence has beside its words.
    pub fn n_special(&self) -> usize {
        self.n_special
    }

    /// Token ids of a sentence, special tokens included, cut at the limit.
    ///
    /// # Errors
    ///
    /// - the tokenizer has no token for a piece of the text
    pub fn encode(&self, text: &str) -> Result<SentenceIds, DataError> {
        let mut words = self.library.encode(text)?;
        let n_uncut = words.get_ids().len() + self.n_special;
        let inner = &self.library.inner;
        let sentence = self.library.run(|| {
            words.truncate(self.n_words, 0, self.direction);
            words.take_overflowing();
            inner.post_process(words, None, true)
        })?;
        Ok(SentenceIds {
            ids: sentence.get_ids().to_vec(),
            n_uncut,
        })
    }
}

/// The normalizer in the place of the file's; `None` where that one stays.
fn normalizer(
    of_file: Option<&NormalizerWrapper>,
    options: WordPieceOptions,
) -> Option<NormalizerWrapper> {
    let of_file = match (of_file, options.bert) {
        (Some(NormalizerWrapper::BertNormalizer(normalizer)), Some(bert)) => {
            let normalizer = BertNormalizer::new(
                normalizer.clean_text,
                bert.tokenize_chinese_chars,
                bert.strip_accents,
                bert.do_lower_case,
            );
            Some(NormalizerWrapper::BertNormalizer(normalizer))
        }
        (of_file, _) => of_file.cloned(),
    };
    if !options.do_lower_case || of_file.as_ref().is_some_and(lower_cases) {
        return of_file;
    }
    let mut all = vec![NormalizerWrapper::Lowercase(Lowercase)];
    match of_file {
        Some(NormalizerWrapper::Sequence(sequence)) => all.extend(sequence.as_ref().to_vec()),
        Some(single) => all.push(single),
        None => {}
    }
    Some(NormalizerWrapper::Sequence(Sequence::new(all)))
}

/// Whether a normalizer of that name is among these; a BERT normalizer's own lower-casing is none.
fn lower_cases(normalizer: &NormalizerWrapper) -> bool {
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
    fn a_text_that_is_cut_says_how_long_it_was() {
        let short = tokenizer(WordPieceOptions::of_length(6)).expect("a tokenizer");
        let long = tokenizer(WordPieceOptions::of_length(60)).expect("a tokenizer");
        let text = "a b c d e f g h i j k l m n";
        let whole = long.encode(text).expect("ids");
        assert!(!whole.is_cut(), "{whole:?}");
        let cut = short.encode(text).expect("ids");
        assert_eq!((cut.ids.len(), cut.n_uncut), (6, whole.ids.len()));
        assert_eq!(cut.ids[..5], whole.ids[..5]);
        let left = WordPieceOptions {
            truncates_left: true,
            ..WordPieceOptions::of_length(6)
        };
        let left = tokenizer(left).expect("a tokenizer");
        let left = left.encode(text).expect("ids");
        assert_eq!(left.ids[1..], whole.ids[whole.ids.len() - 5..]);
        assert_eq!(left.n_uncut, whole.n_uncut);
    }

    #[test]
    fn a_limit_without_room_for_a_word_is_refused() {
        let two = WordPieceOptions::of_length(2);
        let error = tokenizer(two).expect_err("no room").to_string();
        assert!(error.contains("leaves no token for a text"), "{error}");
        tokenizer(WordPieceOptions::of_length(3)).expect("room for one");
    }

    #[test]
    fn lower_case_is_that_of_the_files_that_ask_for_it() {
        let keeps = BertNormalization {
            do_lower_case: false,
            strip_accents: Some(false),
            tokenize_chinese_chars: true,
        };
        let ids = |bert, do_lower_case, text: &str| {
            let options = WordPieceOptions {
                bert,
                do_lower_case,
                ..WordPieceOptions::of_length(48)
            };
            tokenizer(options)
                .and_then(|tokenizer| tokenizer.encode(text))
                .expect("ids")
                .ids
        };
        let [small, large] = ["get a train", "Get A TRAIN"];
        // As the file of the tokenizer says, as the file beside it says, and as that of the
        // sentences says.
        assert_eq!(ids(None, false, large), ids(None, false, small));
        assert_ne!(ids(Some(keeps), false, large), ids(None, false, small));
        assert_eq!(ids(Some(keeps), true, large), ids(None, false, small));
    }
}
