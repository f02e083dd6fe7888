//! One folder for each benchmark: its rules of scoring, from texts to numbers.
//!
//! Nothing here reads a model of ours or generates its text: the same functions score our own
//! generations, those of a server and those in a file. Judges are asked over HTTP.
//!
//! ```
//! use tooltune_suites::{SuiteInfo, lower_is_better};
//!
//! let goat = SuiteInfo::named("goat").expect("a suite");
//! assert_eq!(goat.default_metric, "goat.ia");
//! assert!(lower_is_better("goat.delta_len"));
//! ```

mod bootstrap;
pub mod calls;
mod ceiling;
#[cfg(test)]
mod documents;
mod encoder;
pub mod goat;
#[cfg(test)]
mod guide;
mod llm_judge;
pub mod nestful;
pub mod operations;
mod paired;
mod python_calls;
pub mod ranking;
mod registry;
pub mod retrieval;
mod shortening;
pub mod slot;
pub mod toolqa;

pub use bootstrap::Estimate;
pub use ceiling::{Ceiling, ceilings};
pub use encoder::{Embeddings, EncoderError, HashEncoder, SentenceEncoder};
pub use llm_judge::{
    JudgeError, JudgeOptions, JudgeVerdict, Judged, judge_samples, n_unanswered, n_unparsed,
};
pub use paired::{
    Flip, PairedComparison, PairedError, PairedOptions, SampleScore, paired_bootstrap,
};
pub use registry::{
    Needs, OwnFile, OwnFileInput, RowsOf, SUITES, SampleMeasure, SampleScores, SuiteInfo,
    lower_is_better, metric_words,
};
pub use shortening::{Reduction, Shortening, reduce};
