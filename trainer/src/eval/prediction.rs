//! A completion of a row, as a line of `predictions.jsonl`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tooltune_suites::is_cut;

use super::generator::Completion;
use super::held::Rewritten;

/// A completion; a line of `predictions.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Row as `file:line`.
    pub id: String,
    /// Text of the completion, without the stop token.
    pub prediction: String,
    /// `stop`, `length` if cut off by `max_new_tokens`, or another value of
    /// [`Completion::finish_reason`].
    #[serde(default)]
    pub finish_reason: String,
    /// Number of tokens.
    #[serde(default)]
    pub n_tokens: usize,
    /// See [`Completion::without_text`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_text: Option<String>,
    /// See [`Completion::error`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// See [`Completion::tool_calls`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Value>,
    /// See [`Completion::rewritten`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewritten: Option<Rewritten>,
    /// Earlier completions that were rejected, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_tries: Vec<FailedTry>,
}

/// A rejected completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailedTry {
    /// Text of the completion.
    pub prediction: String,
    /// See [`Completion::finish_reason`].
    #[serde(default)]
    pub finish_reason: String,
    /// Number of tokens.
    #[serde(default)]
    pub n_tokens: usize,
    /// See [`Completion::tool_calls`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Value>,
    /// The messages after the completion.
    pub feedback: Vec<String>,
}

impl FailedTry {
    /// A completion that was rejected with these messages.
    pub fn new(completion: Completion, feedback: Vec<String>) -> Self {
        Self {
            prediction: completion.text,
            finish_reason: completion.finish_reason,
            n_tokens: completion.n_tokens,
            tool_calls: completion.tool_calls,
            feedback,
        }
    }
}

/// A completion with its scores; a line of `predictions.jsonl`.
#[derive(Debug, Serialize)]
pub struct ScoredPrediction<'a, P, G, S> {
    /// The completion.
    #[serde(flatten)]
    pub prediction: &'a P,
    /// The prompt, or its end if it repeats earlier turns.
    pub prompt: String,
    /// The reference.
    pub gold: G,
    /// The scores.
    pub score: S,
}

impl Prediction {
    /// The prediction for the row with this id.
    pub fn new(id: String, completion: Completion) -> Self {
        Self {
            id,
            prediction: completion.text,
            finish_reason: completion.finish_reason,
            n_tokens: completion.n_tokens,
            without_text: completion.without_text,
            error: completion.error,
            tool_calls: completion.tool_calls,
            rewritten: completion.rewritten,
            failed_tries: Vec::new(),
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
            rewritten: saved.rewritten,
        }
    }
}

impl Prediction {
    /// Whether the completion was cut off or a server did not answer. It is then scored as wrong.
    pub fn is_cut(&self) -> bool {
        is_cut(&self.finish_reason) || self.error.is_some()
    }

    /// The finish reason; `error` if a server did not answer.
    pub fn end_reason(&self) -> &str {
        match &self.error {
            Some(_) => "error",
            None => &self.finish_reason,
        }
    }

    /// The text to score; empty if the completion was cut off.
    pub fn whole_text(&self) -> &str {
        if self.is_cut() { "" } else { &self.prediction }
    }

    /// Parses a line of a predictions file.
    ///
    /// # Errors
    ///
    /// The line lacks a field, or a field has the wrong type.
    pub fn parse_line(line: Value) -> Result<Self, String> {
        serde_json::from_value(line)
            .map_err(|error| format!("{error}; each line is {{\"id\": ..., \"prediction\": ...}}"))
    }
}
