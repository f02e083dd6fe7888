//! Scores GOAT: compares predicted calls and final answers with the gold ones, as in the paper.
//!
//! Selection accuracy (SA) compares the sets of function names. Invocation accuracy (IA) compares
//! the sets of names with arguments. Both use Jaccard similarity (GOAT, section 4.2; Wang et al.
//! 2024a). The module also has RestBench's path metrics, API-Bank's correctness and both variants
//! of ROUGE-L.
//!
//! Arguments are compared by meaning (`"53"` equals 53, whitespace is ignored), because documents
//! and answers mix these notations. [`ArgumentEquality::Strict`] compares plain JSON. Success is
//! judged by a model at an endpoint ([`judge_samples`](crate::judge_samples)). Without a judge,
//! success depends on the gold facts if they are known ([`answer_holds_facts`]).

mod api_bank;
mod api_bank_report;
mod endpoints;
mod facts;
mod invocations;
mod judge;
mod leaf_errors;
mod llm_judge;
mod operations;
mod paths;
mod report;
mod restbench;
mod rouge;
mod subsequence;
mod suite;

use tooltune_agents::Outcome;

use crate::is_cut;

pub use api_bank::{ApiBankCall, ApiBankSample, api_bank_correctness, api_bank_sample_accuracy};
pub use api_bank_report::{ApiBankReport, ApiBankScore, api_bank_table};
pub use endpoints::{Endpoints, collapse_blanks};
pub use facts::answer_holds_facts;
pub use invocations::{
    ArgumentEquality, Arguments, Call, args_equal, invocation_accuracy, selection_accuracy,
};
pub use judge::{judge_messages, parse_judge};
pub use leaf_errors::outcome_leaf_errors;
pub use llm_judge::JudgeSample;
pub use paths::{LengthCase, correct_path, delta_len, mean_pct, percent};
pub use report::{GoatReport, GoatSample, GoatScore, goat_table};
pub use restbench::{RestBenchReport, RestBenchScore, restbench_table};
pub use rouge::{rouge_l_apibank, rouge_l_plain};
pub use suite::{APIBANK, RESTBENCH, SUITE};

/// Whether the loop ended with an answer that is not empty and was not cut off. Otherwise the query
/// is not solved, regardless of the judge's verdict.
pub fn is_answered(outcome: &Outcome) -> bool {
    let last = outcome.texts.last();
    let is_cut = last.is_some_and(|end| is_cut(&end.finish_reason));
    !outcome.response.trim().is_empty() && !is_cut
}

/// An error that prevents scoring. A bad prediction is never an error: it scores zero.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GoatError {
    /// A gold path is empty, or there is no gold path.
    #[error("the gold path is empty; provide at least one call")]
    EmptyGold,
    /// A data set without samples has no mean.
    #[error("no samples to report; provide at least one")]
    NoSamples,
}
