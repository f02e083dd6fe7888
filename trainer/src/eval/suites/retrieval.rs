//! The `retrieval` suite: ranks all documents for each query and measures the ranks of relevant
//! ones.

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
use crate::eval::report_files::{PredictionLines, report_files};
use crate::retriever::Alone;

/// The lines of `predictions.jsonl`.
const LINES: PredictionLines = PredictionLines {
    suite: &SUITE,
    kind: "ranking",
};

/// Number of ranked documents shown per prediction.
const SHOWN: usize = 10;

pub(super) static KIND: SuiteKind = SuiteKind {
    info: &SUITE,
    open: |suite_context| {
        Ok(Box::new(RetrievalSuite(RankedTexts::open(
            suite_context.config,
        )?)))
    },
    change: None,
};

/// Queries with their relevant documents, among all documents.
#[derive(Debug)]
struct RetrievalSuite(RankedTexts);

/// The result of one query; a line of `predictions.jsonl`.
#[derive(Debug, Clone, Serialize)]
struct RetrievalPrediction {
    /// The query.
    query: String,
    /// Indices of its relevant documents.
    gold: Vec<usize>,
    /// Indices of the highest-ranked documents, best first.
    ranked: Vec<usize>,
}

impl RetrievalSuite {
    /// Ranks all documents for each query with an encoder that has the config's tokenizer.
    ///
    /// # Errors
    ///
    /// Never for an opened suite: each query has a relevant document.
    fn rank_documents(&self, encoder: &MiniLmEncoder) -> Result<SuiteResult, Error> {
        let texts = &self.0;
        let documents = encoder.comparison_embeddings(&texts.document_ids, &mut Alone)?;
        let queries = texts.queries();
        let mut golds = Vec::with_capacity(queries.len());
        let mut predictions = Vec::with_capacity(queries.len());
        let vectors = encoder.comparison_embeddings(&texts.query_ids, &mut Alone)?;
        for (query, vector) in vectors.iter().enumerate() {
            let scores = scores(&documents, vector);
            let gold = texts.relevant_documents(query);
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
            metrics: named_means(Suite::from_info(&SUITE), SUITE.metrics, |name| {
                report.value(name)
            }),
            files: report_files(LINES, &report, &predictions)?,
            table: retrieval_table(&[("this run", &report)]),
            by_file: None,
            notes: Vec::new(),
            warnings: Vec::new(),
        };
        result.with_ceilings(&SUITE, &ceilings)
    }

    /// The scores of a ranking with all relevant documents first.
    fn ceilings(&self) -> Result<Vec<Ceiling>, Error> {
        let texts = &self.0;
        let n_documents = texts.document_ids.texts.len();
        let perfect = (0..texts.queries().len()).map(|query| {
            let gold = texts.relevant_documents(query);
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
        Suite::from_info(&SUITE)
    }

    fn remarks(&self) -> Vec<String> {
        vec![self.0.line()]
    }

    fn n_samples(&self) -> usize {
        self.0.queries().len()
    }

    fn evaluate(&self, context: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        let retriever = context.retriever.ok_or_else(no_retriever)?;
        self.rank_documents(retriever.encoder).map(Some)
    }

    fn score_saved(&self, _: &Path, _: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        Err(Error::Usage(
            "--predictions does not apply to the suite retrieval; omit it".to_string(),
        ))
    }
}
