//! A text that a model wrote for a row, as a line of `predictions.jsonl`.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_rows::tools::JsonLines;

use super::generator::Completion;
use crate::error::Error;

/// One completion as it was generated; a line of `predictions.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The row as `file:line`.
    pub id: String,
    /// The completion's text, without the stop token.
    pub prediction: String,
    /// `stop`, `length` where `max_new_tokens` cut it, or as [`Completion::finish_reason`] says.
    #[serde(default)]
    pub finish_reason: String,
    /// Tokens of the completion.
    #[serde(default)]
    pub n_tokens: usize,
    /// As [`Completion::without_text`] says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
    /// As [`Completion::error`] says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// As [`Completion::tool_calls`] says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Value>,
}

impl Prediction {
    /// Of the row with this id.
    pub fn new(id: String, written: Completion) -> Self {
        Self {
            id,
            prediction: written.text,
            finish_reason: written.finish_reason,
            n_tokens: written.n_tokens,
            without_text: written.without_text,
            error: written.error,
            tool_calls: written.tool_calls,
        }
    }
}

impl From<Prediction> for Completion {
    fn from(saved: Prediction) -> Self {
        Self {
            text: saved.prediction,
            finish_reason: saved.finish_reason,
            n_tokens: saved.n_tokens,
            without_text: saved.without_text,
            error: saved.error,
            tool_calls: saved.tool_calls,
        }
    }
}

/// The lines of a `predictions.jsonl`, whatever rows they belong to.
///
/// # Errors
///
/// A file that cannot be read, or a line that is no prediction.
pub fn read_predictions(path: &Path) -> Result<Vec<Prediction>, Error> {
    let mut predictions = Vec::new();
    for line in JsonLines::open(path)? {
        let (place, line) = line?;
        predictions.push(serde_json::from_value(line).map_err(|error| {
            Error::Usage(format!(
                "{place}: {error}; each line is {{\"id\": ..., \"prediction\": ...}}"
            ))
        })?);
    }
    Ok(predictions)
}
