//! Scores questions about tool outputs, answered by a model or by code that it writes, with the
//! metrics of "How Good Are LLMs at Processing Tool Outputs?".
//!
//! A row is a question about a JSON response, with its answer. A model is prompted in one of eight
//! settings ([`Setting`]). Its answer, or the result of its function, is compared with the gold
//! answer by the metric of the question. Exact match, contains and the judge are the paper's
//! metrics. Exact match with strict numbers is our own metric, because the published number match
//! can be gamed. The paper's data and prompts have no licence, so users must provide them. Our own
//! prompts are a replacement.

mod answers;
mod classifier;
mod code;
mod error;
mod judge;
mod operations;
mod predictions;
mod projection;
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
pub use classifier::{ClassifierReport, ClassifierScores, PARSING_ERROR, QuestionClassifier};
pub use code::{
    CODE_EXECUTION_ERROR, CodeFailure, CodeRule, CodeRunner, ExtractedCode, extract_code,
};
pub use error::ToolQaError;
pub use judge::{judge_answers, judge_verdict, n_neither};
pub use predictions::ToolQaPrediction;
pub use projection::project_to_keys;
#[cfg(test)]
pub(crate) use prompt_texts::built_in_text;
pub use prompts::{PromptOptions, PromptSet, ResponseText};
pub use report::{
    AnswerStatus, RoutedAs, ScoredAnswer, ToolQaNumbers, ToolQaReport, ToolQaScore, toolqa_table,
};
pub use rows::{AnswerFacts, TaskType, ToolQaRow, ToolResponse, ToolResponses, read_questions};
pub use run::{ToolQaRun, ToolQaSample};
pub use schema::infer_schema;
pub use schemas::Schemas;
pub use score_predictions::{ScoreOptions, gold_numbers, score_predictions};
pub use setting::{Routes, Setting, SettingChoice};
pub use suite::SUITE;
