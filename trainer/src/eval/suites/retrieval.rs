//! The suite retrieval: queries to rankings of all documents, and how high the right ones stand.

use std::path::Path;

use serde::Serialize;
use tooltune_suites::Ceiling;
use tooltune_suites::ranking::{RetrievalReport, retrieval_table};
use tooltune_suites::retrieval::SUITE;

use super::{EvalContext, LoadedSuite, SuiteKind, SuiteResult, named_means};
use crate::config::Suite;
use crate::encoder::MiniLmEncoder;
use crate::encoder::documents::{highest, no_retriever, ranked_gold, scores};
use crate::error::Error;
use crate::eval::ranked_texts::RankedTexts;
use crate::eval::report_files::report_files;

/// Documents of each ranking that a prediction shows.
const SHOWN: usize = 10;

pub(super) static KIND: SuiteKind = SuiteKind {
    info: &SUITE,
    open: |opening| Ok(Box::new(RetrievalSuite(RankedTexts::open(opening.config)?))),
    change: None,
};

/// Queries with their right documents, among all documents.
#[derive(Debug)]
struct RetrievalSuite(RankedTexts);

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
    /// Ranks all documents for each query, with an encoder that reads texts as the config's does.
    ///
    /// # Errors
    ///
    /// Never for a suite that was opened: each query has a right document.
    fn ranked(&self, encoder: &MiniLmEncoder) -> Result<SuiteResult, Error> {
        let texts = &self.0;
        let documents = encoder.compared(&texts.document_ids);
        let queries = texts.queries();
        let mut golds = Vec::with_capacity(queries.len());
        let mut predictions = Vec::with_capacity(queries.len());
        let vectors = encoder.compared(&texts.query_ids);
        for (query, vector) in vectors.iter().enumerate() {
            let scores = scores(&documents, vector);
            let gold = texts.relevant(query);
            golds.push(ranked_gold(&scores, &gold)?);
            predictions.push(RetrievalPrediction {
                query: queries[query].clone(),
                gold,
                ranked: highest(&scores, SHOWN),
            });
        }
        let report = RetrievalReport::new(&golds)?;
        let ceilings = self.ceilings()?;
        let result = SuiteResult {
            metrics: named_means(Suite::of(&SUITE), SUITE.metrics, |name| report.value(name)),
            files: report_files(&report, &predictions)?,
            table: retrieval_table(&[("this run", &report)]),
            by_file: None,
            notes: Vec::new(),
            warnings: Vec::new(),
        };
        result.with_ceilings(&SUITE, &ceilings)
    }

    /// What the ranking scores that has all right documents of each query first.
    fn ceilings(&self) -> Result<Vec<Ceiling>, Error> {
        let texts = &self.0;
        let n_documents = texts.document_ids.texts.len();
        let perfect = (0..texts.queries().len()).map(|query| {
            let gold = texts.relevant(query);
            let mut scores = vec![0.0; n_documents];
            for &document in &gold {
                scores[document] = 1.0;
            }
            ranked_gold(&scores, &gold)
        });
        let perfect = perfect.collect::<Result<Vec<_>, _>>()?;
        let report = RetrievalReport::new(&perfect)?;
        Ok(SUITE.ceilings(|name| report.value(name)))
    }
}

impl LoadedSuite for RetrievalSuite {
    fn suite(&self) -> Suite {
        Suite::of(&SUITE)
    }

    fn n_samples(&self) -> usize {
        self.0.queries().len()
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
