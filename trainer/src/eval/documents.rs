//! Documents and texts to rankings: the documents of an index, embedded once.

use burn::tensor::Device;
use tooltune_data::benchmarks::slot::SentenceEncoder;
use tooltune_data::tools::ApiCatalogue;

use super::encoder::{EncoderFiles, MiniLmEncoder};
use crate::config::Config;
use crate::error::Error;

/// Documents as vectors, and the encoder that made them.
#[derive(Debug)]
pub struct DocumentIndex {
    encoder: MiniLmEncoder,
    /// Unit vectors in the order of the texts.
    vectors: Vec<Vec<f32>>,
}

/// The retriever that a config names, as it was before any training.
///
/// # Errors
///
/// The config names no retriever, or it cannot be loaded.
pub fn untrained(config: &Config, device: &Device) -> Result<MiniLmEncoder, Error> {
    let retriever = config.retriever.as_ref().ok_or_else(no_retriever)?;
    let files = EncoderFiles::open(&retriever.model_name_or_path, retriever.max_seq_length)?;
    Ok(files.encoder(&files.parameters(&files.dir, device)?))
}

/// Nothing that could rank documents.
pub fn no_retriever() -> Error {
    Error::Usage(
        "nothing ranks documents: add [retriever] with model_name_or_path = \
         \"models/all-minilm-l6-v2\" (scripts/fetch-models brings it)"
            .to_string(),
    )
}

/// What the retriever reads of each document of a catalogue.
pub fn texts_of(catalogue: &ApiCatalogue) -> Vec<String> {
    catalogue
        .iter()
        .map(|document| document.retriever_text())
        .collect()
}

impl DocumentIndex {
    /// Embeds every text.
    ///
    /// # Errors
    ///
    /// A text that the tokenizer refuses.
    pub fn new(encoder: MiniLmEncoder, texts: &[String]) -> Result<Self, Error> {
        let vectors = encode(&encoder, texts)?;
        Ok(Self { encoder, vectors })
    }

    /// The positions of the `k` documents nearest to each text, nearest first; of equally near ones
    /// the earlier.
    ///
    /// # Errors
    ///
    /// A text that the tokenizer refuses.
    pub fn nearest(&self, texts: &[String], k: usize) -> Result<Vec<Vec<usize>>, Error> {
        let vectors = encode(&self.encoder, texts)?;
        Ok(vectors
            .iter()
            .map(|vector| ranked(&self.vectors, vector, k))
            .collect())
    }
}

/// Unit vectors of texts.
///
/// # Errors
///
/// A text that the tokenizer refuses.
pub fn encode(encoder: &MiniLmEncoder, texts: &[String]) -> Result<Vec<Vec<f32>>, Error> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    Ok(encoder.encode(&texts)?)
}

/// The positions of the `k` vectors nearest to `vector`, nearest first; of equally near ones the
/// earlier.
pub fn ranked(vectors: &[Vec<f32>], vector: &[f32], k: usize) -> Vec<usize> {
    let cosines: Vec<f32> = vectors
        .iter()
        .map(|other| other.iter().zip(vector).map(|(a, b)| a * b).sum())
        .collect();
    let mut positions: Vec<usize> = (0..cosines.len()).collect();
    positions.sort_by(|&a, &b| cosines[b].total_cmp(&cosines[a]).then(a.cmp(&b)));
    positions.truncate(k);
    positions
}
