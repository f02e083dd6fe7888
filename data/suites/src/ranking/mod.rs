//! Scores rankings against their gold documents.
//!
//! The definitions are the same as in sentence-transformers' `InformationRetrievalEvaluator`, so
//! that results are comparable. Recall@GT is from GOAT (Table 6) and not in the evaluator.
//!
//! Only the first occurrence of a document in a ranking counts, and only distinct gold documents
//! count, so an index with duplicates cannot score above 1. If scores are known, equal scores are
//! ties, and a measure is its expected value over the orders of tied documents. The evaluator keeps
//! the search order of tied documents, so its result depends on their positions in the index.

mod ranked_gold;
mod report;

pub use ranked_gold::{RankedGold, RetrievalError};
pub use report::{RetrievalMetrics, RetrievalReport, retrieval_table};
