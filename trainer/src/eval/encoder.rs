//! MiniLM behind the metrics' encoder interface: texts to unit vectors.

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor};
use serde_json::Value;
use tooltune_checkpoints::weights::Weights;
use tooltune_data::benchmarks::slot::{ScoreError, SentenceEncoder};
use tooltune_data::text::WordPiece;
use tooltune_kernels::ComputeDtype;

use crate::base_model::warn_of_dropout;
use crate::error::Error;
use crate::models::minilm::{MiniLm, MiniLmConfig, ParameterLayout};

/// Tokens of all sentences that one pass takes at most; bounds the activations.
pub(crate) const PASS_TOKENS: usize = 2048;

/// Pieces of a sentence unless `sentence_bert_config.json` says otherwise.
pub(crate) const MAX_SEQ_LENGTH: usize = 256;

/// A sentence-transformers directory, without its weights.
#[derive(Debug, Clone)]
pub struct EncoderFiles {
    /// Where it lies.
    pub dir: PathBuf,
    /// Shape of the encoder.
    pub config: MiniLmConfig,
    /// Texts to ids, cut at [`Self::max_seq_length`].
    pub tokenizer: WordPiece,
    /// Most tokens of a text, `[CLS]` and `[SEP]` included.
    pub max_seq_length: usize,
}

impl EncoderFiles {
    /// Reads `config.json` and `tokenizer.json` of `dir`. Texts are cut at `max_seq_length`, or as
    /// the directory says.
    ///
    /// # Errors
    ///
    /// A file that is missing, damaged or of another architecture, or a length beyond the model's
    /// positions.
    pub fn open(dir: &Path, max_seq_length: Option<usize>) -> Result<Self, Error> {
        let config = MiniLmConfig::from_json(&json(&dir.join("config.json"))?)
            .map_err(|problem| Error::Usage(format!("{}: {problem}", dir.display())))?;
        let most = config.max_position_embeddings;
        let max_seq_length = match max_seq_length {
            Some(typed) if typed > most => {
                return Err(Error::Usage(format!(
                    "retriever.max_seq_length is {typed}, and {} has {most} positions; lower it",
                    dir.display()
                )));
            }
            Some(typed) => typed,
            None => configured_length(dir)?
                .unwrap_or(MAX_SEQ_LENGTH)
                .clamp(2, most),
        };
        let tokenizer = WordPiece::from_file(&dir.join("tokenizer.json"), max_seq_length)?;
        if let Some(share) = tokenizer.dropout() {
            warn_of_dropout(&dir.join("tokenizer.json"), share);
        }
        Ok(Self {
            dir: dir.to_owned(),
            config,
            tokenizer,
            max_seq_length,
        })
    }

    /// The parameters that `weights`, a directory or a file, holds: `[p]`, f32.
    ///
    /// # Errors
    ///
    /// Weights that are missing, damaged or another encoder's.
    pub fn parameters(&self, weights: &Path, device: &Device) -> Result<Tensor<1>, Error> {
        let layout = ParameterLayout::new(&self.config);
        Ok(layout.read(&Weights::open(weights)?, device)?)
    }

    /// The encoder with the parameters `flat`, exact to f32.
    pub fn encoder(&self, flat: &Tensor<1>) -> MiniLmEncoder {
        let layout = ParameterLayout::new(&self.config);
        MiniLmEncoder {
            model: MiniLm::new(&self.config, &layout, flat, ComputeDtype::F32),
            tokenizer: self.tokenizer.clone(),
        }
    }

    /// Token ids of each text.
    ///
    /// # Errors
    ///
    /// A text that the tokenizer refuses.
    pub fn token_ids(&self, texts: &[String]) -> Result<Vec<Vec<u32>>, Error> {
        let ids = texts.iter().map(|text| self.tokenizer.encode(text));
        Ok(ids.collect::<Result<_, _>>()?)
    }
}

/// The length that sentence-transformers cuts texts at: versions up to 5 write it into a file of
/// their own, later ones as the tokenizer's.
fn configured_length(dir: &Path) -> Result<Option<usize>, Error> {
    for (file, key) in [
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ] {
        let path = dir.join(file);
        if !path.exists() {
            continue;
        }
        // Tokenizers without a limit have 1e30 here, which is no whole number.
        if let Some(length) = json(&path)?[key].as_u64() {
            return Ok(usize::try_from(length).ok());
        }
    }
    Ok(None)
}

/// An encoder with its tokenizer.
#[derive(Debug, Clone)]
pub struct MiniLmEncoder {
    model: MiniLm,
    tokenizer: WordPiece,
}

impl MiniLmEncoder {
    /// Loads `config.json`, `tokenizer.json` and `model.safetensors` of `dir`.
    ///
    /// # Errors
    ///
    /// A file that is missing, damaged or of another architecture.
    pub fn open(dir: &Path, device: &Device) -> Result<Self, Error> {
        let files = EncoderFiles::open(dir, None)?;
        Ok(files.encoder(&files.parameters(dir, device)?))
    }
}

pub(crate) fn json(path: &Path) -> Result<Value, Error> {
    let bytes = std::fs::read(path).map_err(Error::io(path, "read"))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::Usage(format!("{}: {error}", path.display())))
}

impl SentenceEncoder for MiniLmEncoder {
    fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, ScoreError> {
        let sentences = texts
            .iter()
            .map(|text| self.tokenizer.encode(text))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| ScoreError::Encoder(Box::new(error)))?;
        let sentences: Vec<&[u32]> = sentences.iter().map(Vec::as_slice).collect();
        let mut vectors = Vec::with_capacity(texts.len());
        let mut first = 0;
        while first < sentences.len() {
            let mut end = first + 1;
            let mut n_tokens = sentences[first].len();
            while end < sentences.len() && n_tokens + sentences[end].len() <= PASS_TOKENS {
                n_tokens += sentences[end].len();
                end += 1;
            }
            let embedded = self.model.embed(&sentences[first..end]);
            let width = embedded.dims()[1];
            let values: Vec<f32> = embedded.into_data().iter::<f32>().collect();
            vectors.extend(values.chunks(width).map(<[f32]>::to_vec));
            first = end;
        }
        Ok(vectors)
    }
}
