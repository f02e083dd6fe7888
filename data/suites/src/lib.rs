//! Scoring rules of the benchmarks, one folder per benchmark.
//!
//! No function here loads a model or generates text. The same functions score completions of local
//! models, of a server, or from a file. LLM judges are called over HTTP.
//!
//! ```
//! use tooltune_suites::{SuiteInfo, lower_is_better};
//!
//! let goat = SuiteInfo::from_name("goat").expect("a suite");
//! assert_eq!(goat.default_metric, "goat.ia");
//! assert!(lower_is_better("goat.delta_len"));
//! ```

mod bootstrap;
pub mod budgets;
pub mod calls;
mod ceiling;
#[cfg(test)]
mod documents;
mod encoder;
mod finish;
pub mod goat;
mod grouping;
#[cfg(test)]
mod guide;
mod intervals;
pub mod leaf_errors;
mod leaves;
mod llm_judge;
mod markdown;
mod named_metrics;
pub mod nestful;
pub mod operations;
mod paired;
mod python_calls;
pub mod ranking;
mod registry;
pub mod retrieval;
mod row_suite;
mod shortening;
pub mod slot;
pub mod toolqa;

pub use bootstrap::Estimate;
pub(crate) use calls::without_reasoning;
pub use ceiling::{Ceiling, ceilings};
pub use encoder::{Embeddings, EncoderError, HashEncoder, SentenceEncoder};
pub use finish::is_cut;
pub use grouping::{
    GroupKey, GroupMeans, UnknownGroupKey, groups_as_json, groups_table, sort_groups,
};
pub use intervals::few_samples;
pub use llm_judge::{
    JudgeError, JudgeOptions, JudgeVerdict, JudgedItem, judge_samples, n_unanswered, n_unparsed,
};
pub use nestful::mathqa;
pub use paired::{Flip, PairedComparison, PairedError, PairedOptions, SampleScore, compare_pairs};
pub use registry::{
    LineFields, RowSource, SUITE_FIELD, SampleMeasure, SampleScores, SuiteFile, SuiteFileInput,
    SuiteInfo, SuiteNeeds, TYPE_FIELD, greater_is_better, lower_is_better, plain_metric_name,
};
pub use row_suite::{RowError, RowReport, RowSuite, read_rows, score_operation};
pub use shortening::{Reduction, Shortening, reduce};

/// All suites, in display order. The first suite is the default of an evaluation.
pub static SUITES: &[&SuiteInfo] = &[
    &slot::SUITE,
    &calls::SUITE,
    &goat::SUITE,
    &retrieval::SUITE,
    &nestful::SUITE,
    &toolqa::SUITE,
    &goat::RESTBENCH,
    &goat::APIBANK,
];
