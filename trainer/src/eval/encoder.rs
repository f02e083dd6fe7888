//! MiniLM behind the metrics' encoder interface: texts to unit vectors.

use std::path::Path;

use burn::tensor::Device;
use serde_json::Value;
use tooltune_checkpoints::weights::Weights;
use tooltune_data::benchmarks::slot::{ScoreError, SentenceEncoder};
use tooltune_data::text::WordPiece;

use crate::error::Error;
use crate::models::minilm::{MiniLm, MiniLmConfig};

/// Tokens of all sentences that one pass takes at most; bounds the activations.
const PASS_TOKENS: usize = 2048;

/// Pieces of a sentence unless `sentence_bert_config.json` says otherwise.
const MAX_SEQ_LENGTH: usize = 256;

/// A sentence-transformers directory, loaded.
#[derive(Debug)]
pub struct MiniLmEncoder {
    model: MiniLm,
    tokenizer: WordPiece,
    device: Device,
}

impl MiniLmEncoder {
    /// Loads `config.json`, `tokenizer.json` and `model.safetensors` of `dir`.
    ///
    /// # Errors
    ///
    /// A file that is missing, damaged or of another architecture.
    pub fn open(dir: &Path, device: &Device) -> Result<Self, Error> {
        let config = MiniLmConfig::from_json(&json(&dir.join("config.json"))?)
            .map_err(|problem| Error::Usage(format!("{}: {problem}", dir.display())))?;
        let sentence_config = dir.join("sentence_bert_config.json");
        let configured = match sentence_config.exists() {
            true => json(&sentence_config)?["max_seq_length"]
                .as_u64()
                .map(|n| n as usize),
            false => None,
        };
        let max_seq_length = configured
            .unwrap_or(MAX_SEQ_LENGTH)
            .clamp(2, config.max_position_embeddings);
        let tokenizer = WordPiece::from_file(&dir.join("tokenizer.json"), max_seq_length)?;
        let weights = Weights::open(dir)?;
        let model = MiniLm::load(config, &weights, device)?;
        Ok(Self {
            model,
            tokenizer,
            device: device.clone(),
        })
    }
}

fn json(path: &Path) -> Result<Value, Error> {
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
        let mut vectors = Vec::with_capacity(texts.len());
        let mut first = 0;
        while first < sentences.len() {
            let mut end = first + 1;
            let mut n_tokens = sentences[first].len();
            while end < sentences.len() && n_tokens + sentences[end].len() <= PASS_TOKENS {
                n_tokens += sentences[end].len();
                end += 1;
            }
            let embedded = self.model.embed(&sentences[first..end], &self.device);
            let width = embedded.dims()[1];
            let values: Vec<f32> = embedded.into_data().iter::<f32>().collect();
            vectors.extend(values.chunks(width).map(<[f32]>::to_vec));
            first = end;
        }
        Ok(vectors)
    }
}
