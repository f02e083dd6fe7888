//! Scores rankings beside the documents that should stand in them.
//!
//! Definitions are those of sentence-transformers' `InformationRetrievalEvaluator`, so that numbers
//! of the two can stand in one table; Recall@GT, which it lacks, is GOAT's (Table 6).
//! The decision to question: only the first occurrence of a document in a ranking counts, and only
//! distinct gold documents, so that an index with duplicates cannot score above 1.
//! Where scores are known, equal ones are ties, and a measure is its expected value over the orders
//! of tied documents; the evaluator keeps the order of its search there, so that ties are won or
//! lost by the place in an index.

mod ranked_gold;
mod report;

pub use ranked_gold::{RankedGold, RetrievalError};
pub use report::{RetrievalMetrics, RetrievalReport, retrieval_table};
