//! Errors of the suite's files, predictions and code.

use tooltune_agents::truncation::FilterError;
use tooltune_apis::ToolsError;

use crate::row_suite::RowError;

/// Why there are no rows, prompts or scores. A bad prediction is never an error: it is scored as
/// wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolQaError {
    /// A file or one of its lines cannot be read.
    #[error(transparent)]
    File(#[from] ToolsError),

    /// The rows of a file cannot be read.
    #[error(transparent)]
    Rows(#[from] RowError),

    /// A field has an unknown value.
    #[error("{place}: {field} is {found:?}{hint}; use one of {known}")]
    UnknownChoice {
        /// `file:line`.
        place: String,
        /// Name of the field.
        field: &'static str,
        /// The actual value.
        found: String,
        /// `, did you mean "..."?`, or empty.
        hint: String,
        /// The allowed values.
        known: String,
    },

    /// A question refers to a missing response.
    #[error("{place}: no response has the response_id {id:?}; pass the file that contains it")]
    UnknownResponse {
        /// `file:line` of the question.
        place: String,
        /// The id.
        id: String,
    },

    /// A question and its response have different endpoints.
    #[error(
        "{place}: endpoint is {found:?}, but its response {id:?} has {endpoint:?}; correct one of them"
    )]
    EndpointDiffers {
        /// `file:line` of the question.
        place: String,
        /// Id of the response.
        id: String,
        /// Endpoint of the question.
        found: String,
        /// Endpoint of the response.
        endpoint: String,
    },

    /// A schema is missing.
    #[error("no schema for endpoint {endpoint:?}; add {endpoint}.json to the schema folder")]
    MissingSchema {
        /// The endpoint.
        endpoint: String,
    },

    /// The response of a question cannot be filtered for its prompt.
    #[error(
        "question {uid:?}: cannot shorten its response: {source}; fix the expression, or \
         guard the missing part: a && length(a)"
    )]
    Filter {
        /// Id of the question.
        uid: String,
        /// The error of the filter.
        source: FilterError,
    },

    /// A prompt file is invalid.
    #[error("{place}: {reason}")]
    Prompts {
        /// The file.
        place: String,
        /// What is wrong and how to fix it.
        reason: String,
    },

    /// A prediction has no question.
    #[error("no question has the uid {uid:?}; pass the questions that the predictions belong to")]
    UnknownUid {
        /// The prediction's uid.
        uid: String,
    },

    /// Questions without a prediction.
    #[error(
        "{n_missing} of {n} questions have no prediction, the first is {uid:?}; \
         if the model wrote nothing for a question, write the prediction null"
    )]
    MissingPredictions {
        /// The first question without a prediction.
        uid: String,
        /// Number of questions without a prediction.
        n_missing: usize,
        /// Number of questions.
        n: usize,
    },

    /// No question has an output.
    #[error("no question has a model output, so there is nothing to report; add predictions")]
    NoSamples,

    /// The output is code, but there is no code runner.
    #[error(
        "the ToolQA setting {setting} requires running code; set eval.toolqa.run_code = true, or \
         score another ToolQA setting"
    )]
    NoRunner {
        /// Name of the prompt setting.
        setting: &'static str,
    },

    /// A prediction has no setting, although settings were chosen by question.
    #[error(
        "the prediction of {uid:?} has no `setting`, which chooses whether it is code; score the \
         predictions.jsonl of an evaluation with the setting routed, or set eval.toolqa.setting"
    )]
    NoSetting {
        /// Id of the question.
        uid: String,
    },

    /// A question without `read_keys` cannot be projected.
    #[error(
        "question {uid:?} has no read_keys, which eval.toolqa.oracle_projection needs; use rows of \
         `tooltune data synth toolqa`"
    )]
    NoReadKeys {
        /// Id of the question.
        uid: String,
    },

    /// The runner cannot run code.
    #[error("question {uid:?}: cannot run code: {reason}")]
    Runner {
        /// Id of the question.
        uid: String,
        /// The error of the runner.
        reason: String,
    },

    /// The caller stopped the work.
    #[error("scoring stopped after {n_done} of {n} questions")]
    Stopped {
        /// Number of scored questions.
        n_done: usize,
        /// Number of questions.
        n: usize,
    },
}
