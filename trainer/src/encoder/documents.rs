//! Ranks documents by their similarity to queries. The documents are embedded once.

use burn::tensor::Device;
use tooltune_apis::ApiCatalogue;
use tooltune_suites::ranking::{RankedGold, RetrievalError};

use super::cut_texts::{CutTexts, EqualTexts, LocatedIds};
use super::{EncoderFiles, MiniLmEncoder, Role};
use crate::config::Config;
use crate::error::Error;
use crate::retriever::Alone;

/// Document embeddings, and the encoder that computed them.
#[derive(Debug)]
pub struct DocumentIndex {
    encoder: MiniLmEncoder,
    /// One embedding per document, in order.
    vectors: Vec<Vec<f32>>,
}

/// Loads the untrained retriever of a config.
///
/// # Errors
///
/// The config has no retriever, or it cannot be loaded.
pub fn load_untrained_retriever(config: &Config, device: &Device) -> Result<MiniLmEncoder, Error> {
    let retriever = config.retriever.as_ref().ok_or_else(no_retriever)?;
    let files = EncoderFiles::for_retriever(retriever)?;
    Ok(files.encoder(&files.parameters(&files.dir, device)?))
}

/// The error if documents must be ranked but the config has no retriever.
pub fn no_retriever() -> Error {
    Error::Usage(
        "no retriever to rank documents: add [retriever] with model_name_or_path = \
         \"models/all-minilm-l6-v2\" (scripts/fetch-models downloads it)"
            .to_string(),
    )
}

/// The text of each document in a catalogue, as input of the retriever.
pub fn texts_of(catalogue: &ApiCatalogue) -> Vec<String> {
    catalogue
        .iter()
        .map(|document| document.retriever_text())
        .collect()
}

/// Warns about documents in a catalogue that the retriever truncates.
///
/// # Errors
///
/// The tokenizer refuses a document.
pub fn warn_of_cut_documents(catalogue: &ApiCatalogue, files: &EncoderFiles) -> Result<(), Error> {
    let names = catalogue.iter().map(|document| document.call_name());
    let documents = LocatedIds {
        locations: &names.collect::<Vec<_>>(),
        ids: &files.token_ids(Role::Document, &texts_of(catalogue))?,
    };
    let cut = CutTexts::new(files, None, Some(documents));
    for line in cut.lines(EqualTexts::ShareRanks) {
        tracing::warn!("goat.documents: {line}");
    }
    Ok(())
}

impl DocumentIndex {
    /// Embeds all texts.
    ///
    /// # Errors
    ///
    /// The tokenizer refuses a text.
    pub fn new(encoder: MiniLmEncoder, texts: &[String]) -> Result<Self, Error> {
        let ids = encoder.files.token_ids(Role::Document, texts)?;
        let vectors = encoder.comparison_embeddings(&ids, &mut Alone)?;
        Ok(Self { encoder, vectors })
    }

    /// Indices of the `k` documents nearest to each query, nearest first. Ties are in document
    /// order.
    ///
    /// # Errors
    ///
    /// The tokenizer refuses a query.
    pub fn nearest(&self, queries: &[String], k: usize) -> Result<Vec<Vec<usize>>, Error> {
        let scores = self.scores(queries)?;
        Ok(scores.iter().map(|scores| highest(scores, k)).collect())
    }

    /// For each query, its similarity to each document.
    ///
    /// # Errors
    ///
    /// The tokenizer refuses a query.
    pub fn scores(&self, queries: &[String]) -> Result<Vec<Vec<f64>>, Error> {
        let encoder = &self.encoder;
        let ids = encoder.files.token_ids(Role::Query, queries)?;
        let queries = encoder.comparison_embeddings(&ids, &mut Alone)?;
        let scores = queries.iter().map(|query| scores(&self.vectors, query));
        Ok(scores.collect())
    }
}

/// The dot product of each vector with `query`.
pub fn scores(vectors: &[Vec<f32>], query: &[f32]) -> Vec<f64> {
    let product = |vector: &Vec<f32>| -> f64 {
        let terms = vector.iter().zip(query);
        terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    vectors.iter().map(product).collect()
}

/// Indices of the `k` highest scores, highest first. Ties are ordered by index.
pub fn highest(scores: &[f64], k: usize) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..scores.len()).collect();
    positions.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    positions.truncate(k);
    positions
}

/// Ranks of the gold documents by score. Because embeddings are f32, scores are tied if they differ
/// by less than the f32 rounding step of the largest score.
///
/// # Errors
///
/// There is no gold document.
pub fn ranked_gold(scores: &[f64], gold: &[usize]) -> Result<RankedGold, RetrievalError> {
    let largest = scores
        .iter()
        .fold(0.0, |largest: f64, score| largest.max(score.abs()));
    RankedGold::from_scores(scores, gold, f64::from(f32::EPSILON) * largest)
}
