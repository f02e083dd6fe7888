//! Data sets that a language model writes: stages over one journal, and the pipelines made of them.
//!
//! A stage turns items into requests, has them answered, and keeps what it can read: [`Run::ask`]
//! and [`Run::stage`]. Every reply is on the disk before it is used, so that a pipeline that ends at
//! any moment continues without a request sent twice, and what it writes does not depend on where
//! it was interrupted or on how many requests are sent at once. What generates is a [`Generator`]:
//! a server here, a model of the trainer's there.
//!
//! ```
//! use tooltune_pipelines::reply::json_value;
//!
//! // Models wrap what they were asked for.
//! let reply = "Sure!\n```json\n{\"supported\": true}\n```";
//! assert_eq!(json_value(reply).unwrap()["supported"], true);
//! ```

mod api_calls;
mod ask;
mod endpoint;
mod error;
mod files;
mod generator;
pub mod goat;
mod journal;
mod prompts;
pub mod reply;
mod report;
mod run;
pub mod slot;

#[cfg(test)]
mod tests;

pub use api_calls::ApiCall;
pub use ask::{AGAIN_PROMPT, Asked, NO_REPLY, StagePlan, UNREADABLE};
pub use endpoint::{Asking, EndpointGenerator};
pub use error::PipelineError;
pub use files::WholeFiles;
pub use generator::{
    Came, Generator, GeneratorFailure, ModelInfo, Prompt, Reply, Unanswered, estimated_tokens,
};
pub use journal::{Entry, JOURNAL_FILE, Journal};
pub use prompts::{PromptFile, Prompts};
pub use report::{Dropped, REPORT_FILE, Report, RequestCounts, StageReport};
pub use run::{
    Limits, Made, Opening, Place, Progress, Run, Stage, digest_of, read_items, read_report,
};
