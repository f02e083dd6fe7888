//! The outcome of a loop, which is stored with the predictions and scored.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::method::{ExampleKind, Method};

/// The outcome of a loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The prompting method.
    pub method: Method,
    /// The planned names, for the method with plans.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<String>,
    /// The sub-queries, for methods with decomposition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sub_queries: Vec<String>,
    /// Names of the calls in order, including failed ones; calls without a name are omitted.
    pub path: Vec<String>,
    /// All attempted calls, in order.
    pub calls: Vec<AttemptedCall>,
    /// The final answer; empty if the loop ended without one.
    pub response: String,
    /// The retrievals, in order.
    pub retrievals: Vec<Retrieval>,
    /// Model outputs that could not be used, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// Why the loop ended.
    pub end: EndReason,
    /// How each text of the model ended, in order, if known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<TextEnd>,
}

impl Outcome {
    /// An outcome without texts and calls, which ends with an empty answer.
    pub(crate) fn empty(method: Method) -> Self {
        Self {
            method,
            plan: Vec::new(),
            sub_queries: Vec::new(),
            path: Vec::new(),
            calls: Vec::new(),
            response: String::new(),
            retrievals: Vec::new(),
            failures: Vec::new(),
            end: EndReason::Answered,
            texts: Vec::new(),
        }
    }
}

/// How a generated text ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextEnd {
    /// `stop`, `length`, or another finish reason of the generator; empty if unknown.
    pub finish_reason: String,
    /// Number of tokens; 0 if unknown.
    pub n_tokens: usize,
}

/// A call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptedCall {
    /// Name of the API, if the model wrote or planned one.
    pub name: Option<String>,
    /// The arguments; `None` if they could not be parsed.
    pub arguments: Option<Map<String, Value>>,
    /// The raw text, if no call could be parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
    /// The returned value; null if the API was not called.
    pub output: Value,
    /// Why the call failed, if it did.
    pub exception: Option<String>,
}

/// A retrieval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retrieval {
    /// The query or sub-query.
    pub text: String,
    /// Names of the shown APIs, in order.
    pub documents: Vec<String>,
}

/// A text that could not be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The expected kind of text.
    pub kind: ExampleKind,
    /// What is wrong with it.
    pub reason: String,
    /// The first 500 characters of the text.
    pub text: String,
}

/// Why a loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndReason {
    /// The model gave its answer.
    Answered,
    /// The step limit was reached.
    StepLimit,
    /// The caller's time limit was reached.
    Deadline,
}
