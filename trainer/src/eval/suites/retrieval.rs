//! The suite retrieval: queries to rankings of all documents, and how high the right ones stand.

use std::path::Path;

use serde::Serialize;
use tooltune_agents::pairs::{PairSet, read_documents, read_pairs};
use tooltune_rows::tools::ApiCatalogue;
use tooltune_suites::retrieval::{RetrievalReport, SUITE, retrieval_table};

use super::{EvalContext, LoadedSuite, SuiteResult, named_means};
use crate::config::{Config, Suite};
use crate::encoder::cut_texts::{Consequence, CutTexts, PlacedIds};
use crate::encoder::documents::{highest, no_retriever, ranked_gold, scores};
use crate::encoder::{EncoderFiles, MiniLmEncoder, Role, TextIds};
use crate::error::Error;
use crate::eval::report_files::report_files;
use crate::rows::{eval_trajectories, goat_options};

/// Documents of each ranking that a prediction shows.
const SHOWN: usize = 10;

/// Queries with their right documents, among all documents.
#[derive(Debug)]
pub struct RetrievalSuite {
    set: PairSet,
    n_queries: usize,
    query_ids: TextIds,
    document_ids: TextIds,
}

/// What became of one query; a line of `predictions.jsonl`.
#[derive(Debug, Clone, Serialize)]
struct RetrievalPrediction {
    /// The query.
    query: String,
    /// Positions of its right documents in the index.
    gold: Vec<usize>,
    /// Positions of the documents that rank highest, best first.
    ranked: Vec<usize>,
}

impl RetrievalSuite {
    /// Reads queries and documents: those of `[retriever]`, or of trajectories; and warns of those
    /// that the retriever does not read to their end.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, a text that the tokenizer refuses, or nothing to evaluate on.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let retriever = config.retriever.as_ref().ok_or_else(no_retriever)?;
        let mut set = if retriever.eval.is_empty() {
            trajectory_pairs(config)?
        } else {
            read_pairs(&retriever.eval)?
        };
        let n_queries = set.queries().len();
        if let Some(path) = &retriever.documents {
            for document in read_documents(path)? {
                set.add_document(&document.text, &document.place);
            }
        }
        let n_queries = n_queries.min(config.eval.max_samples.unwrap_or(usize::MAX));
        let files = EncoderFiles::of_retriever(retriever)?;
        let query_ids = files.token_ids(Role::Query, &set.queries()[..n_queries])?;
        let document_ids = files.token_ids(Role::Document, set.documents())?;
        let queries = PlacedIds {
            places: &set.query_places()[..n_queries],
            ids: &query_ids,
        };
        let documents = PlacedIds {
            places: set.document_places(),
            ids: &document_ids,
        };
        let cut = CutTexts::new(&files, Some(queries), Some(documents));
        for line in cut.lines(Consequence::ShareRanks) {
            tracing::warn!("evaluation of the retriever: {line}");
        }
        Ok(Self {
            n_queries,
            set,
            query_ids,
            document_ids,
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

    /// Ranks all documents for each query, with an encoder that reads texts as the config's does.
    ///
    /// # Errors
    ///
    /// Never for a suite that was opened: each query has a right document.
    pub fn ranked(&self, encoder: &MiniLmEncoder) -> Result<SuiteResult, Error> {
        let documents = encoder.compared(&self.document_ids);
        let queries = self.queries();
        let mut golds = Vec::with_capacity(queries.len());
        let mut predictions = Vec::with_capacity(queries.len());
        let vectors = encoder.compared(&self.query_ids);
        for (query, vector) in vectors.iter().enumerate() {
            let scores = scores(&documents, vector);
            let gold: Vec<usize> = self.set.relevant(query).iter().copied().collect();
            golds.push(ranked_gold(&scores, &gold)?);
            predictions.push(RetrievalPrediction {
                query: queries[query].clone(),
                gold,
                ranked: highest(&scores, SHOWN),
            });
        }
        let report = RetrievalReport::new(&golds)?;
        Ok(SuiteResult {
            metrics: named_means(Suite::Retrieval, SUITE.metrics, |name| report.value(name)),
            files: report_files(&report, &predictions)?,
            table: retrieval_table(&[("this run", &report)]),
            by_file: None,
            notes: Vec::new(),
            warnings: Vec::new(),
        })
    }
}

impl LoadedSuite for RetrievalSuite {
    fn suite(&self) -> Suite {
        Suite::Retrieval
    }

    fn n_samples(&self) -> usize {
        self.n_queries
    }

    fn evaluate(&self, context: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        let retriever = context.retriever.ok_or_else(no_retriever)?;
        self.ranked(retriever.encoder).map(Some)
    }

    fn score_saved(&self, _: &Path, _: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        Err(Error::Usage(
            "--predictions is not for the suite retrieval; take it out".to_string(),
        ))
    }
}

/// The queries of the evaluation's trajectories, and all documents of their catalogue.
fn trajectory_pairs(config: &Config) -> Result<PairSet, Error> {
    let options = goat_options(config)?;
    let catalogue = ApiCatalogue::read(&options.documents)?;
    let trajectories = eval_trajectories(config, &catalogue)?;
    let mut set = PairSet::of_trajectories(&trajectories, &catalogue, options.method)?;
    for document in catalogue.iter() {
        set.add_document(&document.retriever_text(), &document.call_name());
    }
    Ok(set)
}
