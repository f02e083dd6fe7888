//! Scores rankings against their gold documents.
//!
//! The definitions are those of sentence-transformers' `InformationRetrievalEvaluator`, so that
//! results are comparable with it. It does not have Recall@GT, which is from GOAT (Table 6).
//!
//! Only the first occurrence of a document in a ranking counts, and only distinct gold documents
//! count, so an index with duplicates cannot score above 1. If scores are known, equal scores are
//! ties, and a measure is its expected value over the orders of tied documents. The evaluator keeps
//! the search order in that case, so the position in the index decides ties.

mod ranked_gold;
mod report;

pub use ranked_gold::{RankedGold, RetrievalError};
pub use report::{RetrievalMetrics, RetrievalReport, retrieval_table};
