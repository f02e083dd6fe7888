//! Embeds texts with a sentence-transformers model.
//!
//! Queries and documents get their prompts, as in `encode_query` and `encode_document`. Other
//! texts, such as texts that a metric compares, are embedded as in `encode`.

pub mod cut_texts;
pub mod documents;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor};
use serde_json::Value;
use tooltune_checkpoints::budgets::JSON_BYTES;
use tooltune_checkpoints::sentence_transformers::{SentenceTransformer, Similarity};
use tooltune_checkpoints::weights::Weights;
use tooltune_disk::regular_file;
use tooltune_kernels::ComputeDtype;
use tooltune_rows::text::{BertNormalization, DataError, SentenceIds, WordPiece, WordPieceOptions};
use tooltune_suites::{EncoderError, SentenceEncoder};

use crate::base_model::warn_of_ignored_dropout;
use crate::config::RetrieverConfig;
use crate::error::Error;
use crate::models::minilm::{EmbeddingHead, MiniLm, MiniLmConfig, ParameterLayout, Sentence};
use crate::retriever::{Alone, Division};
use crate::settings;

/// Maximum number of tokens in one pass, which limits the activations.
pub(crate) const PASS_TOKENS: usize = 2048;

/// Length limit of all-MiniLM-L6-v2 in tokens, for plans if the folder of the model is missing.
pub(crate) const MAX_SEQ_LENGTH: usize = 256;

/// Role of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A search query.
    Query,
    /// A document that is searched.
    Document,
    /// Any other text.
    Text,
}

/// Settings that override the folder's settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncoderOptions {
    /// Length limit of a text in tokens.
    pub max_seq_length: Option<usize>,
    /// Prompt that precedes queries.
    pub query_prompt: Option<String>,
    /// Prompt that precedes documents.
    pub document_prompt: Option<String>,
}

/// A sentence-transformers directory, without its weights.
#[derive(Debug, Clone)]
pub struct EncoderFiles {
    /// Path of the directory.
    pub dir: PathBuf,
    /// Shape of the encoder.
    pub config: MiniLmConfig,
    /// Pooling and normalisation of the embeddings.
    pub rules: SentenceTransformer,
    /// Tokenizer, which truncates at [`Self::max_seq_length`].
    pub tokenizer: WordPiece,
    /// Length limit of a text in tokens, including `[CLS]` and `[SEP]`.
    pub max_seq_length: usize,
}

/// Texts of one role as token IDs.
#[derive(Debug, Clone)]
pub struct TextIds {
    /// Truncated token IDs of each text.
    pub texts: Vec<SentenceIds>,
    /// Number of leading tokens that pooling ignores.
    n_unpooled: usize,
}

impl TextIds {
    /// A text as input for the encoder.
    pub fn sentence(&self, text: usize) -> Sentence<'_> {
        Sentence {
            ids: &self.texts[text].ids,
            n_unpooled: self.n_unpooled,
        }
    }

    /// For each text, the index of the first text with the same token IDs, which can be the text
    /// itself.
    pub fn duplicates(&self) -> Vec<usize> {
        let mut first: HashMap<&[u32], usize> = HashMap::with_capacity(self.texts.len());
        let texts = self.texts.iter().enumerate();
        texts
            .map(|(i, text)| *first.entry(&text.ids).or_insert(i))
            .collect()
    }

    /// The texts without duplicates: the first text of each group with the same token IDs.
    pub fn distinct(&self) -> Self {
        let same = self.duplicates().into_iter().enumerate();
        let firsts = same.filter(|(i, first)| i == first);
        Self {
            texts: firsts.map(|(i, _)| self.texts[i].clone()).collect(),
            n_unpooled: self.n_unpooled,
        }
    }

    /// Token count of each text.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.texts.iter().map(|text| text.ids.len())
    }
}

impl EncoderFiles {
    /// Reads the files of `dir` except the weights.
    ///
    /// # Errors
    ///
    /// - a file is missing, damaged or has a different architecture
    /// - a module, pooling or setting of sentence-transformers is not supported
    /// - the length limit exceeds the model's positions, or leaves no token for a text
    pub fn open(dir: &Path, options: &EncoderOptions) -> Result<Self, Error> {
        let config = MiniLmConfig::from_json(&json(&dir.join("config.json"))?)
            .map_err(|problem| Error::Usage(format!("{}: {problem}", dir.display())))?;
        let rules = SentenceTransformer::read(dir, config.hidden_size)?.with_prompts(
            options.query_prompt.as_deref(),
            options.document_prompt.as_deref(),
        );
        let n_positions = config.max_position_embeddings;
        let max_seq_length = match options.max_seq_length {
            Some(length) if length > n_positions => {
                return Err(Error::Usage(format!(
                    "retriever.max_seq_length is {length}, but {} has only {n_positions} positions; lower it",
                    dir.display()
                )));
            }
            Some(length) => length,
            None => rules.length(n_positions),
        };
        let bert = |(do_lower_case, strip_accents, tokenize_chinese_chars)| BertNormalization {
            do_lower_case,
            strip_accents,
            tokenize_chinese_chars,
        };
        let reading = WordPieceOptions {
            max_seq_length,
            do_lower_case: rules.do_lower_case,
            bert: rules.tokenizer.bert.map(bert),
            truncates_left: rules.tokenizer.truncates_left,
        };
        let tokenizer = WordPiece::from_file(&dir.join("tokenizer.json"), reading);
        let tokenizer = tokenizer.map_err(|error| match error {
            error @ DataError::NoRoomForWords(..) => error.at(&dir.display().to_string()),
            error => error,
        })?;
        if let Some(share) = tokenizer.dropout() {
            warn_of_ignored_dropout(&dir.join("tokenizer.json"), share);
        }
        Ok(Self {
            dir: dir.to_owned(),
            tokenizer,
            config,
            rules,
            max_seq_length,
        })
    }

    /// Opens the retriever folder of a config, with the settings of the config.
    ///
    /// # Errors
    ///
    /// As for [`EncoderFiles::open`], or prompts are ambiguous or leave no token for a text.
    pub fn for_retriever(retriever: &RetrieverConfig) -> Result<Self, Error> {
        let options = EncoderOptions {
            max_seq_length: retriever.max_seq_length,
            query_prompt: retriever.query_prompt.clone(),
            document_prompt: retriever.document_prompt.clone(),
        };
        let path = &retriever.model_name_or_path;
        settings::must_be_here("retriever.model_name_or_path", path)?;
        let files = Self::open(path, &options)?;
        for role in [Role::Query, Role::Document] {
            let prompt = files.prompt(role)?;
            let n_tokens = files.tokenizer.encode(prompt)?.n_uncut;
            let length = files.max_seq_length;
            if n_tokens >= length {
                return Err(Error::Usage(format!(
                    "a length of {length} tokens leaves no token for a text: the prompt {prompt:?} \
                     takes {n_tokens}, including special tokens; raise retriever.max_seq_length or \
                     shorten the prompt"
                )));
            }
        }
        Ok(files)
    }

    /// Prompt that precedes texts of a role.
    ///
    /// # Errors
    ///
    /// The folder's prompt for documents is ambiguous.
    pub fn prompt(&self, role: Role) -> Result<&str, Error> {
        Ok(match role {
            Role::Query => self.rules.query_prompt(),
            Role::Document => self.rules.document_prompt()?,
            Role::Text => self.rules.default_prompt(),
        })
    }

    /// Loads the parameters from `weights`, a directory or a file: `[p]`, f32.
    ///
    /// # Errors
    ///
    /// The weights are missing, damaged or belong to a different encoder.
    pub fn parameters(&self, weights: &Path, device: &Device) -> Result<Tensor<1>, Error> {
        let layout = ParameterLayout::new(&self.config);
        Ok(layout.read(&Weights::open(weights)?, device)?)
    }

    /// The encoder with the parameters `flat`, in f32.
    pub fn encoder(&self, flat: &Tensor<1>) -> MiniLmEncoder {
        let layout = ParameterLayout::new(&self.config);
        let head = EmbeddingHead {
            pooling: self.rules.pooling,
            normalize: self.rules.normalize,
        };
        MiniLmEncoder {
            model: MiniLm::new(&self.config, head, &layout, flat, ComputeDtype::F32),
            files: self.clone(),
        }
    }

    /// Head for embeddings that are compared: they are normalised to length 1 if the similarity is
    /// the cosine.
    pub fn comparison_head(&self) -> EmbeddingHead {
        EmbeddingHead {
            pooling: self.rules.pooling,
            normalize: self.rules.normalize || self.uses_cosine(),
        }
    }

    fn uses_cosine(&self) -> bool {
        self.rules.similarity == Similarity::Cosine
    }

    /// Token ids of each text, including its prompt.
    ///
    /// # Errors
    ///
    /// The tokenizer refuses a text or produces a token without a word embedding, or as for
    /// [`EncoderFiles::prompt`].
    pub fn token_ids<T: AsRef<str>>(&self, role: Role, texts: &[T]) -> Result<TextIds, Error> {
        let prompt = self.prompt(role)?;
        let ids = texts.iter().map(|text| match prompt {
            "" => self.tokenizer.encode(text.as_ref()),
            prompt => self.tokenizer.encode(&format!("{prompt}{}", text.as_ref())),
        });
        let texts = ids.collect::<Result<Vec<_>, _>>()?;
        let rows = self.config.vocab_size;
        let mut all = texts.iter().flat_map(|text| &text.ids);
        if let Some(id) = all.find(|&&id| id as usize >= rows) {
            return Err(Error::Usage(format!(
                "{}: it produces token {id}, but vocab_size in config.json is {rows}; use both files \
                 of the same model",
                self.dir.join("tokenizer.json").display()
            )));
        }
        Ok(TextIds {
            texts,
            n_unpooled: if self.rules.include_prompt || prompt.is_empty() {
                0
            } else {
                self.n_prompt_tokens(prompt)?
            },
        })
    }

    /// Number of tokens of the prompt at the start of a text, including `[CLS]`.
    ///
    /// # Source
    ///
    /// sentence-transformers 6.2, `Transformer._get_prompt_length`: the tokens of the prompt
    /// itself, minus a special token at its end.
    fn n_prompt_tokens(&self, prompt: &str) -> Result<usize, Error> {
        let [prompt, empty] = [prompt, ""].map(|text| self.tokenizer.encode(text));
        let (prompt, empty) = (prompt?.ids, empty?.ids);
        let has_bos = prompt.first() == empty.first();
        let has_eos = prompt.last() == empty.last() && empty.len() > usize::from(has_bos);
        Ok(prompt.len() - usize::from(has_eos))
    }
}

/// An encoder with its tokenizer.
#[derive(Debug, Clone)]
pub struct MiniLmEncoder {
    model: MiniLm,
    /// Tokenizer and settings.
    pub files: EncoderFiles,
}

impl MiniLmEncoder {
    /// Loads `dir` with its weights, for texts that are neither queries nor documents.
    ///
    /// # Errors
    ///
    /// A file is missing, damaged or has a different architecture.
    pub fn open(dir: &Path, device: &Device) -> Result<Self, Error> {
        let files = EncoderFiles::open(dir, &EncoderOptions::default())?;
        Ok(files.encoder(&files.parameters(dir, device)?))
    }

    /// Embeds each text for its role, as in sentence-transformers.
    ///
    /// # Errors
    ///
    /// As for [`EncoderFiles::token_ids`].
    pub fn embed<T: AsRef<str>>(&self, role: Role, texts: &[T]) -> Result<Vec<Vec<f32>>, Error> {
        self.embeddings(&self.files.token_ids(role, texts)?, &mut Alone)
    }

    /// Embeddings for comparisons. Their dot product is the folder's similarity function, and texts
    /// with equal token IDs have bitwise equal embeddings. The processes of `division` embed a share
    /// each.
    ///
    /// # Errors
    ///
    /// A process was lost.
    pub fn comparison_embeddings(
        &self,
        ids: &TextIds,
        division: &mut dyn Division,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let mut vectors = self.embeddings(ids, division)?;
        if self.files.uses_cosine() && !self.files.rules.normalize {
            for vector in &mut vectors {
                let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
                vector.iter_mut().for_each(|x| *x /= norm);
            }
        }
        Ok(vectors)
    }

    fn embeddings(
        &self,
        ids: &TextIds,
        division: &mut dyn Division,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let same = ids.duplicates();
        let mut vectors: Vec<Vec<f32>> = Vec::with_capacity(same.len());
        let distinct: Vec<usize> = (0..same.len()).filter(|&i| same[i] == i).collect();
        let mut embedded = self.passes(ids, &distinct, division)?.into_iter();
        for (i, &first) in same.iter().enumerate() {
            let vector = if first == i {
                embedded.next()
            } else {
                vectors.get(first).cloned()
            };
            vectors.extend(vector);
        }
        Ok(vectors)
    }

    /// Embeds the given texts, in passes of limited size.
    fn passes(
        &self,
        ids: &TextIds,
        texts: &[usize],
        division: &mut dyn Division,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let sentences: Vec<Sentence<'_>> = texts.iter().map(|&text| ids.sentence(text)).collect();
        let passes = pass_ranges(&sentences);
        let n_tokens = |pass: &Range<usize>| {
            let sentences = sentences[pass.clone()].iter();
            sentences
                .map(|sentence| sentence.ids.len() as u64)
                .sum::<u64>()
        };
        let own = division.own(&passes.iter().map(n_tokens).collect::<Vec<u64>>());
        let mut values = BTreeMap::new();
        for i in own {
            let embedded = self.model.embed(&sentences[passes[i].clone()]);
            values.insert(i, embedded.into_data().iter::<f32>().collect());
            division.progress();
        }
        let values = division.exchange(values, passes.len())?;
        let vectors = passes.iter().zip(&values).flat_map(|(pass, values)| {
            let width = values.len() / pass.len();
            values.chunks(width.max(1)).map(<[f32]>::to_vec)
        });
        Ok(vectors.collect())
    }
}

/// Groups sentences into passes of at most [`PASS_TOKENS`] tokens or one sentence.
fn pass_ranges(sentences: &[Sentence<'_>]) -> Vec<Range<usize>> {
    let mut passes = Vec::new();
    let mut first = 0;
    while first < sentences.len() {
        let mut end = first + 1;
        let mut n_tokens = sentences[first].ids.len();
        while end < sentences.len() && n_tokens + sentences[end].ids.len() <= PASS_TOKENS {
            n_tokens += sentences[end].ids.len();
            end += 1;
        }
        passes.push(first..end);
        first = end;
    }
    passes
}

pub(crate) fn json(path: &Path) -> Result<Value, Error> {
    let bytes = regular_file::read(path, JSON_BYTES).map_err(Error::io(path, "read"))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::Usage(format!("{}: {error}", path.display())))
}

impl SentenceEncoder for MiniLmEncoder {
    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EncoderError> {
        let embedded = self.embed(Role::Text, texts);
        embedded.map_err(|error| EncoderError::Failed(Box::new(error)))
    }
}
