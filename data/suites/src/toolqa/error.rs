//! What can be wrong with the files of the suite, with predictions, and with running their code.

use tooltune_agents::truncation::FilterError;
use tooltune_rows::tools::ToolsError;

/// Why there are no rows, no prompts or no scores. A bad prediction is never an error: it is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolQaError {
    /// A file, or one line of it, cannot be read.
    #[error(transparent)]
    File(#[from] ToolsError),

    /// A field holds a text that is none of its choices.
    #[error("{place}: {field} is {found:?}{hint}; give one of {known}")]
    UnknownChoice {
        /// `file:line`.
        place: String,
        /// Its name.
        field: &'static str,
        /// What is there.
        found: String,
        /// `, did you mean "..."?`, or empty.
        hint: String,
        /// The choices.
        known: String,
    },

    /// Two lines have one id.
    #[error("{place}: {field} {id:?} stands at {first} already; ids must differ")]
    DuplicateId {
        /// `file:line` of the second.
        place: String,
        /// Name of the id.
        field: &'static str,
        /// The id.
        id: String,
        /// `file:line` of the first.
        first: String,
    },

    /// A question is about a response that no file holds.
    #[error("{place}: no response has the response_id {id:?}; give the file that holds it")]
    UnknownResponse {
        /// `file:line` of the question.
        place: String,
        /// The id.
        id: String,
    },

    /// A question and its response name different endpoints.
    #[error("{place}: endpoint is {found:?}, but its response {id:?} is of {endpoint:?}")]
    OtherEndpoint {
        /// `file:line` of the question.
        place: String,
        /// The response's id.
        id: String,
        /// The question's endpoint.
        found: String,
        /// The response's endpoint.
        endpoint: String,
    },

    /// The released schemas lack one.
    #[error("no schema for endpoint {endpoint:?}; add {endpoint}.json to the folder of schemas")]
    MissingSchema {
        /// The endpoint.
        endpoint: String,
    },

    /// The response of a question cannot be filtered for its prompt.
    #[error(
        "question {uid:?}: its response cannot be shortened: {source}; fix the expression, or have \
         it ask first whether the part is there: a && length(a)"
    )]
    Filter {
        /// The row.
        uid: String,
        /// What is wrong.
        source: FilterError,
    },

    /// A file of prompts cannot be used.
    #[error("{place}: {reason}")]
    Prompts {
        /// The file.
        place: String,
        /// What is wrong and how to fix it.
        reason: String,
    },

    /// A prediction belongs to no row.
    #[error("no question has the uid {uid:?}; score predictions with their own questions")]
    UnknownUid {
        /// The prediction's uid.
        uid: String,
    },

    /// Rows have no prediction.
    #[error(
        "{n_missing} of {n} questions have no prediction, {uid:?} is the first; \
         a model without output has the prediction null"
    )]
    MissingPredictions {
        /// The first row without one.
        uid: String,
        /// Rows without one.
        n_missing: usize,
        /// All rows.
        n: usize,
    },

    /// There is nothing to score, or nothing that has any output.
    #[error("no question has an answer or a model output; there is nothing to report")]
    NoSamples,

    /// Code was written and nothing can run it.
    #[error("the setting {setting} needs code to be run; allow it, or score another setting")]
    NoRunner {
        /// Name of the setting.
        setting: &'static str,
    },

    /// The runner cannot run code.
    #[error("question {uid:?}: code cannot be run: {reason}")]
    Runner {
        /// The row.
        uid: String,
        /// What the runner says.
        reason: String,
    },

    /// The caller ended the work.
    #[error("the scoring was stopped after {n_done} of {n} questions")]
    Stopped {
        /// Questions scored.
        n_done: usize,
        /// All questions.
        n: usize,
    },
}
