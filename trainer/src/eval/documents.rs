//! API documents and texts to rankings: the documents of a catalogue, embedded once.

use burn::tensor::Device;
use tooltune_data::benchmarks::slot::SentenceEncoder;
use tooltune_data::tools::ApiCatalogue;

use super::encoder::MiniLmEncoder;
use crate::config::Config;
use crate::error::Error;

/// The documents of a catalogue as vectors, and the encoder that made them.
#[derive(Debug)]
pub struct DocumentIndex {
    encoder: MiniLmEncoder,
    /// Unit vectors in the order of the catalogue.
    documents: Vec<Vec<f32>>,
}

impl DocumentIndex {
    /// Embeds every document with the retriever of the config.
    ///
    /// # Errors
    ///
    /// The config names no retriever, or it cannot be loaded.
    pub fn open(config: &Config, catalogue: &ApiCatalogue, device: &Device) -> Result<Self, Error> {
        let retriever = config.retriever.as_ref().ok_or_else(|| {
            Error::Usage(
                "nothing ranks documents: add [retriever] with model_name_or_path = \
                 \"models/all-minilm-l6-v2\" (scripts/fetch-models brings it)"
                    .to_string(),
            )
        })?;
        let encoder = MiniLmEncoder::open(&retriever.model_name_or_path, device)?;
        let texts: Vec<String> = catalogue.iter().map(|d| d.retriever_text()).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let documents = encoder.encode(&texts)?;
        Ok(Self { encoder, documents })
    }

    /// The positions of the `k` documents nearest to each text, nearest first; of equally near ones
    /// the earlier.
    ///
    /// # Errors
    ///
    /// A text that the tokenizer refuses.
    pub fn nearest(&self, texts: &[String], k: usize) -> Result<Vec<Vec<usize>>, Error> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let vectors = self.encoder.encode(&texts)?;
        Ok(vectors
            .iter()
            .map(|vector| self.ranked(vector, k))
            .collect())
    }

    fn ranked(&self, vector: &[f32], k: usize) -> Vec<usize> {
        let cosines: Vec<f32> = self
            .documents
            .iter()
            .map(|document| document.iter().zip(vector).map(|(a, b)| a * b).sum())
            .collect();
        let mut positions: Vec<usize> = (0..cosines.len()).collect();
        positions.sort_by(|&a, &b| cosines[b].total_cmp(&cosines[a]).then(a.cmp(&b)));
        positions.truncate(k);
        positions
    }
}
