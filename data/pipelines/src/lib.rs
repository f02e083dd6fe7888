//! Data sets written by a language model: stages over a shared journal, and the pipelines built
//! from them.
//!
//! A stage turns items into requests, obtains the replies, and keeps what it can parse:
//! [`Run::ask`] and [`Run::stage`]. Every reply is on disk before it is used, so an interrupted
//! pipeline continues without repeating a request. Its output does not depend on interruptions or
//! on the number of concurrent requests. Replies come from a [`Generator`]: a server in this crate,
//! a local model in the trainer.
//!
//! ```
//! use tooltune_pipelines::reply::json_value;
//!
//! // Models wrap the requested JSON in prose and code fences.
//! let reply = "Sure!\n```json\n{\"supported\": true}\n```";
//! assert_eq!(json_value(reply).unwrap()["supported"], true);
//! ```

mod api_calls;
mod ask;
pub mod budgets;
mod endpoint;
mod error;
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
pub use ask::{ItemPrompt, NO_REPLY, RETRY_PROMPT, StagePlan, UNREADABLE};
pub use endpoint::{EndpointGenerator, GeneratorOptions};
pub use error::PipelineError;
pub use generator::{
    Generator, GeneratorFailure, ModelInfo, Prompt, PromptResult, Reply, Unanswered,
    estimated_tokens,
};
pub use journal::{Entry, JOURNAL_FILE, Journal};
pub use prompts::{PromptFile, Prompts};
pub use report::{Dropped, REPORT_FILE, Report, RequestCounts, StageReport};
pub use run::{
    Limits, Progress, Run, RunContext, RunInput, Stage, StageResult, digest_of, read_items,
    read_report,
};
