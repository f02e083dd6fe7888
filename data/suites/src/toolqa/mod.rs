//! Questions about what a tool returned, answered by a model or by code that it wrote, to the
//! accuracies of "How Good Are LLMs at Processing Tool Outputs?".
//!
//! A row is a question about a JSON response with its answer. A model is asked in one of eight
//! settings ([`Setting`]); what it answers, or what its function returns, is compared with the gold
//! by the metric of the question. Exact match, contains and a judge are the paper's; exact match
//! with strictly compared numbers is ours, since the published match of numbers can be gamed.
//! The data and prompts of the paper have no licence: users bring them, and our own prompts stand
//! in for the published ones.

mod answers;
mod classifier;
mod code;
mod error;
mod judge;
mod operations;
mod predictions;
mod prompt_texts;
mod prompts;
mod report;
mod rows;
mod run;
mod schema;
mod schemas;
mod score_predictions;
mod setting;
mod statistics;
mod suite;

pub use answers::{AnswerMetric, contains, exact_match, number_strict};
pub use classifier::{ClassifierReport, PARSING_ERROR};
pub use code::{
    CODE_EXECUTION_ERROR, CodeFailure, CodeRule, CodeRunner, ExtractedCode, extract_code,
};
pub use error::ToolQaError;
pub use judge::{judge_answers, judge_verdict, n_neither};
pub use predictions::{ToolQaPrediction, read_predictions};
#[cfg(test)]
pub(crate) use prompt_texts::{CLASSIFIER, JUDGE, own_text};
pub use prompts::{PromptOptions, PromptSet, ResponseText};
pub use report::{
    AnswerStatus, ScoredAnswer, ToolQaNumbers, ToolQaReport, ToolQaScore, toolqa_table,
};
pub use rows::{TaskType, ToolQaRow, ToolResponse, ToolResponses, read_questions};
pub use run::{ToolQaRun, ToolQaSample};
pub use schema::infer_schema;
pub use schemas::Schemas;
pub use score_predictions::{ScoreOptions, gold_numbers, score_predictions};
pub use setting::Setting;
pub use suite::SUITE;
