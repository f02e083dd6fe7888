//! Scores GOAT: predicted calls and final answers beside the gold ones, as in the paper.
//!
//! Selection accuracy (SA) compares the sets of function names, invocation accuracy (IA) those of
//! names with arguments, both as Jaccard similarities (GOAT, section 4.2; Wang et al. 2024a).
//! RestBench's path measures, API-Bank's correctness and both readings of ROUGE-L are here too.
//! The decision to question: arguments are equal by meaning (`"53"` is 53, blanks do not count),
//! because documents and answers of this field mix the spellings; [`ArgumentEquality::Strict`]
//! compares plain JSON.
//! Success is judged by a model behind an endpoint ([`judge_samples`](crate::judge_samples)) or,
//! where the gold facts are known, without one ([`answer_holds_facts`]).

mod api_bank;
mod api_bank_report;
mod endpoints;
mod facts;
mod invocations;
mod judge;
mod llm_judge;
mod operations;
mod paths;
mod report;
mod restbench;
mod rouge;
mod subsequence;
mod suite;

pub use api_bank::{ApiBankCall, ApiBankSample, api_bank_correctness, api_bank_sample_accuracy};
pub use api_bank_report::{ApiBankReport, ApiBankScore, api_bank_table};
pub use endpoints::{Endpoints, collapse_blanks};
pub use facts::answer_holds_facts;
pub use invocations::{
    ArgumentEquality, Arguments, Call, args_equal, invocation_accuracy, selection_accuracy,
};
pub use judge::{judge_messages, parse_judge};
pub use llm_judge::JudgeSample;
pub use paths::{LengthCase, correct_path, delta_len, mean_pct, percent};
pub use report::{GoatReport, GoatSample, GoatScore, goat_table};
pub use restbench::{RestBenchReport, RestBenchScore, restbench_table};
pub use rouge::{rouge_l_apibank, rouge_l_plain};
pub use suite::{APIBANK, RESTBENCH, SUITE};

/// Why there is no score. A bad prediction is never an error: it scores zero.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GoatError {
    /// A gold path, or every gold path, has no call to be found.
    #[error("the gold path is empty; give at least one call")]
    EmptyGold,
    /// A data set without samples has no mean.
    #[error("there is no sample to report; give at least one")]
    NoSamples,
}
