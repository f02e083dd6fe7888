//! Ranks the documents of an index, embedded once, for texts.

use burn::tensor::Device;
use tooltune_rows::tools::ApiCatalogue;
use tooltune_suites::ranking::{RankedGold, RetrievalError};

use super::cut_texts::{Consequence, CutTexts, PlacedIds};
use super::{EncoderFiles, MiniLmEncoder, Role};
use crate::config::Config;
use crate::error::Error;

/// Documents as vectors, and the encoder that made them.
#[derive(Debug)]
pub struct DocumentIndex {
    encoder: MiniLmEncoder,
    /// In the order of the texts.
    vectors: Vec<Vec<f32>>,
}

/// The retriever that a config names, as it was before any training.
///
/// # Errors
///
/// The config names no retriever, or it cannot be loaded.
pub fn untrained(config: &Config, device: &Device) -> Result<MiniLmEncoder, Error> {
    let retriever = config.retriever.as_ref().ok_or_else(no_retriever)?;
    let files = EncoderFiles::of_retriever(retriever)?;
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

/// Says which documents of a catalogue the retriever does not read to their end.
///
/// # Errors
///
/// A document that the tokenizer refuses.
pub fn warn_of_cut_documents(catalogue: &ApiCatalogue, files: &EncoderFiles) -> Result<(), Error> {
    let names = catalogue.iter().map(|document| document.call_name());
    let documents = PlacedIds {
        places: &names.collect::<Vec<_>>(),
        ids: &files.token_ids(Role::Document, &texts_of(catalogue))?,
    };
    let cut = CutTexts::new(files, None, Some(documents));
    for line in cut.lines(Consequence::ShareRanks) {
        tracing::warn!("goat.documents: {line}");
    }
    Ok(())
}

impl DocumentIndex {
    /// Embeds every text.
    ///
    /// # Errors
    ///
    /// A text that the tokenizer refuses.
    pub fn new(encoder: MiniLmEncoder, texts: &[String]) -> Result<Self, Error> {
        let vectors = encoder.compared(&encoder.files.token_ids(Role::Document, texts)?);
        Ok(Self { encoder, vectors })
    }

    /// The positions of the `k` documents nearest to each query, nearest first; of equally near ones
    /// the earlier.
    ///
    /// # Errors
    ///
    /// A query that the tokenizer refuses.
    pub fn nearest(&self, queries: &[String], k: usize) -> Result<Vec<Vec<usize>>, Error> {
        let scores = self.scores(queries)?;
        Ok(scores.iter().map(|scores| highest(scores, k)).collect())
    }

    /// How near each document is to each query.
    ///
    /// # Errors
    ///
    /// A query that the tokenizer refuses.
    pub fn scores(&self, queries: &[String]) -> Result<Vec<Vec<f64>>, Error> {
        let encoder = &self.encoder;
        let queries = encoder.compared(&encoder.files.token_ids(Role::Query, queries)?);
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

/// The positions of the `k` highest scores, highest first; of equal ones the earlier.
pub fn highest(scores: &[f64], k: usize) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..scores.len()).collect();
    positions.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    positions.truncate(k);
    positions
}

/// Where the gold documents stand among all, by scores. Scores that differ by less than the rounding
/// step of the largest one in f32, which embeddings are, are equal.
///
/// # Errors
///
/// There is no gold document.
pub fn ranked_gold(scores: &[f64], gold: &[usize]) -> Result<RankedGold, RetrievalError> {
    let largest = scores
        .iter()
        .fold(0.0, |largest: f64, score| largest.max(score.abs()));
    RankedGold::of_scores(scores, gold, f64::from(f32::EPSILON) * largest)
}
