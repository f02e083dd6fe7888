//! The suite retrieval: queries to rankings of all documents, and how high the right ones stand.

use std::collections::BTreeMap;

use serde::Serialize;
use tooltune_data::benchmarks::retrieval::{RankedGold, RetrievalMetrics, RetrievalReport};
use tooltune_data::pairs::{PairSet, read_documents, read_pairs};
use tooltune_data::tools::ApiCatalogue;

use super::documents::{encode, ranked, texts_of};
use super::encoder::MiniLmEncoder;
use super::report_files::report_files;
use crate::config::Config;
use crate::error::Error;
use crate::recipes::rows::{eval_trajectories, goat_options};

/// Documents of each ranking that a prediction shows.
const SHOWN: usize = 10;

/// Queries with their right documents, among all documents.
#[derive(Debug)]
pub struct RetrievalSuite {
    set: PairSet,
    n_queries: usize,
}

/// What became of one query; a line of `predictions.jsonl`.
#[derive(Debug, Clone, Serialize)]
pub struct RetrievalPrediction {
    /// The query.
    pub query: String,
    /// Positions of its right documents in the index.
    pub gold: Vec<usize>,
    /// Positions of the documents that rank highest, best first.
    pub ranked: Vec<usize>,
}

/// What an encoder is worth on the queries.
#[derive(Debug, Clone)]
pub struct RetrievalEvaluation {
    /// Means with their intervals.
    pub report: RetrievalReport,
    /// In the order of the queries.
    pub predictions: Vec<RetrievalPrediction>,
}

impl RetrievalEvaluation {
    /// Means by name: `retrieval.recall_at_5` and so on.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        RetrievalMetrics::<f64>::NAMES
            .into_iter()
            .filter_map(|name| {
                let value = self.report.value(name)?.value;
                Some((format!("retrieval.{name}"), value))
            })
            .collect()
    }

    /// `metrics.json`, and `predictions.jsonl` with a line for each query.
    ///
    /// # Errors
    ///
    /// Never for rankings that were made here; serialisation has no other failure.
    pub fn files(&self) -> Result<BTreeMap<String, Vec<u8>>, Error> {
        report_files(&self.report, &self.predictions)
    }
}

impl RetrievalSuite {
    /// Reads queries and documents: those of `[retriever]`, or of trajectories.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or nothing to evaluate on.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let retriever = config.retriever.as_ref();
        let mut set = match retriever.filter(|retriever| !retriever.eval.is_empty()) {
            Some(retriever) => read_pairs(&retriever.eval)?,
            None => trajectory_pairs(config)?,
        };
        let n_queries = set.queries().len();
        if let Some(path) = retriever.and_then(|retriever| retriever.documents.as_ref()) {
            for text in read_documents(path)? {
                set.add_document(&text);
            }
        }
        Ok(Self {
            n_queries: n_queries.min(config.eval.max_samples.unwrap_or(usize::MAX)),
            set,
        })
    }

    /// The queries.
    pub fn queries(&self) -> &[String] {
        &self.set.queries()[..self.n_queries]
    }

    /// All documents.
    pub fn documents(&self) -> &[String] {
        self.set.documents()
    }

    /// Ranks all documents for each query.
    ///
    /// # Errors
    ///
    /// A text that the tokenizer refuses.
    pub fn evaluate(&self, encoder: &MiniLmEncoder) -> Result<RetrievalEvaluation, Error> {
        let documents = encode(encoder, self.documents())?;
        let queries = self.queries();
        let mut golds = Vec::with_capacity(queries.len());
        let mut predictions = Vec::with_capacity(queries.len());
        for (query, vector) in encode(encoder, queries)?.iter().enumerate() {
            let order = ranked(&documents, vector, documents.len());
            let gold: Vec<usize> = self.set.relevant(query).iter().copied().collect();
            golds.push(RankedGold::new(&order, &gold)?);
            predictions.push(RetrievalPrediction {
                query: queries[query].clone(),
                gold,
                ranked: order.into_iter().take(SHOWN).collect(),
            });
        }
        Ok(RetrievalEvaluation {
            report: RetrievalReport::new(&golds)?,
            predictions,
        })
    }
}

/// The queries of the evaluation's trajectories, and all documents of their catalogue.
fn trajectory_pairs(config: &Config) -> Result<PairSet, Error> {
    let options = goat_options(config)?;
    let catalogue = ApiCatalogue::read(&options.documents)?;
    let trajectories = eval_trajectories(config, &catalogue)?;
    let mut set = PairSet::of_trajectories(&trajectories, &catalogue, options.method)?;
    for text in texts_of(&catalogue) {
        set.add_document(&text);
    }
    Ok(set)
}
